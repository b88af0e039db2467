//! Checks which of the kernel features that fairweir needs are available, by trying each in a
//! temporary network namespace.

use std::net::Ipv4Addr;
use std::path::Path;
use std::thread;
use std::time::Duration;

use fairweir_core::probe::{INTERVAL_MIN, Intervals};
use fairweir_core::receiver::{Allocation, ClassRate, Excess};
use fairweir_core::share::Weight;
use fairweir_core::units::{Bytes, Rate, Span};

use crate::Error;
use crate::bpf::BTF;
use crate::classify::{cgroup, ingress};
use crate::divert::{Clients, Divert, DivertSpec};
use crate::host::programs::{Egress, Parts, Programs};
use crate::net::link;
use crate::net::netlink::Netlink;
use crate::net::netns::Netns;
use crate::police::{Direction, Hook, Police, PoliceSpec};
use crate::probe::{Probe, ProbeSpec, Reflector};
use crate::sender::try_registering;
use crate::shape::htb;
use crate::shape::ifb::{self, Ifb};

/// A feature that fairweir uses and whether it is available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Name of the feature.
    pub feature: String,
    /// Whether it is available.
    pub found: bool,
    /// How it was checked, or why it is not available.
    pub detail: String,
    /// The first kernel that has it; empty if it does not depend on the kernel.
    pub since: &'static str,
    /// What does not work without the feature.
    pub lost_without: &'static str,
    /// Whether `fairweir host` cannot work without it.
    pub is_required: bool,
}

/// Checks every feature that fairweir uses and, if `dev` is given, whether that device can be
/// controlled.
pub fn findings(dev: Option<&str>) -> Vec<Finding> {
    let mut findings = privileges();
    findings.push(btf());
    findings.push(cgroups());
    match Netns::new() {
        Ok(netns) => findings.extend(netns.run(kernel)),
        Err(e) => findings.push(Finding {
            feature: "test in a temporary network namespace".to_owned(),
            found: false,
            detail: format!("{e}; run as root to try the kernel's features"),
            since: "",
            lost_without: "further checks; the daemon may work nevertheless",
            is_required: false,
        }),
    }
    findings.extend(dev.map(device));
    findings
}

fn privileges() -> Vec<Finding> {
    let status = std::fs::read_to_string("/proc/self/status");
    let unknown = status.as_ref().err().map(|e| format!("cannot read /proc/self/status: {e}"));
    let status = status.unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let held = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    let finding = |&(name, bit, since, lost_without): &(&str, u32, _, &'static str)| {
        let found = held & (1 << bit) != 0;
        let detail = if found { "held" } else { "not held; run as root" };
        let detail = unknown.clone().unwrap_or_else(|| detail.to_owned());
        let is_required = lost_without.starts_with(EVERYTHING);
        Finding { feature: name.to_owned(), found, detail, since, lost_without, is_required }
    };
    CAPABILITIES.iter().map(finding).collect()
}

fn btf() -> Finding {
    let found = Path::new(BTF).exists();
    let detail = if found { BTF.to_owned() } else { format!("{BTF} is missing") };
    Finding {
        feature: "BTF (BPF type information)".to_owned(),
        found,
        detail,
        since: "kernel 5.4 with CONFIG_DEBUG_INFO_BTF",
        lost_without: "everything: BPF programs cannot be loaded",
        is_required: true,
    }
}

fn cgroups() -> Finding {
    let root = cgroup::open_root().and_then(|_| cgroup::root());
    let found = root.is_ok();
    Finding {
        feature: "cgroup v2".to_owned(),
        found,
        detail: root.map_or_else(|e| e.to_string(), |root| format!("at {}", root.display())),
        since: "kernel 4.10 with CONFIG_CGROUP_BPF",
        lost_without: OWNERS_LOST,
        is_required: false,
    }
}

/// Tries every feature in the calling thread's network namespace, which must be a new one.
fn kernel() -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut push = |feature: &str, tried: Result<(), Error>, since, lost_without: &'static str| {
        findings.push(Finding {
            feature: feature.to_owned(),
            found: tried.is_ok(),
            detail: tried.map_or_else(|e| e.to_string(), |()| "works".to_owned()),
            since,
            lost_without,
            is_required: [EVERYTHING, SHAPING].contains(&lost_without),
        });
    };
    let lacks = |what: &str| {
        let source = std::io::Error::from(std::io::ErrorKind::Unsupported);
        Err(Error::refused(what.to_owned(), source))
    };
    let shaped = try_shaping();
    push("ifb, HTB and bfifo", shaped, "any kernel with the modules", SHAPING);
    push(
        "probe of the access link",
        try_probe(),
        "kernel 4.20",
        "the delay of the access link is estimated from traffic alone",
    );
    let programs = Programs::load(Egress::default());
    let parts = programs.as_ref().map(Programs::parts);
    let has = |has: fn(Parts) -> bool, what| match parts {
        Ok(parts) if has(parts) => Ok(()),
        _ => lacks(what),
    };
    let owners = has(Parts::has_owners, "record the owner of a socket");
    let scan = has(Parts::has_scan, "iterate over open sockets");
    let windows = has(Parts::has_windows, "limit the receive window of a connection");
    match programs {
        Err(e) => push("BPF classifier", Err(e), CLASSIFIER_SINCE, EVERYTHING),
        Ok(programs) => {
            push("BPF classifier", Ok(()), CLASSIFIER_SINCE, EVERYTHING);
            push("owners of sockets", owners, "kernel 5.11", OWNERS_LOST);
            push(
                "scan of open sockets",
                scan,
                "kernel 5.11",
                "connections opened before the daemon started match no application",
            );
            push(
                "receive windows",
                windows,
                "kernel 5.16",
                "enforcement by receive windows; classes are used instead",
            );
            push(
                "cls_bpf at clsact",
                try_clsact(&programs),
                "kernel 4.5",
                "operation on kernels without tcx",
            );
            push(
                "tcx",
                try_tcx(programs),
                "kernel 6.6",
                "clsact is used instead; after `kill -9` the classifier stays attached, passing \
                 all traffic, until the next start",
            );
        }
    }
    push("phantom queues at tcx", try_policing(), "kernel 6.9", "`fairweir isp`");
    push("congestion controls in BPF", try_registering(), SENDER_SINCE, "`fairweir sender`");
    let since = "the program nft, and any kernel with the modules";
    push("nft, TPROXY and the netfilter log", try_diverting(), since, "`fairweir proxy`");
    findings
}

