//! `make install`, `make uninstall` and the systemd units.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use fairweir_testing::{can_run, privileged};
use tempfile::TempDir;

use crate::common::FAIRWEIR;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

const UNITS: [&str; 8] = [
    "fairweir@.service",
    "fairweir-agent.service",
    "fairweir-isp.service",
    "fairweir-market.service",
    "fairweir-page.service",
    "fairweir-proxy.service",
    "fairweir-router.service",
    "fairweir-sender.service",
];

/// Programs that an installation must not run.
const FORBIDDEN: [&str; 3] = ["cargo", "systemctl", "rustup"];

/// A directory to install into, and a PATH whose forbidden programs only record that they were called.
struct Target {
    dir: TempDir,
}

impl Target {
    fn new() -> Target {
        let target = Target { dir: TempDir::new().unwrap() };
        fs::create_dir(target.path("programs")).unwrap();
        for program in FORBIDDEN {
            let script = format!("#!/bin/sh\ntouch {}\nexit 1\n", target.trace(program).display());
            let path = target.path("programs").join(program);
            fs::write(&path, script).unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(&path, mode).unwrap();
        }
        target
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn trace(&self, program: &str) -> PathBuf {
        self.path(&format!("called-{program}"))
    }

    fn make(&self, args: &[&str]) -> Output {
        let programs = format!("{}:{}", self.path("programs").display(), env!("PATH"));
        let mut make = Command::new("make");
        make.args(["--no-print-directory", "-C", ROOT]).args(args);
        make.arg(format!("DESTDIR={}", self.path("root").display()));
        let output = make.env("PATH", programs).output().unwrap();
        for program in FORBIDDEN {
            assert!(!self.trace(program).exists(), "{args:?} called {program}: {output:?}");
        }
        output
    }

    fn install(&self) {
        let output = self.make(&["install", &format!("PACKAGED={FAIRWEIR}"), "PREFIX=/usr/local"]);
        assert!(output.status.success(), "{output:?}");
    }

    fn uninstall(&self, more: &[&str]) {
        let args: Vec<&str> = ["uninstall"].iter().chain(more).copied().collect();
        let output = self.make(&args);
        assert!(output.status.success(), "{output:?}");
    }

    /// All files and links below the target, as paths from its root.
    fn files(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let root = self.path("root");
        let mut left = vec![root.clone()];
        while let Some(dir) = left.pop() {
            for entry in fs::read_dir(dir).unwrap() {
                let entry = entry.unwrap();
                match entry.file_type().unwrap().is_dir() {
                    true => left.push(entry.path()),
                    false => {
                        let path = entry.path();
                        let below = path.strip_prefix(&root).unwrap();
                        found.insert(format!("/{}", below.display()));
                    }
                }
            }
        }
        found
    }
}

#[test]
fn what_is_installed_is_uninstalled_without_a_trace_and_without_cargo() {
    let target = Target::new();
    target.install();
    let files = target.files();
    for wanted in [
        "/usr/local/bin/fairweir",
        "/usr/local/lib/sysusers.d/fairweir.conf",
        "/etc/fairweir/agent.toml.example",
        "/etc/fairweir/fairweir.toml.example",
        "/etc/fairweir/isp.toml.example",
        "/etc/fairweir/proxy.toml.example",
        "/etc/fairweir/sender.toml.example",
        "/usr/local/share/fairweir/alerts.yml",
        "/usr/local/share/fairweir/grafana.json",
        "/usr/local/share/man/man1/fairweir.1",
        "/usr/local/share/man/man1/fairweir-isp-add.1",
        "/usr/local/share/bash-completion/completions/fairweir",
        "/usr/local/share/zsh/site-functions/_fairweir",
        "/usr/local/share/fish/vendor_completions.d/fairweir.fish",
    ] {
        assert!(files.contains(wanted), "{wanted} is missing in {files:#?}");
    }
    for unit in UNITS {
        let wanted = format!("/etc/systemd/system/{unit}");
        assert!(files.contains(&wanted), "{wanted} is missing in {files:#?}");
    }
    // The file must not exist, so that `fairweir init` can write it.
    assert!(!files.contains("/etc/fairweir/fairweir.toml"), "{files:#?}");
    // Links as `systemctl enable` creates them.
    let wants = target.path("root/etc/systemd/system/multi-user.target.wants");
    fs::create_dir(&wants).unwrap();
    symlink("../fairweir@.service", wants.join("fairweir@br-lan.service")).unwrap();
    target.uninstall(&[]);
    assert_eq!(target.files(), BTreeSet::new());
    assert!(!target.path("root/etc/fairweir").exists());
}

#[test]
fn uninstall_keeps_edited_configuration_unless_purged() {
    let target = Target::new();
    target.install();
    let config = target.path("root/etc/fairweir");
    fs::copy(config.join("isp.toml.example"), config.join("isp.toml")).unwrap();
    fs::write(config.join("fairweir.toml"), "version = 1\n").unwrap();
    fs::write(config.join("conf.d/mine.toml"), "version = 1\n").unwrap();
    let state = target.path("root/var/lib/fairweir/isp");
    fs::create_dir_all(&state).unwrap();
    fs::write(state.join("isp.journal"), "").unwrap();
    target.uninstall(&[]);
    let kept = [
        "/etc/fairweir/conf.d/mine.toml",
        "/etc/fairweir/fairweir.toml",
        "/var/lib/fairweir/isp/isp.journal",
    ];
    assert_eq!(target.files(), kept.map(str::to_owned).into());
    target.uninstall(&["PURGE=1"]);
    assert_eq!(target.files(), BTreeSet::new());
}

#[test]
fn install_without_binary_and_cargo_says_what_to_run() {
    let target = Target::new();
    // A PATH with make and coreutils, but without cargo, which is in a user's home directory.
    let output = Command::new("make")
        .args(["--no-print-directory", "-C", ROOT, "install"])
        .arg(format!("PACKAGED={}", target.path("none").display()))
        .arg(format!("DESTDIR={}", target.path("root").display()))
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .output()
        .unwrap();
    if Path::new("/usr/bin/cargo").exists() {
        return;
    }
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(error.contains("run `make package` as the user who has cargo"), "{error}");
    assert!(!target.path("root").exists(), "nothing is installed");
}

#[test]
fn a_debian_package_has_the_same_files_below_usr() {
    let found = Command::new("dpkg-shlibdeps").arg("--version").output().is_ok();
    if !can_run(found, "dpkg-dev") {
        return;
    }
    let target = Target::new();
    let programs = format!("{}:{}", target.path("programs").display(), env!("PATH"));
    let package = crate::common::deb::build(target.dir.path(), &programs).display().to_string();
    let dpkg_deb = |args: &[&str]| {
        let output = Command::new("dpkg-deb").args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let contents = dpkg_deb(&["--contents", &package]);
    for wanted in [
        "root/root",
        "./usr/bin/fairweir\n",
        "./lib/systemd/system/fairweir@.service\n",
        "./lib/systemd/system/fairweir-page.service\n",
        "./usr/lib/sysusers.d/fairweir.conf\n",
        "./usr/share/man/man1/fairweir-page.1.gz\n",
        "./usr/share/doc/fairweir/copyright\n",
        "./usr/share/doc/fairweir/docs/isp/reference.md\n",
        "./usr/share/doc/fairweir/THIRD-PARTY.txt.gz\n",
        "./usr/share/doc/fairweir/fairweir.cdx.json.gz\n",
    ] {
        assert!(contents.contains(wanted), "no {wanted}: {contents}");
    }
    assert!(!contents.contains("/usr/local"), "{contents}");
    let conffiles = dpkg_deb(&["--info", &package, "conffiles"]);
    for example in ["agent", "fairweir", "isp", "proxy", "sender"] {
        let wanted = format!("/etc/fairweir/{example}.toml.example");
        assert!(conffiles.contains(&wanted), "no {wanted}: {conffiles}");
    }
    let depends = dpkg_deb(&["--field", &package, "Depends"]);
    assert!(depends.contains("libc6 (>=") && depends.contains("libelf1"), "{depends}");
    let unpacked = target.path("unpacked");
    dpkg_deb(&["--extract", &package, unpacked.to_str().unwrap()]);
    let unit = fs::read_to_string(unpacked.join("lib/systemd/system/fairweir-page.service"));
    assert!(unit.unwrap().contains("ExecStart=/usr/bin/fairweir page\n"));
}

/// `apt-get` is a stub that enables a service, as Debian's packages do; everything else is a copy of the machine's own.
#[test]
fn what_the_tests_install_is_neither_started_nor_enabled() {
    if !privileged() || !can_run(Path::new("/usr/bin/systemctl").exists(), "systemctl") {
        return;
    }
    let dir = TempDir::new().unwrap();
    let apt = "#!/bin/sh\n[ \"$1\" = install ] || exit 0\n\
               /usr/sbin/policy-rc.d nginx start && echo started >&2\n\
               printf '[Service]\\nExecStart=/bin/true\\n[Install]\\nWantedBy=multi-user.target\\n' \\\n\
               >/etc/systemd/system/tried.service\n\
               systemctl --quiet enable tried.service >&2\ntest -e $LINK && echo enabled >&2\n";
    let apt_get = dir.path().join("apt-get");
    fs::write(&apt_get, apt).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&apt_get, mode).unwrap();
    // The script makes PostgreSQL appear to be missing.
    let script = format!(
        "set -eu\ncp -a /etc {0}/etc\nmount --bind {0}/etc /etc\nmkdir -p /usr/lib/postgresql\n\
         mount -t tmpfs tmpfs /usr/lib/postgresql\nexport PATH={0}:$PATH\n\
         find /etc/systemd/system | sort >{0}/before\n./dist/install-deps\n\
         rm /etc/systemd/system/tried.service\nfind /etc/systemd/system | sort | diff {0}/before - >&2\n",
        dir.path().display()
    );
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", &script]).current_dir(ROOT).env("WITH_TESTS", "1");
    let link = "/etc/systemd/system/multi-user.target.wants/tried.service";
    let before = Path::new("/usr/sbin/policy-rc.d").exists();
    let output = unshare.env("LINK", link).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("enabled") && !said.contains("started"),
        "{said}"
    );
    assert_eq!(Path::new("/usr/sbin/policy-rc.d").exists(), before);
}

