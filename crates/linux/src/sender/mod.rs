//! Bundles of a sender in the kernel: their connections, and the answers to their signals.
//!
//! The congestion controls of `bpf/sender.bpf.c` answer signals like [`fairweir_core::delegate`].
//! User space gives connections their places, measures every 100 ms, and writes the controllers'
//! decisions. An iterator over the TCP sockets of the network namespace switches connections, and
//! switches them back when [`Sender`] drops. If the process is killed, each connection returns to
//! its previous congestion control at its first ACK after two seconds without a heartbeat.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use fairweir_core::delegate::{MEMBERS_MAX, Order, Phase, Reverse, Sample, Tally};
use fairweir_core::policy::Policy;
use fairweir_core::share::Weight;
use fairweir_core::units::{Bytes, Rate, Span};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle, ObjectBuilder, OpenObject};

use crate::bpf::abi::{self, BundleOrder, Config, Member, Place, Plain, RoleRecord};
use crate::bpf::{bpf_error, header, listen_to_the_loader, update};
use crate::classify::cgroup::{self, Tree};
use crate::classify::rules::{self, Rules};
use crate::host::programs::{Parts, Programs};
use crate::net::netns::Netns;
use crate::window::connections::Pass;
use crate::{Error, monotonic_now};

mod lacking;

/// The most bundles.
pub const BUNDLES_MAX: usize = header::BUNDLES_MAX as usize;
/// The most connections of a bundle that have a target.
pub const FREE_MAX: usize = header::FREE_MAX as usize;

/// Congestion controls of which a version for bundles exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Reno.
    Reno,
    /// CUBIC.
    Cubic,
}

/// A connection that a rule names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The socket's cookie.
    pub id: u64,
    /// Index of the group in the policy.
    pub group: usize,
    /// The other end.
    pub remote: IpAddr,
    /// Its port.
    pub port_remote: u16,
    /// The port at this end.
    pub port_local: u16,
    /// The name of its congestion control.
    pub congestion_control: String,
}

/// Which place a connection is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seat {
    /// Its index, below [`MEMBERS_MAX`].
    pub index: u32,
    /// Its congestion control.
    pub kind: Kind,
}

/// The role of a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A connection with a target.
    Free(Order),
    /// A connection that answers signals of others.
    Stunt {
        /// A stunt of weight 2 is asked half as often as one of weight 1.
        weight: Weight,
        /// The rate below which delegation does not reduce it.
        min_rate: Rate,
        /// The free connections for which it does not answer, one bit for each place: see
        /// [`bit_of_free`].
        apart: u32,
    },
}

/// The places of a bundle's members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Places of free connections, at most [`FREE_MAX`].
    pub free: Vec<u32>,
    /// Places of stunts: the first, and the one after the last.
    pub stunts: (u32, u32),
    /// How signals of stunts are answered.
    pub reverse: Reverse,
}

/// The observed state of a member.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// The socket's cookie.
    pub id: u64,
    /// `None` before its first ACK.
    pub sample: Option<Sample>,
    /// Counts of its signals.
    pub tally: Tally,
    /// Number of these signals whose answer the kernel lost; the connection answered them itself.
    pub mended: u32,
}

/// The registered congestion controls, and the connections that use them.
///
/// Invariant: a connection has a place only if it is in `seats`, as of the last [`Sender::seat`].
pub struct Sender {
    programs: Programs,
    maps: Maps,
    names: [String; 2],
    roles: Pass,
    enlist: Pass,
    netns: Netns,
    config: Config,
    policy: Policy,
    slots: Vec<u16>,
    rules: Rules,
    cgroups: Option<PathBuf>,
    knows_owners: bool,
    seats: BTreeMap<u64, Seat>,
    limits: Vec<String>,
    output: Vec<u8>,
    /// Dropping a link unregisters; links are dropped when the connections are given back.
    links: Vec<Link>,
}

struct Maps {
    orders: MapHandle,
    bundles: MapHandle,
    members: MapHandle,
    places: MapHandle,
}

/// The bit of a free connection, by its place: the places of one bundle are within a range of
/// [`FREE_MAX`] that begins with a multiple of it.
pub const fn bit_of_free(index: u32) -> u32 {
    1 << (index % FREE_MAX as u32)
}

