//! The network namespaces of an emulated home, with their devices and routes.

use std::fs;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use fairweir_core::units::Span;
use fairweir_linux::divert::run_nft;
use fairweir_linux::link;
use fairweir_linux::netns::Netns;
use fairweir_scenario::{IPV6_MTU_MIN, Scenario};
use ipnet::IpNet;
use nix::sys::socket::{AddressFamily, SockFlag, SockProtocol, SockType, socket};

use crate::Error;
use crate::layout::{
    INTERNET, LAN, LAN_DEVICE, Layout, WAN, WAN_DEVICE, device_address, uses_ecn, uses_timestamps,
};

/// The interface of a device behind the bridge.
pub(crate) const DEVICE_INTERFACE: &str = "eth0";
/// The ISP's interface towards the home.
pub(crate) const ISP_DEVICE: &str = "lan0";
/// Queue length of a TUN device; if it is short, the kernel drops packets without any sign.
const TUN_QUEUE_PACKETS: u32 = 20_000;

/// An emulated home; it vanishes when it is dropped and the last process inside has ended.
pub(crate) struct Home {
    pub(crate) internet: Netns,
    pub(crate) home: Netns,
    pub(crate) isp: Netns,
    /// The devices behind the router, in the scenario's order; empty if the home is one host.
    pub(crate) devices: Vec<Netns>,
    /// The internet's end of the access link.
    net0: OwnedFd,
    /// The ISP's end, towards the home.
    acc0: OwnedFd,
}

impl Home {
    pub(crate) fn new(layout: &Layout<'_>) -> Result<Home, Error> {
        let mtu = layout.scenario.link.mtu;
        let (internet, isp, home) = (Netns::new()?, Netns::new()?, Netns::new()?);
        let net0 = internet.run(|| -> Result<OwnedFd, Error> {
            tune_tcp(layout.scenario)?;
            let timestamps = if uses_timestamps(layout.scenario) { "1" } else { "0" };
            sysctl("ipv4/tcp_timestamps", timestamps)?;
            set_up_internet(&layout.server_addresses(), mtu)
        })?;
        home.run(|| -> Result<(), Error> {
            tune_tcp(layout.scenario)?;
            set_up_home(&isp, mtu)
        })?;
        let acc0 = isp.run(|| set_up_isp(mtu))?;
        let mut made = Home { internet, home, isp, devices: Vec::new(), net0, acc0 };
        if !layout.scenario.devices.is_empty() {
            made.add_router(mtu)?;
        }
        for index in 0..layout.scenario.devices.len() {
            made.add_device(layout.scenario, index)?;
        }
        Ok(made)
    }

    /// The namespace in which the flows of a group are received.
    pub(crate) fn of_group(&self, scenario: &Scenario, group: usize) -> &Netns {
        let device = scenario.device_of.get(group).and_then(|&device| self.devices.get(device));
        device.unwrap_or(&self.home)
    }

    /// Turns the home into a router with a bridge.
    fn add_router(&self, mtu: u32) -> Result<(), Error> {
        self.home.run(|| -> Result<(), Error> {
            link::create_bridge(LAN_DEVICE)?;
            link::set_mtu(LAN_DEVICE, mtu)?;
            link::set_up(LAN_DEVICE)?;
            // Packets for the proxy are delivered through `lo`, since only some kernels offer a bridge's own hooks.
            link::set_up("lo")?;
            let _ = sysctl("bridge/bridge-nf-call-iptables", "0");
            for (lan, router) in of_link(LAN, mtu, |(lan, _)| *lan) {
                link::add_address(LAN_DEVICE, net_of(router, lan))?;
            }
            forward()
        })?;
        for ((lan, _), (wan, _)) in LAN.into_iter().zip(WAN) {
            if of_link([lan], mtu, |lan| *lan).next().is_none() {
                continue;
            }
            self.isp.run(|| link::add_route(lan, Some(wan.addr()), ISP_DEVICE))?;
            self.internet.run(|| link::add_route(lan, None, "net0"))?;
        }
        Ok(())
    }

    fn add_device(&mut self, scenario: &Scenario, index: usize) -> Result<(), Error> {
        let (netns, mtu, port) = (Netns::new()?, scenario.link.mtu, format!("port{index}"));
        self.home.run(|| -> Result<(), Error> {
            link::create_veth(&port, &netns, DEVICE_INTERFACE)?;
            link::set_mtu(&port, mtu)?;
            link::offloads(&port, false)?;
            link::set_bridge(&port, LAN_DEVICE)?;
            Ok(link::set_up(&port)?)
        })?;
        netns.run(|| -> Result<(), Error> {
            tune_tcp(scenario)?;
            link::set_mtu(DEVICE_INTERFACE, mtu)?;
            link::offloads(DEVICE_INTERFACE, false)?;
            link::set_up(DEVICE_INTERFACE)?;
            for (lan, router) in of_link(LAN, mtu, |(lan, _)| *lan) {
                let address = device_address(lan, index);
                link::add_address(DEVICE_INTERFACE, net_of(address, lan))?;
                link::add_route(everything(router), Some(router), DEVICE_INTERFACE)?;
            }
            Ok(())
        })?;
        if let loss @ 1.. = scenario.devices[index].loss_ppm {
            netns.run(|| lose(loss))?;
        }
        self.devices.push(netns);
        Ok(())
    }

    /// Both ends of the access link, for the line.
    pub(crate) fn tuns(&self) -> Result<(OwnedFd, OwnedFd), Error> {
        let clone = |fd: &OwnedFd| fd.try_clone().map_err(|e| Error::io("share a TUN device", e));
        Ok((clone(&self.net0)?, clone(&self.acc0)?))
    }

