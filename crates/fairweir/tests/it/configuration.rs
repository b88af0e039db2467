//! The configuration, through `fairweir check`: what is accepted, and the message for each error.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use fairweir_testing::privileged;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tempfile::TempDir;

use crate::common::stage::Stage;
use crate::common::{check, fairweir, only_error_line};

/// Number of wrong configurations that are tried, including the hand-made ones.
const WRONG: usize = 500;

const GOOD: &str = r#"# Written by hand.
version = 1

[host]
dev = "eth0"
control = "crab"
capacity = "30mbit"
strict_priority = false
enforce = "window"
probe = "192.0.2.7"
probe_interval = "100ms"

[[group]]
name = "video"
weight = 5
match = ["app:mpv", "app:vlc", "ip:203.0.113.0/24"]

[[group]]
name = "work"
weight = 10
match = [
    "user:root",
    "unit:backup.service",
    "cgroup:/user.slice",
    "port:udp/443",
    "local-port:8000-8010",
    "ip:2001:db8::/32",
]

[[group]]
name = "default"
weight = 2
"#;

fn written(dir: &TempDir, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
    let path = dir.path().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text).unwrap();
    path
}

/// A configuration with one group, whose other keys are `text`, starting at line 5.
fn group(text: &str) -> String {
    format!("version = 1\n[[group]]\nname = \"a\"\n\n{text}\n")
}

/// The other keys of a group with the schedule entry `text`, which starts at line 8.
fn schedule(text: &str) -> String {
    format!("weight = 1\nmatch = [\"app:x\"]\n[[group.schedule]]\n{text}")
}

/// A configuration with `[host]` keys `text`, which start at line 3.
fn host(text: &str) -> String {
    format!("version = 1\n[host]\n{text}\n")
}

