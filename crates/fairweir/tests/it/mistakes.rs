//! Mistakes in typing and writing, and the answer: one line that says what is wrong, where, what is allowed, and
//! what to type.
//!
//! Every row runs the binary in a temporary directory. None needs root, a network or a daemon.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::common::{FAIRWEIR, schema};

/// A command line, its exit code, and what its answer contains. `RUN` is an empty run directory.
const LINES: &[(&str, i32, &str)] = &[
    // Commands that do not exist.
    ("hots", 2, "no command `hots` of `fairweir` (did you mean `host`?); commands: host, router,"),
    ("start", 2, "no command `start`; use `fairweir host --dev DEV`"),
    ("stop", 2, "no command `stop`; use `fairweir off`"),
    ("kill", 2, "use `fairweir off --force`"),
    ("restart", 2, "use `systemctl restart fairweir@DEV`"),
    ("pause", 2, "use `fairweir set paused=true`"),
    ("pause video", 2, "such as `fairweir pause backup 30m`"),
    ("boost video", 2, "such as `fairweir boost video 2h`"),
    ("boost video 2h --weight 0", 2, "a whole number from 1 to 10000"),
    ("reset-quota", 2, "GROUP"),
    ("reset-quota tv --run-dir RUN", 3, "no `fairweir host` or `fairweir router` runs here"),
    ("pause video 30", 2, "SPAN"),
    ("pause video 30m --end", 2, "--end"),
    ("router try 5s", 2, "`5s` is not 30s to 1d"),
    ("router devices name tv phone", 2, "`tv` is neither a MAC address"),
    ("host devices", 2, "unknown argument `devices` of `fairweir host`"),
    ("resume", 2, "use `fairweir set paused=`"),
    ("validate", 2, "use `fairweir check`"),
    ("config", 2, "use `fairweir check`"),
    ("completions", 2, "use `fairweir generate completions SHELL`"),
    ("man", 2, "use `fairweir generate man --out DIR`"),
    ("version", 2, "use `fairweir --version`"),
    ("log", 2, "use `journalctl -u fairweir@DEV`"),
    ("isp ad alice", 2, "no command `ad` of `fairweir isp` (did you mean `add`?)"),
    ("market foo", 2, "no command `foo` of `fairweir market`; commands: init, serve,"),
    ("figures foo", 2, "commands: crab, rbm, bcpqp, fs, myob, control"),
    ("isp plan lst", 2, "(did you mean `list`?); commands: add, change, remove, list"),
    // Arguments that do not exist.
    ("host eth0", 2, "unknown argument `eth0` of `fairweir host`; use --dev eth0"),
    ("host fairweir.toml", 2, "use --config fairweir.toml"),
    ("router router.toml", 2, "use --config router.toml"),
    ("init eth0", 2, "use --dev eth0"),
    ("setup eth0", 2, "use --dev eth0"),
    ("doctor eth0", 2, "use --dev eth0"),
    ("top eth0", 2, "use --dev eth0"),
    ("reload eth0", 2, "use --dev eth0"),
    ("off eth0", 2, "use --dev eth0"),
    ("status isp", 2, "use `fairweir isp status`"),
    ("status page", 2, "use `fairweir page status`"),
    ("off page", 2, "use `fairweir page off`"),
    ("page of", 2, "(did you mean `off`?); commands: status, off"),
    ("page reload", 2, "no command `reload` of `fairweir page`; commands: status, off"),
    ("page status --page-dir RUN", 3, "`fairweir page` does not run (no daemon answers in RUN)"),
    ("sim check demo.toml --jsn", 2, "(did you mean `--json`?)"),
    ("setup --role gateway", 2, "--role: `gateway`; allowed: host, router, isp, sender"),
    ("setup --role rooter", 2, "(did you mean `router`?)"),
    ("setup --undo --yes", 2, "--yes"),
    (
        "setup --yes --role router --dev lo --lan l0 --output o.toml",
        2,
        "no interface `l0` (did you mean `lo`?); available: lo",
    ),
    (
        "setup --yes --role router --dev lo --lan lo --output o.toml",
        2,
        "lo faces the Internet; --lan names the interface of the others",
    ),
    ("setup --yes --role host --dev lo --output RUN", 2, "RUN is a directory; name a file in it"),
    ("reload proxy", 2, "use `fairweir proxy reload`"),
    ("top sender", 2, "use `fairweir sender top`"),
    ("router --dev eth0", 2, "`fairweir router` has no --dev: `wan` in router.toml"),
    ("router --lan eth0", 2, "`lan` in router.toml"),
    ("isp --dev eth0", 2, "`device` in isp.toml"),
    ("proxy --dev eth0", 2, "`lan` in proxy.toml"),
    ("sender --dev eth0", 2, "`match` in sender.toml"),
    ("market serve --config a.toml", 2, "`fairweir market init` stores the rules"),
    ("check --config a.toml", 2, "the file follows without it: `fairweir check FILE`"),
    ("check -c a.toml", 2, "the file follows without it"),
    ("host --capacity 20mbit", 2, "`capacity` in fairweir.toml"),
    ("top --json", 2, "use `fairweir host status --json`"),
    ("host --admingroup adm", 2, "(did you mean `--admin-group`?)"),
    ("host --dev lo --dryrun", 2, "(did you mean `--dry-run`?)"),
    ("doctor --jsn", 2, "(did you mean `--json`?); options: --"),
    (
        "sim check demo.toml --csv",
        2,
        "unknown argument `--csv` of `fairweir sim check`; options: --set, --json",
    ),
    // Values that are wrong for certain.
    (
        "host --control wfq",
        2,
        "--control: `wfq` is for comparison, in the simulator and the lab only; allowed:",
    ),
    ("host --control crap", 2, "(did you mean `crab`?)"),
    (
        "host --dev a/b",
        2,
        "--dev: `a/b` is not a name of an interface; expected 1 to 15 bytes, such as eth0",
    ),
    ("host --dev averylonginterfacename", 2, "is not a name of an interface"),
    ("init --dev lo --duration 60", 2, "--duration: `60` has no unit"),
    ("init --dev lo --duration 0s --output -", 2, "--duration is 0s; it must be positive"),
    ("setup --yes --dev lo --duration 0s", 2, "--duration is 0s; it must be positive"),
    ("page --port 99999", 2, "--port: `99999` is not a port (1 to 65535, or 0 for a free one)"),
    ("page --port http", 2, "--port: `http` is not a port"),
    ("page --history-size 5", 2, "--history-size: "),
    ("page --history-size 1MB", 2, "4MB to 100GB"),
    ("demo --port -1", 2, "-1"),
    ("history --since 400d", 2, "--since: a number of days is from 0d to 366d"),
    ("history --since yesterday", 2, "or days such as 31d"),
    ("history --since 0s", 2, "--since is out of range (1s to 31d)"),
    ("isp top --count abc", 2, "--count: `abc` is not a whole number from 1 to 1000"),
    ("isp top --count 0", 2, "--count: `0` is not a whole number from 1 to 1000"),
    ("isp metrics --top -3", 2, "-3"),
    (
        "market boost streaming --minutes 0",
        2,
        "--minutes: `0` is not a whole number from 1 to 1440",
    ),
    ("market boost video", 2, "`video`; allowed: "),
    ("market holiday --days 0", 2, "--days: `0` is not a whole number from 1 to 366"),
    ("market code c --hours 0", 2, "--hours: `0` is not a whole number from 1 to 8760"),
    ("market init --capacity 160", 2, "--capacity: `160` has no unit"),
    (
        "market init --capacity 160mbit --floor 101",
        2,
        "--floor: `101` is not a whole number from 0 to 100",
    ),
    ("market init --capacity 160mbit --slot 0", 2, "--slot: `0` is not a whole number from 1"),
    ("generate completions tcsh", 2, "allowed: bash, elvish, fish, powershell, zsh"),
    ("sim run demo.toml --seed x", 2, "--seed: "),
    ("sim run demo.toml --parallel 0", 2, "--parallel: `0` is not a whole number from 1"),
    ("sim run demo.toml --control crap", 2, "--control: "),
    ("isp add alice --plan x --address foo", 2, "--address: `foo` is neither an address"),
    ("isp change alice --address 192.0.2.1/24", 2, "--address: `192.0.2.1/24` has host bits set"),
    ("set foo=bar --run-dir RUN", 2, "unknown key `foo`; allowed: weight.GROUP, latency, paused"),
    ("set video=8 --run-dir RUN", 2, "unknown key `video`; use weight.video"),
    (
        "check subscribers.csv",
        2,
        "this is a table, not a configuration: `fairweir isp import FILE --dry-run` reads it",
    ),
    ("set latncy=5ms --run-dir RUN", 2, "(did you mean `latency`?)"),
    ("set latency=5 --run-dir RUN", 2, "such as \"5ms\""),
    ("set latency=9min --run-dir RUN", 2, "latency: "),
    ("set paused=yes --run-dir RUN", 2, "write true without quotes"),
    (
        "set weight.a=0 --run-dir RUN",
        2,
        "weight.a: found the number 0, expected a whole number from 1 to 10000",
    ),
    ("set weight.a=x --run-dir RUN", 2, "weight.a: found the text \"x\""),
    (
        "set paused --run-dir RUN",
        2,
        "found `paused`, expected a key and a value such as weight.video=8",
    ),
    // Missing arguments.
    ("init", 2, "--dev"),
    ("set", 2, "KEY=VALUE"),
    ("isp add", 2, "--address"),
    ("isp revert", 2, "<NAMES>..."),
    ("lab run", 2, "<FILE>"),
    ("market init", 2, "--capacity"),
    ("host --json", 2, "--dry-run"),
    ("doctor --yes", 2, "--fix"),
    (
        "host --dev lo --config host.toml --admin-group nosuchgroup",
        2,
        "--admin-group: no group `nosuchgroup` on this system",
    ),
    (
        "host --dev lo --config host.toml --user-group nosuchgroup",
        2,
        "--user-group: no group `nosuchgroup` on this system",
    ),
    (
        "sender --config sender.toml --user-group nosuchgroup",
        2,
        "--user-group: no group `nosuchgroup` on this system",
    ),
    // Interfaces that do not exist: the same wording everywhere.
    (
        "init --dev l0 --output - --run-dir RUN",
        2,
        "no interface `l0` (did you mean `lo`?); available: lo",
    ),
    (
        "setup --yes --dev l0 --output o.toml",
        2,
        "no interface `l0` (did you mean `lo`?); available: lo",
    ),
    ("doctor --dev l0", 2, "no interface `l0` (did you mean `lo`?); available: lo"),
    (
        "host status --dev l0 --run-dir RUN",
        2,
        "no interface `l0` (did you mean `lo`?); available: lo",
    ),
    ("reload --dev l0 --run-dir RUN", 2, "no interface `l0` (did you mean `lo`?); available: lo"),
    ("set latency=5ms --dev l0 --run-dir RUN", 2, "no interface `l0` (did you mean `lo`?)"),
    (
        "init --router --dev l0 --output -",
        2,
        "no interface `l0` (did you mean `lo`?); available: lo",
    ),
    ("init --router --dev lo --lan l0 --output -", 2, "no interface `l0` (did you mean `lo`?)"),
    // The interface may appear later: systemd starts these services again.
    (
        "host --dev l0 --config host.toml --run-dir RUN",
        1,
        "no interface `l0` (did you mean `lo`?); available: lo",
    ),
    (
        "isp --dry-run --config isp-l0.toml --state-dir none",
        1,
        "no interface `l0` (did you mean `lo`?)",
    ),
    ("host --config host.toml", 2, "no interface given; use --dev eth0"),
    // Daemons that are not running: the answer says how to start each.
    (
        "host status --dev lo --run-dir RUN",
        3,
        "no daemon answers for `lo` in RUN; start one with `sudo fairweir host --dev lo`",
    ),
    ("reload --run-dir RUN", 3, "start one with `sudo fairweir host --dev DEV`"),
    ("set latency=5ms --run-dir RUN", 3, "no `fairweir host` or `fairweir router` runs here"),
    (
        "isp status --run-dir RUN",
        3,
        "start it with `sudo fairweir isp` or `sudo systemctl start fairweir-isp`",
    ),
    ("isp list --run-dir RUN", 3, "`fairweir isp` does not run (no daemon answers in RUN)"),
    ("isp add a --plan p --address 192.0.2.1 --run-dir RUN", 3, "`fairweir isp` does not run"),
    ("proxy status --run-dir RUN", 3, "`sudo systemctl start fairweir-proxy`"),
    ("proxy reload --run-dir RUN", 3, "`fairweir proxy` does not run"),
    ("sender status --run-dir RUN", 3, "`sudo systemctl start fairweir-sender`"),
    (
        "market status --run-dir RUN",
        3,
        "start it with `sudo fairweir market serve` or `sudo systemctl start fairweir-market`",
    ),
    ("market code c --run-dir RUN", 3, "`fairweir market serve` does not run"),
    (
        "market why --run-dir RUN",
        3,
        "start it with `sudo fairweir market agent` or `sudo systemctl start fairweir-agent`",
    ),
    ("market boost streaming --run-dir RUN", 3, "`fairweir market agent` does not run"),
    ("page --open --page-dir RUN", 3, "`fairweir page` does not run (no daemon answers in RUN)"),
    ("history --page-dir RUN", 3, "`sudo systemctl start fairweir-page`"),
    ("suggest --page-dir RUN", 3, "`fairweir page` does not run"),
    // Files that are missing, or of another kind.
    (
        "check none.toml",
        2,
        "none.toml: cannot read it: no such file or directory; `fairweir init` writes a first one",
    ),
    (
        "check none/router.toml",
        2,
        "no such file or directory; `fairweir init --router` writes a first one",
    ),
    ("check none/isp.toml", 2, "an example is /etc/fairweir/isp.toml.example"),
    ("isp --config none.toml", 2, "an example is /etc/fairweir/isp.toml.example"),
    ("sender --config none.toml", 2, "an example is /etc/fairweir/sender.toml.example"),
    ("proxy --config none.toml", 2, "an example is /etc/fairweir/proxy.toml.example"),
    ("market agent --config none.toml", 2, "an example is /etc/fairweir/agent.toml.example"),
    (
        "router --config host.toml",
        2,
        "host.toml:2: this is a file of `fairweir host`, not of `fairweir router`",
    ),
    (
        "host --dev lo --config router.toml",
        2,
        "router.toml:2: this is a file of `fairweir router`, not of `fairweir host`",
    ),
    ("isp --config host.toml", 2, "this is a file of `fairweir host`, not of `fairweir isp`"),
    ("sender --config host.toml", 2, "this is a file of `fairweir host`, not of `fairweir sender`"),
    (
        "proxy --config router.toml",
        2,
        "this is a file of `fairweir router`, not of `fairweir proxy`",
    ),
    (
        "market agent --config host.toml",
        2,
        "this is a file of `fairweir host`, not of `fairweir market agent`",
    ),
    ("check demo.toml", 2, "this is a scenario: `fairweir sim check FILE` reads it"),
    ("host --dev lo --config demo.toml", 2, "this is a scenario"),
    (
        "sim check host.toml",
        2,
        "this is a file of `fairweir host`, not a scenario: `fairweir check` reads it",
    ),
    ("lab check isp-l0.toml", 2, "this is a file of `fairweir isp`, not a scenario"),
    ("check RUN", 2, "RUN: "),
    (
        "sim check demo.toml --set flow.5.rtt=1ms",
        2,
        "no entry 5: there are 2; allowed: a number from 0 to 1",
    ),
    ("sim check demo.toml --set link.raet=1mbit", 2, "(did you mean `rate`?)"),
    (
        "market enrol abc --server a:1 --authority ca.der",
        2,
        "--authority: no file ca.der; the operator of the market gives it to you",
    ),
    (
        "market enrol abc --server foo --authority ca.der",
        2,
        "--server: `foo` has no port; expected HOST:PORT such as foo:7443",
    ),
    ("isp revert alice --run-dir RUN --state-dir none", 1, "no change of `alice` by commands"),
    ("market verify --state-dir none", 2, "no market in none; `fairweir market init` founds one"),
    ("market log --state-dir none", 2, "no market in none; `fairweir market init` founds one"),
    (
        "market serve --state-dir none --run-dir RUN",
        2,
        "no market in none; `fairweir market init` founds one",
    ),
];

