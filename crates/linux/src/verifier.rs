//! The cost of each BPF program for the kernel's verifier, and the record of it in `docs/results/verifier.md`.
//!
//! A kernel refuses a program for which its verifier needs a million instructions, or a stack of
//! more than 512 bytes. The numbers depend on the kernel and the compiler, so the record names
//! both. Where both are the same, no number may exceed the record by more than 5 %; elsewhere fixed
//! limits apply, which leave room for older kernels.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Command;

use libbpf_rs::{AsRawLibbpf, OpenObject};

use crate::bpf::tests::is_root;
use crate::host::programs::{self, Egress, Parts};
use crate::net::admission;
use crate::net::netlink::text;
use crate::police::{Police, PoliceSpec};
use crate::router::programs as router;
use crate::{sender, window};

/// The cost of a program: the numbers of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cost {
    /// Instructions that the verifier processed.
    instructions: u64,
    /// Register and stack states that the verifier has stored, in total and at most at one time.
    states: u64,
    states_peak: u64,
    /// Bytes of the largest stack frame.
    stack: u64,
}

/// Costs by the object's source and the program's name; `None` if the kernel refuses the program before verifying
/// it, for example for its kind of iterator. The second value is the limit of the program's instructions.
type Costs = BTreeMap<(&'static str, String), (Option<Cost>, u64)>;

#[test]
fn programs_cost_the_verifier_no_more_than_recorded() {
    if !is_root() {
        return;
    }
    let costs = measure();
    let is_too_much = |(cost, most): &(Option<Cost>, u64)| {
        cost.is_some_and(|cost| !(1..*most).contains(&cost.instructions))
    };
    let faults: Vec<_> = costs.iter().filter(|(_, row)| is_too_much(row)).collect();
    assert!(faults.is_empty(), "older kernels may refuse: {faults:#?}");
    let machine = machine();
    if std::env::var_os("FAIRWEIR_RECORD").is_some() {
        return std::fs::write(RECORD, written(&machine, &costs)).unwrap();
    }
    let record = std::fs::read_to_string(RECORD).unwrap();
    if !record.contains(&machine) {
        let made = record.lines().find(|line| line.starts_with(MADE)).unwrap_or_default();
        eprintln!("not compared: this is {machine}, the record of another kernel or clang: {made}");
        return;
    }
    let recorded = read(&record);
    let faults: Vec<String> = costs
        .iter()
        .map(|((source, name), (cost, _))| ((*source).to_owned(), name.clone(), *cost))
        .filter_map(|(source, name, cost)| {
            let fault = match (recorded.get(&(source, name.clone())), cost) {
                (None, _) => "not recorded",
                (Some(Some(_)), None) => "refused by this kernel",
                (Some(Some(before)), Some(now)) => exceeded(*before, now)?,
                (Some(None), _) => return None,
            };
            Some(format!("{name}: {fault} ({cost:?})"))
        })
        .collect();
    assert!(faults.is_empty(), "{faults:#?}\n`make verifier` records what is meant");
    assert_eq!(recorded.len(), costs.len(), "the record has programs that are gone");
}

#[test]
fn a_cost_more_than_a_twentieth_above_the_record_is_found() {
    let before = Cost { instructions: 1_000, states: 100, states_peak: 40, stack: 256 };
    assert_eq!(exceeded(before, Cost { instructions: 1_050, states: 1, ..before }), None);
    let more = |cost| exceeded(before, cost).unwrap();
    assert_eq!(more(Cost { instructions: 1_051, ..before }), "more instructions");
    assert_eq!(more(Cost { states: 106, ..before }), "more states");
    assert_eq!(more(Cost { states_peak: 43, ..before }), "more states at a time");
    assert_eq!(more(Cost { stack: 272, ..before }), "more stack");
    let key = ("x.bpf.c", "fairweir_x, all".to_owned());
    for cost in [Some(before), None] {
        let text = written("this machine", &BTreeMap::from([(key.clone(), (cost, 1))]));
        assert_eq!(read(&text), BTreeMap::from([((key.0.to_owned(), key.1.clone()), cost)]));
    }
}

/// The name of a number that exceeds the record by more than 5 %.
fn exceeded(before: Cost, now: Cost) -> Option<&'static str> {
    let pairs = [
        (before.instructions, now.instructions, "more instructions"),
        (before.states, now.states, "more states"),
        (before.states_peak, now.states_peak, "more states at a time"),
        (before.stack, now.stack, "more stack"),
    ];
    let is_more = |(before, now, _): &&(u64, u64, &str)| now * 20 > before * 21;
    pairs.iter().find(is_more).map(|(_, _, what)| *what)
}

