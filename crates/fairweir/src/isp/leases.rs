//! Subscribers from the files of DHCP servers. See `fairweir_core::lease_file`.
//!
//! Files are checked once a second and read if they changed, but reading takes at most a twentieth of the time.
//!
//! A DHCP server may rewrite its file in place, and Kea moves its leases to other files from time to time. So a lease
//! that is missing in a file may still be valid. A lease ends when its time is over, by a line that ends it, or when
//! its address belongs to another device. A lease without an end is over if two readings in a row lack it, unless the
//! file seems to be truncated. While a file cannot be read, its leases stay.
//!
//! Kea's clean-up (LFC): the server renames `F` to `F.1` and begins a new `F`; another process merges `F.2` and `F.1`
//! into `F.output`, renames it to `F.completed`, removes `F.2` and `F.1`, and renames `F.completed` to `F.2`. At any
//! time the leases are those of `F.completed`, or else `F.2` and `F.1`, and then `F`, as Kea itself loads them. A
//! reading during which one of these files was replaced is made again.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fairweir_config::file::{Rules, Text, Trust};
use fairweir_config::isp::{LeasesSection, SubscriberSpec};
use fairweir_core::lease_file::{self, FileLease};
use fairweir_core::packet::Mac;
use fairweir_core::units::{Span, Time};
use fairweir_daemon::unix_now;
use fairweir_linux::monotonic_now;
use ipnet::IpNet;
use tracing::warn;

use super::SHRINK_MAX;
use super::registry::{ADDRESSES_MAX, Change, Origin};
use super::sessions::Subscribers;
use super::unpoliced::{Reason, Unpoliced, Who};
use super::wire::LeasesStatus;
use crate::words::chained;

/// The largest file, in bytes, as for a table of subscribers.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// How often an unchanged file is read: a lease can end without a change of the file.
const READ_PERIOD: Span = Span::secs(60);
/// Reading takes at most 1/20 of the time.
const READ_PART: u64 = 20;

/// How often to read again if a file was replaced while reading.
const TRIES_MAX: usize = 5;

/// The leases of all files; see the module.
pub(super) struct Leases {
    section: LeasesSection,
    sources: Vec<Source>,
    /// The next reading is not before this time, because the last one took long.
    not_before: Time,
    /// The addresses that the registry has, by MAC address.
    given: BTreeMap<String, Vec<IpNet>>,
    /// Whether `given` includes the leases that the registry had at the start.
    is_seeded: bool,
    /// The number of leases that the registry refused.
    refused: usize,
    error: Option<String>,
    pub(super) unpoliced: Unpoliced,
}

/// A lease file, with the files that Kea has beside it.
struct Source {
    path: PathBuf,
    stamps: Option<[Option<Stamp>; FAMILY]>,
    read_at: Option<Time>,
    known: BTreeMap<IpNet, Known>,
    skipped: usize,
    error: Option<String>,
}

/// A lease that is valid.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Known {
    mac: Mac,
    /// The end of the lease, Unix time; 0 means no end.
    until_s: u64,
    /// The number of readings in a row in which it was missing: 0, 1, or 2 for more.
    missing: u8,
}

/// Suffixes of Kea's files, the oldest file first; the last one is the lease file itself.
const SUFFIXES: [&str; FAMILY] = [".completed", ".2", ".1", ""];
const FAMILY: usize = 4;

/// Changes whenever a file does: device, inode, size, time.
type Stamp = (u64, u64, u64, i64, i64);

impl Leases {
    pub(super) fn new(section: LeasesSection) -> Leases {
        let source = |path: &PathBuf| Source {
            path: path.clone(),
            stamps: None,
            read_at: None,
            known: BTreeMap::new(),
            skipped: 0,
            error: None,
        };
        Leases {
            sources: section.files.iter().map(source).collect(),
            section,
            not_before: Time::ZERO,
            given: BTreeMap::new(),
            is_seeded: false,
            refused: 0,
            error: None,
            unpoliced: Unpoliced::default(),
        }
    }

    pub(super) fn section(&self) -> &LeasesSection {
        &self.section
    }

