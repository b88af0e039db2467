//! The quick starts in README.md, typed exactly as written, each on a separate machine.
//!
//! An ignored test also types all of them on fresh root file systems of Debian.
//!
//! Each machine is a network namespace of a home or an access network, with its own /etc, /usr/local, /var/lib and
//! /run. Four words are replaced by the nearest equivalent: `make package` by the binary under test, `sudo` by root,
//! `sudoedit` by one edit, and `systemctl`, since there is no systemd, by a script that runs the unit's command. Three
//! commands get a person's input: a shorter `setup` and its answers, `q` in `top`, and Ctrl-C in a dry run.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fairweir_linux::netns::Netns;
use fairweir_testing::{can_run, note, privileged, share};

use crate::common::FAIRWEIR;
use crate::common::access::{ALICE4, Access, SPAN};
use crate::common::deb::{DEBOOTSTRAP, SUITES};
use crate::common::far::Far;
use crate::common::home;
use crate::common::stage::{SERVERS, Stage};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The commands below a heading of README.md, without their comments.
fn quick_start(heading: &str) -> Vec<String> {
    let readme = fs::read_to_string(format!("{ROOT}/README.md")).unwrap();
    let (_, section) = readme.split_once(&format!("\n## {heading}\n")).expect(heading);
    let (_, block) = section.split_once("```sh\n").unwrap();
    let (block, _) = block.split_once("```").unwrap();
    let command = |line: &str| line.split(" #").next().unwrap().trim().to_owned();
    let commands: Vec<String> = block.lines().map(command).collect();
    assert!((4..=8).contains(&commands.len()), "at most eight lines: {commands:#?}");
    commands
}

/// The shell command that is typed for a command of README.md.
fn typed(command: &str) -> String {
    if command.ends_with(" setup") {
        return format!("yes '' | {command} --duration 3s");
    }
    if command.ends_with(" top") {
        // Repeat until it is accepted: input before the view starts is lost.
        return format!(
            "(sleep 1; while sleep 1 && printf q; do :; done) 2>/dev/null |\
             script --quiet --return --command 'stty rows 30 cols 120; {command}' /dev/null"
        );
    }
    match command.ends_with("--dry-run") {
        true => format!("timeout --preserve-status --signal INT 3 {command}"),
        false => command.to_owned(),
    }
}

const SUDO: &str = "#!/bin/sh\nexec \"$@\"\n";

/// Implements the verbs and units that the quick starts and `setup` use.
const SYSTEMCTL: &str = r#"#!/bin/sh
set -eu
verb=$1
shift
for unit; do
    unit=${unit%.service}
    case $unit in --*) continue ;; esac
    case $verb in
    is-enabled | is-active) exec test -e "/run/units/$unit" ;;
    esac
    template=${unit%%@*} instance=
    case $unit in *@*) template=$template@ instance=${unit#*@} ;; esac
    of() { sed -n "s/^$1=//p" "/etc/systemd/system/$template.service" | sed "s/%i/$instance/"; }
    user=$(of User)
    for dir in "/run/$(of RuntimeDirectory)" "/var/lib/$(of StateDirectory)"; do
        install -d -m 755 ${user:+-o $user -g $user} "$dir"
    done
    mkdir -p /run/units
    (exec ${user:+setpriv --reuid $user --regid $user --init-groups} $(of ExecStart)) >"/run/units/$unit" 2>&1 &
    case $unit in
    fairweir-page) ask='fairweir page status' ;;
    fairweir@*) ask='fairweir host status' ;;
    *) ask="fairweir ${unit#fairweir-} status" ;;
    esac
    for _ in $(seq 100); do
        ! $ask >/dev/null 2>&1 || break
        sleep .1
    done
    $ask >/dev/null 2>&1 || { cat "/run/units/$unit" >&2; exit 1; }
done
"#;

/// The root file system on which commands are typed: that of this machine, or another one.
type On<'p> = Option<&'p Path>;

/// The program that starts the shell: it enters the root file system and runs the script `typed` in `dir`.
fn enter(on: On<'_>, dir: &Path) -> PathBuf {
    let typed = dir.join("typed");
    let Some(system) = on else { return typed };
    let temporary = std::env::temp_dir();
    let binary = Path::new(FAIRWEIR).parent().unwrap();
    let mut script = "set -eu\n".to_owned();
    for shared in [Path::new("/dev"), Path::new("/sys"), Path::new(ROOT), binary, &temporary] {
        let inside = format!("{}{}", system.display(), shared.display());
        script += &format!("mkdir -p {inside}\nmount --rbind {} {inside}\n", shared.display());
    }
    script += &format!(
        "mount -t proc proc {0}/proc\nexec chroot {0} /bin/bash {1}\n",
        system.display(),
        typed.display()
    );
    let enter = dir.join("enter");
    fs::write(&enter, script).unwrap();
    enter
}

