//! `fairweir isp` with 100,000 subscribers, of which 10,000 have clients: what their renewals cost, and how soon all
//! have agreements when all ask at once. The clients are those of `fairweir host`, without its traffic.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use fairweir_core::agreement::client::Client;
use fairweir_core::agreement::message::{MESSAGE_MAX, Message};
use fairweir_core::agreement::verify::Received;
use fairweir_core::agreement::{Classes, PORT};
use fairweir_core::units::Time;
use fairweir_linux::{datagram, link, monotonic_now};
use fairweir_testing::{alone, note, privileged};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, sendmsg, setsockopt,
    sockopt,
};

use crate::common::access::Access;
use crate::common::stage::Daemon;

const SUBSCRIBERS: u32 = 100_000;
/// One of this many subscribers has a client.
const ONE_OF: u32 = 10;
const CLIENTS: usize = (SUBSCRIBERS / ONE_OF) as usize;
/// Each client is at its own address and at this port.
const CLIENT_PORT: u16 = 40_000;
const DIVIDER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 254);
/// Subscribers' addresses begin here.
const FIRST: u32 = 0x6440_0000;
const NETWORK: &str = "100.64.0.0/15";
/// Time between two ticks of a client.
const TICK: Duration = Duration::from_millis(200);
/// The clients take turns in this many parts of a tick.
const TURNS: usize = 200;
const SPAN: Duration = Duration::from_secs(20);

const ISP: &str = r#"version = 1
subscribers = "all.csv"

[isp]
device = "sub"

[[plan]]
name = "home"
download = "50mbit"
upload = "10mbit"
share = "client"
"#;

struct One {
    client: Client,
    asked_at: Option<Time>,
    epoch: u32,
}

/// All clients, with one socket.
struct Street {
    socket: UdpSocket,
    of: Vec<One>,
    /// How long answers to asks took.
    answered: Vec<Duration>,
    /// Agreements that ended although the client asked for renewals, by the client's view or the divider's.
    lost: usize,
    asks: usize,
    turn: usize,
}

impl Street {
    fn new(access: &Access) -> Street {
        let socket = access.at_homes(|| UdpSocket::bind(("0.0.0.0", CLIENT_PORT)).unwrap());
        socket.set_nonblocking(true).unwrap();
        setsockopt(&socket, sockopt::Ipv4PacketInfo, &true).unwrap();
        setsockopt(&socket, sockopt::RcvBufForce, &(64 << 20)).unwrap();
        let classes = Classes::new(vec![5, 1], 1).unwrap();
        let now = monotonic_now();
        let one = |n| {
            let client = Client::new(classes.clone(), n as u64, now);
            One { client, asked_at: None, epoch: 0 }
        };
        let of = (0..CLIENTS).map(one).collect();
        Street { socket, of, answered: Vec::new(), lost: 0, asks: 0, turn: 0 }
    }

    fn agreed(&self) -> usize {
        self.of.iter().filter(|one| one.client.agreement().is_some()).count()
    }

    /// Lets a part of a tick pass.
    fn play_turn(&mut self) {
        let began = Instant::now();
        let now = monotonic_now();
        for n in (self.turn..CLIENTS).step_by(TURNS) {
            let one = &mut self.of[n];
            let was_agreed = one.client.agreement().is_some();
            one.client.handle_tick(&[Received::default(); 2], now);
            self.lost += usize::from(was_agreed && one.client.agreement().is_none());
            self.say(n);
        }
        self.turn = (self.turn + 1) % TURNS;
        self.hear();
        thread::sleep((TICK / TURNS as u32).saturating_sub(began.elapsed()));
    }

    fn play_for(&mut self, span: Duration) {
        let end = Instant::now() + span;
        while Instant::now() < end {
            self.play_turn();
        }
    }

    /// Sends what a client says.
    fn say(&mut self, n: usize) {
        while let Some(message) = self.of[n].client.poll_datagram() {
            if matches!(message, Message::Ask(_)) {
                self.asks += 1;
                self.of[n].asked_at.get_or_insert(monotonic_now());
            }
            let to = SockaddrIn::from(std::net::SocketAddrV4::new(DIVIDER, PORT));
            let _ = send(&self.socket, &message.bytes(), address_of(n), &to);
        }
    }

    /// Hands all answers to their clients.
    fn hear(&mut self) {
        let mut bytes = [0; MESSAGE_MAX];
        while let Some((length, to)) = receive(&self.socket, &mut bytes) {
            let now = monotonic_now();
            let n = (u32::from(to) - FIRST) as usize / ONE_OF as usize;
            let one = &mut self.of[n];
            one.client.handle_datagram(&bytes[..length], now);
            if let Some(Message::Agreed(_)) = Message::read(&bytes[..length])
                && let Some(asked_at) = one.asked_at.take()
            {
                self.answered.push(now.since(asked_at).into());
            }
            let epoch = one.client.agreement().map_or(0, |agreement| agreement.agreed.epoch);
            self.lost += usize::from(one.epoch != 0 && epoch != 0 && epoch != one.epoch);
            one.epoch = epoch;
            self.say(n);
        }
    }

    /// The time until all have an agreement.
    fn until_all_agreed(&mut self, patience: Duration) -> Duration {
        let (began, mut said) = (Instant::now(), 0);
        while self.agreed() < CLIENTS {
            assert!(began.elapsed() < patience, "{} of {CLIENTS} agreed", self.agreed());
            self.play_for(Duration::from_millis(500));
            if began.elapsed().as_secs() / 10 > said {
                said = began.elapsed().as_secs() / 10;
                note(&format!("{} agreed after {:.0?}", self.agreed(), began.elapsed()));
            }
        }
        began.elapsed()
    }
}