    /// Once a second: reads the files that changed, and ends leases whose time is over.
    pub(super) fn handle_tick(&mut self, daemon: &mut impl Subscribers, now: Time) {
        if now < self.not_before {
            return;
        }
        let began = monotonic_now();
        let now_s = unix_now();
        let mut is_read = false;
        for source in &mut self.sources {
            is_read |= source.handle_tick(now, now_s);
        }
        if !is_read {
            return;
        }
        let sources = self.sources.iter().filter_map(|source| source.error.clone());
        let mut errors: Vec<String> = sources.collect();
        errors.extend(self.take(daemon, now_s).err().map(|e| chained(&e)));
        let error = (!errors.is_empty()).then(|| errors.join("; "));
        if let Some(error) = error.as_ref().filter(|error| self.error.as_ref() != Some(error)) {
            warn!("leases: {error}");
        }
        self.error = error;
        let took = monotonic_now().since(began);
        self.not_before = now + Span::nanos(took.as_nanos() * READ_PART);
    }

    /// Ends the leases that are missing in the files, regardless of their number.
    pub(super) fn end_missing(&mut self) {
        for source in &mut self.sources {
            source.known.retain(|_, lease| lease.missing == 0);
            source.stamps = None;
        }
    }

    /// The addresses of each device. If a device has too many, those that are now in the files come first.
    fn wanted(&mut self) -> BTreeMap<String, Vec<IpNet>> {
        let mut wanted: BTreeMap<String, Vec<IpNet>> = BTreeMap::new();
        for is_missing in [false, true] {
            let all = self.sources.iter().flat_map(|source| &source.known);
            for (&address, lease) in all.filter(|(_, l)| (l.missing > 0) == is_missing) {
                let addresses = wanted.entry(lease.mac.to_string()).or_default();
                if addresses.len() < ADDRESSES_MAX && !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
        }
        wanted.values_mut().for_each(|addresses| addresses.sort());
        wanted
    }

    /// Updates the registry.
    ///
    /// # Errors
    /// If the disk or the kernel refuses.
    fn take(&mut self, daemon: &mut impl Subscribers, now_s: u64) -> anyhow::Result<()> {
        let leases = self.wanted();
        if !self.is_seeded {
            // Stored because a command gave the lease a plan; the lease may be over.
            let known = daemon.registry().subscribers().iter();
            let known = known.filter(|(_, record)| record.origin == Origin::Lease);
            self.given.extend(known.map(|(name, r)| (name.to_string(), r.addresses.to_vec())));
            self.is_seeded = true;
        }
        let gone = self.given.keys().filter(|name| !leases.contains_key(*name));
        let mut changes: Vec<Change> =
            gone.map(|name| Change::End(name.clone(), Origin::Lease)).collect();
        let is_new =
            |(name, addresses): &(&String, &Vec<IpNet>)| self.given.get(*name) != Some(*addresses);
        let begin = |(name, addresses): (&String, &Vec<IpNet>)| {
            let (name, addresses) = (name.clone(), addresses.clone());
            Change::Begin(
                SubscriberSpec { name, addresses, plan: self.section.plan.clone() },
                Origin::Lease,
            )
        };
        changes.extend(leases.iter().filter(is_new).map(begin));
        let results = daemon.change_sessions(&changes)?;
        for (change, result) in changes.into_iter().zip(results) {
            match (change, result) {
                (Change::Begin(spec, _), Ok(())) => {
                    self.given.insert(spec.name, spec.addresses);
                }
                (Change::Begin(spec, _), Err(e)) => {
                    warn!("lease refused: {}: {e}", spec.name);
                    self.given.remove(&spec.name);
                    let who = Who { subscriber: &spec.name, session: "", nas: "-" };
                    self.unpoliced.note(who, &spec.addresses, &Reason::of(&e), now_s);
                }
                (Change::End(name, _), _) => drop(self.given.remove(&name)),
                _ => {}
            }
        }
        self.unpoliced.retain(|one| {
            leases.contains_key(&one.subscriber) && !self.given.contains_key(&one.subscriber)
        });
        self.refused = leases.keys().filter(|name| !self.given.contains_key(*name)).count();
        Ok(())
    }

    pub(super) fn status(&self) -> LeasesStatus {
        let shown = |file: &std::path::PathBuf| file.display().to_string();
        LeasesStatus {
            files: self.section.files.iter().map(shown).collect(),
            devices: self.given.len(),
            skipped: self.sources.iter().map(|source| source.skipped).sum(),
            refused: self.refused,
            error: self.error.clone(),
        }
    }
}

impl Source {
    /// Reads the file if that is due. Returns whether it was read or leases ended.
    fn handle_tick(&mut self, now: Time, now_s: u64) -> bool {
        let stamps = self.family().map(|path| stamp(&path));
        let is_due = self.read_at.is_none_or(|at| now.since(at) >= READ_PERIOD);
        let is_waiting = self.error.is_some() || self.known.values().any(|l| l.missing == 1);
        if !is_due && !is_waiting && self.stamps.as_ref() == Some(&stamps) {
            return self.end_old(now_s);
        }
        (self.stamps, self.read_at) = (Some(stamps), Some(now));
        let read = self.texts().and_then(|texts| self.take(&texts, now_s));
        self.error = read.err();
        true
    }

