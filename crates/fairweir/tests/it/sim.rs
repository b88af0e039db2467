//! `fairweir sim`: its output and files, and how it ends early. The simulator itself is tested
//! in its own crate. These tests need no privilege.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::common::{FAIRWEIR, fairweir, only_error_line};

/// Has random loss, so that seeds give different results.
const LOSSY: &str = "version = 1\nname = \"lossy\"\nduration = \"5s\"\nsettle = \"1s\"\n\
    [link]\nrate = \"10mbit\"\nbuffer = \"100ms\"\nloss = 0.001\n\
    [[group]]\nname = \"a\"\nweight = 2\n[[group]]\nname = \"b\"\nweight = 1\n\
    [[flow]]\ngroup = \"a\"\nkind = \"bulk\"\n[[flow]]\ngroup = \"b\"\nkind = \"bulk\"\n";

struct Stage {
    dir: tempfile::TempDir,
}

impl Stage {
    fn new() -> Stage {
        let stage = Stage { dir: tempfile::tempdir().unwrap() };
        fs::write(stage.dir.path().join("lossy.toml"), LOSSY).unwrap();
        stage
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// The output of a run.
    fn plays(&self, args: &[&str]) -> String {
        let file = self.path("lossy.toml");
        let args: Vec<&str> = ["sim", "run", &file].iter().chain(args).copied().collect();
        let output = fairweir(&args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The error message of a run, which must be one line.
    fn refuses(&self, args: &[&str]) -> String {
        let file = self.path("lossy.toml");
        let args: Vec<&str> = ["sim", "run", &file].iter().chain(args).copied().collect();
        let output = fairweir(&args);
        // Only a failure to create a directory is no fault of command line or scenario.
        let wanted = if args.contains(&"--out") { 1 } else { 2 };
        assert_eq!(output.status.code(), Some(wanted), "{args:?}");
        only_error_line(&output)
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn the_same_seed_gives_the_same_report_to_the_byte_on_any_number_of_threads() {
    let stage = Stage::new();
    let asked = ["--control", "none", "--control", "crab", "--seed", "3..6", "--json", "--series"];
    let with = |parallel: &str| stage.plays(&[&asked[..], &["--parallel", parallel]].concat());
    let first = with("1");
    assert!(first == with("1"), "twice the same");
    assert!(first == with("2") && first == with("8"), "with any number of threads");
}

#[test]
fn runs_come_in_the_order_asked_for_and_seeds_differ() {
    let stage = Stage::new();
    let text = stage.plays(&[
        "--control",
        "wfq",
        "--control",
        "none",
        "--seed",
        "9",
        "--seed",
        "2..3",
        "--json",
    ]);
    let reports = json(&text);
    let of = |r: &Value| (r["control"].as_str().unwrap().to_owned(), r["seed"].as_u64().unwrap());
    let order: Vec<_> = reports.as_array().unwrap().iter().map(of).collect();
    let wanted = ["wfq", "none"].iter().flat_map(|c| [9, 2, 3].map(|seed| (c.to_string(), seed)));
    assert_eq!(order, wanted.collect::<Vec<_>>());
    let summaries = reports.as_array().unwrap().iter().map(|r| r["summary"].to_string());
    assert_eq!(summaries.collect::<BTreeSet<_>>().len(), 6, "{text}");
}

#[test]
fn one_run_is_an_object_with_the_seed_of_the_scenario() {
    let stage = Stage::new();
    let report = json(&stage.plays(&["--json"]));
    assert_eq!((&report["world"], &report["control"]), (&"sim".into(), &"fairweir".into()));
    assert_eq!((&report["seed"], &report["valid"]), (&1.into(), &true.into()));
    assert!(report.get("series").is_none() && report.get("lateness").is_none(), "{report}");
    let report = json(&stage.plays(&["--json", "--set", "seed=5", "--series"]));
    assert_eq!(report["seed"], 5);
    assert_eq!(report["series"].as_array().unwrap().len(), 2 * 5 * 5);
}

#[test]
fn a_set_key_counts_as_if_it_stood_in_the_file() {
    let stage = Stage::new();
    let total = |args: &[&str]| {
        let report = json(&stage.plays(&[&["--json", "--control", "none"], args].concat()));
        let groups = report["summary"]["groups"].as_array().unwrap().clone();
        groups.iter().map(|g| g["rate_bps"].as_f64().unwrap()).sum::<f64>()
    };
    let (all, half) = (total(&[]), total(&["--set", "link.rate=5mbit"]));
    assert!((1.8..2.2).contains(&(all / half)), "{all} {half}");
}

#[test]
fn several_seeds_are_one_column_with_mean_and_spread() {
    let stage = Stage::new();
    let table = stage.plays(&["--control", "none", "--control", "wfq", "--seed", "1..4"]);
    let mut lines = table.lines();
    let head = lines.next().unwrap();
    assert!(head.contains("lossy, 4 seeds"), "{table}");
    assert!(head.contains(" none ") && head.ends_with("wfq"), "{table}");
    let utilisation = lines.find(|l| l.starts_with("utilisation")).unwrap();
    assert_eq!(utilisation.matches(" ± ").count(), 2, "{table}");
}

#[test]
fn files_are_written_for_every_run() {
    let stage = Stage::new();
    let out = stage.path("out");
    stage.plays(&["--control", "none", "--control", "wfq", "--seed", "1..2", "--out", &out]);
    let mut names: Vec<String> = fs::read_dir(&out)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let csv = ["none-seed-1", "none-seed-2", "wfq-seed-1", "wfq-seed-2"];
    let csv = csv.map(|run| format!("lossy-{run}.csv"));
    assert_eq!(names, [&csv[..], &["lossy.json".into(), "lossy.svg".into()]].concat());
    let reports = json(&fs::read_to_string(Path::new(&out).join("lossy.json")).unwrap());
    assert_eq!(reports.as_array().unwrap().len(), 4);
}

#[test]
fn what_cannot_be_played_is_one_clear_line() {
    let stage = Stage::new();
    let bad: &[(&[&str], &[&str])] = &[
        (&["--set", "link.raet=5mbit"], &["--set link.raet=5mbit: ", "did you mean `rate`?"]),
        (&["--set", "link.rate=47"], &["--set link.rate=47: ", "`47bit`"]),
        (&["--set", "group.c.weight=1"], &["--set group.c.weight=1: ", "allowed: a, b"]),
        (&["--seed", "1", "--seed", "0..1"], &["duplicate seed 1"]),
        (&["--seed", "1..100000"], &["more than 10000 runs"]),
        (&["--control", "none", "--control", "none"], &["duplicate control `none`"]),
        (&["--out", "/dev/null/x"], &["cannot make /dev/null/x"]),
    ];
    for (args, says) in bad {
        let error = stage.refuses(args);
        for fragment in *says {
            assert!(error.contains(fragment), "{error}; wanted `{fragment}`");
        }
    }
    for args in [&["--seed", "2..1"], &["--seed", "x"], &["--set", "rate"], &["--control", "crap"]]
    {
        let file = stage.path("lossy.toml");
        let output = fairweir(&[&["sim", "run", &file], &args[..]].concat());
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && error.contains(args[1]), "{error}");
    }
    let wrong = stage.path("wrong.toml");
    fs::write(&wrong, LOSSY.replacen("bulk", "bluk", 1)).unwrap();
    for command in ["check", "run"] {
        let error = only_error_line(&fairweir(&["sim", command, &wrong]));
        assert!(error.contains("wrong.toml:") && error.contains("bluk"), "{error}");
    }
}

#[test]
fn a_check_lists_the_events_as_varied() {
    let stage = Stage::new();
    let file = stage.path("lossy.toml");
    let output = fairweir(&["sim", "check", &file, "--set", "flow.b.start=2s"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("lossy: 2 groups, 2 flows") && text.contains("2.0 s  b starts"),
        "{text}"
    );
}

#[test]
fn the_examples_of_the_help_can_be_typed() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let help = fairweir(&["sim", "check", "--help"]);
    let text = String::from_utf8(help.stdout).unwrap();
    let examples: Vec<&str> =
        text.lines().filter_map(|l| l.trim().strip_prefix("fairweir ")).collect();
    assert!(examples.len() >= 2, "{text}");
    for example in examples {
        let mut command = Command::new(FAIRWEIR);
        let output = command.args(example.split(' ')).current_dir(root).output().unwrap();
        assert!(output.status.success(), "{example}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn a_link_in_the_output_directory_is_replaced_and_not_followed() {
    let stage = Stage::new();
    let (victim, out) = (stage.path("victim"), stage.path("out"));
    fs::write(&victim, "precious").unwrap();
    fs::create_dir(&out).unwrap();
    for name in ["lossy.svg", "lossy.json", "lossy-fairweir.csv"] {
        std::os::unix::fs::symlink(&victim, format!("{out}/{name}")).unwrap();
    }
    stage.plays(&["--out", &out]);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert!(fs::read_to_string(format!("{out}/lossy.svg")).unwrap().contains("<svg"));
}

#[test]
fn what_takes_long_says_so_and_can_be_interrupted() {
    let stage = Stage::new();
    let mut command = Command::new(FAIRWEIR);
    command.args(["sim", "run", &stage.path("lossy.toml"), "--seed", "1..4"]);
    command.args(["--set", "duration=24h", "--set", "link.rate=1gbit"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    sleep(Duration::from_millis(500));
    kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("estimated time: about "), "{said}");
    assert!(said.ends_with("fairweir: interrupted\n") && output.stdout.is_empty(), "{said}");
}
