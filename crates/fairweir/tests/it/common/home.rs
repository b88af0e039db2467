//! Devices behind a router: the home of a [`Stage`] becomes a router with a bridge and NAT.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;

use fairweir_linux::{link, netns::Netns};

use fairweir_testing::{can_run, traffic};

use super::stage::{Daemon, Download, Stage};

/// A device of the home.
pub struct Device {
    pub name: &'static str,
    pub mac: String,
    pub address: String,
    netns: Netns,
}

/// Whether NAT can be set up.
pub fn has_nat() -> bool {
    can_run(Command::new("nft").arg("--version").output().is_ok(), "nft for NAT")
}

/// Makes the home of `stage` a router with a device for each of `names` behind it, at 192.168.7.N
/// (with NAT) and 2001:db8:7::N.
pub fn devices<const N: usize>(stage: &Stage, names: [&'static str; N]) -> [Device; N] {
    stage.at_home(|| {
        ip("link add br-lan type bridge");
        ip("link set br-lan up");
        link::add_address("br-lan", "192.168.7.254/24".parse().unwrap()).unwrap();
        ip("-6 addr add 2001:db8:7::ffff/64 dev br-lan nodad");
        ip("-6 addr add 2001:db8:9::2/64 dev wan nodad");
        ip("-6 route add default via 2001:db8:9::1 dev wan");
        forward();
        for line in [
            "add table ip home",
            "add chain ip home post { type nat hook postrouting priority 100 ; }",
            "add rule ip home post oifname wan masquerade",
        ] {
            run("nft", line);
        }
    });
    stage.at_internet(|| {
        ip("-6 addr add 2001:db8:9::1/64 dev isp nodad");
        ip("-6 route add 2001:db8:7::/64 via 2001:db8:9::2");
        forward();
    });
    let mut number = 0;
    names.map(|name| {
        number += 1;
        let device = Device {
            name,
            mac: format!("02:00:5e:00:53:{number:02}"),
            address: format!("192.168.7.{number}"),
            netns: Netns::new().unwrap(),
        };
        let port = format!("port{number}");
        stage.at_home(|| {
            link::create_veth(&port, &device.netns, "eth0").unwrap();
            link::offloads(&port, false).unwrap();
            ip(&format!("link set {port} master br-lan up"));
        });
        device.netns.run(|| {
            ip(&format!("link set eth0 address {}", device.mac));
            link::offloads("eth0", false).unwrap();
            ip("link set lo up");
            ip("link set eth0 up");
            link::add_address("eth0", format!("{}/24", device.address).parse().unwrap()).unwrap();
            ip(&format!("-6 addr add 2001:db8:7::{number}/64 dev eth0 nodad"));
            ip("route add default via 192.168.7.254");
            ip("-6 route add default via 2001:db8:7::ffff");
        });
        device
    })
}

impl Device {
    /// Starts a download.
    pub fn download(&self, server: SocketAddr) -> Download {
        Download::new(self.netns.run(|| TcpStream::connect(server).unwrap()))
    }

    pub fn netns(&self) -> &Netns {
        &self.netns
    }

    /// Starts a host's daemon on the device.
    pub fn start_host(&self, stage: &Stage, configuration: &str) -> Daemon {
        let path = |what: &str| stage.path(&format!("{}{what}", self.name));
        fs::write(path(".toml"), configuration).unwrap();
        let mut command = Command::new(super::daemon_binary());
        command.args(["host", "--dev", "eth0", "--config"]).arg(path(".toml"));
        command.arg("--run-dir").arg(path("-run")).arg("--state-dir").arg(path("-state"));
        command.env_remove("RUST_LOG").stdin(Stdio::piped()).stdout(Stdio::null());
        command.stderr(File::create(path(".log")).unwrap());
        let child = self.netns.run(|| command.spawn().unwrap());
        let socket = path("-run").join("host-eth0.sock");
        Daemon::begun(child, socket, path(".log"), |status| status["ready"] == true)
    }

    /// Runs `work` on the device.
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        self.netns.run(work)
    }

    /// Drops this number of every 1,000 TCP packets that arrive at the device, at random.
    pub fn lose(&self, per_mille: u32) {
        self.run(|| {
            for line in [
                "add table ip lossy",
                "add chain ip lossy in { type filter hook prerouting priority -400 ; }",
                &format!(
                    "add rule ip lossy in meta l4proto tcp numgen random mod 1000 < {per_mille} drop"
                ),
            ] {
                assert!(Command::new("nft").arg(line).status().unwrap().success());
            }
        });
    }

    /// Number of L2 bytes received on its interface.
    pub fn received(&self) -> u64 {
        traffic(&self.netns, "eth0").received
    }

    /// Payload rate from `other` over one connection during a second, in Mbit/s.
    pub fn mbit_from(&self, other: &Device, address: &str) -> f64 {
        let listener = other.netns.run(|| TcpListener::bind((address, 0)).unwrap());
        let server = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let zeros = vec![0; 1 << 16];
            while std::io::Write::write_all(&mut stream, &zeros).is_ok() {}
        });
        let download = self.download(server);
        download.mbit_over(std::time::Duration::from_millis(300));
        download.mbit_over(std::time::Duration::from_secs(1))
    }
}

fn forward() {
    for path in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        fs::write(format!("/proc/sys/net/{path}"), "1").unwrap();
    }
}

pub fn ip(args: &str) {
    run("ip", args);
}

pub fn run(program: &str, args: &str) {
    let output = Command::new(program).args(args.split(' ')).output().unwrap();
    assert!(output.status.success(), "{program} {args}: {output:?}");
}
