//! The classifier's BPF programs and maps: `bpf/classify.bpf.c`.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};

use libbpf_rs::{
    Iter, Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject, ProgramMut,
};

use crate::Error;
use crate::bpf::abi::{Allowances, Config, Counter, Counters, Marks, Plain, SLOTS_MAX, Talker};
use crate::bpf::{
    KEY, attach_tcx, bpf_error, is_at_a_device, listen_to_the_loader, not_found, program, replace,
    update,
};
use crate::classify::cgroup;
use crate::classify::ports::port_table;
use crate::classify::rules::Rules;

/// The loaded programs and their attachments, all removed when this drops.
pub(crate) struct Programs {
    object: Object,
    parts: Parts,
    pub(crate) maps: Maps,
    /// The links of the programs that learn owners; dropping a link detaches.
    owner_links: Vec<Link>,
    ingress_link: Option<Link>,
    /// Present while the beginnings of flows are heard.
    hear_link: Option<Link>,
    /// Present while the upload is shared.
    upload_link: Option<Link>,
    /// Present while flows are marked.
    mark_link: Option<Link>,
}

/// Which programs for leaving packets are wanted; the verifier takes long for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Egress {
    /// The program that shares uploads.
    pub(crate) upload: bool,
    /// The program that marks flows.
    pub(crate) marks: bool,
}

/// Which programs this kernel accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parts {
    /// All programs.
    All,
    /// All, but connections are watched by a walk over the whole namespace: some kernels refuse to walk a map.
    WatchAll,
    /// All but those that watch connections and bound their windows.
    NoWindows,
    /// As `NoWindows`, also without the scan of sockets that exist at the start.
    NoScan,
    /// The classifier alone, which knows addresses and ports.
    NoOwners,
}

impl Parts {
    const ALL: [Parts; 5] =
        [Parts::All, Parts::WatchAll, Parts::NoWindows, Parts::NoScan, Parts::NoOwners];

    /// Whether connections can be watched and their windows bounded.
    pub(crate) fn has_windows(self) -> bool {
        matches!(self, Parts::All | Parts::WatchAll)
    }

    /// Whether sockets that exist at the start can be listed.
    pub(crate) fn has_scan(self) -> bool {
        self.has_windows() || self == Parts::NoWindows
    }

    /// Whether owners of sockets can be known.
    pub(crate) fn has_owners(self) -> bool {
        self != Parts::NoOwners
    }

    fn has_program(self, name: &str, egress: Egress) -> bool {
        match name {
            "fairweir_ingress" | "fairweir_hear" => true,
            "fairweir_upload" => egress.upload,
            "fairweir_mark" => egress.marks,
            "fairweir_scan" => self.has_scan(),
            "fairweir_watch" => self == Parts::All,
            "fairweir_watch_all" => self == Parts::WatchAll,
            "fairweir_bound" | "fairweir_open" | "fairweir_expire" => self.has_windows(),
            _ => self.has_owners(),
        }
    }
}

pub(crate) struct Maps {
    config: MapHandle,
    counters: MapHandle,
    /// `None` in a sender's object.
    upload_counters: Option<MapHandle>,
    allowances: MapHandle,
    spent: MapHandle,
    prefix4: MapHandle,
    prefix6: MapHandle,
    ports: MapHandle,
    apps: MapHandle,
    users: MapHandle,
    cgroups: MapHandle,
    census: MapHandle,
    /// `None` in a sender's object.
    hearing: Option<Hearing>,
    pub(crate) connections: MapHandle,
    pub(crate) windows: MapHandle,
    pub(crate) initial_windows: MapHandle,
}

/// Flows that are bound to groups one by one, and what is heard of their beginnings.
pub(crate) struct Hearing {
    pub(crate) flows: MapHandle,
    pub(crate) heard: MapHandle,
}

impl Programs {
    /// Loads as many of the programs as this kernel accepts; those for leaving packets only on request.
    ///
    /// # Errors
    /// [`Error::Bpf`] with the verifier's log if it refuses even the classifier.
    pub(crate) fn load(egress: Egress) -> Result<Programs, Error> {
        let mut refused = Vec::new();
        for parts in Parts::ALL {
            let opened = open(parts, egress);
            match opened.and_then(|object| object.load().map_err(|e| bpf_error(LOAD, &e))) {
                Ok(object) => {
                    for (refused, error) in refused {
                        let said = "the kernel refuses these BPF programs";
                        // The walk over all connections replaces the walk over a map.
                        if parts.has_windows() {
                            tracing::debug!(parts = ?refused, %error, "{said}");
                        } else {
                            tracing::warn!(parts = ?refused, %error, "{said}");
                        }
                    }
                    return Programs::of(object, parts);
                }
                Err(e) => refused.push((parts, e)),
            }
        }
        let (_, refusal) = refused.pop().expect("invariant: the loop ran");
        Err(refusal)
    }