/// A machine on which commands are typed.
struct Typed {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    _dir: tempfile::TempDir,
}

const END: &str = "--- all typed";

impl Typed {
    /// Starts typing while `program` runs; `edit` is a sed command for the file that `sudoedit` opens.
    fn begin(on: On<'_>, netns: &Netns, commands: &[String], program: &str, edit: &str) -> Typed {
        let dir = tempfile::tempdir().unwrap();
        // The page's user executes files below this directory.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = |name: &str| dir.path().join(name);
        let programs = path("programs");
        fs::create_dir(&programs).unwrap();
        let make = format!(
            "#!/bin/sh\n[ \"$1\" = install ] || {{ echo 'replaced: the binary under test'; exit 0; }}\n\
             exec /usr/bin/make --no-print-directory -C {ROOT} install PACKAGED={FAIRWEIR}\n"
        );
        let sudoedit = format!("#!/bin/sh\nexec sed -i '{edit}' \"$1\"\n");
        for (name, text) in
            [("sudo", SUDO), ("systemctl", SYSTEMCTL), ("make", &make), ("sudoedit", &sudoedit)]
        {
            let program: PathBuf = programs.join(name);
            fs::write(&program, text).unwrap();
            fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let dir_text = dir.path().display();
        let mut script = format!(
            "set -eu\ncp -a /etc {dir_text}/etc\nmkdir {dir_text}/local {dir_text}/lib\n\
             mount --bind {dir_text}/etc /etc\nmount --bind {dir_text}/local /usr/local\n\
             mount --bind {dir_text}/lib /var/lib\nmount -t tmpfs tmpfs /run\n\
             mkdir -p /run/systemd/system\nrm -rf /etc/fairweir\n\
             export PATH={dir_text}/programs:/usr/local/bin:$PATH TERM=xterm\ncd {ROOT}\n\
             {program} &\n"
        );
        for command in commands {
            let line = typed(command);
            // Without `pipefail`, because `yes` ends with a broken pipe.
            script += &format!(
                "printf '\\n$ %s\\n' '{command}'\n{{ {line}; }} </dev/null 2>&1 || {{ echo \"failed: $?\"; exit 1; }}\n"
            );
        }
        script += &format!("printf '\\n{END}\\n'\nread -r _ || true\n");
        fs::write(path("typed"), script).unwrap();
        let mut bash = Command::new("unshare");
        bash.args(["--mount", "--pid", "--fork", "--mount-proc", "--kill-child", "bash"]);
        bash.arg(enter(on, dir.path())).env_remove("RUST_LOG");
        bash.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = netns.run(|| bash.spawn().unwrap());
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Typed { stdin: child.stdin.take(), child, lines, _dir: dir }
    }

    /// The output of each command, after all were typed; the last part belongs to the last command.
    fn said(&mut self) -> Vec<(String, String)> {
        let mut parts: Vec<(String, String)> = Vec::new();
        for line in self.lines.by_ref().map(Result::unwrap) {
            println!("{line}");
            if line == END {
                return parts;
            }
            match (line.strip_prefix("$ "), parts.last_mut()) {
                (Some(command), _) => parts.push((command.to_owned(), String::new())),
                (None, Some((_, said))) => *said += &format!("{line}\n"),
                (None, None) => {}
            }
        }
        panic!("a line of README.md fails");
    }
}

impl Drop for Typed {
    fn drop(&mut self) {
        drop(self.stdin.take());
        let _ = self.child.wait();
    }
}

/// The output of the command that begins with this text.
fn answer<'s>(said: &'s [(String, String)], command: &str) -> &'s str {
    &said.iter().find(|(typed, _)| typed.starts_with(command)).expect(command).1
}

#[test]
fn a_computer_is_shared_as_the_readme_types_it() {
    share_a_computer(None);
}

fn share_a_computer(on: On<'_>) {
    if !privileged() {
        return;
    }
    let _share = share();
    let stage = Stage::new();
    let _download = stage.download(SERVERS[1]);
    let commands = quick_start("My computer");
    let program = format!("cat </dev/tcp/{}/{} >/dev/null", SERVERS[0], stage.port());
    let mut typed = Typed::begin(on, stage.home(), &commands, &program, "");
    let said = typed.said();
    let setup = answer(&said, "sudo fairweir setup");
    assert!(setup.contains("match = [\"app:cat\"]"), "{setup}");
    assert!(setup.contains("started fairweir@wan.service and the page"), "{setup}");
    let link = answer(&said, "sudo fairweir page --open");
    assert!(link.contains("http://127.0.0.1:"), "{link}");
    let top = answer(&said, "sudo fairweir top");
    assert!(top.contains("cat"), "{top}");
    let (last, off) = said.last().unwrap();
    assert!(last == "sudo fairweir off" && off.contains("host-wan: the daemon (pid "), "{off}");
}

