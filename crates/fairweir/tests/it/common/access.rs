//! An access network, with real TCP: the internet, the ISP's router, and subscribers behind it.
//!
//! The router forwards between `up` (towards the internet) and `sub` (towards the subscribers). Both are veth
//! pairs with packets no larger than on the wire. Between the internet and `up` lies a path with a delay,
//! since only there TCP behaves as it should: two TUN devices, and threads that hand packets
//! over.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use fairweir_linux::{kept, link, netns::Netns, open_kept};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, socket};
use tempfile::TempDir;

use super::stage::{Daemon, Download, round_trips, serve_without_end};
use super::{FAIRWEIR, schema};

/// An address of the internet's server.
pub const SERVER4: &str = "10.9.0.1";
/// Another IPv4 address of the internet's server.
pub const SERVER4_OTHER: &str = "10.9.0.2";
/// The IPv6 address of the internet's server.
pub const SERVER6: &str = "fd09::1";
/// Addresses of subscribers' hosts: two each of alice and bob, and one that belongs to no subscriber.
pub const ALICE4: &str = "192.0.2.1";
pub const ALICE6: &str = "2001:db8:1::1";
pub const BOB4: &str = "192.0.2.2";
pub const BOB6: &str = "2001:db8:2::1";
pub const NOBODY4: &str = "192.0.2.99";

/// An access network; see the module.
pub struct Access {
    internet: Netns,
    path: Netns,
    router: Netns,
    homes: Netns,
    /// The port at which the internet's server sends without end on each connection.
    port: u16,
    /// The port of such a server at the subscribers' side.
    home_port: u16,
    dir: TempDir,
}

impl Access {
    pub fn new() -> Access {
        let all = [(); 4].map(|()| Netns::new().unwrap());
        for netns in &all {
            netns.run(|| {
                fs::write("/proc/sys/net/ipv6/conf/default/accept_dad", "0").unwrap();
                fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1").unwrap();
                fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
            });
        }
        let [internet, path, router, homes] = all;
        router.run(|| link::create_veth("up", &path, "edge").unwrap());
        let wires = [(&internet, "net"), (&path, "wire")].map(|(netns, name)| {
            netns.run(|| {
                let fd = link::tun(name).unwrap();
                link::set_txqueuelen(name, 5_000).unwrap();
                fd
            })
        });
        internet.run(|| {
            up("net", &["10.9.0.1/24", "10.9.0.2/24", "fd09::1/64"]);
            link::add_route("0.0.0.0/0".parse().unwrap(), None, "net").unwrap();
            link::add_route("::/0".parse().unwrap(), None, "net").unwrap();
        });
        path.run(|| {
            up("wire", &[]);
            up("edge", &["10.8.0.1/24", "fd08::1/64"]);
            link::add_route("10.9.0.0/24".parse().unwrap(), None, "wire").unwrap();
            link::add_route("fd09::/64".parse().unwrap(), None, "wire").unwrap();
        });
        router.run(|| {
            up("up", &["10.8.0.254/24", "fd08::fe/64"]);
            route("0.0.0.0/0", "10.8.0.1", "up");
            route("::/0", "fd08::1", "up");
        });
        path.run(|| {
            route("0.0.0.0/0", "10.8.0.254", "edge");
            route("::/0", "fd08::fe", "edge");
        });
        carry(wires);
        let port = internet.run(|| serve_without_end("[::]:0"));
        let home_port = homes.run(|| serve_without_end("[::]:0"));
        let dir = TempDir::new().unwrap();
        let access = Access { internet, path, router, homes, port, home_port, dir };
        access.plug_in_homes();
        access
    }

    /// Connects the router and the subscribers with a cable.
    pub fn plug_in_homes(&self) {
        self.router.run(|| {
            link::create_veth("sub", &self.homes, "wan").unwrap();
            up("sub", &["192.0.2.254/24", "2001:db8::fe/32"]);
        });
        self.homes.run(|| {
            let all = [1, 2, 3, 4, 99].map(|n| format!("192.0.2.{n}/24"));
            let all = all.each_ref().map(String::as_str);
            up("wan", &[&all[..], &["2001:db8:1::1/32", "2001:db8:2::1/32"]].concat());
            route("0.0.0.0/0", "192.0.2.254", "wan");
            route("::/0", "2001:db8::fe", "wan");
        });
    }