/// Files that `fairweir check` refuses, and what the answer contains; `G` stands for a group with this match.
const FILES: &[(&str, &str)] = &[
    (
        "[host]\nlatency = 5\n",
        ":3: host.latency: found the number 5, expected a text in quotes such as \"5ms\"",
    ),
    (
        "[host]\ncapacity = 30\n",
        ":3: host.capacity: found the number 30, expected a text in quotes such as \"30mbit\"",
    ),
    ("[host]\ncapacity = \"30\"\n", "`30` has no unit"),
    ("[host]\ncapacity = \"30Mbps\"\n", ":3: host.capacity: "),
    ("[host]\nlatancy = \"5ms\"\n", "unknown key (did you mean `latency`?); allowed: "),
    ("[host]\ncontrol = \"wfq\"\n", "`wfq` is for comparison"),
    ("[host]\ncontrol = \"static\"\n", "capacity"),
    ("[host]\ndev = \"a/b\"\n", "is not a name of an interface"),
    ("[host]\nprobe = \"yes\"\n", "host.probe: "),
    ("[host]\nmetrics = \"0.0.0.0:9115\"\n", "can be reached from other hosts"),
    ("[host]\nupload = \"yes\"\n", "host.upload: "),
    ("[hots]\nlatency = \"5ms\"\n", "unknown key (did you mean `host`?)"),
    ("[host\n", ":2: syntax: "),
    ("[host]\n[[group]]\nmatch = [\"app:a\"]\nweight = 1\n", "group.name"),
    (
        "[host]\n[[group]]\nname = \"a\"\nmatch = [\"app:a\"]\n",
        "group.weight: missing; expected a whole number from 1 to 10000 for group `a`",
    ),
    (
        "[host]\n[[group]]\nname = \"a\"\nweight = \"3\"\nmatch = [\"app:a\"]\n",
        "found the text \"3\", expected a whole number from 1 to 10000; write 3 without quotes",
    ),
    ("[host]\n[[group]]\nname = \"a\"\nweight = 0\nmatch = [\"app:a\"]\n", "found the number 0"),
    (
        "[host]\n[[group]]\nname = \"a\"\nweight = 1\nmatch = \"app:a\"\n",
        "expected a list of texts in quotes such as [\"app:a\"]",
    ),
    ("[host]\n[[device]]\nname = \"a\"\n", "unknown key; use `[[group]]`; allowed: "),
    (
        "[router]\nlan = \"a\"\nwan = \"b\"\n[[group]]\nname = \"x\"\n",
        "unknown key; use `[[device]]`; allowed: ",
    ),
    (
        "G port:3481-3478",
        "`3481-3478` is not a port (the range is in reverse order; write 3478-3481)",
    ),
    ("G port:udp/9-8", "`udp/9-8` is not a port (the range is in reverse order; write udp/8-9)"),
    ("G port:3478/udp", "`3478/udp` is not a port (write udp/3478)"),
    ("G port:0", "`0` is not a port (443, udp/443 or tcp/8000-8010; 1 to 65535)"),
    ("G port:https", "`https` is not a port"),
    ("G app:/usr/bin/zoom", "write `app:zoom`"),
    ("G app:", "is not the base name of an executable file"),
    ("G ap:zoom", "unknown kind `ap:` (did you mean `app`?)"),
    ("G zoom", "`zoom` has no kind; use for example `app:zoom`"),
    ("G ip:10.0.0.1/8", "has host bits set; write 10.0.0.0/8"),
    ("G ip:example.org", "is neither an address"),
    ("G user:nouserofthisname", "nouserofthisname"),
    ("G mac:02:00:5e:00:53:01", "are for the devices of `fairweir router`"),
    ("[isp]\n", "isp.device"),
    ("[proxy]\nlan = [\"lo\"]\n", "class: missing; expected at least one table [[class]]"),
    ("[sender]\n", "bundle: missing; expected at least one table [[bundle]]"),
];