/// Whether units can be checked on this machine.
fn has_systemd_analyze() -> bool {
    let found = Command::new("systemd-analyze").arg("--version").output().is_ok();
    can_run(found, "systemd-analyze")
}

/// The units in a separate directory, with the binary under test.
fn units() -> TempDir {
    let dir = TempDir::new().unwrap();
    for unit in UNITS {
        let text = fs::read_to_string(Path::new(ROOT).join("dist").join(unit)).unwrap();
        let text = text.replace("/usr/local/bin/fairweir", FAIRWEIR);
        fs::write(dir.path().join(unit), text).unwrap();
    }
    dir
}

#[test]
fn systemd_understands_every_line_of_the_units() {
    if !has_systemd_analyze() {
        return;
    }
    let dir = units();
    let instances =
        ["fairweir@eth0.service", "fairweir@br-lan.service", r"fairweir@br\x2dlan.service"];
    // The first unit is the template.
    for unit in UNITS[1..].iter().chain(&instances) {
        let output = Command::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(dir.path().join(unit))
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success() && said.is_empty(), "{unit}: {said}");
    }
}

#[test]
fn the_units_are_exposed_by_at_most_2_5() {
    if !has_systemd_analyze() {
        return;
    }
    let dir = units();
    for unit in UNITS {
        let output = Command::new("systemd-analyze")
            .args(["security", "--offline=true", "--threshold=25", "--no-pager"])
            .arg(dir.path().join(unit))
            .output()
            .unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{unit}: {said}");
    }
}

