//! TCP connections of a LAN, diverted to a proxy on this gateway with their addresses unchanged (TPROXY).
//!
//! Two parts: an nftables table ([`table`]), which marks the proxy's packets, and for each family
//! policy rules and a route ([`routes`]) that deliver marked packets to this host. A packet is
//! marked if its socket has a foreign address; only the proxy makes such sockets. The first packet
//! of a connection from the LAN is dropped, and the proxy gets a copy ([`Divert::poll_taken`]). If
//! the server answers the proxy, the copy comes in at `lo` and reaches the listener
//! ([`Divert::deliver`]); so a client hears of a server only what it would hear without the proxy.
//! If the proxy does not listen, `tproxy` finds no socket and the packet is routed as usual.
//!
//! Never taken: connections to an address of the gateway, or back to the interface they came from,
//! such as those between two ports of a bridge with br_netfilter; sources that are not routed back
//! to the interface they came from; destinations to which this client's last connection failed
//! ([`Divert::pass`]). The connections of a device that opens more than [`OPENED_PER_SECOND`] are
//! limited, so that half-open connections cannot fill the proxy.
//!
//! Other programs may change all this at any time ([`watch`]). Until it is repaired, packets of
//! local sockets are dropped rather than forwarded, because the kernel finds the socket before it
//! looks for a route (early demultiplexing); TCP then sends them again.
//!
//! nftables is configured by its program `nft`, whose language is stable; its netlink messages are not
//! documented.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::process::Child;

use fairweir_core::packet::Mac;
use fairweir_core::relay::Syn;
use fairweir_core::units::{Span, Time};
use ipnet::IpNet;

use crate::bpf::header;
use crate::net::link;
use crate::net::netlink::Netlink;
use crate::{Error, Health};

mod firsts;
mod routes;
mod table;
mod watch;

use firsts::Firsts;
pub use firsts::Taken;
pub use table::run_nft;
use table::{Made, TABLE, spawn_nft};
use watch::{Leak, Notices};

/// The mark of the proxy's sockets.
pub const SOCKET_MARK: u32 = header::RELAYED_MARK;

/// The longest period between two calls of [`Divert::health`].
pub const LOOK_PERIOD: Span = Span::millis(500);

/// New connections per second of a device that reach the proxy, after a burst of ten times as many.
pub const OPENED_PER_SECOND: u32 = 100;

/// The time for which connections to a failed destination are not taken.
pub const PASS_SECONDS: u32 = 60;

/// The devices whose connections are taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clients {
    /// Connections of all devices.
    All,
    /// Connections of devices with one of these addresses.
    Some {
        /// Prefixes.
        prefixes: Vec<IpNet>,
        /// Link-layer addresses.
        macs: Vec<Mac>,
    },
}

/// Which connections are taken, and where they go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DivertSpec {
    /// Interfaces of the LAN.
    pub lan: Vec<String>,
    /// The devices whose connections are taken.
    pub clients: Clients,
    /// Ports at 127.0.0.1 and at ::1 on which transparent sockets listen.
    pub ports: [u16; 2],
}

/// The diversion in force; it ends when this drops.
#[derive(Debug)]
pub struct Divert {
    spec: DivertSpec,
    firsts: Firsts,
    notices: Notices,
    netlink: Netlink,
    netfilter: Netlink,
    /// The bit that marks packets for the proxy.
    mark: u32,
    /// Mark bits that other programs' packets had.
    foreign: u32,
    /// The table as it was made.
    made: Made,
    /// Losses between this host and the listeners, and between the last chain and the sockets.
    leaks: [Leak; 2],
    is_leaking: bool,
    delivered: u64,
    /// Connections to pass, with the client's address, that are not in the table yet.
    passed: VecDeque<(IpAddr, SocketAddr)>,
    /// The running `nft`.
    nft: Option<Child>,
}

impl Divert {
    /// Takes connections from now on; replaces what a killed daemon left.
    ///
    /// # Errors
    /// If an interface or `nft` is missing, or the kernel refuses; then no connection is taken.
    pub fn attach(spec: DivertSpec) -> Result<Divert, Error> {
        check(&spec.lan)?;
        let (mut netlink, netfilter) = (Netlink::open()?, Netlink::open_netfilter()?);
        routes::remove(&mut netlink)?;
        let bits = routes::bits_of_others(&mut netlink)?;
        let mark = MARKS.into_iter().find(|mark| mark & bits == 0).unwrap_or(MARKS[0]);
        let mut divert = Divert {
            spec,
            firsts: Firsts::open(mark)?,
            notices: Notices::open()?,
            netlink,
            netfilter,
            mark,
            foreign: 0,
            made: Made::default(),
            leaks: Default::default(),
            is_leaking: false,
            delivered: 0,
            passed: VecDeque::new(),
            nft: None,
        };
        routes::add(&mut divert.netlink, mark)?;
        divert.make_table()?;
        Ok(divert)
    }