#[test]
fn every_mistake_has_one_clear_answer() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    fs::create_dir(dir.path().join("RUN")).unwrap();
    write("host.toml", "version = 1\n[host]\ncontrol = \"none\"\n");
    write("router.toml", "version = 1\n[router]\nlan = \"lo\"\nwan = \"lo\"\n");
    let sender = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/sender.toml");
    fs::copy(sender, dir.path().join("sender.toml")).unwrap();
    write("isp-l0.toml", "version = 1\n[isp]\ndevice = \"l0\"\n");
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/demo.toml");
    fs::copy(demo, dir.path().join("demo.toml")).unwrap();
    let mut wrong = Vec::new();
    let mut judge = |line: &str, output: &Output, code: i32, says: &str| {
        let error = String::from_utf8_lossy(&output.stderr);
        let is_one_line = error.lines().count() == 1 || error.starts_with("error: ");
        // These are Rust's own messages, or make sense only to readers of the source.
        let is_foreign = ["os error", "invalid digit", "..=", "No such file"];
        let is_clear = !is_foreign.iter().any(|words| error.contains(words));
        let found = output.status.code();
        if found != Some(code) || !error.contains(says) || !is_one_line || !is_clear {
            wrong.push(format!("{line}\n  wanted {code}: {says}\n  found {found:?}: {error}"));
        }
    };
    for (line, code, says) in LINES {
        judge(line, &run(dir.path(), line), *code, says);
    }
    for (text, says) in FILES {
        let text = match text.strip_prefix("G ") {
            Some(of) => {
                format!("[host]\n[[group]]\nname = \"a\"\nweight = 1\nmatch = [\"{of}\"]\n")
            }
            None => (*text).to_owned(),
        };
        write("a.toml", &format!("version = 1\n{text}"));
        judge(&text, &run(dir.path(), "check a.toml"), 2, says);
    }
    assert!(LINES.len() + FILES.len() >= 150, "{}", LINES.len() + FILES.len());
    assert!(wrong.is_empty(), "{} of them:\n{}", wrong.len(), wrong.join("\n"));
    let left: Vec<_> = fs::read_dir(dir.path().join("RUN")).unwrap().collect();
    assert!(
        left.is_empty() && !dir.path().join("none").exists(),
        "a refused command leaves {left:?}"
    );
}

