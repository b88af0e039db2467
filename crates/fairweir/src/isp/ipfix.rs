//! What subscribers used, sent to a collector as IPFIX (RFC 7011), with a data record for each row.
//!
//! A thread of its own sends, so that nothing else waits for the collector. At most [`BATCHES_MAX`] messages wait;
//! further records are counted as lost. A message has at most [`RECORDS_BYTES`] of records, so that it fits into any
//! IPv6 packet. Over UDP each message has the template; over TCP only the first message of a connection. Losses on the
//! way, or when a collector ends its connection, are not detected: the files have all records.

use std::fmt;
use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use fairweir_config::isp::Collector;
use fairweir_core::packet::Transport;
use fairweir_daemon::unix_now;
use fairweir_linux::police::{Counters, Direction};
use tracing::{info, warn};

use super::kernel::direction_name;
use super::wire::CollectorStatus;

/// The most messages that wait: a million rows fit.
const BATCHES_MAX: usize = 1 << 16;
/// Bytes of records in a message: the smallest packet that IPv6 must carry, without the headers of IP, UDP, message, sets and template.
const RECORDS_BYTES: usize = 1_280 - 48 - 16 - 4 - TEMPLATE_BYTES;
/// How long opening a connection and sending a message may each take, and the pause before the
/// collector is tried again after a failure.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a daemon that ends waits for queued messages to be sent.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// The number of UDP messages between two pauses: a collector may lose messages of a longer burst.
const BURST: u32 = 10;
const BURST_PAUSE: Duration = Duration::from_millis(1);

const VERSION: u16 = 10;
const SET_OF_TEMPLATES: u16 = 2;
/// The id of the template, and of sets with its records.
const TEMPLATE: u16 = 256;
const VARIABLE: u16 = 65_535;
/// Information elements: the number in IANA's registry, and the length in bytes.
const FIELDS: [(u16, u16); 8] = [
    (150, 4),        // flowStartSeconds
    (151, 4),        // flowEndSeconds
    (371, VARIABLE), // userName: the subscriber
    (335, VARIABLE), // selectorName: the plan
    (96, VARIABLE),  // applicationName: the class
    (61, 1),         // flowDirection: 0 from the subscriber, 1 to it
    (1, 8),          // octetDeltaCount
    (133, 8),        // droppedPacketDeltaCount
];
/// The length of the set with the template, in bytes.
const TEMPLATE_BYTES: usize = 4 + 4 + 4 * FIELDS.len();

/// What a subscriber used of a class. As text it is a row of the files.
pub(super) struct Row<'r> {
    /// The begin and the end of the interval, Unix time.
    pub(super) span_s: (u64, u64),
    pub(super) subscriber: &'r str,
    pub(super) plan: &'r str,
    pub(super) class: &'r str,
    pub(super) direction: Direction,
    pub(super) used: Counters,
}

impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { span_s: (from_s, until_s), subscriber, plan, class, direction, used } = self;
        let direction = direction_name(*direction);
        // Only names of classes can have characters that must be quoted.
        let class = match class.contains([',', '"']) {
            true => &*format!("\"{}\"", class.replace('"', "\"\"")),
            false => class,
        };
        let Counters { passed, dropped_packets, marked_packets } = used;
        let passed = passed.as_u64();
        write!(f, "{from_s},{until_s},{subscriber},{plan},{class},{direction},")?;
        write!(f, "{passed},{dropped_packets},{marked_packets}")
    }
}

/// Collects records, and passes them to the thread that sends.
pub(super) struct Exporter {
    collector: Collector,
    batch: Batch,
    queue: SyncSender<Batch>,
    is_over: Receiver<()>,
    said: Arc<Said>,
}

/// The records of one message.
#[derive(Default)]
struct Batch {
    records: Vec<u8>,
    count: u32,
}

/// The state that the thread reports.
#[derive(Default)]
struct Said {
    sent: AtomicU64,
    lost: AtomicU64,
    error: Mutex<Option<String>>,
}

impl Exporter {
    pub(super) fn start(collector: Collector) -> Exporter {
        Exporter::with_patience(collector, PATIENCE)
    }