/// Loads every program in the same way as in use.
fn measure() -> Costs {
    let mut costs = Costs::new();
    let mut add = |source, how: &str, most, open: &mut dyn FnMut() -> OpenObject| {
        for (name, cost) in verify(open) {
            let name = if how.is_empty() { name } else { format!("{name}, {how}") };
            costs.insert((source, name), (cost, most));
        }
    };
    add("admit.bpf.c", "", VERIFIED_MAX, &mut || admission::open().unwrap());
    let classify = "classify.bpf.c";
    add(classify, "", VERIFIED_MAX, &mut || {
        programs::open(Parts::All, Egress { upload: true, marks: true }).unwrap()
    });
    add(classify, "without owners", VERIFIED_MAX, &mut || {
        programs::open(Parts::NoOwners, Egress::default()).unwrap()
    });
    let walk = "fairweir_watch_all";
    add(classify, "", VERIFIED_MAX, &mut || {
        let mut object = programs::open(Parts::WatchAll, Egress::default()).unwrap();
        object.progs_mut().for_each(|mut p| p.set_autoload(p.name() == walk));
        object
    });
    add("lift.bpf.c", "", VERIFIED_MAX, &mut || window::open_lift().unwrap());
    let parts = router::Parts { upload: true, sites: true, marks: true };
    add("router.bpf.c", "", VERIFIED_MAX, &mut || router::open(parts).unwrap());
    let names = ["fw_reno_v", "fw_cubic_v"].map(str::to_owned);
    add("sender.bpf.c", "", VERIFIED_MAX, &mut || sender::open(&names).unwrap());
    let mut police = Police::load(&PoliceSpec::default()).unwrap();
    let mut add_police = |name: &str, class: Option<usize>| {
        let (how, most) = match class {
            Some(class) => (format!("slots of class {class}"), POLICE_MAX),
            None => ("all slots".to_owned(), POLICE_ALL_MAX),
        };
        add("police.bpf.c", &how, most, &mut || police.open_program(name, class).unwrap());
    };
    for name in ["police_xdp", "police_skb"] {
        (0..Police::SIZE_CLASSES).for_each(|class| add_police(name, Some(class)));
    }
    ["police_xdp", "police_skb", "police_bench"].iter().for_each(|name| add_police(name, None));
    costs
}

/// Loads an object, without the programs that the kernel refuses at once; returns the verifier's numbers for each.
fn verify(open: &mut dyn FnMut() -> OpenObject) -> Vec<(String, Option<Cost>)> {
    let mut refused = Vec::new();
    loop {
        let mut object = open();
        let mut logs: Vec<(String, Vec<u8>)> = Vec::new();
        for mut program in object.progs_mut().filter(|program| program.autoload()) {
            let name = program.name().to_string_lossy().into_owned();
            if refused.contains(&name) {
                program.set_autoload(false);
                continue;
            }
            program.set_log_level(STATISTICS);
            let mut log = vec![0; LOG_BYTES];
            let at = program.as_libbpf_object().as_ptr();
            // SAFETY: the log lives until the object is loaded, and only the loading writes to it.
            let set = unsafe {
                libbpf_sys::bpf_program__set_log_buf(at, log.as_mut_ptr().cast(), log.len() as u64)
            };
            assert_eq!(set, 0);
            logs.push((name, log));
        }
        let loaded = object.load().map(drop);
        let logs = logs.into_iter().map(|(name, log)| (name, text(&log)));
        let logs: Vec<(String, String)> = logs.collect();
        let Err(e) = loaded else {
            let costs = logs.into_iter().map(|(name, said)| (name, Some(cost(&said))));
            return costs.chain(refused.into_iter().map(|name| (name, None))).collect();
        };
        let unseen = logs.iter().find(|(_, said)| said.contains("processed 0 insns"));
        let (name, _) = unseen.unwrap_or_else(|| panic!("{e}: {logs:#?}"));
        refused.push(name.clone());
    }
}