impl Kind {
    /// Every kind, with its name.
    pub const ALL: [(&'static str, Kind); 2] = [("reno", Kind::Reno), ("cubic", Kind::Cubic)];
}

impl Sender {
    /// Loads and registers the congestion controls; no connection uses them yet.
    ///
    /// # Errors
    /// If the kernel lacks something, or a user of the policy does not exist.
    pub fn attach(policy: &Policy) -> Result<Sender, Error> {
        let programs = load(&["", &own_suffix()])?;
        let (programs, names, links) = programs;
        let maps = Maps {
            orders: programs.map("orders")?,
            bundles: programs.map("bundle_orders")?,
            members: programs.map("members")?,
            places: programs.map("places")?,
        };
        let roles = Pass::new(&programs.program("fairweir_roles")?)?;
        let enlist = Pass::new(&programs.program("fairweir_enlist")?)?;
        let mut sender = Sender {
            programs,
            maps,
            names,
            roles,
            enlist,
            netns: Netns::current()?,
            config: Config { enforce: 1, ..Config::default() },
            policy: policy.clone(),
            slots: Vec::new(),
            rules: Rules::default(),
            cgroups: cgroup::root().ok(),
            knows_owners: false,
            seats: BTreeMap::new(),
            limits: Vec::new(),
            output: Vec::new(),
            links,
        };
        sender.set_policy(policy)?;
        Ok(sender)
    }

    /// Takes over new rules; connections keep their places until the next [`Sender::seat`].
    ///
    /// # Errors
    /// If a user does not exist or the kernel refuses; then the old rules stay.
    pub fn set_policy(&mut self, policy: &Policy) -> Result<(), Error> {
        let slots = rules::assign_slots(policy, &BTreeMap::new());
        let rules = Rules::new(policy, &slots, &self.tree(policy))?;
        if let Err(e) = self.programs.set_rules(&self.rules, &rules) {
            let _ = self.programs.set_rules(&rules, &self.rules);
            return Err(e);
        }
        let needs_owners = rules::needs_owners(policy);
        self.config.features = rules.features(needs_owners);
        self.config.default_slot = slots[policy.default_group()].into();
        self.config.generation += 1;
        (self.policy, self.slots, self.rules) = (policy.clone(), slots, rules);
        if needs_owners && !self.knows_owners {
            self.knows_owners = true;
            if let Err(e) = self.programs.attach_owners() {
                let limit = format!("app:, unit:, cgroup: and user: may match nothing: {e}");
                self.limits.push(limit);
            }
        }
        self.beat()
    }

    /// Connections that a rule names, in no particular order.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn connections(&mut self) -> Result<Vec<Connection>, Error> {
        // Units come and go, so the rules for cgroups may have changed.
        if rules::needs_cgroups(&self.policy) {
            let rules = Rules::new(&self.policy, &self.slots, &self.tree(&self.policy))?;
            if rules != self.rules {
                self.programs.set_rules(&self.rules, &rules)?;
                self.rules = rules;
                self.config.generation += 1;
                self.beat()?;
            }
        }
        self.roles.run(&self.netns, &mut self.output)?;
        let records = self.output.chunks_exact(size_of::<RoleRecord>());
        let slots = &self.slots;
        Ok(records
            .filter_map(RoleRecord::from_bytes)
            .filter_map(|r| connection(&r, slots))
            .collect())
    }

    /// Gives places to these connections and takes them from all others; returns the number of connections
    /// that were switched.
    ///
    /// # Errors
    /// If the kernel refuses.
    ///
    /// # Panics
    /// If an index is not below [`MEMBERS_MAX`].
    pub fn seat(&mut self, seats: &BTreeMap<u64, Seat>) -> Result<usize, Error> {
        for id in self.seats.keys().filter(|id| !seats.contains_key(id)) {
            match self.maps.places.delete(&id.to_ne_bytes()) {
                Err(e) if e.kind() != libbpf_rs::ErrorKind::NotFound => {
                    return Err(bpf_error("take a place from a connection", &e));
                }
                _ => {}
            }
        }
        for (id, seat) in seats.iter().filter(|(id, seat)| self.seats.get(id) != Some(seat)) {
            assert!((seat.index as usize) < MEMBERS_MAX, "a place is in the table");
            let place = Place { member: seat.index, name: padded(self.name(seat.kind)) };
            update(&self.maps.places, &id.to_ne_bytes(), place.as_bytes())?;
        }
        self.seats = seats.clone();
        self.beat()?;
        self.enlist.run(&self.netns, &mut self.output)?;
        Ok(self.output.len())
    }

    /// Sets the part of a place in a bundle; `None` frees it.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set_part(&self, index: u32, bundle: u32, part: Option<Part>) -> Result<(), Error> {
        let order = match part {
            None => abi::Order::default(),
            Some(Part::Free(Order { gain, aim })) => abi::Order {
                apart: bit_of_free(index),
                aim_bps: aim.map_or(0, Rate::as_bps),
                has_aim: u32::from(aim.is_some()),
                gain: gain.forward() as i32 - gain.reverse() as i32,
                bundle,
                role: header::ROLE_FREE,
                ..abi::Order::default()
            },
            Some(Part::Stunt { weight, min_rate, apart }) => abi::Order {
                apart,
                min_rate_bps: min_rate.as_bps(),
                weight: weight.as_u32(),
                bundle,
                role: header::ROLE_STUNT,
                ..abi::Order::default()
            },
        };
        update(&self.maps.orders, &index.to_ne_bytes(), order.as_bytes())
    }