    /// The programs of a loaded object whose maps include the classifier's.
    pub(crate) fn of(object: Object, parts: Parts) -> Result<Programs, Error> {
        let maps = Maps::of(&object)?;
        let owner_links = Vec::new();
        Ok(Programs {
            object,
            parts,
            maps,
            owner_links,
            ingress_link: None,
            hear_link: None,
            upload_link: None,
            mark_link: None,
        })
    }

    /// Registers the congestion control that the map `name` describes, until the link drops.
    pub(crate) fn register(&mut self, name: &str) -> Result<Link, Error> {
        let missing = || Error::refused(format!("find the map {name}"), not_found());
        let mut map = self.object.maps_mut().find(|map| map.name() == name).ok_or_else(missing)?;
        let attempted = format!("register the congestion control {name}");
        map.attach_struct_ops().map_err(|e| bpf_error(attempted, &e))
    }

    /// The map `name` of an object that has more maps than the classifier's.
    pub(crate) fn map(&self, name: &str) -> Result<MapHandle, Error> {
        let missing = || Error::refused(format!("find the map {name}"), not_found());
        let map = self.object.maps().find(|map| map.name() == name).ok_or_else(missing)?;
        MapHandle::try_from(&map).map_err(|e| bpf_error("open a map", &e))
    }

    /// Which programs are loaded.
    pub(crate) fn parts(&self) -> Parts {
        self.parts
    }