    /// The specification in force.
    pub fn spec(&self) -> &DivertSpec {
        &self.spec
    }

    /// Changes which connections are taken from now on. Open connections stay as they are.
    ///
    /// # Errors
    /// As [`Divert::attach`]; then the old specification stays in force.
    pub fn replace(&mut self, spec: DivertSpec) -> Result<(), Error> {
        if spec == self.spec {
            return Ok(());
        }
        check(&spec.lan)?;
        let old = std::mem::replace(&mut self.spec, spec);
        self.make_table().inspect_err(|_| self.spec = old)
    }

    fn make_table(&mut self) -> Result<(), Error> {
        run_nft(&table::table(&self.spec, self.mark))?;
        self.made = table::made(&mut self.netfilter)?;
        (self.leaks, self.delivered) = Default::default();
        Ok(())
    }

    /// Readable when another program may have changed something ([`Divert::take_notice`]).
    pub fn notices(&self) -> [BorrowedFd<'_>; 2] {
        self.notices.fds()
    }

    /// Whether [`Divert::health`] should be called now.
    pub fn take_notice(&self) -> bool {
        self.notices.take()
    }

    /// Checks that everything is as it was created and, if connections are about to open, that packets
    /// arrive. A fault may keep packets from arriving until [`Divert::repair`], or until this drops.
    pub fn health(&mut self, opening: bool, now: Time) -> Health {
        Health::of(self.fault(opening, now), || Ok(()))
    }

    fn fault(&mut self, opening: bool, now: Time) -> Result<Option<String>, Error> {
        // A list that changes while it is read may be incomplete, so a difference is read twice.
        if table::made(&mut self.netfilter)? != self.made
            && table::made(&mut self.netfilter)? != self.made
        {
            return Ok(Some(format!("the nftables table inet {TABLE} was removed or changed")));
        }
        if let Some(what) = routes::fault(&mut self.netlink, self.mark)? {
            return Ok(Some(what));
        }
        let counted = table::counters(&mut self.netfilter)?;
        if counted.foreign > 0 {
            self.foreign |= self.mark;
            return Ok(Some(format!("another program marks packets with {:#010x}", self.mark)));
        }
        let [first, diverted] = &mut self.leaks;
        let leaks = [
            first.handle(self.delivered, counted.first, now),
            diverted.handle(counted.diverted, counted.arrived, now),
        ];
        self.is_leaking = opening && leaks.contains(&true);
        Ok(self.is_leaking.then(|| "diverted packets do not arrive at the proxy".to_owned()))
    }

    /// Restores what was changed.
    ///
    /// # Errors
    /// If the kernel or `nft` refuses, other programs use all marks, or packets do not arrive though everything
    /// is as it was made.
    pub fn repair(&mut self) -> Result<(), Error> {
        let refused = |why: &str| Error::refused("repair the diversion", io::Error::other(why));
        if self.is_leaking {
            return Err(refused("everything is as it was made"));
        }
        let mut has_other = false;
        if self.mark & self.foreign != 0 {
            let bits = self.foreign | routes::bits_of_others(&mut self.netlink)?;
            let free = |bits: u32| MARKS.into_iter().find(|mark| mark & bits == 0);
            let mark = free(bits).or(free(self.foreign));
            self.mark = mark.ok_or_else(|| refused("other programs use all marks"))?;
            self.firsts.set_mark(self.mark)?;
            has_other = true;
        }
        if routes::fault(&mut self.netlink, self.mark)?.is_some() {
            routes::remove(&mut self.netlink)?;
            routes::add(&mut self.netlink, self.mark)?;
        }
        if has_other || table::made(&mut self.netfilter)? != self.made {
            self.make_table()?;
        }
        Ok(())
    }

