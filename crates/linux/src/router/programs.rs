//! The router's BPF programs: `bpf/router.bpf.c`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;

use libbpf_rs::{
    Link as Attached, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject, ProgramMut,
};

use crate::Error;
use crate::bpf::abi::{Bindings, Flow, FlowKey, Plain, RouterConfig, RouterCounters, RouterFlow};
use crate::bpf::{
    KEY, attach_tcx, bpf_error, each_entry, header, is_at_a_device, listen_to_the_loader,
    not_found, program, replace, update,
};
use crate::classify::rules::Rules;

/// The loaded programs; everything goes when this drops.
pub(crate) struct Programs {
    object: Object,
    /// What is loaded.
    parts: Parts,
    /// Dropping a link detaches.
    links: Vec<Attached>,
    pub(crate) config: MapHandle,
    counters: MapHandle,
    pub(crate) upload_counters: MapHandle,
    prefix4: MapHandle,
    prefix6: MapHandle,
    macs: MapHandle,
    leaves: MapHandle,
    pub(crate) flows: MapHandle,
    pub(crate) windows: MapHandle,
    pub(crate) initial_windows: MapHandle,
    pub(crate) dhcp: MapHandle,
    /// Flows that are bound to labels of sites.
    pub(crate) bound: MapHandle,
    pub(crate) heard: MapHandle,
    /// Of devices with an agreement.
    clients: MapHandle,
}

/// What not every router needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// The program at WAN egress, for an upload that is shared.
    pub(crate) upload: bool,
    /// The programs that hear to which sites connections go, and room in their tables.
    pub(crate) sites: bool,
}

impl Parts {
    fn has_program(self, name: &OsStr) -> bool {
        if name == WAN_EGRESS {
            return self.upload;
        }
        self.sites || !HEARING.iter().any(|hearing| name == *hearing)
    }
}

impl Programs {
    /// Loads them.
    ///
    /// # Errors
    /// [`Error::Bpf`] with the verifier's log.
    pub(crate) fn load(parts: Parts) -> Result<Programs, Error> {
        let object = open(parts)?.load().map_err(|e| bpf_error(LOAD, &e))?;
        let map = |name: &str| {
            let missing = || Error::refused(format!("find the map {name}"), not_found());
            let map = object.maps().find(|map| map.name() == name).ok_or_else(missing)?;
            MapHandle::try_from(&map).map_err(|e| bpf_error("open a map", &e))
        };
        Ok(Programs {
            config: map("config")?,
            counters: map("counters")?,
            upload_counters: map("upload_counters")?,
            prefix4: map("prefix4_rules")?,
            prefix6: map("prefix6_rules")?,
            macs: map("mac_rules")?,
            leaves: map("leaf_rules")?,
            flows: map("router_flows")?,
            windows: map("windows")?,
            initial_windows: map("initial_windows")?,
            dhcp: map("dhcp_ring")?,
            bound: map("flows")?,
            heard: map("heard_ring")?,
            clients: map("client_bindings")?,
            links: Vec::new(),
            parts,
            object,
        })
    }

    /// Attaches all programs, in place of what was attached before.
    ///
    /// # Errors
    /// If the kernel is older than 6.6, or refuses.
    pub(crate) fn attach(&mut self, lan: u32, wan: u32) -> Result<(), Error> {
        self.links.clear();
        let egress = self.parts.upload.then_some((WAN_EGRESS, wan));
        let hearing = HEARING.into_iter().filter(|_| self.parts.sites).map(|name| (name, lan));
        for (name, device) in egress.into_iter().chain(hearing).chain([
            ("fairweir_wan_ingress", wan),
            // Of a connection whose SYN is seen the SYN-ACK must be seen too.
            ("fairweir_lan_egress", lan),
            ("fairweir_lan_marks", lan),
            ("fairweir_lan_ingress", lan),
        ]) {
            let missing = || Error::refused(format!("find the program {name}"), not_found());
            let program = self.object.progs_mut().find(|p| p.name() == name).ok_or_else(missing)?;
            let link = attach_tcx(&program, device);
            self.links.push(link.ok_or_else(|| Error::last_os(format!("attach {name} by tcx")))?);
        }
        Ok(())
    }

    /// What is loaded.
    pub(crate) fn parts(&self) -> Parts {
        self.parts
    }