#[test]
fn a_file_with_several_mistakes_has_them_in_one_answer_a_line_each() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
    fs::create_dir(dir.path().join("conf.d")).unwrap();
    write("host.toml", "version = 1\n[host]\nlatency = 5\nprobee = \"off\"\n");
    write("conf.d/a.toml", "version = 1\n[[group]]\nname = \"a\"\nmatch = [\"ap:b\"]\n");
    write("isp.toml", "version = 1\nsubscribers = \"s.csv\"\n[isp]\ndevice = \"lo\"\n");
    write("s.csv", "name,addresses,plan\na,192.0.2.1,gone\nb,192.0.2.1,none\n");
    write(
        "plans.toml",
        "[[plan]]\nname = \"a\"\ndownload = 5\n[[plan]]\nname = \"b\"\nuplaod = \"1mbit\"\n",
    );
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/demo.toml");
    let demo = fs::read_to_string(demo).unwrap();
    write("demo.toml", &demo.replace("weight", "wieght"));
    for (line, wanted) in [
        (
            "check host.toml",
            &["host.toml:3: ", "host.toml:4: ", "conf.d/a.toml:2: ", "conf.d/a.toml:4: "][..],
        ),
        ("check isp.toml", &["s.csv:2:", "s.csv:3:"]),
        ("isp plan add plans.toml --run-dir none", &["plans.toml:3: ", "plans.toml:6: "]),
        ("sim check demo.toml", &["demo.toml:", "demo.toml:"]),
    ] {
        let output = run(dir.path(), line);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{line}: {error}");
        let lines: Vec<&str> = error.lines().collect();
        let begins =
            |(said, place): (&&str, &&str)| said.starts_with(&format!("fairweir: {place}"));
        let is_all = lines.len() == wanted.len() && lines.iter().zip(wanted).all(begins);
        assert!(is_all, "{line}: {wanted:?}\n{error}");
    }
    // The daemon's reply, the status and JSON have the messages on one line.
    let output = run(dir.path(), "check host.toml --json");
    let error: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(error["error"].as_str().unwrap().matches(".toml:").count(), 4, "{error}");
}