    /// The classifier, for attaching it in another way and for test runs.
    pub(crate) fn classifier(&self) -> Result<ProgramMut<'_>, Error> {
        self.program("fairweir_ingress")
    }

    /// Records the owner of each new socket from now on, and then finds the owners of existing sockets.
    ///
    /// # Errors
    /// If there is no cgroup hierarchy, or the kernel refuses.
    pub(crate) fn attach_owners(&mut self) -> Result<(), Error> {
        if !self.parts.has_owners() {
            return Ok(());
        }
        let root = cgroup::open_root()?;
        for name in OWNER_PROGRAMS {
            let link = self.program(name)?.attach_cgroup(root.as_raw_fd());
            self.owner_links
                .push(link.map_err(|e| bpf_error(format!("attach {name} to cgroups"), &e))?);
        }
        self.scan()
    }

    /// Finds the owners of sockets whose owner is unknown yet, among all open files.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn scan(&self) -> Result<(), Error> {
        if !self.parts.has_scan() {
            return Ok(());
        }
        let attempted = "scan the open sockets";
        let link = self.program("fairweir_scan")?.attach().map_err(|e| bpf_error(attempted, &e))?;
        let mut pass = Iter::new(&link).map_err(|e| bpf_error(attempted, &e))?;
        // The program writes nothing: reading to the end runs it.
        let mut nothing = Vec::new();
        pass.read_to_end(&mut nothing).map(drop).map_err(|e| Error::refused(attempted, e))
    }

    /// Attaches the classifier to the ingress of the device number `index` by tcx.
    ///
    /// # Errors
    /// If the kernel is older than 6.6, or refuses.
    pub(crate) fn attach_tcx(&mut self, index: u32) -> Result<(), Error> {
        let link = attach_tcx(&self.classifier()?, index);
        self.ingress_link = Some(
            link.ok_or_else(|| Error::last_os("attach the classifier to the ingress by tcx"))?,
        );
        Ok(())
    }

    /// Hears the beginnings of flows that leave by the device number `index` from now on.
    ///
    /// # Errors
    /// If the kernel is older than 6.6, or refuses.
    pub(crate) fn attach_hear(&mut self, index: u32) -> Result<(), Error> {
        let link = attach_tcx(&self.program("fairweir_hear")?, index);
        self.hear_link = Some(link.ok_or_else(|| Error::last_os("attach to the egress by tcx"))?);
        Ok(())
    }

    /// Counts what leaves by the device number `index`, and gives it classes if so configured.
    ///
    /// # Errors
    /// If the kernel is older than 6.6, or refuses.
    pub(crate) fn attach_upload(&mut self, index: u32) -> Result<(), Error> {
        let link = attach_tcx(&self.program("fairweir_upload")?, index);
        self.upload_link = Some(link.ok_or_else(|| Error::last_os("attach to the egress by tcx"))?);
        Ok(())
    }

    /// Whether the program of [`Programs::attach_upload`] is no longer attached.
    pub(crate) fn has_lost_upload(&self) -> bool {
        self.upload_link.as_ref().is_some_and(|link| !is_at_a_device(link))
    }

    /// Marks what leaves by the device number `index`, as configured.
    ///
    /// # Errors
    /// If the program is not loaded, or the kernel is older than 6.6, or refuses.
    pub(crate) fn attach_mark(&mut self, index: u32) -> Result<(), Error> {
        if self.mark_link.as_ref().is_some_and(is_at_a_device) {
            return Ok(());
        }
        let link = attach_tcx(&self.program("fairweir_mark")?, index);
        self.mark_link = Some(link.ok_or_else(|| Error::last_os("attach to the egress by tcx"))?);
        Ok(())
    }

    /// Sets the mark of each class; `None` detaches.
    pub(crate) fn set_marks(&mut self, marks: Option<&Marks>) -> Result<(), Error> {
        match marks {
            Some(marks) => update(&self.map("marks")?, &KEY, marks.as_bytes()),
            None => {
                self.mark_link = None;
                Ok(())
            }
        }
    }

    /// The counters of what has left by the device since the start.
    pub(crate) fn upload_counters(&self) -> Result<MapHandle, Error> {
        let missing = || Error::refused("find the map upload_counters", not_found());
        let map = self.maps.upload_counters.as_ref().ok_or_else(missing)?;
        MapHandle::try_from(map).map_err(|e| bpf_error("open a map", &e))
    }

    /// Whether the program of [`Programs::attach_tcx`] is still attached: another process may detach it.
    pub(crate) fn is_attached(&self) -> bool {
        self.ingress_link.as_ref().is_some_and(is_at_a_device)
    }

    /// Whether the program of [`Programs::attach_hear`] is no longer attached.
    pub(crate) fn has_lost_hear(&self) -> bool {
        self.hear_link.as_ref().is_some_and(|link| !is_at_a_device(link))
    }

    /// Detaches the classifier as another process could.
    #[cfg(test)]
    pub(crate) fn force_detach(&self) {
        self.ingress_link.as_ref().unwrap().detach().unwrap();
    }

    /// Detaches all programs.
    pub(crate) fn detach(&mut self) {
        self.ingress_link = None;
        self.hear_link = None;
        self.upload_link = None;
        self.mark_link = None;
        self.owner_links.clear();
    }

    /// The classifier's descriptor, for attaching it by netlink.
    pub(crate) fn classifier_fd(&self) -> Result<i32, Error> {
        Ok(self.classifier()?.as_fd().as_raw_fd())
    }

    /// Writes the classifier's configuration.
    pub(crate) fn configure(&self, config: &Config) -> Result<(), Error> {
        update(&self.maps.config, &KEY, config.as_bytes())
    }

    /// The counters of each CPU since the start.
    pub(crate) fn counters_by_cpu(&self) -> Result<Vec<Counters>, Error> {
        let map = &self.maps.counters;
        let per_cpu = map.lookup_percpu(&KEY, MapFlags::ANY);
        let per_cpu = per_cpu.map_err(|e| bpf_error("read the counters", &e))?.unwrap_or_default();
        Ok(per_cpu.iter().filter_map(|bytes| Counters::from_bytes(bytes)).collect())
    }

    /// The counters since the start, summed over the CPUs.
    pub(crate) fn counters(&self) -> Result<Box<Counters>, Error> {
        Ok(Counters::sum(&self.counters_by_cpu()?))
    }

    /// Sets for each CPU how far TCP passes without its class.
    pub(crate) fn allow(&self, by_cpu: &[Allowances]) -> Result<(), Error> {
        let values: Vec<Vec<u8>> = by_cpu.iter().map(|a| a.as_bytes().to_vec()).collect();
        let Maps { allowances, spent, .. } = &self.maps;
        let told = allowances.update_percpu(&KEY, &values, MapFlags::ANY);
        let told = told.and_then(|()| spent.update(&KEY, &[0; SLOTS_MAX], MapFlags::ANY));
        told.map_err(|e| bpf_error("let TCP pass without its class", &e))
    }

    /// Replaces the rules `old` by `new`, touching only what differs.
    ///
    /// # Errors
    /// If there are more rules than the kernel's tables can hold.
    pub(crate) fn set_rules(&self, old: &Rules, new: &Rules) -> Result<(), Error> {
        let maps = &self.maps;
        for (map, old, new) in [
            (&maps.prefix4, &old.prefix4, &new.prefix4),
            (&maps.prefix6, &old.prefix6, &new.prefix6),
            (&maps.apps, &old.apps, &new.apps),
            (&maps.users, &old.users, &new.users),
            (&maps.cgroups, &old.cgroups, &new.cgroups),
        ] {
            replace(map, old, new)?;
        }
        for (table, (old, new)) in old.ports.iter().zip(&new.ports).enumerate() {
            if old != new {
                update(&maps.ports, &(table as u32).to_ne_bytes(), &port_table(new))?;
            }
        }
        Ok(())
    }

    /// How much each talker received since the census began.
    pub(crate) fn census(&self) -> Result<Vec<(Talker, Counter)>, Error> {
        let map = &self.maps.census;
        let mut talkers = Vec::new();
        for key in map.keys() {
            let value =
                map.lookup(&key, MapFlags::ANY).map_err(|e| bpf_error("read the census", &e))?;
            let counter = value.and_then(|value| Counter::from_bytes(&value));
            talkers.extend(Talker::from_bytes(&key).zip(counter));
        }
        Ok(talkers)
    }

    /// The program `name`.
    pub(crate) fn program(&self, name: &str) -> Result<ProgramMut<'_>, Error> {
        program(&self.object, name)
    }
}