/// Wrong texts, with the line that the error names and the error's message.
fn wrong_by_hand() -> Vec<(String, usize, &'static str)> {
    let matching = |m: &str| group(&format!("weight = 1\nmatch = [{m}]"));
    let long = "x".repeat(64);
    let many = |n: usize| {
        let group = |i| format!("[[group]]\nname = \"g{i}\"\nweight = 1\nmatch = [\"app:g{i}\"]\n");
        format!("version = 1\n{}", (0..n).map(group).collect::<String>())
    };
    vec![
        // Errors in the file as a whole.
        ("".into(), 1, "version: missing; expected `version = 1` at the top of the file"),
        ("[host]\n".into(), 1, "version: missing"),
        ("version = 2\nfuture = true\n".into(), 1, "version: found the number 2, allowed is 1"),
        ("\nversion = \"1\"\n".into(), 2, "version: found the text \"1\", allowed is 1"),
        ("version = 1\nversion = 1\n".into(), 2, "syntax: duplicate key"),
        ("version = 1\n[host\n".into(), 2, "unclosed table"),
        ("version = 1\n[host]\ncontrol =\n".into(), 3, "syntax: "),
        ("version = 1\nhello\n".into(), 2, "syntax: "),
        ("version = 1\nx = \"open\n".into(), 2, "syntax: "),
        ("version = 1\n[host]\n[host]\n".into(), 3, "duplicate key"),
        (
            "version = 1\n[hots]\n".into(),
            2,
            "hots: unknown key (did you mean `host`?); allowed: version",
        ),
        ("version = 1\n[[groups]]\n".into(), 2, "did you mean `group`?"),
        ("version = 1\nzzz = 1\n".into(), 2, "zzz: unknown key; allowed: version, host, group"),
        (
            "version = 1\nhost = 3\n".into(),
            2,
            "host: found the number 3, expected a table `[host]`",
        ),
        ("version = 1\n[group]\nname = \"a\"\n".into(), 2, "expected a list of tables `[[group]]`"),
        ("version = 1\ngroup = [1]\n".into(), 2, "expected a list of tables `[[group]]`"),
        // [host]
        (host("contol = \"crab\""), 3, "host.contol: unknown key (did you mean `control`?)"),
        (host("control = \"crap\""), 3, "did you mean `crab`?"),
        (
            host("control = \"wfq\""),
            3,
            "`wfq` is for comparison, in the simulator and the lab only",
        ),
        (host("control = 7"), 3, "host.control: found the number 7, expected a text in quotes"),
        (host("control = \"static\""), 3, "`static` does not learn the capacity"),
        (host("control = \"borrow\""), 3, "`borrow` does not learn the capacity"),
        (host("\ncontrol = \"chokepoint\""), 4, "capacity = \"30mbit\""),
        (host("capacity = 30"), 3, "host.capacity: found the number 30, expected a text in quotes"),
        (host("capacity = \"30\""), 3, "has no unit"),
        (host("capacity = \"30mbps\""), 3, "ambiguous"),
        (host("capacity = \"30mibt\""), 3, "unknown unit `mibt`"),
        (host("capacity = \"-30mbit\""), 3, "is not a rate"),
        (host("capacity = \"0mbit\""), 3, "capacity 0bit is out of range (8kbit to 400gbit)"),
        (host("capacity = \"7kbit\""), 3, "capacity 7kbit is out of range (8kbit to 400gbit)"),
        (host("capacity = \"30000gbit\""), 3, "is out of range (8kbit to 400gbit)"),
        (host("capacity = \"99999999999999999999gbit\""), 3, "too large"),
        (host("dev = \"\""), 3, "1 to 15 bytes"),
        (host("dev = \"a-very-long-name\""), 3, "1 to 15 bytes"),
        (host("dev = \"a/b\""), 3, "`a/b` is not a name of an interface"),
        (host("dev = \"a\\nb\""), 3, "`a\\nb` is not a name"),
        (host("dev = [\"eth0\"]"), 3, "host.dev: found a list, expected a text"),
        (host("enforce = \"windows\""), 3, "(did you mean `window`?)"),
        (host("enforce = true"), 3, "host.enforce: found true, expected a text"),
        (host("strict_priority = 1"), 3, "found the number 1, expected true or false"),
        (host("strict_priority = \"true\""), 3, "found the text \"true\", expected true or false"),
        (host("probe = true"), 3, "host.probe: found true, expected a text"),
        (
            host("probe = \"of\""),
            3,
            "host.probe: unknown value `of` (did you mean `off`?); allowed: auto, off",
        ),
        (
            host("probe = \"example.org\""),
            3,
            "the address of a host behind the link that answers pings",
        ),
        (host("probe = \"192.0.2.256\""), 3, "unknown value `192.0.2.256`; allowed: auto"),
        (host("probe = \"127.0.0.1\""), 3, "is not a host behind the link"),
        (host("probe = \"ff02::1\""), 3, "is not a host behind the link"),
        (host("probe = \"fe80::1\""), 3, "is not a host behind the link"),
        (host("probe_interval = 50"), 3, "found the number 50, expected a text"),
        (host("probe_interval = \"5ms\""), 3, "interval 5ms is out of range (10ms to 10s)"),
        (host("probe_interval = \"1min\""), 3, "is out of range (10ms to 10s)"),
        (host("[host.sub]"), 3, "host.sub: unknown key; allowed: dev"),
        // [[group]]
        ("version = 1\n[[group]]\nweight = 1\n".into(), 2, "group.name: missing; expected a name"),
        (
            "version = 1\n[[group]]\nname = 3\n".into(),
            3,
            "group.name: found the number 3, expected a text",
        ),
        (
            "version = 1\n[[group]]\nname = \"\"\nweight = 1\nmatch = [\"app:x\"]\n".into(),
            3,
            "not a valid group name",
        ),
        (
            format!("version = 1\n[[group]]\nname = \"{long}\"\nweight = 1\nmatch = [\"app:x\"]\n"),
            3,
            "not a valid group name",
        ),
        (
            "version = 1\n[[group]]\nname = \"a b\"\nweight = 1\nmatch = [\"app:x\"]\n".into(),
            3,
            "letters, digits",
        ),
        (
            group("match = [\"app:x\"]"),
            2,
            "group.weight: missing; expected a whole number from 1 to 10000 for group `a`",
        ),
        (group("weight = 0"), 5, "found the number 0, expected a whole number from 1 to 10000"),
        (group("weight = -1"), 5, "found the number -1, expected a whole"),
        (group("weight = 10001"), 5, "found the number 10001, expected a whole"),
        (group("weight = 1.5"), 5, "found the number 1.5, expected a whole"),
        (group("weight = \"5\""), 5, "found the text \"5\", expected a whole"),
        (group("weight = 99999999999999999999"), 5, "expected a whole number"),
        (
            group("weight = 1\nmax = \"99kbit\""),
            6,
            "max 99kbit is out of range (100kbit to 400gbit)",
        ),
        (
            group("weight = 1\nmin = \"99kbit\""),
            6,
            "min 99kbit is out of range (100kbit to 400gbit)",
        ),
        (
            group("weight = 1\nmin = \"2mbit\"\nmax = \"1mbit\"\nmatch = [\"app:x\"]"),
            6,
            "min 2mbit of group `a` is above its max 1mbit",
        ),
        (
            format!(
                "version = 1\n[host]\ncontrol = \"static\"\ncapacity = \"9mbit\"\n{}{}",
                "[[group]]\nname = \"a\"\nweight = 1\nmin = \"5mbit\"\nmatch = [\"app:x\"]\n",
                "[[group]]\nname = \"b\"\nweight = 1\nmin = \"5mbit\"\nmatch = [\"app:y\"]\n"
            ),
            11,
            "`min` up to `b` sum to 10mbit, above the capacity 9mbit",
        ),
        (group("weight = 1\nmax = 20"), 6, "group.max: found the number 20"),
        (group("weight = 1\nmax = \"20\""), 6, "group.max: "),
        (
            format!(
                "version = 1\n[host]\ncontrol = \"crab\"\n{}max = \"1mbit\"\nmatch = [\"app:x\"]\n",
                "[[group]]\nname = \"a\"\nweight = 1\n"
            ),
            5,
            "the control `crab` does not hold `max` of a group; allowed with `max`: fairweir, static or none",
        ),
        (group("weight = 1\nquota = 5"), 6, "group.quota: found the number 5, expected a text"),
        (group("weight = 1\nquota = \"5 GB\""), 6, "`5 GB` is not a quota; expected for example"),
        (
            group("weight = 1\nquota = \"5 GB per day, then block\""),
            6,
            "`block` is not a rate such as 1mbit; the least is 100kbit, which keeps connections open",
        ),
        (group(&schedule("max = \"1mbit\"")), 7, "group.schedule.when: missing"),
        (
            group(&schedule("when = \"mon 8-18\"\nmax = \"1mbit\"")),
            8,
            "group.schedule.when: `8` is not a time; expected 00:00 to 24:00",
        ),
        (group(&schedule("when = \"08:00-18:00\"")), 7, "group.schedule.max: missing"),
        (group(&schedule("when = \"08:00-18:00\"\nmx = 1")), 9, "did you mean `max`?"),
        (
            group(&schedule("when = \"tue 08:30-18:00\"\nmin = \"9mbit\"\nmax = \"5mbit\"")),
            3,
            "min 9mbit of `a` is above its max 5mbit (by the schedule, tue 08:30)",
        ),
        (
            group(
                &(schedule("when = \"mon 08:00-10:00\"\nmax = \"9mbit\"\n")
                    + "[[group.schedule]]\nwhen = \"mon 09:00-12:00\"\nmin = \"5mbit\"\n"),
            )
            .replace("weight = 1\n", "weight = 1\nmax = \"2mbit\"\n"),
            3,
            "min 5mbit of `a` is above its max 2mbit (by the schedule, mon 10:00)",
        ),
        (
            format!(
                "version = 1\n[host]\ncontrol = \"crab\"\n{}quota = \"1 GB per day\"\nmatch = [\"app:x\"]\n",
                "[[group]]\nname = \"a\"\nweight = 1\n"
            ),
            5,
            "the control `crab` does not hold `max` of a group",
        ),
        (group("wieght = 5"), 5, "did you mean `weight`?"),
        (group("weight = 5"), 2, "group.match: missing; expected a rule for group `a`"),
        (group("weight = 5\nmatch = []"), 2, "group.match: missing"),
        (
            group("weight = 5\nmatch = \"app:x\""),
            6,
            "group.match: found the text \"app:x\", expected a list",
        ),
        (matching("\"app:x\", 5"), 6, "group.match: found the number 5, expected a list of texts"),
        (matching("\n\"app:x\",\n\"nonsense\""), 8, "`nonsense` has no kind"),
        (matching("\"aap:steam\""), 6, "did you mean `app`?"),
        (matching("\"app:\""), 6, "base name of an executable"),
        (matching("\"app:/usr/bin/steam\""), 6, "base name of an executable"),
        (matching(&format!("\"app:{long}\"")), 6, "at most 63 bytes"),
        (matching("\"cgroup:user.slice\""), 6, "a cgroup's path"),
        (matching("\"user:nobody-of-that-name\""), 6, "unknown user `nobody-of-that-name`"),
        (matching("\"web:co.uk\""), 6, "a public suffix, below which unrelated sites"),
        (matching("\"web:https://x.com\""), 6, "expected a host name such as netflix.com"),
        (matching("\"dev:tv\""), 6, "`dev:` is reserved and does not work yet"),
        (matching("\"dev:tv\""), 6, "`dev:` is reserved"),
        (matching("\"ip:203.0.113.0/33\""), 6, "neither an address"),
        (matching("\"ip:2001:db8::/129\""), 6, "neither an address"),
        (matching("\"ip:example.org\""), 6, "neither an address"),
        (matching("\"ip:203.0.113.7/24\""), 6, "write 203.0.113.0/24 for the prefix"),
        (matching("\"port:0\""), 6, "1 to 65535"),
        (matching("\"port:65536\""), 6, "1 to 65535"),
        (matching("\"port:sctp/5\""), 6, "is not a port"),
        (matching("\"local-port:9-8\""), 6, "is not a port"),
        (
            "version = 1\n[[group]]\nname = \"default\"\nweight = 1\nmatch = [\"app:x\"]\n".into(),
            3,
            "takes all unmatched traffic",
        ),
        (
            format!(
                "{}{}",
                group("weight = 1\nmatch = [\"app:x\"]"),
                "[[group]]\nname = \"a\"\nweight = 1\nmatch = [\"app:y\"]\n"
            ),
            8,
            "duplicate group `a`, defined at ",
        ),
        (many(256), 1023, "257 groups: at most"),
        (many(300), 1027, "257 groups: at most"),
    ]
}