fn try_policing() -> Result<(), Error> {
    let mut police = Police::load(&PoliceSpec::default())?;
    trial_device("doctor2")?;
    police.attach("doctor2", Hook::TcxIngress, Direction::Upload, 0)
}

fn try_diverting() -> Result<(), Error> {
    trial_device("doctor3")?;
    let lan = vec!["doctor3".to_owned()];
    Divert::attach(DivertSpec { lan, clients: Clients::All, ports: [1, 1] }).map(drop)
}

fn try_shaping() -> Result<(), Error> {
    let mut netlink = Netlink::open()?;
    let ifb = Ifb::create(&mut netlink, "try")?;
    let class = ClassRate {
        rate: RATE,
        ceil: RATE,
        priority: 0,
        weight: Weight::ONE,
        excess: Excess::Drop,
    };
    let allocation = Allocation { total: Some(RATE), classes: vec![class] };
    let classes = htb::class_specs(&allocation, &[0], Bytes::new(1_500));
    let changes = htb::changes(ifb.index, &Default::default(), &classes);
    netlink.change_all("make classes and queues", &changes)
}

/// Probes this host over the loopback device.
fn try_probe() -> Result<(), Error> {
    let spec = ProbeSpec {
        dev: "lo".to_owned(),
        reflector: Reflector::Address(Ipv4Addr::LOCALHOST.into()),
        intervals: Intervals { in_use: INTERVAL_MIN, idle: Span::millis(20) },
    };
    let probe = Probe::start(&spec)?;
    for _ in 0..PROBE_CHECKS {
        thread::sleep(Duration::from_millis(10));
        if probe.state().answered > 0 {
            return Ok(());
        }
    }
    let error = probe.state().error.unwrap_or_else(|| "no answer received".to_owned());
    Err(Error::refused("probe the loopback device", std::io::Error::other(error)))
}

fn try_clsact(programs: &Programs) -> Result<(), Error> {
    let (mut netlink, device) = trial_device("doctor0")?;
    ingress::attach_clsact(&mut netlink, device, programs.classifier_fd()?)?;
    ingress::detach_clsact(&mut netlink, device).map(drop)
}

fn try_tcx(mut programs: Programs) -> Result<(), Error> {
    programs.attach_tcx(trial_device("doctor1")?.1)
}

fn trial_device(name: &str) -> Result<(Netlink, u32), Error> {
    let mut netlink = Netlink::open()?;
    link::create_ifb_with(&mut netlink, name, "")?;
    let made = link::find_with(&mut netlink, name)?;
    let index = made.ok_or_else(|| Error::NoDevice(name.to_owned()))?.index;
    Ok((netlink, index))
}

/// Checks that no other program uses the device's ingress.
fn device(dev: &str) -> Finding {
    let look = || -> Result<String, Error> {
        let mut netlink = Netlink::open()?;
        let found = link::find_with(&mut netlink, dev)?;
        let device = found.ok_or_else(|| Error::NoDevice(dev.to_owned()))?;
        ingress::refuse_if_occupied(&mut netlink, &device)?;
        if let Some(found) = link::find_with(&mut netlink, &ifb::name(dev))? {
            ifb::refuse_if_foreign(&found, dev)?;
        }
        let state = if device.is_up() { "up" } else { "down" };
        Ok(format!("{state}, MTU {}, ingress unused", device.mtu))
    };
    let looked = look();
    Finding {
        feature: format!("device {dev}"),
        found: looked.is_ok(),
        detail: looked.unwrap_or_else(|e| e.to_string()),
        since: "",
        lost_without: "control of this device",
        is_required: true,
    }
}

/// What is lost without a feature that `fairweir host` requires.
const EVERYTHING: &str = "everything";
const SHAPING: &str = "shaping";
const CLASSIFIER_SINCE: &str = "kernel 5.11";
const SENDER_SINCE: &str = "kernel 6.4 with CONFIG_BPF_JIT and cubic";
const OWNERS_LOST: &str = "the rules app:, unit:, cgroup: and user:";
/// Checks for an answer, one every 10 ms; an answer takes much less than all of them.
const PROBE_CHECKS: u32 = 50;
const RATE: Rate = Rate::mbit(1);
/// Name, number (linux/capability.h), first kernel, what is lost without it.
const CAPABILITIES: [(&str, u32, &str, &str); 4] = [
    ("CAP_NET_ADMIN", 12, "", "everything: the classifier and the classes cannot be attached"),
    ("CAP_NET_RAW", 13, "", "the probe of the access link"),
    (
        "CAP_PERFMON",
        38,
        "kernel 5.8; before that CAP_SYS_ADMIN",
        "everything: BPF programs cannot be loaded",
    ),
    (
        "CAP_BPF",
        39,
        "kernel 5.8; before that CAP_SYS_ADMIN",
        "everything: BPF programs cannot be loaded",
    ),
];