    /// Sets the places of a bundle's members.
    ///
    /// # Errors
    /// If the kernel refuses.
    ///
    /// # Panics
    /// If there are more than [`BUNDLES_MAX`] bundles or [`FREE_MAX`] free connections.
    pub fn set_layout(&self, bundle: u32, layout: &Layout) -> Result<(), Error> {
        assert!((bundle as usize) < BUNDLES_MAX, "a bundle is in the table");
        let mut order = BundleOrder {
            stunts_from: layout.stunts.0,
            stunts_to: layout.stunts.1,
            free_count: layout.free.len() as u32,
            reverse_own: u32::from(layout.reverse == Reverse::Own),
            ..BundleOrder::default()
        };
        order.free[..layout.free.len()].copy_from_slice(&layout.free);
        update(&self.maps.bundles, &bundle.to_ne_bytes(), order.as_bytes())
    }

    /// The observed state at the places below `end`; `None` where there is no connection.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn members(&self, end: u32) -> Result<Vec<Option<Seen>>, Error> {
        let mut members = Vec::with_capacity(end as usize);
        for index in 0..end {
            let bytes = self.maps.members.lookup(&index.to_ne_bytes(), MapFlags::ANY);
            let bytes = bytes.map_err(|e| bpf_error("read the members", &e))?;
            let member = bytes.and_then(|bytes| Member::from_bytes(&bytes));
            members.push(member.filter(|m| m.cookie != 0).map(|m| seen(&m)));
        }
        Ok(members)
    }

    /// Tells the programs that this process is alive. After two seconds without a call no signal is
    /// delegated, and connections return to their previous congestion controls.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn beat(&self) -> Result<(), Error> {
        let heartbeat_ns = monotonic_now().as_nanos();
        self.programs.configure(&Config { heartbeat_ns, ..self.config })
    }

    /// The name under which a congestion control is registered.
    pub fn name(&self, kind: Kind) -> &str {
        match kind {
            Kind::Reno => &self.names[0],
            Kind::Cubic => &self.names[1],
        }
    }

    /// What this kernel cannot do for the rules, in words.
    pub fn limits(&self) -> &[String] {
        &self.limits
    }

    /// Gives all connections their earlier congestion control back; returns the number of connections.
    ///
    /// # Errors
    /// If the kernel refuses. Then each connection returns to its earlier control by itself.
    pub fn detach(mut self) -> Result<usize, Error> {
        self.close()
    }

    /// The same, at the first call only.
    fn close(&mut self) -> Result<usize, Error> {
        if self.links.is_empty() {
            return Ok(0);
        }
        self.config.enforce = 0;
        let configured = self.beat();
        let passed = self.enlist.run(&self.netns, &mut self.output);
        self.links.clear();
        configured.and(passed).map(|()| self.output.len())
    }

    fn tree(&self, policy: &Policy) -> Tree {
        match &self.cgroups {
            Some(root) if rules::needs_cgroups(policy) => Tree::read(root),
            _ => Tree::default(),
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if let Err(e) = self.close() {
            tracing::warn!(error = %e, "not every connection could be given back at once");
        }
    }
}

/// Tries whether the kernel accepts the congestion controls: registers them under names of this
/// process, and unregisters them at once.
///
/// # Errors
/// Says what the kernel lacks, or the kernel's answer.
pub(crate) fn try_registering() -> Result<(), Error> {
    load(&[&own_suffix()]).map(drop)
}