fn address_of(n: usize) -> Ipv4Addr {
    Ipv4Addr::from(FIRST + n as u32 * ONE_OF)
}

fn send(socket: &UdpSocket, bytes: &[u8], from: Ipv4Addr, to: &SockaddrIn) -> nix::Result<usize> {
    let from = libc_address(from);
    let info = nix::libc::in_pktinfo {
        ipi_ifindex: 0,
        ipi_spec_dst: from,
        ipi_addr: nix::libc::in_addr { s_addr: 0 },
    };
    let control = [ControlMessage::Ipv4PacketInfo(&info)];
    let parts = [std::io::IoSlice::new(bytes)];
    sendmsg(socket.as_raw_fd(), &parts, &control, MsgFlags::empty(), Some(to))
}

fn libc_address(ip: Ipv4Addr) -> nix::libc::in_addr {
    nix::libc::in_addr { s_addr: u32::from(ip).to_be() }
}

/// The next datagram: its length and to whom it was sent.
fn receive(socket: &UdpSocket, bytes: &mut [u8]) -> Option<(usize, Ipv4Addr)> {
    let mut parts = [std::io::IoSliceMut::new(bytes)];
    let mut control = nix::cmsg_space!(nix::libc::in_pktinfo);
    let fd = socket.as_raw_fd();
    let got = recvmsg::<SockaddrIn>(fd, &mut parts, Some(&mut control), MsgFlags::empty()).ok()?;
    let to = got.cmsgs().ok()?.find_map(|one| match one {
        ControlMessageOwned::Ipv4PacketInfo(info) => Some(u32::from_be(info.ipi_addr.s_addr)),
        _ => None,
    });
    Some((got.bytes, to?.into()))
}

fn stage() -> Access {
    let access = Access::new();
    access.write("isp.toml", ISP);
    let row = |n: u32| format!("s{n},{},home\n", Ipv4Addr::from(FIRST + n));
    let rows: String = (0..SUBSCRIBERS).map(row).collect();
    access.write("all.csv", &format!("name,addresses,plan\n{rows}"));
    let via = "192.0.2.1".parse().unwrap();
    access.at_router(|| link::add_route(NETWORK.parse().unwrap(), Some(via), "sub").unwrap());
    access.at_homes(|| {
        crate::common::home::run("ip", &format!("route add local {NETWORK} dev lo"));
        // Answers are delivered on the CPU of the clients, as if they were elsewhere.
        let cpus = "/sys/class/net/wan/queues/rx-0/rps_cpus";
        std::fs::write(cpus, "1").unwrap_or_else(|e| note(&format!("{cpus}: {e}")));
    });
    access
}

/// CPU time of the daemon while the street plays, in percent of a core.
fn cost(isp: &Daemon, mut play: impl FnMut()) -> f64 {
    let (before, begin) = (isp.cpu_time(), Instant::now());
    play();
    100.0 * (isp.cpu_time() - before).as_secs_f64() / begin.elapsed().as_secs_f64()
}

/// CPU time of receiving a datagram and answering it, as the daemon does, without anything else.
fn bare_cost(access: &Access, street: &Street) -> Duration {
    const COUNT: u32 = 20_000;
    let echo = access.at_router(|| datagram::listen_at("sub", PORT + 2).unwrap());
    let to = SockaddrIn::from(std::net::SocketAddrV4::new(DIVIDER, PORT + 2));
    let time = || {
        let clock = nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID;
        Duration::from(nix::time::clock_gettime(clock).unwrap())
    };
    let (mut spent, mut count, mut bytes) = (Duration::ZERO, 0, [0; MESSAGE_MAX]);
    for n in 0..COUNT as usize {
        send(&street.socket, &[0; 84], address_of(n % CLIENTS), &to).unwrap();
        if n % 10 == 9 {
            let begin = time();
            while let Ok(asked) = datagram::receive(&echo, &mut bytes) {
                count += u32::from(datagram::answer(&echo, &asked, &[0; 56]).is_ok());
            }
            spent += time() - begin;
            while receive(&street.socket, &mut bytes).is_some() {}
        }
    }
    assert!(count > COUNT / 2, "{count}");
    spent / count
}

#[test]
#[ignore = "long: 2 min"]
fn ten_thousand_clients_renew() {
    if !privileged() {
        return;
    }
    let _alone = alone();
    let access = stage();
    let isp = access.start_as(&["env"]);
    let mut street = Street::new(&access);
    let bare = bare_cost(&access, &street);
    let idle = cost(&isp, || thread::sleep(SPAN));
    let all = street.until_all_agreed(Duration::from_secs(400));
    note(&format!("all {CLIENTS} agreed {all:.1?} after all began to ask"));
    street.play_for(Duration::from_secs(3));
    (street.lost, street.asks) = (0, 0);
    street.answered.clear();
    let begin = Instant::now();
    let busy = cost(&isp, || street.play_for(SPAN));
    let rate = street.asks as f64 / begin.elapsed().as_secs_f64();
    street.answered.sort_unstable();
    let at = |part: f64| street.answered[(street.answered.len() as f64 * part) as usize];
    let bare_percent = 100.0 * bare.as_secs_f64() * rate;
    note(&format!(
        "{rate:.0} renewals/s take {:.1} % of a core ({busy:.1} %, {idle:.1} % without); to receive and to answer alone \
         {bare_percent:.1} % ({bare:.2?} each); answers p50 {:.2?}, p99 {:.2?}, max {:.2?}; {} agreements lost",
        busy - idle,
        at(0.5),
        at(0.99),
        at(0.999_99),
        street.lost
    ));
    let status = isp.status();
    assert_eq!(status["clients"]["agreements"], CLIENTS, "{status:#}");
    assert_eq!(street.lost, 0);
    assert!(at(0.99) < Duration::from_secs(1), "{:?}", at(0.99));
}
