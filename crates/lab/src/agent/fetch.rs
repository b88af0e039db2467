//! The receiving side: one flow, in a process of its own.

use std::io::{self, ErrorKind, Read};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use fairweir_core::units::{Span, Time};
use fairweir_sim::scenario::PING_PAYLOAD;
use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::plan::Job;

const BUFFER: usize = 256 * 1024;
/// How long a read may block before the receiver looks at the clock again.
const READ_TIMEOUT: Duration = Duration::from_millis(50);
/// A request of the last moments that has no answer yet is not lost.
const ANSWER_WITHIN: Span = Span::secs(1);

/// What a ping measured, as told to the lab.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct PingResult {
    pub(crate) sent: u64,
    pub(crate) rtts_ns: Vec<u64>,
}

pub(super) fn main() -> io::Result<()> {
    let job: Job = super::read_job()?;
    let clock = super::read_clock()?;
    clock.sleep_until(Time::from_nanos(job.start_ns));
    if let Some(interval) = job.ping_interval_ns {
        let result = ping(&job, Span::nanos(interval), clock)?;
        println!("{}", serde_json::to_string(&result)?);
        return Ok(());
    }
    let results = thread::scope(|scope| {
        let receive = || scope.spawn(|| receive(&job, clock));
        let threads: Vec<_> = (0..job.connections).map(|_| receive()).collect();
        threads.into_iter().map(|t| t.join()).collect::<Vec<_>>()
    });
    for result in results {
        result.map_err(|_| io::Error::other("a receiver panicked"))??;
    }
    Ok(())
}

/// Receives one connection until the flow stops; closing then tells the sender.
fn receive(job: &Job, clock: Clock) -> io::Result<()> {
    let mut stream = TcpStream::connect(job.server)?;
    stream.set_read_timeout(Some(READ_TIMEOUT))?;
    let mut buffer = vec![0; BUFFER];
    while clock.now().as_nanos() < job.stop_ns {
        match stream.read(&mut buffer) {
            Ok(0) if clock.now().as_nanos() + READ_TIMEOUT.as_nanos() as u64 >= job.stop_ns => {
                break;
            }
            Ok(0) => return Err(io::Error::other("the server closed too early")),
            Ok(_) => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Asks at every `interval` and measures how long the answers take.
fn ping(job: &Job, interval: Span, clock: Clock) -> io::Result<PingResult> {
    let any: SocketAddr = match job.server {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(job.server)?;
    socket.set_read_timeout(Some(READ_TIMEOUT))?;
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let answers = scope.spawn(|| receive_answers(&socket, clock, &stop));
        let requests = send_requests(&socket, job, interval, clock);
        stop.store(true, Ordering::Relaxed);
        let answers = answers.join().map_err(|_| io::Error::other("a receiver panicked"))??;
        let old_enough = |sent: &u64| sent + ANSWER_WITHIN.as_nanos() <= job.stop_ns;
        let answered = |sent: &u64| answers.iter().any(|(asked, _)| asked == sent);
        let sent = requests?.iter().filter(|t| old_enough(t) || answered(t)).count() as u64;
        Ok(PingResult { sent, rtts_ns: answers.into_iter().map(|(_, rtt)| rtt).collect() })
    })
}

/// Sends a request at every tick, with its time in front; returns the times.
fn send_requests(
    socket: &UdpSocket,
    job: &Job,
    interval: Span,
    clock: Clock,
) -> io::Result<Vec<u64>> {
    let mut requests = Vec::new();
    let mut due = Time::from_nanos(job.start_ns);
    while due.as_nanos() < job.stop_ns {
        clock.sleep_until(due);
        let mut payload = [0; PING_PAYLOAD as usize];
        let now = clock.now().as_nanos();
        payload[..8].copy_from_slice(&now.to_be_bytes());
        socket.send(&payload)?;
        requests.push(now);
        due = due + interval;
    }
    Ok(requests)
}

/// When each answered request was sent, and how long its answer took.
fn receive_answers(
    socket: &UdpSocket,
    clock: Clock,
    stop: &AtomicBool,
) -> io::Result<Vec<(u64, u64)>> {
    let mut answers = Vec::new();
    let mut payload = [0; PING_PAYLOAD as usize];
    while !stop.load(Ordering::Relaxed) {
        match socket.recv(&mut payload) {
            Ok(length) if length == payload.len() => {
                let now = clock.now().as_nanos();
                let mut asked = [0; 8];
                asked.copy_from_slice(&payload[..8]);
                let asked = u64::from_be_bytes(asked);
                answers.push((asked, now.saturating_sub(asked)));
            }
            Ok(_) => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(answers)
}