fn own_suffix() -> String {
    format!("_{:x}", std::process::id())
}

/// Loads the programs, and registers the congestion controls under the first free names. Names
/// belong to the machine, not to a network namespace.
fn load(suffixes: &[&str]) -> Result<(Programs, [String; 2], Vec<Link>), Error> {
    let mut refusal = None;
    for suffix in suffixes {
        let names = MAPS.map(|map| format!("{map}{suffix}"));
        let object = open(&names)?.load().map_err(|e| match lacking::lacking() {
            Some(lacking) => Error::refused(LOAD, std::io::Error::other(lacking)),
            None => bpf_error(LOAD, &e),
        })?;
        let mut programs = Programs::of(object, Parts::All)?;
        match MAPS.iter().map(|map| programs.register(map)).collect::<Result<Vec<_>, _>>() {
            Ok(links) => return Ok((programs, names, links)),
            // The loader does not tell the reason; most likely the name is taken.
            Err(e) => refusal = Some(e),
        }
    }
    Err(refusal.expect("invariant: there is a suffix"))
}

/// Opens the object so that it will load congestion controls with these names.
pub(crate) fn open(names: &[String; 2]) -> Result<OpenObject, Error> {
    listen_to_the_loader();
    let opened = ObjectBuilder::default().open_memory(OBJECT);
    let mut object = opened.map_err(|e| bpf_error(LOAD, &e))?;
    for mut program in object.progs_mut() {
        if program.name() == "fairweir_replay" {
            program.set_autoload(cfg!(test));
        }
    }
    for mut map in object.maps_mut() {
        let described = MAPS.iter().position(|name| map.name() == *name);
        let Some((which, value)) = described.zip(map.initial_value_mut()) else { continue };
        let name = padded(MAPS[which]);
        let at = value.windows(CC_NAME_BYTES).position(|bytes| bytes == name);
        let at = at.expect("invariant: the description has a name");
        value[at..at + CC_NAME_BYTES].copy_from_slice(&padded(&names[which]));
    }
    Ok(object)
}

/// A name in the kernel's form, padded with zeros.
fn padded(name: &str) -> [u8; CC_NAME_BYTES] {
    let mut bytes = [0; CC_NAME_BYTES];
    for (to, from) in bytes[..CC_NAME_BYTES - 1].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    bytes
}

/// `None` if the rule has been replaced meanwhile.
fn connection(record: &RoleRecord, slots: &[u16]) -> Option<Connection> {
    let [a, b, c, d, ..] = record.remote;
    let remote = match record.is_ipv6 {
        0 => IpAddr::V4(Ipv4Addr::new(a, b, c, d)),
        _ => IpAddr::V6(Ipv6Addr::from(record.remote)),
    };
    let name = record.name.split(|b| *b == 0).next().unwrap_or_default();
    Some(Connection {
        id: record.cookie,
        group: slots.iter().position(|slot| *slot == record.slot)?,
        remote,
        port_remote: record.port_remote,
        port_local: record.port_local,
        congestion_control: String::from_utf8_lossy(name).into_owned(),
    })
}

fn seen(member: &Member) -> Seen {
    let phase = match member.phase {
        header::PHASE_SLOW_START => Phase::SlowStart,
        header::PHASE_AVOIDANCE => Phase::Avoidance,
        _ => Phase::Recovery,
    };
    let sample = Sample {
        cwnd: member.cwnd,
        cwnd_cut: member.cwnd_cut,
        packet: Bytes::new(member.packet.into()),
        rtt: Span::micros(member.rtt_us.into()),
        rtts: Span::micros(member.rtts_us),
        rtt_count: member.rtt_count,
        delivered: Bytes::new(member.delivered),
        phase,
    };
    let Member { signals, delegated, taken, refused, cuts, .. } = *member;
    Seen {
        id: member.cookie,
        sample: (member.rtt_us > 0).then_some(sample),
        tally: Tally { signals, delegated, taken, refused, cuts },
        mended: member.mended,
    }
}

/// The compiled `bpf/sender.bpf.c`.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/sender.bpf.o"));
const LOAD: &str = "load the congestion controls";
/// Bytes of the name of a congestion control (TCP_CA_NAME_MAX).
const CC_NAME_BYTES: usize = header::CC_NAME_BYTES as usize;
/// The object's maps that describe congestion controls; they are named like these.
const MAPS: [&str; 2] = ["fw_reno", "fw_cubic"];

#[cfg(test)]
mod tests;