impl Maps {
    /// The tables for flows that are bound one by one.
    ///
    /// # Errors
    /// If the programs hear no beginnings of flows.
    pub(crate) fn hearing(&self) -> Result<&Hearing, Error> {
        let missing = || Error::refused("find the tables of flows", not_found());
        self.hearing.as_ref().ok_or_else(missing)
    }

    fn of(object: &Object) -> Result<Maps, Error> {
        let mut handles = BTreeMap::new();
        for map in object.maps() {
            let handle = MapHandle::try_from(&map).map_err(|e| bpf_error("open a map", &e))?;
            handles.insert(map.name().to_string_lossy().into_owned(), handle);
        }
        let mut take = |name: &str| {
            let missing = || Error::refused(format!("find the map {name}"), not_found());
            handles.remove(name).ok_or_else(missing)
        };
        let hearing = match (take("flows"), take("heard_ring")) {
            (Ok(flows), Ok(heard)) => Some(Hearing { flows, heard }),
            _ => None,
        };
        Ok(Maps {
            config: take("config")?,
            counters: take("counters")?,
            upload_counters: take("upload_counters").ok(),
            allowances: take("allowances")?,
            spent: take("spent")?,
            prefix4: take("prefix4_rules")?,
            prefix6: take("prefix6_rules")?,
            ports: take("port_rules")?,
            apps: take("app_rules")?,
            users: take("user_rules")?,
            cgroups: take("cgroup_rules")?,
            census: take("census")?,
            hearing,
            connections: take("connections")?,
            windows: take("windows")?,
            initial_windows: take("initial_windows")?,
        })
    }
}

/// Opens the object so that it will load these programs.
pub(crate) fn open(parts: Parts, egress: Egress) -> Result<OpenObject, Error> {
    listen_to_the_loader();
    let mut object =
        ObjectBuilder::default().open_memory(OBJECT).map_err(|e| bpf_error(LOAD, &e))?;
    for mut program in object.progs_mut() {
        let load = program.name().to_str().is_some_and(|name| parts.has_program(name, egress));
        program.set_autoload(load);
    }
    if parts == Parts::NoOwners {
        // The constant `with_owners`: the verifier never sees the code that depends on it.
        for mut map in object.maps_mut() {
            if map.name().to_string_lossy().ends_with(".rodata") {
                map.set_initial_value(&0u32.to_ne_bytes()).map_err(|e| bpf_error(LOAD, &e))?;
            }
        }
    }
    Ok(object)
}

/// The compiled `bpf/classify.bpf.c`.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/classify.bpf.o"));
const LOAD: &str = "load the BPF programs";
const OWNER_PROGRAMS: [&str; 5] =
    ["fairweir_create", "fairweir_conn4", "fairweir_conn6", "fairweir_send4", "fairweir_send6"];
