//! The sending side: every server of a scenario in one process.

use std::io::{self, ErrorKind, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use fairweir_core::units::{Span, Time};
use socket2::{Domain, Socket, Type};

use crate::clock::Clock;
use crate::plan::Job;

/// What a sender hands to the kernel at a time.
const CHUNK: usize = 64 * 1024;
/// Unsent payload that the kernel holds, so that a demand that falls falls at once.
const UNSENT_MAX: u32 = 128 * 1024;
/// How much of a demand that could not be sent is owed: a paced source that was held up does not
/// catch up beyond that.
const OWED_MAX: Span = Span::millis(20);
/// How long a write may block before the sender looks at the clock again.
const WRITE_TIMEOUT: Duration = Duration::from_millis(50);
const BACKLOG: i32 = 512;

pub(super) fn main() -> io::Result<()> {
    let jobs: Vec<Job> = super::read_job()?;
    let mut servers = Vec::new();
    for job in jobs {
        let server = if job.ping_interval_ns.is_some() {
            Server::Echo(UdpSocket::bind(job.server)?)
        } else {
            Server::Bulk(listen(&job)?)
        };
        servers.push((server, Arc::new(job)));
    }
    println!("{}", super::READY);
    io::stdout().flush()?;
    let clock = super::read_clock()?;
    let threads = servers.into_iter().map(|(server, job)| {
        thread::spawn(move || match server {
            Server::Echo(socket) => echo(&socket),
            Server::Bulk(listener) => accept(&listener, &job, clock),
        })
    });
    let threads: Vec<_> = threads.collect();
    for thread in threads {
        thread.join().map_err(|_| io::Error::other("a server panicked"))??;
    }
    Ok(())
}

enum Server {
    Echo(UdpSocket),
    Bulk(TcpListener),
}

fn listen(job: &Job) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(job.server), Type::STREAM, None)?;
    // What is accepted inherits both.
    socket.set_tcp_congestion(job.congestion_control.as_bytes())?;
    socket.set_tcp_notsent_lowat(UNSENT_MAX.min(unsent_max(job)))?;
    socket.bind(&job.server.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// A source with a demand shall not fill the kernel's buffer with what it has no right to send
/// later.
fn unsent_max(job: &Job) -> u32 {
    let lowest = job.goodputs.iter().filter_map(|(_, goodput)| *goodput).min();
    let bytes = lowest.map_or(u64::MAX, |goodput| owed_max(goodput, job.segment));
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Payload that a paced source may be behind.
fn owed_max(goodput: u64, segment: u64) -> u64 {
    const SEGMENTS_MIN: u64 = 4;
    let owed = u128::from(goodput) * u128::from(OWED_MAX.as_nanos()) / 1_000_000_000;
    (owed as u64).max(SEGMENTS_MIN * segment)
}

fn echo(socket: &UdpSocket) -> io::Result<()> {
    let mut buffer = [0; 2048];
    loop {
        let (length, from): (usize, SocketAddr) = socket.recv_from(&mut buffer)?;
        socket.send_to(&buffer[..length], from)?;
    }
}

fn accept(listener: &TcpListener, job: &Arc<Job>, clock: Clock) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept()?;
        let job = Arc::clone(job);
        // The receiver ends a flow by closing, so an error while sending is the normal end.
        thread::spawn(move || send(stream, &job, clock));
    }
}

fn send(mut stream: TcpStream, job: &Job, clock: Clock) -> io::Result<()> {
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    let chunk = vec![0x5a; CHUNK];
    let stop = Time::from_nanos(job.stop_ns);
    let mut source = Source::new(job, clock.now());
    loop {
        let now = clock.now();
        if now >= stop {
            return Ok(());
        }
        match source.allowance(now) {
            Allowance::Bytes(bytes) => {
                let sent = write(&mut stream, &chunk[..(bytes as usize).min(CHUNK)])?;
                source.sent(sent);
            }
            Allowance::NothingUntil(due) => clock.sleep_until(due.min(stop)),
        }
    }
}

