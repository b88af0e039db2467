//! Helpers of the tests on the real kernel.

pub(crate) mod agent;
pub(crate) mod frames;
pub(crate) mod path;
mod specs;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use fairweir_core::policy::Policy;
use fairweir_linux::{Host, HostSpec, Mode, link, netns::Netns};

pub(crate) use specs::{allocation, flat, plan, police, policy};

/// Two namespaces with a veth pair: `wan` in `home` (192.0.2.1, 2001:db8::1), `far` in `internet`
/// (192.0.2.2 and .3, 2001:db8::2 and ::3).
pub(crate) struct Pair {
    pub(crate) home: Netns,
    pub(crate) internet: Netns,
}

impl Pair {
    pub(crate) fn new(offloads: bool) -> Pair {
        let pair = Pair { home: Netns::new().unwrap(), internet: Netns::new().unwrap() };
        pair.home.run(|| {
            link::create_veth("wan", &pair.internet, "far").unwrap();
            prepare("wan", &["192.0.2.1/24", "2001:db8::1/64"], offloads);
        });
        pair.internet.run(|| {
            let addresses = ["192.0.2.2/24", "192.0.2.3/24", "2001:db8::2/64", "2001:db8::3/64"];
            prepare("far", &addresses, offloads);
        });
        pair
    }

    /// A host that controls `wan`.
    pub(crate) fn host(&self, policy: &Policy, mode: Mode) -> Host {
        let spec = HostSpec {
            dev: "wan".into(),
            policy: policy.clone(),
            mode,
            census: false,
            marks: false,
        };
        self.home.run(|| Host::attach(&spec).unwrap())
    }

    /// A connection from `home` to a server at `address` that sends as fast as it can until the
    /// client closes.
    pub(crate) fn download(&self, address: &str) -> TcpStream {
        let server = self.serve(address);
        self.home.run(|| TcpStream::connect(server).unwrap())
    }

    /// A connection from `home` that sends as fast as it can to a server at `address`, until it is
    /// shut down or the server ends.
    pub(crate) fn upload(&self, address: &str) -> TcpStream {
        let listener = self.internet.run(|| TcpListener::bind((address, 0)).unwrap());
        let server = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let _ = std::io::copy(&mut stream, &mut std::io::sink());
        });
        let stream = self.home.run(|| TcpStream::connect(server).unwrap());
        set_congestion_control(&stream, "cubic");
        let mut writer = stream.try_clone().unwrap();
        thread::spawn(move || while writer.write_all(&[7; 65_536]).is_ok() {});
        stream
    }

    /// A server at `address` that sends to one client as fast as it can until the client closes.
    pub(crate) fn serve(&self, address: &str) -> SocketAddr {
        self.serve_by(address, "cubic")
    }

    /// The same with another congestion control.
    pub(crate) fn serve_by(&self, address: &str, congestion_control: &'static str) -> SocketAddr {
        let listener = self.internet.run(|| TcpListener::bind((address, 0)).unwrap());
        let server = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            set_congestion_control(&stream, congestion_control);
            while stream.write_all(&[7; 65_536]).is_ok() {}
        });
        server
    }
}

fn prepare(name: &str, addresses: &[&str], offloads: bool) {
    for address in addresses {
        link::add_address(name, address.parse().unwrap()).unwrap();
    }
    link::offloads(name, offloads).unwrap();
    link::set_up(name).unwrap();
}

pub(crate) fn set_congestion_control(stream: &TcpStream, name: &str) {
    use std::os::fd::AsRawFd;
    // SAFETY: the descriptor is open and the name outlives the call.
    let set = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_ptr().cast(),
            name.len() as libc::socklen_t,
        )
    };
    assert_eq!(set, 0, "no congestion control {name}");
}

/// Reads for `span` and returns the number of received bytes.
pub(crate) fn read_for(stream: &mut TcpStream, span: Duration) -> u64 {
    let end = Instant::now() + span;
    let mut buffer = vec![0; 1 << 18];
    let mut total = 0;
    stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    while Instant::now() < end {
        total += stream.read(&mut buffer).unwrap_or(0) as u64;
    }
    total
}