#[test]
fn devices_share_a_router_as_the_readme_types_it() {
    share_a_router(None);
}

fn share_a_router(on: On<'_>) {
    if !privileged() || !home::has_nat() {
        return;
    }
    let _share = share();
    let begin = Instant::now();
    let stage = Stage::new();
    let devices = home::devices(&stage, ["tv", "laptop"]);
    let far = Far::new(&stage, "far", "198.51.100.1", None);
    let _downloads = devices.each_ref().map(|device| device.download(far.address()));
    // The person gives the first device in the file 4 times the weight.
    let commands = quick_start("My router");
    let seen = stage.path("seen");
    let look =
        format!("while sleep 5; do fairweir router status; done >>{} 2>/dev/null", seen.display());
    let mut typed =
        Typed::begin(on, stage.home(), &commands, &look, "0,/^weight = 1/s//weight = 4/");
    let said = typed.said();
    let (last, status) = said.last().unwrap();
    assert!(last == "sudo fairweir router status" && status.contains("wan"), "{last}: {status}");
    let rules = answer(&said, "fairweir check");
    let first = usize::from(rules.find(&devices[1].mac) < rules.find(&devices[0].mac));
    let received = || [first, 1 - first].map(|i| devices[i].received());
    let mut parts = Vec::new();
    while begin.elapsed() < Duration::from_secs(90) {
        let before = received();
        thread::sleep(Duration::from_secs(3));
        let now = received();
        let [a, b] = [0, 1].map(|i| (now[i] - before[i]) as f64);
        parts.push(a / (a + b));
        // Within 10 % of 4/5.
        if parts.last().is_some_and(|part| (0.72..0.88).contains(part)) {
            println!("after {:.0?}: {parts:.2?}", begin.elapsed());
            return;
        }
    }
    panic!(
        "the first device has these parts of the line instead of 0.8: {parts:.2?}\n{}",
        fs::read_to_string(seen).unwrap()
    );
}

#[test]
fn a_subscriber_has_its_plan_as_the_readme_types_it() {
    plan_a_subscriber(None);
}

fn plan_a_subscriber(on: On<'_>) {
    if !privileged() {
        return;
    }
    let _share = share();
    let access = Access::new();
    // The person enters the interfaces.
    let edit = "s/^device = \"eth1\"/device = \"sub\"/; s/^# uplink = \"eth0\"/uplink = \"up\"/";
    let commands = quick_start("My access network");
    let mut typed =
        access.at_router(|| Typed::begin(on, &Netns::current().unwrap(), &commands, "true", edit));
    let download = access.download(ALICE4);
    let said = typed.said();
    let (last, top) = said.last().unwrap();
    assert!(last == "sudo fairweir isp top" && top.contains("alice"), "{last}: {top}");
    let rate = download.mbit_over(SPAN);
    assert!((40.0..52.0).contains(&rate), "home-50 gives 50 Mbit/s, not {rate:.1}");
}

#[test]
#[ignore = "long: installs releases of Debian, which takes 3 min and a mirror"]
fn every_quick_start_is_typed_on_fresh_root_file_systems() {
    let has_debootstrap = Command::new(DEBOOTSTRAP).arg("--version").output().is_ok();
    if !privileged() || !can_run(has_debootstrap, "debootstrap (the package of that name)") {
        return;
    }
    for suite in &SUITES {
        let dir = tempfile::tempdir().unwrap();
        let system = dir.path().join("system");
        let mut begin = Instant::now();
        let mut minutes = || {
            let took = begin.elapsed().as_secs_f64() / 60.0;
            begin = Instant::now();
            took
        };
        suite.install(&system);
        let installed = minutes();
        let starts: [fn(On<'_>); 3] = [share_a_computer, share_a_router, plan_a_subscriber];
        let [computer, router, network] = starts.map(|start| {
            start(Some(&system));
            minutes()
        });
        note(&format!(
            "{} ({}): installed in {installed:.1} min; my computer {computer:.1} min, my router {router:.1} min, \
             my access network {network:.1} min",
            suite.name, suite.what
        ));
    }
}
