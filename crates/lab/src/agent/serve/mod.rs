//! The sending side: every server of a scenario in one process.
//!
//! | module | the flows that it serves |
//! |---|---|
//! | here | `bulk`: sends without a request; `ping`: echoes |
//! | `respond` | `video`, `web`, `short`: writes what is requested |
//! | `app` | `on-off`, `udp`: the simulator's application decides when to send |
//! | `quic` | `quic` |
//! | `source` | flows with a demand |

use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fairweir_linux::pacing;
use fairweir_scenario::Kind;
use socket2::{Domain, Socket, Type};

use crate::clock::Clock;
use crate::job::{Job, Ready};

mod app;
#[cfg(feature = "tls")]
mod quic;
mod respond;
mod source;

#[cfg(all(test, feature = "tls"))]
pub(super) use quic::Identity;
#[cfg(all(test, feature = "tls"))]
pub(super) use quic::serve as serve_quic;
#[cfg(test)]
pub(super) use respond::respond;
use source::{Allowance, Source, owed_max};

/// Bytes handed to the kernel per write.
const CHUNK: usize = 64 * 1024;
static PAYLOAD: [u8; CHUNK] = [0x5a; CHUNK];
/// Maximum unsent payload in the kernel, in bytes, so that a falling demand takes effect at once.
const UNSENT_MAX: u32 = 128 * 1024;
/// How long a write may block before the sender looks at the clock again.
const WRITE_TIMEOUT: Duration = Duration::from_millis(50);
const BACKLOG: i32 = 512;

pub(super) fn main() -> io::Result<()> {
    let jobs: Vec<Job> = super::read_job()?;
    #[cfg(feature = "tls")]
    let mut quic = quic::Quic::new(&jobs)?;
    #[cfg(feature = "tls")]
    let end = jobs.iter().map(Job::stop).max();
    let mut servers = Vec::new();
    for job in jobs {
        let server = match job.flow.kind {
            #[cfg(feature = "tls")]
            Kind::Quic => Server::Quic(UdpSocket::bind(job.server)?, Box::new(quic.config(&job)?)),
            _ => Server::new(&job)?,
        };
        servers.push((server, Arc::new(job)));
    }
    #[cfg(feature = "tls")]
    let certificate = quic.certificate();
    #[cfg(not(feature = "tls"))]
    let certificate = None;
    println!("{}", serde_json::to_string(&Ready { certificate })?);
    io::stdout().flush()?;
    let clock = super::read_clock()?;
    #[cfg(feature = "tls")]
    quic.bundles.begin(clock);
    let serve =
        |(server, job): (Server, Arc<Job>)| thread::spawn(move || server.serve(&job, clock));
    let threads: Vec<_> = servers.into_iter().map(serve).collect();
    #[cfg(feature = "tls")]
    if let Some(end) = end.filter(|_| !quic.bundles.is_empty()) {
        clock.sleep_until(end);
        println!("{}", serde_json::to_string(&quic.bundles.samples())?);
        io::stdout().flush()?;
    }
    if threads.is_empty() {
        // The end of standard input ends the process.
        loop {
            thread::park();
        }
    }
    for thread in threads {
        thread.join().map_err(|_| io::Error::other("a server panicked"))??;
    }
    Ok(())
}

enum Server {
    Echo(UdpSocket),
    Bulk(TcpListener),
    Responder(TcpListener),
    OnOff(TcpListener),
    Datagrams(UdpSocket),
    #[cfg(feature = "tls")]
    Quic(UdpSocket, Box<quinn::ServerConfig>),
}

impl Server {
    /// Opens the port for a job.
    fn new(job: &Job) -> io::Result<Server> {
        Ok(match job.flow.kind {
            Kind::Ping { .. } => Server::Echo(UdpSocket::bind(job.server)?),
            Kind::Udp => Server::Datagrams(UdpSocket::bind(job.server)?),
            Kind::Bulk => Server::Bulk(listen(job)?),
            Kind::OnOff(_) => Server::OnOff(listen(job)?),
            Kind::Video(_) | Kind::Web(_) | Kind::Short(_) => Server::Responder(listen(job)?),
            Kind::Browser(_) => return Err(io::Error::other("nginx serves sites")),
            Kind::Quic => return Err(io::Error::other("built without QUIC")),
        })
    }

    fn serve(self, job: &Arc<Job>, clock: Clock) -> io::Result<()> {
        match self {
            Server::Echo(socket) => echo(&socket),
            Server::Bulk(listener) => accept(&listener, job, clock, send),
            Server::Responder(listener) => accept(&listener, job, clock, respond::respond),
            Server::OnOff(listener) => app::on_off(&listener, job, clock),
            Server::Datagrams(socket) => app::datagrams(&socket, job, clock),
            #[cfg(feature = "tls")]
            Server::Quic(socket, config) => quic::serve(socket, *config, job, clock),
        }
    }
}

fn listen(job: &Job) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(job.server), Type::STREAM, None)?;
    // Accepted sockets inherit these options.
    socket.set_tcp_congestion(job.flow.congestion_control.name().as_bytes())?;
    socket.set_tcp_notsent_lowat(unsent_max(job))?;
    if job.flow.paced {
        pacing::pace(&socket)?;
    }
    socket.bind(&job.server.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Maximum unsent bytes in the kernel: less for a source whose demand may fall.
fn unsent_max(job: &Job) -> u32 {
    let lowest = job.goodputs().iter().filter_map(|(_, goodput)| *goodput).min();
    let bytes = lowest.map_or(u64::MAX, |goodput| owed_max(goodput, job.segment()));
    u32::try_from(bytes).unwrap_or(u32::MAX).min(UNSENT_MAX)
}

fn echo(socket: &UdpSocket) -> io::Result<()> {
    let mut buffer = [0; 2048];
    loop {
        let (length, from): (usize, SocketAddr) = socket.recv_from(&mut buffer)?;
        socket.send_to(&buffer[..length], from)?;
    }
}

/// Serves each connection in a separate thread.
fn accept(
    listener: &TcpListener,
    job: &Arc<Job>,
    clock: Clock,
    serve: fn(TcpStream, &Job, Clock) -> io::Result<()>,
) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        let job = Arc::clone(job);
        // The receiver ends a flow by closing, so an error while sending is normal.
        thread::spawn(move || serve(stream, &job, clock));
    }
}

fn send(mut stream: TcpStream, job: &Job, clock: Clock) -> io::Result<()> {
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let stop = job.stop();
    let mut source = Source::new(job, clock.now(), job.segment());
    loop {
        let now = clock.now();
        if now >= stop {
            return Ok(());
        }
        match source.allowance(now) {
            Allowance::Bytes(bytes) => {
                let sent = write(&mut stream, &PAYLOAD[..(bytes as usize).min(CHUNK)])?;
                source.sent(sent);
            }
            Allowance::NothingUntil(due) => clock.sleep_until(due.min(stop)),
        }
    }
}

/// Writes as much as the kernel takes within the write timeout.
fn write(stream: &mut TcpStream, payload: &[u8]) -> io::Result<u64> {
    match stream.write(payload) {
        Ok(0) => Err(ErrorKind::WriteZero.into()),
        Ok(length) => Ok(length as u64),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(0),
        Err(e) => Err(e),
    }
}