    /// Disconnects that cable.
    pub fn unplug_homes(&self) {
        self.router.run(|| link::delete("sub").unwrap());
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file into the directory of the configuration; returns its path.
    pub fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).unwrap();
        self.path(name).display().to_string()
    }

    /// Starts the daemon at the router, with `isp.toml`.
    pub fn start(&self) -> Daemon {
        self.start_as(&["env"])
    }

    /// As [`Access::start`], with another program that starts the daemon.
    pub fn start_as(&self, program: &[&str]) -> Daemon {
        let log = self.path("daemon.log");
        let mut command = Command::new(program[0]);
        command.args(&program[1..]).arg(super::daemon_binary());
        command.arg("isp").arg("--config").arg(self.path("isp.toml"));
        command.arg("--run-dir").arg(self.path("run")).arg("--state-dir").arg(self.path("state"));
        command.env_remove("RUST_LOG").stdin(Stdio::piped()).stdout(Stdio::null());
        command.stderr(File::options().create(true).append(true).open(&log).unwrap());
        let child = self.router.run(|| command.spawn().unwrap());
        Daemon::begun(child, self.path("run/isp.sock"), log, |s| s["enforcing"] == true)
    }

    /// Starts a host's daemon, with `host.toml`, for all addresses of subscribers.
    pub fn start_host(&self) -> Daemon {
        let log = self.path("host.log");
        let mut command = Command::new(super::daemon_binary());
        command.arg("host").arg("--config").arg(self.path("host.toml"));
        command.arg("--run-dir").arg(self.path("run-host"));
        command.arg("--state-dir").arg(self.path("state-host"));
        command.env_remove("RUST_LOG").stdin(Stdio::piped()).stdout(Stdio::null());
        command.stderr(File::options().create(true).append(true).open(&log).unwrap());
        let child = self.homes.run(|| command.spawn().unwrap());
        let socket = self.path("run-host/host-wan.sock");
        Daemon::begun(child, socket, log, |status| status["ready"] == true)
    }

    /// Runs fairweir at the router, with the directories of this stage.
    pub fn fairweir(&self, args: &str) -> Output {
        let mut args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
        args.extend(["--run-dir".to_owned(), self.path("run").display().to_string()]);
        let output = self.router.run(|| Command::new(FAIRWEIR).args(&args).output().unwrap());
        schema::check(&args, &output);
        output
    }

    /// Runs `fairweir isp`, which must succeed.
    pub fn isp(&self, args: &str) -> String {
        let output = self.fairweir(&format!("isp {args}"));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success(),
            "{args}: {text}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        text
    }

    /// Runs `fairweir isp`, which must fail; returns its message.
    pub fn isp_refuses(&self, args: &str) -> String {
        let output = self.fairweir(&format!("isp {args}"));
        assert_eq!(output.status.code(), Some(1), "{args}: {output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Runs `work` at the router.
    pub fn at_router<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.router.run(work)
    }

    /// Runs `work` where the subscribers' hosts are.
    pub fn at_homes<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.homes.run(work)
    }

    /// Runs `work` on the internet's host.
    pub fn at_internet<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.internet.run(work)
    }

    /// Runs `work` on the last router before this one, from which packets arrive without a delay.
    pub fn at_edge<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.path.run(work)
    }

    /// Round-trip times of small packets from the internet to a subscriber's host during `span`, sorted.
    pub fn round_trips(&self, host: &str, span: Duration) -> Vec<Duration> {
        let echo = self.homes.run(|| UdpSocket::bind((host, 0)).unwrap());
        let socket = self.internet.run(|| UdpSocket::bind("0.0.0.0:0").unwrap());
        round_trips(echo, &socket, Duration::from_millis(20), span)
    }

    /// Address of the internet's server, which sends without end on each connection.
    pub fn server(&self) -> SocketAddr {
        SocketAddr::new(SERVER4.parse().unwrap(), self.port)
    }

    /// Starts a download to a subscriber's host.
    pub fn download(&self, host: &str) -> Download {
        let host: IpAddr = host.parse().unwrap();
        let server = if host.is_ipv4() { SERVER4 } else { SERVER6 };
        let server = SocketAddr::new(server.parse().unwrap(), self.port);
        Download::new(self.homes.run(|| connect_from(host, server)))
    }

    /// Starts a download to a subscriber's host from this IPv4 address of the internet's server.
    pub fn download_from(&self, server: &str, host: &str) -> Download {
        let (server, host) = (self.server_at(server), host.parse().unwrap());
        Download::new(self.homes.run(|| connect_from(host, server)))
    }

    /// The socket address at which a server at `address` sends without end.
    pub fn server_at(&self, address: &str) -> SocketAddr {
        SocketAddr::new(address.parse().unwrap(), self.port)
    }

    /// Starts an upload from a subscriber's host, that is a download to the internet's host.
    pub fn upload(&self, host: &str) -> Download {
        let server = SocketAddr::new(host.parse().unwrap(), self.home_port);
        Download::new(self.internet.run(|| TcpStream::connect(server).unwrap()))
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        // Before the router is removed: a policer that is kept outlives its daemon.
        self.router.run(|| {
            for device in kept().unwrap_or_default() {
                let _ = open_kept(&device);
            }
        });
    }
}

fn up(name: &str, addresses: &[&str]) {
    for address in addresses {
        link::add_address(name, address.parse().unwrap()).unwrap();
    }
    // TUN devices have no offloads, so an error does not matter.
    let _ = link::offloads(name, false);
    link::set_up(name).unwrap();
}

fn route(to: &str, via: &str, device: &str) {
    link::add_route(to.parse().unwrap(), Some(via.parse().unwrap()), device).unwrap();
}

/// Passes packets from each device to the other after [`DELAY`], until the devices are removed.
fn carry(wires: [OwnedFd; 2]) {
    let [a, b] = wires.map(File::from);
    for (mut from, mut to) in [(a.try_clone().unwrap(), b.try_clone().unwrap()), (b, a)] {
        let (sender, receiver) = mpsc::sync_channel::<(Instant, Vec<u8>)>(5_000);
        thread::spawn(move || {
            let mut buffer = [0; 2_048];
            while let Ok(n) = from.read(&mut buffer) {
                if sender.send((Instant::now() + DELAY, buffer[..n].to_vec())).is_err() {
                    return;
                }
            }
        });
        thread::spawn(move || {
            for (due, packet) in receiver {
                thread::sleep(due.saturating_duration_since(Instant::now()));
                // A packet that the device does not take is lost.
                let _ = to.write(&packet);
            }
        });
    }
}

/// Delay in one direction.
const DELAY: Duration = Duration::from_millis(5);

fn connect_from(host: IpAddr, server: SocketAddr) -> TcpStream {
    let family = if host.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let fd: OwnedFd = socket(family, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).unwrap();
    bind(fd.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(host, 0))).unwrap();
    connect(fd.as_raw_fd(), &SockaddrStorage::from(server)).unwrap();
    TcpStream::from(fd)
}

/// Long enough for a mean rate.
pub const SPAN: Duration = Duration::from_secs(2);