    /// Whether all that was attached still is: another process may detach it.
    pub(crate) fn are_attached(&self) -> bool {
        !self.links.is_empty() && self.links.iter().all(is_at_a_device)
    }

    /// Detaches all programs.
    pub(crate) fn detach(&mut self) {
        self.links.clear();
    }

    pub(crate) fn configure(&self, config: &RouterConfig) -> Result<(), Error> {
        update(&self.config, &KEY, config.as_bytes())
    }

    /// Replaces the rules `old` by `new`, touching only what differs.
    ///
    /// # Errors
    /// If there are more rules than the kernel takes.
    pub(crate) fn set_rules(&self, old: &Rules, new: &Rules) -> Result<(), Error> {
        replace(&self.prefix4, &old.prefix4, &new.prefix4)?;
        replace(&self.prefix6, &old.prefix6, &new.prefix6)?;
        replace(&self.leaves, &old.leaves, &new.leaves)?;
        replace(&self.macs, &old.macs, &new.macs)
    }

    /// Makes room for the bindings of a device with an agreement, if there is none.
    ///
    /// # Errors
    /// If there are more devices than [`header::CLIENTS_MAX`], or the kernel refuses.
    pub(crate) fn add_client(&self, slot: u16) -> Result<(), Error> {
        let (key, empty) = (u32::from(slot).to_ne_bytes(), vec![0; size_of::<Bindings>()]);
        match self.clients.update(&key, &empty, MapFlags::NO_EXIST) {
            Err(e) if e.kind() != libbpf_rs::ErrorKind::AlreadyExists => {
                Err(bpf_error("make the bindings of a device", &e))
            }
            _ => Ok(()),
        }
    }

    /// Deletes them.
    pub(crate) fn delete_client(&self, slot: u16) {
        // What is left binds nothing: no rule leads to it.
        let _ = self.clients.delete(&u32::from(slot).to_ne_bytes());
    }

    /// The bindings of a device.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn client(&self, slot: u16) -> Result<Option<Bindings>, Error> {
        let found = self.clients.lookup(&u32::from(slot).to_ne_bytes(), MapFlags::ANY);
        let found = found.map_err(|e| bpf_error("read the bindings of a device", &e))?;
        Ok(found.and_then(|bytes| Bindings::from_bytes(&bytes)))
    }

    /// A program, for test runs.
    pub(crate) fn program(&self, name: &str) -> Result<ProgramMut<'_>, Error> {
        program(&self.object, name)
    }

    /// All tables.
    pub(crate) fn maps(&self) -> impl Iterator<Item = Result<MapHandle, Error>> {
        self.object
            .maps()
            .map(|map| MapHandle::try_from(&map).map_err(|e| bpf_error("open a map", &e)))
    }

    /// What was counted since the start, summed over the CPUs.
    pub(crate) fn counters(&self) -> Result<Box<RouterCounters>, Error> {
        let per_cpu = self.counters.lookup_percpu(&KEY, MapFlags::ANY);
        let per_cpu = per_cpu.map_err(|e| bpf_error("read the counters", &e))?.unwrap_or_default();
        Ok(RouterCounters::sum(&per_cpu))
    }

    /// Passes on the connections that the kernel knows, each with the server's port.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub(crate) fn each_flow(&self, mut each: impl FnMut(u16, RouterFlow)) -> Result<(), Error> {
        each_entry(&self.flows, |key: FlowKey, flow: RouterFlow| {
            each(u16::from_be_bytes(key.port_remote), flow);
        })
    }

    /// By which evidence each of these connections is bound to a site, by id; only those that are.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub(crate) fn evidence(&self, ids: &BTreeSet<u64>) -> Result<BTreeMap<u64, u64>, Error> {
        let mut keys = Vec::new();
        each_entry(&self.flows, |key: FlowKey, flow: RouterFlow| {
            if ids.contains(&flow.id) {
                keys.push((flow.id, key));
            }
        })?;
        let mut numbers = BTreeMap::new();
        for (id, key) in keys {
            let bound = self.bound.lookup(key.as_bytes(), MapFlags::ANY);
            let bound = bound.map_err(|e| bpf_error("look up a flow", &e))?;
            let bound = bound.and_then(|bytes| Flow::from_bytes(&bytes));
            numbers.extend(bound.filter(|b| b.number > 0).map(|bound| (id, bound.number)));
        }
        Ok(numbers)
    }
}

