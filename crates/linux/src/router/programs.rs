//! The router's BPF programs: `bpf/router.bpf.c`.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;

use libbpf_rs::{
    Link as Attached, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject, ProgramMut,
};

use crate::Error;
use crate::bpf::abi::{
    Bindings, Flow, FlowKey, Marks, Plain, RouterConfig, RouterCounters, RouterFlow,
};
use crate::bpf::{
    KEY, attach_tcx, bpf_error, each_entry, header, is_at_a_device, listen_to_the_loader,
    not_found, program, replace, update,
};
use crate::classify::rules::Rules;

/// The loaded programs; everything is removed when this drops.
pub(crate) struct Programs {
    object: Object,
    /// The loaded parts.
    parts: Parts,
    /// The attached programs; dropping a link detaches.
    links: Vec<Attached>,
    /// Present while flows are marked.
    mark_links: Vec<Attached>,
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
    /// Bindings of devices with an agreement.
    clients: MapHandle,
    marks: MapHandle,
}

/// The parts that not every router needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// The program at WAN egress, for a shared upload.
    pub(crate) upload: bool,
    /// The programs that hear connections to sites, and room in their tables.
    pub(crate) sites: bool,
    /// The programs that mark flows for another host that divides.
    pub(crate) marks: bool,
}

impl Parts {
    fn has_program(self, name: &OsStr) -> bool {
        let is_one = |of: [&str; 2]| of.iter().any(|one| name == *one);
        if name == WAN_EGRESS {
            return self.upload;
        }
        (self.sites || !is_one(HEARING)) && (self.marks || !is_one(MARKING))
    }
}

impl Programs {
    /// Loads the programs and the requested parts.
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
            marks: map("marks")?,
            links: Vec::new(),
            mark_links: Vec::new(),
            parts,
            object,
        })
    }

    /// Attaches all programs, in place of earlier attachments.
    ///
    /// # Errors
    /// If the kernel is older than 6.6, or refuses.
    pub(crate) fn attach(&mut self, lans: &[u32], wan: u32) -> Result<(), Error> {
        self.links.clear();
        let egress = self.parts.upload.then_some((WAN_EGRESS, wan));
        let hearing = HEARING.into_iter().filter(|_| self.parts.sites);
        // Where a connection's SYN is seen, its SYN-ACK must be seen too: LAN egress is attached first.
        let at_lan = ["fairweir_lan_egress", "fairweir_lan_marks", "fairweir_lan_ingress"];
        let at_lan: Vec<_> = hearing.chain(at_lan).collect();
        let at_lans = lans.iter().flat_map(|lan| at_lan.iter().map(move |name| (*name, *lan)));
        let at_wan = egress.into_iter().chain([("fairweir_wan_ingress", wan)]);
        for (name, device) in at_wan.chain(at_lans) {
            let link = self.attach_one(name, device)?;
            self.links.push(link);
        }
        // The marking programs come behind those above, if flows are marked.
        match std::mem::take(&mut self.mark_links).is_empty() {
            true => Ok(()),
            false => self.attach_marks(lans, wan),
        }
    }

    fn attach_one(&self, name: &str, device: u32) -> Result<Attached, Error> {
        let link = attach_tcx(&self.program(name)?, device);
        link.ok_or_else(|| Error::last_os(format!("attach {name} by tcx")))
    }

    /// Attaches the programs that mark.
    ///
    /// # Errors
    /// If they are not loaded, or the kernel refuses.
    pub(crate) fn attach_marks(&mut self, lans: &[u32], wan: u32) -> Result<(), Error> {
        if self.mark_links.is_empty() || !self.mark_links.iter().all(is_at_a_device) {
            self.mark_links.clear();
            let [own, foreign] = MARKING;
            for (name, device) in lans.iter().map(|lan| (own, *lan)).chain([(foreign, wan)]) {
                let link = self.attach_one(name, device)?;
                self.mark_links.push(link);
            }
        }
        Ok(())
    }

    /// Removes the marks of all classes until they are set again.
    pub(crate) fn forget_marks(&self) -> Result<(), Error> {
        update(&self.marks, &KEY, Marks::default().as_bytes())
    }

    /// Sets the mark of each class; `None` detaches.
    pub(crate) fn set_marks(&mut self, marks: Option<&Marks>) -> Result<(), Error> {
        match marks {
            Some(marks) => update(&self.marks, &KEY, marks.as_bytes()),
            None => {
                self.mark_links.clear();
                self.forget_marks()
            }
        }
    }

    /// The loaded parts.
    pub(crate) fn parts(&self) -> Parts {
        self.parts
    }

    /// Whether all programs are still attached: another process may detach them.
    pub(crate) fn are_attached(&self) -> bool {
        !self.links.is_empty() && self.links.iter().all(is_at_a_device)
    }

    /// Detaches all programs.
    pub(crate) fn detach(&mut self) {
        self.links.clear();
        self.mark_links.clear();
    }

    pub(crate) fn configure(&self, config: &RouterConfig) -> Result<(), Error> {
        update(&self.config, &KEY, config.as_bytes())
    }

    /// Replaces the rules `old` by `new`, touching only what differs.
    ///
    /// # Errors
    /// If there are more rules than the kernel's tables can hold.
    pub(crate) fn set_rules(&self, old: &Rules, new: &Rules) -> Result<(), Error> {
        replace(&self.prefix4, &old.prefix4, &new.prefix4)?;
        replace(&self.prefix6, &old.prefix6, &new.prefix6)?;
        replace(&self.leaves, &old.leaves, &new.leaves)?;
        replace(&self.macs, &old.macs, &new.macs)
    }

    /// Creates the bindings of a device with an agreement, if there are none.
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

    /// Deletes the bindings of a device.
    pub(crate) fn delete_client(&self, slot: u16) {
        // Bindings that remain have no effect: no rule leads to them.
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

    /// The counters since the start, summed over the CPUs.
    pub(crate) fn counters(&self) -> Result<Box<RouterCounters>, Error> {
        let per_cpu = self.counters.lookup_percpu(&KEY, MapFlags::ANY);
        let per_cpu = per_cpu.map_err(|e| bpf_error("read the counters", &e))?.unwrap_or_default();
        Ok(RouterCounters::sum(&per_cpu))
    }

    /// Passes on the connections in the kernel's table, each with the server's port.
    ///
    /// # Errors
    /// If the kernel does not answer.
    pub(crate) fn each_flow(&self, mut each: impl FnMut(u16, RouterFlow)) -> Result<(), Error> {
        each_entry(&self.flows, |key: FlowKey, flow: RouterFlow| {
            each(u16::from_be_bytes(key.port_remote), flow);
        })
    }

    /// The number of the evidence that binds each of these connections to a site, by id; only for bound connections.
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
        if map.name() == MARKED {
            map.set_max_entries(if parts.marks { MARKED_MAX } else { 1 }).map_err(refused)?;
        }
    }
    Ok(object)
}