#[test]
fn who_asks_for_json_reads_errors_as_json() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.toml"), "version = 1\n[host]\nlatency = 5\n").unwrap();
    for (line, code, says) in [
        ("check a.toml --json", 2, "host.latency"),
        ("check --json --dev lo a.toml", 2, "--dev"),
        ("isp status --json --run-dir run", 3, "fairweir isp"),
        ("host status --json --dev l0 --run-dir run", 2, "no interface `l0`"),
        ("doctor --json --dev l0", 2, "no interface `l0`"),
    ] {
        let output = run(dir.path(), line);
        let error: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(error["exit_code"], code, "{line}: {error}");
        assert_eq!(output.status.code(), Some(code), "{line}");
        assert!(error["error"].as_str().unwrap().contains(says), "{line}: {error}");
    }
}

#[test]
fn what_is_allowed_and_probably_wrong_is_noted() {
    let dir = tempfile::tempdir().unwrap();
    let isp = "[isp]\ndevice = \"l0\"\n";
    let segment = "[[segment]]\nname = \"s\"\ndownload = \"1gbit\"\nmembers = [\"alise\"]\n";
    for (text, says) in [
        (
            "[host]\ndev = \"l0\"\n".to_owned(),
            "note: no interface `l0` (did you mean `lo`?); available: lo",
        ),
        (isp.to_owned(), "warning: no [[plan]]: no subscriber can be added"),
        (isp.to_owned(), "note: no interface `l0`"),
        (format!("{isp}{segment}"), "warning: segment `s`: no subscriber is one of its members"),
    ] {
        fs::write(dir.path().join("a.toml"), format!("version = 1\n{text}")).unwrap();
        let output = run(dir.path(), "check a.toml");
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success() && said.contains(says), "{text}\n{said}{output:?}");
    }
}

