//! The receiving side: each flow in its own process.

use std::io::{self, ErrorKind, Read};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::Duration;

use fairweir_core::units::Span;
use fairweir_scenario::Kind;
use fairweir_scenario::app::Outcome;

use crate::clock::Clock;
use crate::job::Job;

mod driver;
#[cfg(feature = "tls")]
mod quic;

use driver::Driver;
#[cfg(all(test, feature = "tls"))]
pub(super) use quic::receive as receive_quic;

const BUFFER: usize = 256 * 1024;
/// How long a read may block before the receiver looks at the clock again.
const READ_TIMEOUT: Duration = Duration::from_millis(50);
/// How much earlier than the flow's stop the server may close, since it reads the clock itself.
const CLOSE_EARLY_MAX: Span = Span::millis(50);
/// Interval at which a receiver of datagrams announces itself, until it hears from the server.
const HELLO_INTERVAL: Span = Span::millis(500);

pub(super) fn main() -> io::Result<()> {
    let job: Job = super::read_job()?;
    let clock = super::read_clock()?;
    clock.sleep_until(job.start());
    let outcome = match job.flow.kind {
        Kind::Bulk | Kind::OnOff(_) => {
            receive_all(&job, clock)?;
            Outcome::Nothing
        }
        Kind::Udp => {
            receive_datagrams(&job, clock)?;
            Outcome::Nothing
        }
        #[cfg(not(feature = "tls"))]
        Kind::Quic => return Err(io::Error::other("built without QUIC")),
        #[cfg(feature = "tls")]
        Kind::Quic => {
            quic::receive(&job, clock)?;
            Outcome::Nothing
        }
        Kind::Ping { .. } | Kind::Video(_) | Kind::Web(_) | Kind::Short(_) => {
            Driver::new(&job, clock).play()?
        }
        Kind::Browser(_) => return Err(io::Error::other("a browser receives its sites itself")),
    };
    println!("{}", serde_json::to_string(&outcome)?);
    Ok(())
}

fn receive_all(job: &Job, clock: Clock) -> io::Result<()> {
    let results = thread::scope(|scope| {
        let receive = || scope.spawn(|| receive(job, clock));
        let threads: Vec<_> = (0..job.flow.connections).map(|_| receive()).collect();
        threads.into_iter().map(|t| t.join()).collect::<Vec<_>>()
    });
    for result in results {
        result.map_err(|_| io::Error::other("a receiver panicked"))??;
    }
    Ok(())
}

/// Receives on one connection until the flow stops; closing it then tells the sender.
fn receive(job: &Job, clock: Clock) -> io::Result<()> {
    let mut stream = TcpStream::connect(job.server)?;
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    let mut buffer = vec![0; BUFFER];
    while clock.now() < job.stop() {
        match stream.read(&mut buffer) {
            Ok(0) if clock.now() + CLOSE_EARLY_MAX >= job.stop() => break,
            Ok(0) => return Err(io::Error::other("the server closed too early")),
            Ok(_) => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Announces itself, and receives datagrams until the flow stops.
fn receive_datagrams(job: &Job, clock: Clock) -> io::Result<()> {
    let socket = udp_socket(job.server)?;
    socket.set_read_timeout(Some(READ_TIMEOUT))?;
    let mut buffer = vec![0; usize::from(u16::MAX)];
    let (mut is_known, mut hello_at) = (false, job.start());
    while clock.now() < job.stop() {
        if !is_known && clock.now() >= hello_at {
            socket.send(b"hello")?;
            hello_at = clock.now() + HELLO_INTERVAL;
        }
        match socket.recv(&mut buffer) {
            Ok(_) => is_known = true,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// A UDP socket for datagrams from one server.
fn udp_socket(server: SocketAddr) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(any(server))?;
    socket.connect(server)?;
    Ok(socket)
}

/// The unspecified address in the family of `server`.
fn any(server: SocketAddr) -> SocketAddr {
    match server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}