#[test]
fn a_good_configuration_is_understood() {
    let dir = TempDir::new().unwrap();
    let output = check(&written(&dir, "good.toml", GOOD));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
    assert!(text.contains("control crab, capacity 30mbit, probe 192.0.2.7, dev eth0"), "{text}");
    assert!(
        text.contains("work         10            58.8 %  user:root unit:backup.service"),
        "{text}"
    );
    assert!(!text.contains("warning"), "{text}");
}

#[test]
fn every_wrong_configuration_gives_one_line_that_names_the_place() {
    let dir = TempDir::new().unwrap();
    let by_hand = wrong_by_hand();
    assert!(by_hand.len() >= 40);
    for (text, line, says) in &by_hand {
        let file = written(&dir, "wrong.toml", text);
        let error = refused(&file).unwrap_or_else(|| panic!("it was accepted:\n{text}"));
        let place = format!("fairweir: {}:{line}: ", file.display());
        let is_it = |one: &str| one.starts_with(&place) && one.contains(says);
        assert!(error.lines().any(is_it), "no `{says}` at line {line}: {error}\n{text}");
    }
    let mut random = Random(0x5eed_0001);
    let mut wrong = by_hand.len();
    let mut tries = 0;
    while wrong < WRONG {
        tries += 1;
        assert!(tries < 10 * WRONG, "mutations of a good file are mostly wrong");
        let text = mutated(GOOD, &mut random);
        let file = written(&dir, "wrong.toml", &text);
        let Some(error) = refused(&file) else { continue };
        let lines = text.split(|&b| b == b'\n').count();
        for one in error.lines() {
            let place = one.strip_prefix(&format!("fairweir: {}:", file.display()));
            let line = place.and_then(|rest| rest.split(':').next()?.parse::<usize>().ok());
            let named = line.is_some_and(|line| (1..=lines).contains(&line));
            assert!(named, "no line of the file (seed state {random:?}): {error}");
        }
        wrong += 1;
    }
}