/// An option that the command refuses would make the service exit with code 2 at each start.
#[test]
fn the_commands_of_all_units_are_accepted() {
    for unit in UNITS {
        let text = fs::read_to_string(Path::new(ROOT).join("dist").join(unit)).unwrap();
        let commands = text.lines().filter(|line| line.starts_with("Exec"));
        let commands: Vec<_> =
            commands.filter_map(|line| line.split_once("/bin/fairweir ")).collect();
        assert!(!commands.is_empty(), "{unit}");
        for (_, args) in commands {
            let args = args.replace("%i", "eth0").replace(" $OPTIONS", "");
            // Options are parsed from left to right, so a wrong one is reported before the help is printed.
            let output = Command::new(FAIRWEIR).args(args.split(' ')).arg("--help").output();
            let output = output.unwrap();
            assert!(output.status.success(), "{unit}: {args}: {output:?}");
        }
    }
}

#[test]
fn the_units_keep_their_states_apart_and_reload_through_the_socket() {
    let unit = |name: &str| fs::read_to_string(Path::new(ROOT).join("dist").join(name)).unwrap();
    let (host, isp) = (unit("fairweir@.service"), unit("fairweir-isp.service"));
    // Systemd sets the mode of the innermost directory, so no directory may contain the other.
    assert!(host.contains("\nStateDirectory=fairweir/host\n"));
    assert!(isp.contains("\nStateDirectory=fairweir/isp\n"));
    // `%i` keeps a dash in an instance name; the name is the interface's own or its escaped form.
    assert!(host.contains("fairweir host --dev %i ") && !host.contains("%I"));
    for unit in [&host, &isp, &unit("fairweir-sender.service")] {
        let line = unit.lines().find(|line| line.starts_with("ExecReload=")).unwrap();
        assert!(line.contains(" reload") && !line.contains("kill"), "{line}");
        assert!(unit.contains("\nRestartPreventExitStatus=2\n"));
    }
}