    fn with_patience(collector: Collector, patience: Duration) -> Exporter {
        let (queue, batches) = mpsc::sync_channel(BATCHES_MAX);
        let (over, is_over) = mpsc::channel();
        let said = Arc::new(Said::default());
        let said_too = Arc::clone(&said);
        let sender = Sender { collector, patience, wire: None, sequence: 0, said: said_too };
        thread::spawn(move || {
            sender.run(&batches);
            drop(over);
        });
        Exporter { collector, batch: Batch::default(), queue, is_over, said }
    }

    pub(super) fn add(&mut self, row: &Row<'_>) {
        let record = record(row);
        if self.batch.records.len() + record.len() > RECORDS_BYTES {
            self.flush();
        }
        self.batch.records.extend(record);
        self.batch.count += 1;
    }

    /// Queues the records that were added until now.
    pub(super) fn flush(&mut self) {
        let batch = std::mem::take(&mut self.batch);
        let count = batch.count.into();
        if count > 0 && self.queue.try_send(batch).is_err() {
            self.said.lost.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Waits up to [`END_PATIENCE`] until all records are sent.
    pub(super) fn end(self) {
        let Exporter { queue, is_over, collector, .. } = self;
        drop(queue);
        if is_over.recv_timeout(END_PATIENCE) == Err(mpsc::RecvTimeoutError::Timeout) {
            warn!("not all usage was sent to {collector}");
        }
    }

    pub(super) fn status(&self) -> CollectorStatus {
        CollectorStatus {
            collector: self.collector.to_string(),
            sent_records: self.said.sent.load(Ordering::Relaxed),
            lost_records: self.said.lost.load(Ordering::Relaxed),
            error: self.said.error().clone(),
        }
    }
}

impl Said {
    fn error(&self) -> std::sync::MutexGuard<'_, Option<String>> {
        self.error.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The socket to the collector.
enum Wire {
    Udp(UdpSocket),
    Tcp(TcpStream),
}

/// The state of the thread.
struct Sender {
    collector: Collector,
    patience: Duration,
    wire: Option<Wire>,
    /// The number of records that were sent on this stream.
    sequence: u32,
    said: Arc<Said>,
}

impl Sender {
    fn run(mut self, batches: &Receiver<Batch>) {
        let mut burst = 0;
        for batch in batches {
            while let Err(e) = self.send(&batch) {
                self.wire = None;
                let error = format!("{}: {e}", self.collector);
                if self.said.error().replace(error.clone()).is_none() {
                    warn!("usage is not sent to {error}");
                }
                thread::sleep(self.patience);
            }
            if self.said.error().take().is_some() {
                info!("usage is sent to {} again", self.collector);
            }
            self.said.sent.fetch_add(batch.count.into(), Ordering::Relaxed);
            self.sequence = self.sequence.wrapping_add(batch.count);
            burst += 1;
            if self.collector.transport == Transport::Udp && burst % BURST == 0 {
                thread::sleep(BURST_PAUSE);
            }
        }
    }

    fn send(&mut self, batch: &Batch) -> std::io::Result<()> {
        let is_new = self.wire.is_none();
        if is_new {
            self.sequence = 0;
        }
        let wire = match &mut self.wire {
            Some(wire) => wire,
            none => none.insert(connect(self.collector, self.patience)?),
        };
        match wire {
            Wire::Udp(socket) => {
                let message = message(batch, self.sequence, true);
                // If an earlier message found no listener, the kernel reports that now; so this one is sent again.
                socket.send(&message).or_else(|_| socket.send(&message)).map(drop)
            }
            Wire::Tcp(stream) => stream.write_all(&message(batch, self.sequence, is_new)),
        }
    }
}

fn connect(Collector { transport, at }: Collector, patience: Duration) -> std::io::Result<Wire> {
    if transport == Transport::Tcp {
        let stream = TcpStream::connect_timeout(&at, patience)?;
        stream.set_write_timeout(Some(patience))?;
        return Ok(Wire::Tcp(stream));
    }
    let any = match at {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(at)?;
    Ok(Wire::Udp(socket))
}

fn record(row: &Row<'_>) -> Vec<u8> {
    let (from_s, until_s) = row.span_s;
    let mut bytes = Vec::new();
    bytes.extend((from_s as u32).to_be_bytes());
    bytes.extend((until_s as u32).to_be_bytes());
    for text in [row.subscriber, row.plan, row.class] {
        // Names have at most 254 bytes; longer ones would need another encoding of the length.
        bytes.push(text.len() as u8);
        bytes.extend(text.as_bytes());
    }
    bytes.push(u8::from(row.direction == Direction::Download));
    bytes.extend(row.used.passed.as_u64().to_be_bytes());
    bytes.extend(row.used.dropped_packets.to_be_bytes());
    bytes
}

/// A message with these records, and with the template before them if `has_template`.
fn message(batch: &Batch, sequence: u32, has_template: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(VERSION.to_be_bytes());
    bytes.extend([0; 2]);
    bytes.extend((unix_now() as u32).to_be_bytes());
    bytes.extend(sequence.to_be_bytes());
    // The observation domain id: the daemon has only one.
    bytes.extend(1_u32.to_be_bytes());
    if has_template {
        let numbers = [SET_OF_TEMPLATES, TEMPLATE_BYTES as u16, TEMPLATE, FIELDS.len() as u16];
        let fields = FIELDS.iter().flat_map(|(number, bytes)| [*number, *bytes]);
        bytes.extend(numbers.into_iter().chain(fields).flat_map(u16::to_be_bytes));
    }
    bytes.extend(TEMPLATE.to_be_bytes());
    bytes.extend((4 + batch.records.len() as u16).to_be_bytes());
    bytes.extend(&batch.records);
    let length = bytes.len() as u16;
    bytes[2..4].copy_from_slice(&length.to_be_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;
    use std::process::Command;
    use std::time::Instant;

    use super::*;
    use fairweir_core::units::Bytes;
    use fairweir_linux::police::Counters;

    fn row(subscriber: &str, passed: u64) -> Row<'_> {
        let passed = Bytes::new(passed);
        Row {
            span_s: (1_790_000_000, 1_790_003_600),
            subscriber,
            plan: "family",
            class: "voice",
            direction: Direction::Download,
            used: Counters { passed, dropped_packets: 3, marked_packets: 1 },
        }
    }

    fn collector(transport: Transport, at: SocketAddr) -> Collector {
        Collector { transport, at }
    }

    /// The messages of a stream: the sequence number of each, and the bytes after its header.
    fn messages(mut stream: &[u8]) -> Vec<(u32, &[u8])> {
        let mut all = Vec::new();
        while let [0, 10, high, low, ..] = *stream {
            let (message, rest) = stream.split_at(usize::from(u16::from_be_bytes([high, low])));
            all.push((u32::from_be_bytes(message[8..12].try_into().unwrap()), &message[16..]));
            stream = rest;
        }
        assert!(stream.is_empty());
        all
    }

    /// Waits until the status satisfies `is_so`.
    fn wait(exporter: &Exporter, is_so: impl Fn(&CollectorStatus) -> bool) -> CollectorStatus {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let status = exporter.status();
            if is_so(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "{status:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn by_tcp_a_connection_begins_with_the_template_and_counts_records() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let mut exporter = Exporter::start(collector(Transport::Tcp, at));
        for i in 0..100 {
            exporter.add(&row("alice", i));
        }
        exporter.flush();
        let (mut stream, _) = listener.accept().unwrap();
        wait(&exporter, |status| status.sent_records == 100);
        exporter.end();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let messages = messages(&bytes);
        let record = record(&row("alice", 0)).len();
        let mut sequence = 0;
        for (nth, (number, sets)) in messages.iter().enumerate() {
            assert_eq!(*number, sequence);
            let sets = if nth == 0 { &sets[TEMPLATE_BYTES..] } else { sets };
            assert_eq!(sets[..2], TEMPLATE.to_be_bytes());
            sequence += ((sets.len() - 4) / record) as u32;
        }
        assert!(messages.len() > 2 && sequence == 100);
    }

    #[test]
    fn a_collector_that_is_not_there_blocks_no_one_and_what_waits_is_bounded() {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut exporter = Exporter::start(collector(Transport::Tcp, closed));
        let begin = Instant::now();
        for _ in 0..BATCHES_MAX + 10 {
            exporter.add(&row("alice", 1));
            exporter.flush();
        }
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(5), "{took:?}");
        let status = wait(&exporter, |status| status.error.is_some());
        // The thread is handling one message.
        assert!((9..=10).contains(&status.lost_records), "{status:?}");
        assert_eq!(status.sent_records, 0);
        let begin = Instant::now();
        exporter.end();
        assert!(begin.elapsed() < 2 * END_PATIENCE);
    }

    #[test]
    fn a_collector_that_reads_nothing_is_given_up_and_the_next_connection_begins_anew() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let tcp = collector(Transport::Tcp, at);
        let mut exporter = Exporter::with_patience(tcp, Duration::from_millis(300));
        // More data than the sockets' buffers hold.
        for _ in 0..500_000 {
            exporter.add(&row("alice", 1));
        }
        exporter.flush();
        let (deaf, _) = listener.accept().unwrap();
        let status = wait(&exporter, |status| status.error.is_some());
        assert!((1..500_000).contains(&status.sent_records), "{status:?}");
        let (mut next, _) = listener.accept().unwrap();
        drop(deaf);
        let mut header = [0; 20];
        next.read_exact(&mut header).unwrap();
        assert_eq!(header[8..12], [0; 4], "its sequence begins with 0");
        assert_eq!(header[16..18], SET_OF_TEMPLATES.to_be_bytes());
        let rest = thread::spawn(move || std::io::copy(&mut next, &mut std::io::sink()));
        let status = wait(&exporter, |status| status.sent_records == 500_000);
        assert_eq!((status.lost_records, status.error), (0, None));
        exporter.end();
        assert!(rest.join().unwrap().unwrap() > 1_000_000);
    }

    /// Checks that another program reads the messages correctly.
    #[test]
    #[ignore = "long: needs tshark"]
    fn wireshark_reads_every_record() {
        let listener = UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = listener.local_addr().unwrap();
        let mut exporter = Exporter::start(collector(Transport::Udp, at));
        for (name, passed) in [("alice", 1_234_567_890_123), ("bob", 0), ("zoë", u64::MAX)] {
            exporter.add(&row(name, passed));
        }
        exporter.flush();
        let mut message = [0; 2_000];
        let length = listener.recv(&mut message).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let [hex, capture] = ["hex", "capture"].map(|name| dir.path().join(name));
        let octets: Vec<String> = message[..length].iter().map(|b| format!("{b:02x}")).collect();
        std::fs::write(&hex, format!("0000 {}\n", octets.join(" "))).unwrap();
        let run = |command: &mut Command| {
            let output = command.output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        run(Command::new("text2pcap").arg("-q").args(["-u", "4739,4739"]).args([&hex, &capture]));
        let mut tshark = Command::new("tshark");
        tshark.arg("-r").arg(&capture).args(["-d", "udp.port==4739,cflow", "-V"]);
        let read = run(&mut tshark);
        let of = |key: &str| -> Vec<&str> {
            read.lines().filter_map(|line| line.trim().strip_prefix(key)).collect()
        };
        assert_eq!(of("User Name: "), ["alice", "bob", "zoë"]);
        assert_eq!(of("Octets: "), ["1234567890123", "0", "18446744073709551615"]);
        assert_eq!(of("Selector Name: "), ["family"; 3]);
        assert_eq!(of("ApplicationName: "), ["voice"; 3]);
        assert_eq!(of("Direction: "), ["Egress (1)"; 3]);
        assert_eq!(of("Dropped Packets: "), ["3"; 3]);
        let [begin, end] = ["StartTime", "EndTime"].map(|key| of(key).len());
        assert_eq!((begin, end), (3, 3));
        assert_eq!(of("[Duration: "), ["3600.000000000 seconds (seconds)]"; 3]);
        assert!(!read.contains("Malformed") && !read.contains("Expert Info"), "{read}");
    }
}