#[test]
fn a_running_daemon_takes_over_nothing_of_a_wrong_configuration() {
    if !privileged() {
        return;
    }
    let stage = Stage::new();
    stage.configure(GOOD);
    let daemon = stage.start(&[]);
    let in_force = || {
        let mut status = daemon.status();
        let policy = status["groups"].as_array_mut().unwrap().iter_mut();
        let policy: Vec<_> =
            policy.map(|g| (g["name"].take(), g["weight"].take(), g["match"].take())).collect();
        (status["control"].take(), policy)
    };
    let before = in_force();
    let mut random = Random(0x5eed_0002);
    let mut texts: Vec<Vec<u8>> =
        wrong_by_hand().into_iter().map(|(text, ..)| text.into_bytes()).collect();
    texts.resize_with(WRONG, || mutated(GOOD, &mut random));
    let mut refused = 0;
    for text in texts {
        fs::write(stage.path("fairweir.toml"), &text).unwrap();
        let outcome = daemon.ask("reload").unwrap();
        if outcome["reply"] == "done" {
            // The mutation was harmless, or changed something that may be changed.
            stage.configure(GOOD);
            assert_eq!(daemon.ask("reload").unwrap()["reply"], "done");
        } else {
            refused += 1;
            assert!(outcome["message"].as_str().unwrap().contains("fairweir.toml:"), "{outcome}");
        }
        assert_eq!(in_force(), before, "{outcome}: {}", String::from_utf8_lossy(&text));
    }
    assert!(refused > WRONG / 2, "{refused}");
}