    /// Readable when [`Divert::poll_taken`] has something.
    pub fn waits_for(&self) -> BorrowedFd<'_> {
        self.firsts.as_fd()
    }

    /// The first packet of a connection, which waits for [`Divert::deliver`] or [`Divert::refuse`]
    /// (without them the client sends it again); or a copy of a DHCP client's request, a few per second.
    pub fn poll_taken(&self) -> Option<Taken> {
        self.firsts.poll()
    }

    /// Sends the packet to the proxy's listener.
    pub fn deliver(&mut self, syn: &Syn) {
        self.delivered += 1;
        self.firsts.deliver(syn);
    }

    /// Tells the client that the server refuses the connection.
    pub fn refuse(&self, syn: &Syn) {
        self.firsts.refuse(syn);
    }

    /// Does not take connections of `client` to `server` for the next [`PASS_SECONDS`].
    pub fn pass(&mut self, client: IpAddr, server: SocketAddr) {
        if self.passed.len() < PASSED_MAX {
            self.passed.push_back((client, server));
        }
    }

    /// Writes to the table which connections are not taken; never waits.
    pub fn handle_tick(&mut self) {
        match self.nft.as_mut().map(Child::try_wait) {
            Some(Ok(None)) => return,
            Some(Ok(Some(status))) if !status.success() => {
                tracing::debug!(%status, "nft did not take all destinations to pass by");
            }
            _ => {}
        }
        self.nft = None;
        if self.passed.is_empty() {
            return;
        }
        let mut text = String::new();
        for (client, server) in self.passed.drain(..) {
            let set = if client.is_ipv4() { "dead4" } else { "dead6" };
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "add element inet {TABLE} {set} {{ {client} . {} . {} }}",
                server.ip(),
                server.port()
            );
        }
        // Less than the capacity of a pipe, so that writing does not wait.
        assert!(text.len() < 60_000, "{} bytes for nft", text.len());
        match spawn_nft(&text) {
            Ok(child) => self.nft = Some(child),
            Err(e) => tracing::warn!("cannot run nft: {e}"),
        }
    }
}

impl Drop for Divert {
    fn drop(&mut self) {
        if let Some(mut nft) = self.nft.take() {
            let _ = nft.wait();
        }
        if let Err(e) = Divert::sweep() {
            tracing::warn!("the diversion of connections was not removed: {e}");
        }
    }
}

impl Divert {
    /// Removes the remains of a proxy, killed or not, and returns what was removed.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub fn sweep() -> Result<Vec<String>, Error> {
        let mut removed = Vec::new();
        if table::remove()? {
            removed.push(format!("nftables table inet {TABLE}"));
        }
        removed.extend(routes::remove(&mut Netlink::open()?)?);
        Ok(removed)
    }
}

/// Whether the proxy can work behind these interfaces.
///
/// # Errors
/// If an interface is missing.
pub fn check(lan: &[String]) -> Result<(), Error> {
    lan.iter().try_for_each(|dev| match link::find(dev)? {
        Some(_) => Ok(()),
        None => Err(Error::NoDevice(dev.clone())),
    })
}

/// Number of the routing table: `fw` in hexadecimal is 0x6677.
const TABLE_NUMBER: u32 = 0x6677;
/// Mark bits for the proxy's packets, by preference; not those of `fairweir router`.
const MARKS: [u32; 6] =
    [0x0040_0000, 0x0020_0000, 0x0000_0040, 0x0000_2000, 0x0010_0000, 0x0000_0200];
/// The most failed destinations that wait for `nft`, so that a batch fits into a pipe.
const PASSED_MAX: usize = 400;

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::net::netns::Netns;

    fn spec(clients: Clients) -> DivertSpec {
        DivertSpec { lan: vec!["lo".to_owned()], clients, ports: [4_000, 4_001] }
    }

    #[test]
    fn what_is_attached_is_gone_after_a_sweep() {
        let has_nft = Command::new("nft").arg("--version").output().is_ok();
        if !nix::unistd::geteuid().is_root() || !has_nft {
            assert!(std::env::var_os("FAIRWEIR_STRICT").is_none(), "needs root and nft");
            return;
        }
        Netns::new().unwrap().run(|| {
            link::set_up("lo").unwrap();
            assert!(Divert::sweep().unwrap().is_empty());
            let mut divert = Divert::attach(spec(Clients::All)).unwrap();
            let prefixes = ["192.0.2.0/24", "192.0.2.7/32", "2001:db8::/64"];
            let prefixes = prefixes.iter().map(|net| net.parse().unwrap()).collect();
            let clients = Clients::Some { prefixes, macs: vec![Mac([2, 0, 0x5e, 0, 0, 1])] };
            divert.replace(spec(clients)).unwrap();
            for server in ["203.0.113.1:80", "[2001:db8::5]:443"] {
                let server: SocketAddr = server.parse().unwrap();
                divert.pass(server.ip(), server);
            }
            assert!(divert.poll_taken().is_none());
            assert_eq!(divert.health(true, Time::ZERO), Health::Well);
            assert!(divert.take_notice() && !divert.take_notice());
            divert.handle_tick();
            assert!(divert.nft.take().unwrap().wait().unwrap().success());
            // The state that a killed daemon leaves.
            let table = table::table(&divert.spec, divert.mark);
            drop(divert);
            routes::add(&mut Netlink::open().unwrap(), MARKS[0]).unwrap();
            run_nft(&table).unwrap();
            assert_eq!(Divert::sweep().unwrap().len(), 9);
            drop(Divert::attach(spec(Clients::All)).unwrap());
            assert!(Divert::sweep().unwrap().is_empty());
            let missing = DivertSpec { lan: vec!["none0".to_owned()], ..spec(Clients::All) };
            assert!(matches!(Divert::attach(missing), Err(Error::NoDevice(_))));
        });
    }
}