/// Opens the object so that it will load these programs.
pub(crate) fn open(parts: Parts) -> Result<OpenObject, Error> {
    listen_to_the_loader();
    let refused = |e| bpf_error(LOAD, &e);
    let mut object = ObjectBuilder::default().open_memory(OBJECT).map_err(refused)?;
    for mut program in object.progs_mut() {
        let is_needed = parts.has_program(program.name());
        program.set_autoload(is_needed);
    }
    for mut map in object.maps_mut() {
        let room = SITE_TABLES.iter().find(|(name, ..)| map.name() == *name);
        if let Some((_, used, unused)) = room {
            map.set_max_entries(if parts.sites { *used } else { *unused }).map_err(refused)?;
        }
    }
    Ok(object)
}

/// The compiled `bpf/router.bpf.c`.
pub(crate) const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/router.bpf.o"));
const LOAD: &str = "load the router's BPF programs";
const WAN_EGRESS: &str = "fairweir_wan_egress";
const HEARING: [&str; 2] = ["fairweir_hear", "fairweir_hear_answers"];
/// Tables of what is heard: entries, or bytes of a ring, with and without sites. There is room for as many flows
/// as for connections, and half of them can be remembered at once.
const SITE_TABLES: [(&str, u32, u32); 3] = [
    ("flows", header::ROUTER_FLOWS_MAX, 1),
    ("heard_ring", 1 << 18, PAGE),
    ("recent_sets", RECENT_SETS, 1),
];
/// Sets of remembered flows with sites; without, no flow is looked up.
pub(crate) const RECENT_SETS: u32 = header::ROUTER_FLOWS_MAX / 2 / header::RECENT_WAYS;
/// Bytes of the smallest ring.
const PAGE: u32 = 4_096;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::tests::is_root;

    #[test]
    fn the_programs_load_where_the_kernel_has_no_btf() {
        if !is_root() {
            return;
        }
        let hidden = std::thread::spawn(|| {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS).unwrap();
            let mount = |what: &std::ffi::CStr, at: &std::ffi::CStr, flags| {
                // SAFETY: C strings that outlive the call; only this thread sees the mounts.
                let done = unsafe {
                    libc::mount(what.as_ptr(), at.as_ptr(), what.as_ptr(), flags, std::ptr::null())
                };
                assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
            };
            mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE);
            mount(c"tmpfs", c"/sys/kernel", 0);
            assert!(!std::path::Path::new("/sys/kernel/btf/vmlinux").exists());
            Programs::load(Parts { upload: true, sites: true }).map(drop).map_err(|e| e.to_string())
        });
        assert_eq!(hidden.join().unwrap(), Ok(()));
    }

    /// The verifier needs long for them, and they cost each packet.
    #[test]
    fn programs_that_nothing_needs_are_not_loaded() {
        for parts in [Parts::default(), Parts { upload: true, sites: true }] {
            let object = open(parts).unwrap();
            let is_loaded = |name: &str| {
                let mut programs = object.progs();
                programs.find(|program| program.name() == name).unwrap().autoload()
            };
            assert_eq!(is_loaded(WAN_EGRESS), parts.upload);
            assert!(HEARING.iter().all(|name| is_loaded(name) == parts.sites));
        }
    }

    /// The kernel gives batches of whole buckets.
    #[test]
    fn all_connections_are_read_however_many_there_are() {
        if !is_root() {
            return;
        }
        let programs = Programs::load(Parts::default()).unwrap();
        for number in 0..20_000_u32 {
            let mut key = FlowKey {
                remote: [0; 16],
                local: [0; 16],
                port_remote: 443_u16.to_be_bytes(),
                port_local: [0; 2],
                family: 0,
                transport: 0,
            };
            key.local[..4].copy_from_slice(&number.to_be_bytes());
            let flow = RouterFlow { id: number.into(), ..RouterFlow::default() };
            update(&programs.flows, key.as_bytes(), flow.as_bytes()).unwrap();
        }
        let mut ids = Vec::new();
        programs.each_flow(|_, flow| ids.push(flow.id)).unwrap();
        ids.sort_unstable();
        assert!(ids.iter().copied().eq(0..20_000), "{} of 20,000", ids.len());
    }
}