/// The error that `check` reports for a wrong file; `None` if the file is accepted.
fn refused(file: &Path) -> Option<String> {
    let output = check(file);
    match output.status.code() {
        Some(0) => None,
        Some(2) => {
            assert!(output.stdout.is_empty(), "nothing is understood of a wrong file");
            Some(String::from_utf8(output.stderr).unwrap().trim_end().to_owned())
        }
        code => panic!("exit code {code:?}: {output:?}"),
    }
}

#[test]
fn files_of_conf_d_are_appended_in_byte_order() {
    let dir = TempDir::new().unwrap();
    let group = |name: &str| {
        format!("version = 1\n[[group]]\nname = \"{name}\"\nweight = 1\nmatch = [\"app:{name}\"]\n")
    };
    let main = written(&dir, "fairweir.toml", group("main"));
    written(&dir, "conf.d/20-b.toml", group("b"));
    written(&dir, "conf.d/10-a.toml", format!("{}[host]\ncontrol = \"none\"\n", group("a")));
    written(&dir, "conf.d/9.toml", group("nine"));
    written(&dir, "conf.d/Z.toml", group("upper"));
    written(&dir, "conf.d/README", "not TOML");
    written(&dir, "conf.d/old.toml.bak", "not TOML");
    let output = fairweir(&["check", "--json", main.to_str().unwrap()]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let names: Vec<_> = json["groups"].as_array().unwrap().iter().map(|g| &g["name"]).collect();
    assert_eq!(names, ["main", "a", "b", "nine", "upper", "default"]);
    assert_eq!(json["control"], "none");
}

#[test]
fn what_two_files_both_say_is_an_error_that_names_both() {
    let dir = TempDir::new().unwrap();
    let main = written(&dir, "fairweir.toml", GOOD);
    let second = written(&dir, "conf.d/x.toml", "version = 1\n[host]\n\ndev = \"eth1\"\n");
    let error = refused(&main).unwrap();
    assert!(
        error.contains(&format!("{}:4: host.dev: duplicate key, set at", second.display())),
        "{error}"
    );
    assert!(error.contains(&format!("{}:5 already", main.display())), "{error}");
    fs::write(
        &second,
        "version = 1\n[[group]]\nname = \"video\"\nweight = 1\nmatch = [\"app:x\"]\n",
    )
    .unwrap();
    let error = refused(&main).unwrap();
    assert!(error.contains(&format!("{}:3: group.name:", second.display())), "{error}");
    assert!(error.contains(&format!("{}:14 already", main.display())), "{error}");
    fs::write(&second, "[[group]]\n").unwrap();
    assert!(refused(&main).unwrap().contains("x.toml:1: version: missing"));
}

#[test]
fn what_is_surely_not_meant_is_a_warning() {
    let dir = TempDir::new().unwrap();
    let text = "version = 1\n[host]\nstrict_priority = true\n\
        [[group]]\nname = \"a\"\nweight = 1\nmatch = [\"ip:192.0.2.7\"]\n\
        [[group]]\nname = \"b\"\nweight = 1\nmatch = [\"ip:192.0.2.7/32\", \"unit:backup\"]\n\
        [[group]]\nname = \"c\"\nweight = 1\nmatch = [\"web:x.example.com\"]\n\
        [[group]]\nname = \"d\"\nweight = 1\nmatch = [\"web:*.example.com\", \"web:x.org\"]\n";
    let output = check(&written(&dir, "odd.toml", text));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    assert!(
        text.contains(
            ":9: group `b`: `ip:192.0.2.7` has no effect, because the earlier group `a` has it"
        ),
        "{text}"
    );
    assert!(text.contains(":9: group `b`: `unit:backup` has no suffix"), "{text}");
    let split =
        ":17: group `d`: `web:*.example.com` and a pattern of group `c` are of the same site";
    assert!(text.contains(split) && text.matches("same site").count() == 1, "{text}");
    assert!(text.contains(":3: `strict_priority` has no effect with control `fairweir`"), "{text}");
}

#[test]
fn what_is_surely_not_meant_within_a_device_is_a_warning() {
    let dir = TempDir::new().unwrap();
    let group = |name: &str, of: &str| {
        format!("[[device.group]]\nname = \"{name}\"\nweight = 1\nmatch = [\"{of}\"]\n")
    };
    let device = |name: &str, mac: u8, groups: &str| {
        format!(
            "[[device]]\nname = \"{name}\"\nweight = 1\nmatch = [\"mac:02:00:5e:00:53:{mac:02x}\"]\n\
             {groups}"
        )
    };
    let tv = group("a", "web:x.example.com") + &group("b", "web:example.com");
    // Another device may divide the same site in its own way.
    let desk = group("a", "web:y.example.com") + &group("b", "port:443") + &group("c", "port:443");
    let text = "version = 1\n[router]\nlan = \"br-lan\"\nwan = \"wan\"\n".to_owned()
        + &device("tv", 1, &tv)
        + &device("desk", 2, &desk);
    let output = check(&written(&dir, "router.toml", &text));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success());
    let split =
        "group `tv/b`: `web:example.com` and a pattern of group `tv/a` are of the same site";
    assert!(text.contains(split) && text.matches("same site").count() == 1, "{text}");
    assert!(text.contains("group `desk/c`: `port:443` has no effect"), "{text}");
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let dir = TempDir::new().unwrap();
    let error = refused(&dir.path().join("none.toml")).unwrap();
    assert!(error.contains("none.toml: cannot read it") && error.contains("fairweir init"));
    let error = refused(&written(&dir, "latin1.toml", b"version = 1\n# caf\xe9\n")).unwrap();
    assert!(error.contains("latin1.toml:2: text: a byte that is not UTF-8"), "{error}");
    let error = refused(&written(&dir, "huge.toml", vec![b'\n'; 2 << 20])).unwrap();
    assert!(error.contains("huge.toml: too large; allowed are 1048576 bytes"), "{error}");
}