/// The compiled `bpf/router.bpf.c`.
pub(crate) const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/router.bpf.o"));
const LOAD: &str = "load the router's BPF programs";
const WAN_EGRESS: &str = "fairweir_wan_egress";
const HEARING: [&str; 2] = ["fairweir_hear", "fairweir_hear_answers"];
const MARKING: [&str; 2] = ["fairweir_own_marks", "fairweir_foreign_marks"];
/// The table of the times when flows were marked. A flow that it forgets is marked more often.
const MARKED: &str = "marked_flows";
const MARKED_MAX: u32 = 4_096;
/// Tables for hearing: entries, or bytes of a ring, with and without sites. There is room for as
/// many flows as for connections, and half of them can be in the table of recent flows.
const SITE_TABLES: [(&str, u32, u32); 3] = [
    ("flows", header::ROUTER_FLOWS_MAX, 1),
    ("heard_ring", 1 << 18, PAGE),
    ("recent_sets", RECENT_SETS, 1),
];
/// The number of sets in the table of recent flows if rules match sites; otherwise no flow is looked up.
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
                // SAFETY: these are C strings that outlive the call; only this thread sees the mounts.
                let done = unsafe {
                    libc::mount(what.as_ptr(), at.as_ptr(), what.as_ptr(), flags, std::ptr::null())
                };
                assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
            };
            mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE);
            mount(c"tmpfs", c"/sys/kernel", 0);
            assert!(!std::path::Path::new("/sys/kernel/btf/vmlinux").exists());
            let all = Parts { upload: true, sites: true, marks: true };
            Programs::load(all).map(drop).map_err(|e| e.to_string())
        });
        assert_eq!(hidden.join().unwrap(), Ok(()));
    }

    /// The verifier takes long for them, and each packet would pay for them.
    #[test]
    fn programs_that_nothing_needs_are_not_loaded() {
        for parts in [Parts::default(), Parts { upload: true, sites: true, marks: true }] {
            let object = open(parts).unwrap();
            let is_loaded = |name: &str| {
                let mut programs = object.progs();
                programs.find(|program| program.name() == name).unwrap().autoload()
            };
            assert_eq!(is_loaded(WAN_EGRESS), parts.upload);
            assert!(HEARING.iter().all(|name| is_loaded(name) == parts.sites));
            assert!(MARKING.iter().all(|name| is_loaded(name) == parts.marks));
        }
    }

    /// The kernel returns batches of whole buckets.
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