    /// Packet sockets for what arrives at the home, for the line.
    pub(crate) fn arrivals(&self) -> Result<Vec<OwnedFd>, Error> {
        self.home.run(arrivals)
    }
}

/// Receives the IP packets that arrive in this namespace, except those dropped by its ingress hooks.
fn arrivals() -> Result<Vec<OwnedFd>, Error> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let open = |protocol| socket(AddressFamily::Packet, SockType::Datagram, flags, protocol);
    let sockets = [SockProtocol::EthIp, SockProtocol::EthIpv6].map(open);
    let sockets: Result<_, _> = sockets.into_iter().collect();
    sockets.map_err(|e| Error::io("look at what comes to the home", e))
}

fn set_up_internet(servers: &[IpAddr], mtu: u32) -> Result<OwnedFd, Error> {
    let net0 = tun("net0", mtu)?;
    for &server in servers {
        link::add_address("lo", server.into())?;
    }
    for (wan, _) in of_link(WAN, mtu, |(wan, _)| *wan) {
        link::add_route(wan.trunc(), None, "net0")?;
    }
    Ok(net0)
}

fn set_up_home(isp: &Netns, mtu: u32) -> Result<(), Error> {
    link::create_veth(WAN_DEVICE, isp, ISP_DEVICE)?;
    link::set_mtu(WAN_DEVICE, mtu)?;
    link::offloads(WAN_DEVICE, false)?;
    link::set_up(WAN_DEVICE)?;
    isp.run(|| -> Result<(), Error> {
        link::set_mtu(ISP_DEVICE, mtu)?;
        link::offloads(ISP_DEVICE, false)?;
        link::set_up(ISP_DEVICE)?;
        for (wan, gateway) in of_link(WAN, mtu, |(wan, _)| *wan) {
            link::add_address(ISP_DEVICE, net_of(gateway, wan))?;
        }
        Ok(())
    })?;
    for (wan, gateway) in of_link(WAN, mtu, |(wan, _)| *wan) {
        link::add_address(WAN_DEVICE, wan)?;
        link::add_route(everything(gateway), Some(gateway), WAN_DEVICE)?;
    }
    Ok(())
}

fn forward() -> Result<(), Error> {
    sysctl("ipv4/ip_forward", "1")?;
    sysctl("ipv6/conf/all/forwarding", "1")
}

fn set_up_isp(mtu: u32) -> Result<OwnedFd, Error> {
    forward()?;
    let acc0 = tun("acc0", mtu)?;
    for servers in of_link(INTERNET, mtu, |net| *net) {
        link::add_route(servers, None, "acc0")?;
    }
    Ok(acc0)
}

fn tun(name: &str, mtu: u32) -> Result<OwnedFd, Error> {
    let tun = link::tun(name)?;
    link::set_txqueuelen(name, TUN_QUEUE_PACKETS)?;
    link::set_mtu(name, mtu)?;
    link::set_up(name)?;
    Ok(tun)
}

/// The elements whose family a link with this MTU carries: the kernel has no IPv6 below 1280 bytes.
fn of_link<T, const N: usize>(
    all: [T; N],
    mtu: u32,
    net: impl Fn(&T) -> IpNet,
) -> impl Iterator<Item = T> {
    let carried = move |one: &T| mtu >= IPV6_MTU_MIN || net(one).addr().is_ipv4();
    all.into_iter().filter(carried)
}

/// Lets windows grow as large as any scenario needs, and keeps metrics of earlier connections from being
/// used, so that a run does not depend on the one before.
fn tune_tcp(scenario: &Scenario) -> Result<(), Error> {
    let rate = scenario.link.capacity.max(scenario.end());
    // Twice the bytes that the link carries in a second. Not more: a larger maximum buffer makes the units
    // coarser in which a window is advertised.
    let bytes = (rate * Span::secs(2)).as_u64().clamp(BUFFER_DEFAULT, BUFFER_MAX);
    sysctl("ipv4/tcp_rmem", &format!("4096 131072 {bytes}"))?;
    sysctl("ipv4/tcp_wmem", &format!("4096 65536 {bytes}"))?;
    sysctl("ipv4/tcp_ecn", if uses_ecn(scenario) { "1" } else { "0" })?;
    sysctl("ipv4/tcp_no_metrics_save", "1")
}

/// Linux's own maximum of `tcp_rmem`, and below, the maximum for a scenario.
const BUFFER_DEFAULT: u64 = 6 << 20;
const BUFFER_MAX: u64 = 32 << 20;

/// Drops this part of the TCP packets that arrive in this namespace, at random.
fn lose(loss_ppm: u32) -> Result<(), Error> {
    let table = format!(
        "table inet loss {{\nchain in {{\ntype filter hook prerouting priority -400;\n\
         meta l4proto tcp numgen random mod 1000000 < {loss_ppm} drop\n}}\n}}\n"
    );
    Ok(run_nft(&table)?)
}

/// Sets a sysctl in the calling thread's namespace.
fn sysctl(name: &str, value: &str) -> Result<(), Error> {
    let path = format!("/proc/sys/net/{name}");
    fs::write(&path, value).map_err(|e| Error::io(format!("write {value} to {path}"), e))
}

/// An address with the prefix length of its neighbour's network.
fn net_of(address: IpAddr, neighbour: IpNet) -> IpNet {
    IpNet::new_assert(address, neighbour.prefix_len())
}

/// The default route's destination, in the family of `address`.
fn everything(address: IpAddr) -> IpNet {
    IpNet::new_assert(address, 0).trunc()
}