#[test]
fn alert_rules_and_dashboard_are_valid_and_name_metrics_that_exist() {
    let dist = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist");
    let alerts = fs::read_to_string(dist.join("alerts.yml")).unwrap();
    let dashboard = fs::read_to_string(dist.join("grafana.json")).unwrap();
    let source = include_str!("../../src/host/mod.rs");
    let is_name = |c: char| c.is_ascii_lowercase() || c == '_';
    for text in [&alerts, &dashboard] {
        let names =
            text.match_indices("fairweir_").map(|(at, _)| text[at..].split(|c| !is_name(c)));
        let names: Vec<&str> = names.map(|mut words| words.next().unwrap()).collect();
        assert!(names.len() >= 5);
        for name in names {
            let family = name.strip_suffix("_total").unwrap_or(name);
            assert!(source.contains(&format!("\"{family}\"")), "{name} is no metric of a host");
        }
    }
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    for panel in dashboard["panels"].as_array().unwrap() {
        assert!(panel["gridPos"]["w"].as_u64().is_some() && panel["title"].is_string(), "{panel}");
        assert!(!panel["targets"].as_array().unwrap().is_empty(), "{panel}");
    }
    if crate::common::has_promtool() {
        let mut promtool = Command::new("promtool");
        let output =
            promtool.args(["check", "rules"]).arg(dist.join("alerts.yml")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
}

/// The packages of web/package.json include Grafana's types and the compiler that checks them.
#[test]
fn the_dashboard_is_as_the_schema_of_grafana_wants_it() {
    const WEB: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../web");
    let compiler = Path::new(WEB).join("node_modules/.bin/tsc");
    let found = compiler.exists() && Path::new(WEB).join("node_modules/@grafana/schema").exists();
    if !can_run(found, "the packages of web/; `make test-deps` installs them") {
        return;
    }
    let dashboard = fs::read_to_string(Path::new(ROOT).join("dist/grafana.json")).unwrap();
    // In the directory of node_modules, where the compiler looks for packages.
    let file = tempfile::Builder::new().prefix(".grafana-").suffix(".ts").tempfile_in(WEB).unwrap();
    let check = |dashboard: &str| {
        let text = format!(
            "import type {{ Dashboard }} from \"@grafana/schema\";\n\
             export const dashboard: Dashboard = {dashboard};\n"
        );
        fs::write(file.path(), text).unwrap();
        let mut command = Command::new(&compiler);
        command.args(["--noEmit", "--strict", "--skipLibCheck", "--module", "esnext"]);
        command.args(["--moduleResolution", "bundler", "--target", "es2022"]).arg(file.path());
        command.output().unwrap()
    };
    let output = check(&dashboard);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    // An error is detected.
    let wrong = dashboard.replace("\"schemaVersion\": 39", "\"schemaVersion\": \"39\"");
    assert!(wrong != dashboard && !check(&wrong).status.success());
}