/// The id of an ordinary user that has no account on test machines.
const STRANGER: u32 = 4_242_424;

#[test]
fn root_merges_no_conf_d_that_another_user_made() {
    if !privileged() {
        return;
    }
    let dir = TempDir::new().unwrap();
    let main = written(&dir, "fairweir.toml", "version = 1\n");
    let entry = written(&dir, "conf.d/x.toml", "version = 1\n[host]\ncontrol = \"none\"\n");
    let conf_d = dir.path().join("conf.d");
    assert_eq!(refused(&main), None);
    chown(&conf_d, Some(STRANGER), None).unwrap();
    let error = refused(&main).unwrap();
    assert!(error.contains(&format!("conf.d: owned by uid {STRANGER}")), "{error}");
    assert!(error.ends_with(&format!("run `chown root {}`", conf_d.display())), "{error}");
    chown(&conf_d, Some(0), None).unwrap();
    fs::set_permissions(&conf_d, fs::Permissions::from_mode(0o1777)).unwrap();
    let error = refused(&main).unwrap();
    assert!(error.ends_with(&format!("run `chmod go-w {}`", conf_d.display())), "{error}");
    fs::set_permissions(&conf_d, fs::Permissions::from_mode(0o755)).unwrap();
    chown(&entry, Some(STRANGER), None).unwrap();
    assert!(refused(&main).unwrap().contains("conf.d/x.toml: owned by uid"));
    chown(&entry, Some(0), None).unwrap();
    chown(&main, Some(STRANGER), None).unwrap();
    assert!(refused(&main).unwrap().contains("fairweir.toml: owned by uid"));
}