    /// Ends leases whose time is over; returns whether there were any.
    fn end_old(&mut self, now_s: u64) -> bool {
        let before = self.known.len();
        self.known.retain(|_, lease| lease.until_s == 0 || lease.until_s > now_s);
        self.known.len() < before
    }

    fn family(&self) -> [PathBuf; FAMILY] {
        SUFFIXES.map(|suffix| {
            let mut path = self.path.clone().into_os_string();
            path.push(suffix);
            path.into()
        })
    }

    /// The contents of the lease file and of those that Kea has beside it, the oldest first.
    ///
    /// # Errors
    /// If one cannot be read, or if they are replaced again and again.
    fn texts(&self) -> Result<Vec<Text>, String> {
        let family = self.family();
        let identities =
            || family.each_ref().map(|path| stamp(path).map(|(device, inode, ..)| (device, inode)));
        let mut last = Err(String::new());
        for _ in 0..TRIES_MAX {
            let before = identities();
            last = texts_of(&family);
            if identities() == before {
                return last;
            }
        }
        let path = self.path.display();
        Err(last.err().unwrap_or_else(|| format!("{path} is replaced all the time")))
    }

    /// Applies the contents of the files.
    ///
    /// # Errors
    /// If more leases are missing than [`SHRINK_MAX`].
    fn take(&mut self, texts: &[Text], now_s: u64) -> Result<(), String> {
        let texts: Vec<&str> = texts.iter().map(Text::as_str).collect();
        let read = lease_file::read_all(&texts, now_s);
        self.skipped = read.skipped;
        self.end_old(now_s);
        let known = self.known.len();
        for address in &read.ended {
            self.known.remove(address);
        }
        for lease in self.known.values_mut() {
            lease.missing = lease.missing.saturating_add(1);
        }
        for FileLease { mac, address, until_s, .. } in read.leases {
            self.known.insert(address, Known { mac, until_s, missing: 0 });
        }
        let lost = self.known.values().filter(|lease| lease.missing > 1).count();
        if lost <= SHRINK_MAX.0.max(known / SHRINK_MAX.1) {
            self.known.retain(|_, lease| lease.missing < 2 || lease.until_s != 0);
            return Ok(());
        }
        let path = self.path.display();
        Err(format!(
            "{path} lacks {lost} of {known} leases; each goes on until its own end, or until `fairweir isp reload --force`"
        ))
    }
}

/// See [`Source::texts`].
fn texts_of(family: &[PathBuf; FAMILY]) -> Result<Vec<Text>, String> {
    let rules = Rules { bytes_max: FILE_BYTES_MAX, trust: Trust::NOT_OTHERS, if_missing: "" };
    let read = |path: &PathBuf| Text::read(path, &rules).map_err(|e| e.to_string());
    let [completed, older, moved, file] = family;
    let newest = read(file)?;
    let mut texts = Vec::new();
    if newest.as_str().is_empty() || lease_file::is_of_kea(newest.as_str()) {
        let merged: &[&PathBuf] = if completed.exists() { &[completed] } else { &[older, moved] };
        for path in merged.iter().filter(|path| path.exists()) {
            texts.push(read(path)?);
        }
        texts.retain(|text| lease_file::is_of_kea(text.as_str()));
    }
    texts.push(newest);
    Ok(texts)
}

fn stamp(path: &Path) -> Option<Stamp> {
    let m = fs::metadata(path).ok()?;
    Some((m.dev(), m.ino(), m.size(), m.mtime(), m.mtime_nsec()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};
    use std::thread::sleep;
    use std::time::{Duration, Instant};

    use fairweir_testing::can_run;

    use super::*;

    const HEADER: &str = "address,hwaddr,client_id,valid_lifetime,expire,subnet_id,fqdn_fwd,fqdn_rev,hostname,state,user_context,pool_id\n";

    /// A row of Kea's file: a lease with its end and its state.
    fn row(n: usize, until_s: u64, state: u8) -> String {
        format!("192.0.2.{n},02:00:00:00:00:{n:02x},,3600,{until_s},1,0,0,,{state},,0\n")
    }

    struct Files {
        dir: tempfile::TempDir,
        source: Source,
    }

    impl Files {
        fn new() -> Files {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("kea-leases4.csv");
            let section = LeasesSection { files: vec![path], plan: "slow".to_owned() };
            let source = Leases::new(section).sources.remove(0);
            Files { dir, source }
        }

        fn path(&self, suffix: &str) -> PathBuf {
            self.dir.path().join(format!("kea-leases4.csv{suffix}"))
        }

        fn write(&self, suffix: &str, rows: &str) {
            fs::write(self.path(suffix), format!("{HEADER}{rows}")).unwrap();
        }

        fn rename(&self, from: &str, to: &str) {
            fs::rename(self.path(from), self.path(to)).unwrap();
        }

        /// The last bytes of the known addresses, after two more readings at a Unix time.
        fn known(&mut self, now_s: u64) -> Vec<u8> {
            for _ in 0..2 {
                self.source.stamps = None;
                self.source.handle_tick(Time::ZERO, now_s);
            }
            let last = |address: &IpNet| {
                address.to_string().split(['.', '/']).nth(3).unwrap().parse().unwrap()
            };
            self.source.known.keys().map(last).collect()
        }
    }

    #[test]
    fn during_keas_clean_up_the_leases_are_those_that_kea_would_load() {
        let mut files = Files::new();
        files.write("", &(row(1, 9_000, 0) + &row(2, 9_000, 0) + &row(3, 9_000, 0)));
        assert_eq!(files.known(0), [1, 2, 3]);
        files.rename("", ".1");
        files.write("", "");
        assert_eq!(files.known(0), [1, 2, 3]);
        fs::write(files.path(""), "").unwrap();
        assert_eq!(files.known(0), [1, 2, 3], "not even the header is there");
        // A release and a new lease during the clean-up, which has written half of its result.
        files.write("", &(row(3, 9_000, 2) + &row(4, 9_000, 0)));
        files.write(".output", &row(1, 9_000, 0));
        assert_eq!(files.known(0), [1, 2, 4]);
        files.write(".output", &(row(1, 9_000, 0) + &row(2, 9_000, 0) + &row(3, 9_000, 0)));
        files.rename(".output", ".completed");
        assert_eq!(files.known(0), [1, 2, 4]);
        fs::remove_file(files.path(".1")).unwrap();
        assert_eq!(files.known(0), [1, 2, 4]);
        files.rename(".completed", ".2");
        assert_eq!(files.known(0), [1, 2, 4]);
        // The view of a daemon that starts now, while another clean-up has begun.
        files.rename("", ".1");
        files.write("", &row(2, 9_000, 2));
        files.source.known.clear();
        assert_eq!(files.known(0), [1, 4]);
        assert_eq!(files.source.error, None);
        assert!(files.known(9_000).is_empty(), "they end by their own time");
    }

    #[test]
    fn a_file_that_was_cut_off_ends_no_lease_and_is_told() {
        let mut files = Files::new();
        let rows: String = (1..=100).map(|n| row(n, 9_000, 0)).collect();
        files.write("", &rows);
        assert_eq!(files.known(0).len(), 100);
        files.write("", &rows[..rows.len() / 3]);
        assert_eq!(files.known(0).len(), 100);
        let error = files.source.error.clone().unwrap();
        assert!(error.contains("lacks 67 of 100 leases"), "{error}");
        files.write("", &rows);
        assert_eq!(files.known(0).len(), 100);
        assert_eq!(files.source.error, None);
        fs::remove_file(files.path("")).unwrap();
        assert_eq!(files.known(10_000).len(), 100, "it cannot be read");
        assert!(files.source.error.is_some());

        // dnsmasq's leases without an end: if a few are missing they end; if many are missing they stay.
        let line = |n: usize| format!("0 02:00:00:00:00:{n:02x} 192.0.2.{n} * *\n");
        let lines = |n: usize| (1..=n).map(line).collect::<String>();
        let mut files = Files::new();
        fs::write(files.path(""), lines(100)).unwrap();
        assert_eq!(files.known(0).len(), 100);
        fs::write(files.path(""), lines(95)).unwrap();
        files.source.handle_tick(Time::ZERO, 0);
        assert_eq!(files.source.known.len(), 100, "one reading is not enough");
        assert_eq!(files.known(0).len(), 95);
        fs::write(files.path(""), lines(5)).unwrap();
        assert_eq!(files.known(0).len(), 95);
        let mut leases = Leases::new(LeasesSection { files: Vec::new(), plan: String::new() });
        leases.sources = vec![files.source];
        leases.end_missing();
        files.source = leases.sources.remove(0);
        assert_eq!(files.known(0).len(), 5);
        assert_eq!(files.source.error, None);
    }

    /// Kea's server cleans up once a second, while this test reads continuously.
    #[test]
    fn the_clean_up_of_a_real_kea_loses_no_lease() {
        if !can_run(Path::new("/usr/sbin/kea-dhcp4").exists(), "kea-dhcp4 (kea-dhcp4-server)") {
            return;
        }
        let mut files = Files::new();
        let until_s = unix_now() + 3_600;
        let header = "address,hwaddr,client_id,valid_lifetime,expire,subnet_id,fqdn_fwd,fqdn_rev,hostname,state,user_context\n";
        let row = |n: u32| {
            format!(
                "10.0.{}.{},02:00:00:00:{:02x}:{:02x},,3600,{until_s},1,0,0,,0,\n",
                n / 250,
                n % 250 + 1,
                n / 250,
                n % 250
            )
        };
        let rows: String = (0..5_000).map(row).collect();
        fs::write(files.path(""), format!("{header}{rows}")).unwrap();
        let path = files.path("").display().to_string();
        let config = serde_json::json!({ "Dhcp4": {
            "interfaces-config": { "interfaces": [] },
            "lease-database": { "type": "memfile", "persist": true, "name": path, "lfc-interval": 1 },
            "subnet4": [{ "id": 1, "subnet": "10.0.0.0/16", "pools": [] }],
        } });
        fs::write(files.path(".conf"), config.to_string()).unwrap();
        let log = fs::File::create(files.path(".log")).unwrap();
        let mut kea = Command::new("/usr/sbin/kea-dhcp4")
            .args(["-c", &files.path(".conf").display().to_string()])
            .envs([
                ("KEA_PIDFILE_DIR", files.dir.path().as_os_str()),
                ("KEA_LOCKFILE_DIR", "none".as_ref()),
            ])
            .stdout(log.try_clone().unwrap())
            .stderr(Stdio::from(log))
            .spawn()
            .unwrap();
        let began = Instant::now();
        let (mut readings, mut clean_ups, mut inode) = (0, 0, None);
        while clean_ups < 4 && began.elapsed() < Duration::from_secs(60) {
            files.source.stamps = None;
            files.source.read_at = None;
            // As at the start of a daemon, which knows only what the files have.
            files.source.known.clear();
            files.source.handle_tick(Time::ZERO, unix_now());
            readings += 1;
            let error = files.source.error.clone().unwrap_or_default();
            let is_between = !error.is_empty() && files.source.known.is_empty();
            let known = files.source.known.len();
            assert!(known == 5_000 || is_between, "{known} leases: {error}");
            let now = stamp(&files.path(".2")).map(|(_, inode, ..)| inode);
            clean_ups += usize::from(now.is_some() && now != inode);
            inode = now.or(inode);
            sleep(Duration::from_millis(1));
        }
        kea.kill().unwrap();
        kea.wait().unwrap();
        let log = fs::read_to_string(files.path(".log")).unwrap();
        println!("{readings} readings, {clean_ups} clean-ups");
        assert!(clean_ups >= 4, "{clean_ups} clean-ups: {log}");
        writeln!(std::io::stderr(), "{readings} readings").unwrap();
    }
}