/// Reads `stack depth 64+0` and `processed 9 insns (…) … total_states 2 peak_states 1 …`.
fn cost(said: &str) -> Cost {
    let number = |key: &str| -> u64 {
        let rest = said.split_once(key).unwrap_or_else(|| panic!("no `{key}` in {said}")).1;
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[..end].parse().unwrap()
    };
    let frames = said.lines().find_map(|line| line.strip_prefix("stack depth ")).unwrap();
    let frames = frames.split('+').map(|frame| frame.trim().parse::<u64>().unwrap());
    Cost {
        instructions: number("processed "),
        states: number("total_states "),
        states_peak: number("peak_states "),
        stack: frames.max().unwrap_or(0),
    }
}

/// The kernel's version without the distribution's suffix, and the compiler's version.
fn machine() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    // Builds of one version differ in what they refuse, and in what their verifier counts.
    let build = release.trim();
    let clang = Command::new("clang").arg("--version").output().unwrap();
    let clang = String::from_utf8_lossy(&clang.stdout).into_owned();
    let mut words = clang.split_whitespace().skip_while(|word| *word != "version").skip(1);
    format!("Linux {build} on {}, clang {}", std::env::consts::ARCH, words.next().unwrap())
}

fn written(machine: &str, costs: &Costs) -> String {
    let mut text = format!("{HEAD}\n{MADE}{machine}.\n\n{COLUMNS}\n");
    for ((source, name), (cost, _)) in costs {
        let numbers = cost.map_or([REFUSED; 4].map(str::to_owned), |cost| {
            [cost.instructions, cost.states, cost.states_peak, cost.stack].map(|n| n.to_string())
        });
        writeln!(text, "| `{source}` | {name} | {} |", numbers.join(" | ")).unwrap();
    }
    text
}

fn read(text: &str) -> BTreeMap<(String, String), Option<Cost>> {
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [source, name, numbers @ ..] = &cells[..] else { return None };
        let cost = if numbers == [REFUSED; 4] {
            None
        } else {
            let numbers: Option<Vec<u64>> = numbers.iter().map(|n| n.parse().ok()).collect();
            let [instructions, states, states_peak, stack] = numbers?[..] else { return None };
            Some(Cost { instructions, states, states_peak, stack })
        };
        Some(((source.trim_matches('`').to_owned(), (*name).to_owned()), cost))
    };
    text.lines().filter_map(row).collect()
}

const RECORD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/verifier.md");
const HEAD: &str = "\
# What the programs cost the kernel's verifier

The kernel refuses a BPF program if its verifier processes a million instructions, or if the frames of
nested calls take more than 512 bytes of stack. Older kernels process about twice as many instructions as
newer ones: Linux 6.1 refused a program for which Linux 6.18 needs 355,000. *States* are the sets of
register and stack contents that the verifier has kept, in all and at most at a time; *stack* is the
largest frame. A program without numbers is of a kind that the measured kernel refuses. The policer's
programs are verified for the size classes of slots that they can meet.

A test fails if a number is more than 5 % above this record, on the same build of the kernel and with the same clang;
with others, if a program takes more than the bounds in `crates/linux/src/verifier.rs`.
`make verifier` writes this file.
";
/// Shown in place of numbers.
const REFUSED: &str = "–";
const MADE: &str = "Measured with ";
const COLUMNS: &str = "\
| source | program | instructions | states | states at a time | stack, bytes |
|---|---|---|---|---|---|";
/// The maximum instructions of a program; a kernel that needs twice as many still accepts it.
const VERIFIED_MAX: u64 = 200_000;
/// The maximum for the policer, which needs Linux 6.9: with slots of one size class, and of all classes.
const POLICE_MAX: u64 = 400_000;
const POLICE_ALL_MAX: u64 = 800_000;
/// BPF_LOG_STATS: the verifier's log contains numbers and no instructions.
const STATISTICS: u32 = 4;
/// Larger than the numbers of a program with many functions.
const LOG_BYTES: usize = 16_384;