#[test]
fn a_link_in_conf_d_does_not_show_the_file_behind_it() {
    let dir = TempDir::new().unwrap();
    let secret = written(&dir, "secret", "root:$y$j9T$hunter2:19000:0:99999:7:::\n");
    let main = written(&dir, "fairweir.toml", "version = 1\n");
    fs::create_dir(dir.path().join("conf.d")).unwrap();
    let link = dir.path().join("conf.d/x.toml");
    symlink(&secret, &link).unwrap();
    let error = refused(&main).unwrap();
    assert!(!error.contains("hunter2"), "{error}");
    assert!(error.contains("conf.d/x.toml: a symbolic link; expected a regular file"), "{error}");
    fs::remove_file(&link).unwrap();
    // Even if the command line names the file: a syntax error has a line number and no text.
    let error = refused(&secret).unwrap();
    assert!(!error.contains("hunter2") && error.contains("secret:1: syntax: "), "{error}");
}

#[test]
fn a_file_that_the_user_behind_sudo_may_not_read_is_not_quoted() {
    if !privileged() {
        return;
    }
    let dir = TempDir::new().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let isp = "version = 1\nsubscribers = \"table.csv\"\n[isp]\ndevice = \"lo\"\n";
    let isp = written(&dir, "isp.toml", isp);
    let table = written(&dir, "table.csv", "root:hunter2\n");
    let said = |user: &str| {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_fairweir"))
            .args([OsStr::new("check"), isp.as_os_str()])
            .env("SUDO_UID", user)
            .output()
            .unwrap();
        only_error_line(&output)
    };
    assert!(said(&STRANGER.to_string()).contains("hunter2"), "all users may read the table");
    fs::set_permissions(&table, fs::Permissions::from_mode(0o600)).unwrap();
    let error = said(&STRANGER.to_string());
    assert!(!error.contains("hunter2") && error.contains("table.csv:1:1: not valid"), "{error}");
    assert!(said("0").contains("hunter2"), "root may read the table");
    fs::set_permissions(&table, fs::Permissions::from_mode(0o666)).unwrap();
    assert!(said("0").contains("table.csv: all users may write to it"));
}

#[test]
fn no_fifo_holds_the_program() {
    let dir = TempDir::new().unwrap();
    let main = dir.path().join("fairweir.toml");
    mkfifo(&main, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_fairweir"))
        .args([OsStr::new("check"), main.as_os_str()])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    for _ in 0..100 {
        if child.try_wait().unwrap().is_some() {
            let output = child.wait_with_output().unwrap();
            let error = only_error_line(&output);
            assert!(error.ends_with(": a FIFO; expected a regular file"), "{error}");
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    panic!("`fairweir check` waits for a writer of the FIFO");
}

/// Makes one to three typical mistakes of people and editors.
fn mutated(good: &str, random: &mut Random) -> Vec<u8> {
    let mut text = good.as_bytes().to_vec();
    for _ in 0..random.below(3) + 1 {
        let at = random.below(text.len());
        let mut lines: Vec<Vec<u8>> = text.split(|&b| b == b'\n').map(<[u8]>::to_vec).collect();
        let line = random.below(lines.len());
        match random.below(7) {
            0 => drop(text.remove(at)),
            1 => text[at] = random.below(256) as u8,
            2 => text.insert(at, b"\"[]=,.-#\n\0\\9x"[random.below(13)]),
            3 => text.truncate(at),
            4 => {
                lines.remove(line);
                text = lines.join(&b'\n');
            }
            5 => {
                lines.insert(line, lines[line].clone());
                text = lines.join(&b'\n');
            }
            _ => {
                let other = random.below(lines.len());
                lines.swap(line, other);
                text = lines.join(&b'\n');
            }
        }
        if text.is_empty() {
            text.push(b'\n');
        }
    }
    text
}

/// xorshift64: the same mutations in every run. Source: Marsaglia, Xorshift RNGs, 2003.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}