/// Writes what the kernel takes in time.
fn write(stream: &mut TcpStream, payload: &[u8]) -> io::Result<u64> {
    match stream.write(payload) {
        Ok(0) => Err(ErrorKind::WriteZero.into()),
        Ok(length) => Ok(length as u64),
        Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(0),
        Err(e) => Err(e),
    }
}

/// A source with a demand that changes in steps: a token bucket of payload bytes.
struct Source<'j> {
    job: &'j Job,
    at: Time,
    /// In bytes · 10⁻⁹, so that nothing is lost to rounding.
    nanotokens: u128,
}

enum Allowance {
    Bytes(u64),
    NothingUntil(Time),
}

const NANO: u128 = 1_000_000_000;

impl<'j> Source<'j> {
    fn new(job: &'j Job, now: Time) -> Source<'j> {
        Source { job, at: now, nanotokens: 0 }
    }

    /// What may be sent at `now`, in whole segments.
    fn allowance(&mut self, now: Time) -> Allowance {
        let holds = self.job.goodputs.iter().rev().find(|(at, _)| *at <= now.as_nanos());
        let goodput = holds.or(self.job.goodputs.first()).and_then(|(_, goodput)| *goodput);
        let passed = now.since(self.at);
        self.at = now;
        let Some(goodput) = goodput else {
            self.nanotokens = 0;
            return Allowance::Bytes(CHUNK as u64);
        };
        let segment = self.job.segment;
        self.nanotokens += u128::from(goodput) * u128::from(passed.as_nanos());
        self.nanotokens = self.nanotokens.min(u128::from(owed_max(goodput, segment)) * NANO);
        let segments = (self.nanotokens / NANO) as u64 / segment;
        if segments > 0 {
            return Allowance::Bytes(segments * segment);
        }
        let missing = u128::from(segment) * NANO - self.nanotokens;
        let wait = missing.div_ceil(u128::from(goodput.max(1)));
        Allowance::NothingUntil(now + Span::nanos(wait.min(u64::MAX.into()) as u64))
    }

    fn sent(&mut self, bytes: u64) {
        self.nanotokens = self.nanotokens.saturating_sub(u128::from(bytes) * NANO);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a source that can send whenever it may, but not between `held_from` and `held_to`.
    fn sent_in_ten_seconds(goodputs: Vec<(u64, Option<u64>)>, held: std::ops::Range<u64>) -> u64 {
        let job = Job {
            server: ([127, 0, 0, 1], 1).into(),
            ping_interval_ns: None,
            congestion_control: "cubic".into(),
            connections: 1,
            start_ns: 0,
            stop_ns: u64::MAX,
            goodputs,
            segment: 1448,
        };
        let mut source = Source::new(&job, Time::ZERO);
        let mut sent = 0;
        for ms in (0..10_000).filter(|ms| !held.contains(ms)) {
            if let Allowance::Bytes(bytes) = source.allowance(Time::ZERO + Span::millis(ms)) {
                source.sent(bytes);
                sent += bytes;
            }
        }
        sent
    }

    #[test]
    fn a_source_sends_its_goodput() {
        let sent = sent_in_ten_seconds(vec![(0, Some(1_000_000))], 0..0);
        assert!((9_995_000..=10_000_000).contains(&sent), "{sent}");
    }

    #[test]
    fn a_step_changes_the_goodput() {
        let steps = vec![(0, Some(1_000_000)), (5_000_000_000, Some(200_000))];
        let sent = sent_in_ten_seconds(steps, 0..0);
        assert!((5_995_000..=6_005_000).contains(&sent), "{sent}");
    }

    #[test]
    fn what_could_not_be_sent_is_not_owed() {
        let sent = sent_in_ten_seconds(vec![(0, Some(1_000_000))], 2_000..6_000);
        assert!((6_000_000..=6_030_000).contains(&sent), "{sent}");
    }
}