#[test]
fn every_file_that_is_checked_says_of_which_daemon_it_is() {
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist");
    let dir = tempfile::tempdir().unwrap();
    let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios/demo.toml");
    for command in ["sim", "lab"] {
        let output = run(dir.path(), &format!("{command} check {demo} --json"));
        let checked: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&checked["kind"], &checked["name"]), (&"scenario".into(), &"demo".into()));
        let first = &checked["events"][0];
        assert!(first["at_s"].is_number() && first["what"].is_string(), "{checked}");
        assert_eq!((&checked["groups"], &checked["flows"]), (&2.into(), &2.into()), "{checked}");
    }
    let router = "version = 1\n[router]\nlan = \"lan0\"\nwan = \"wan0\"\n";
    fs::write(dir.path().join("router.toml"), router).unwrap();
    for (file, kind) in [
        ("fairweir.toml", "host"),
        ("router.toml", "router"),
        ("isp.toml", "isp"),
        ("sender.toml", "sender"),
        ("proxy.toml", "proxy"),
        ("agent.toml", "market agent"),
    ] {
        let example = Path::new(examples).join(file);
        if example.exists() {
            fs::copy(example, dir.path().join(file)).unwrap();
        }
        let output = run(dir.path(), &format!("check {file} --json"));
        let checked: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(checked["kind"], kind, "{checked}");
        assert!(checked["files"][0].as_str().unwrap().ends_with(file), "{checked}");
        assert!(checked["warnings"].is_array(), "{checked}");
    }
}

fn run(dir: &Path, line: &str) -> Output {
    let mut command = Command::new(FAIRWEIR);
    let args: Vec<&str> = line.split(' ').collect();
    let output = command.args(&args).current_dir(dir).env_remove("RUST_LOG").output().unwrap();
    schema::check(&args, &output);
    output
}
