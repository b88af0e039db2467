//! The scripts of OpenWrt's package, run by the shells dash and ash (busybox), and the real translation of
//! UCI. Calls to OpenWrt's own libraries (procd, network.sh) are recorded, not executed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

const FAIRWEIR: &str = env!("CARGO_BIN_EXE_fairweir");
const FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/openwrt/files");
const SHELLS: [&[&str]; 2] = [&["dash"], &["busybox", "ash"]];

/// Stubs for `rc.common` and the libraries, as far as the script needs them: each call becomes a line of `calls`.
const LIBRARY: &str = r#"
set -u
note() { echo "$*" >>"$IPKG_INSTROOT/calls"; }
for call in procd_open_instance procd_set_param procd_close_instance procd_add_reload_trigger logger; do
    eval "$call() { note $call \"\$@\"; }"
done
start() { start_service "$@"; }
. "$INIT_SCRIPT"
"$@"
"#;
const NETWORK: &str = r#"
network_flush_cache() { :; }
network_get_device() {
    [ -n "$(cat "$IPKG_INSTROOT/net.$2" 2>/dev/null)" ] && eval "$1=\$(cat "$IPKG_INSTROOT/net.$2")"
}
network_find_wan() { [ -e "$IPKG_INSTROOT/net.modem" ] && eval "$1=modem"; }
network_find_wan6() { [ -e "$IPKG_INSTROOT/net.wan6" ] && eval "$1=wan6"; }
"#;

struct Root {
    dir: TempDir,
    shell: &'static [&'static str],
}

impl Root {
    fn new(shell: &'static [&'static str]) -> Root {
        let root = Root { dir: TempDir::new().unwrap(), shell };
        fs::create_dir_all(root.path("lib/functions")).unwrap();
        fs::create_dir_all(root.path("run")).unwrap();
        fs::write(root.path("lib/functions/network.sh"), NETWORK).unwrap();
        fs::write(root.path("library"), LIBRARY).unwrap();
        fs::write(root.path("net.lan"), "br-lan").unwrap();
        fs::write(root.path("net.wan"), "eth1").unwrap();
        root
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn configure(&self, text: &str) {
        fs::write(self.path("uci"), text).unwrap();
    }

    fn shell(&self, script: &Path, args: &[&str]) -> Output {
        let mut command = Command::new(self.shell[0]);
        command.args(&self.shell[1..]).arg(script).args(args);
        command.env("IPKG_INSTROOT", self.dir.path()).env("FAIRWEIR", FAIRWEIR);
        command.env("INIT_SCRIPT", format!("{FILES}/fairweir.init"));
        command.env("UCI_FILE", self.path("uci")).env("RUN", self.path("run/fairweir"));
        command.output().unwrap()
    }

    /// The calls that the init script makes for this action.
    fn call(&self, action: &str) -> String {
        let _ = fs::remove_file(self.path("calls"));
        let output = self.shell(&self.path("library"), &[action]);
        assert!(output.status.success(), "{:?}: {output:?}", self.shell);
        fs::read_to_string(self.path("calls")).unwrap_or_default()
    }
}

fn example(enabled: bool) -> String {
    let text = fs::read_to_string(format!("{FILES}/fairweir.config")).unwrap();
    let text = text.replace("#config device", "config device").replace("\n#\t", "\n\t");
    text.replace("enabled '0'", if enabled { "enabled '1'" } else { "enabled '0'" })
}

fn instances(shell: &'static [&'static str]) {
    let root = Root::new(shell);
    let toml = root.path("run/fairweir/router.toml");
    root.configure(&example(false));
    assert_eq!(root.call("start_service"), "", "it is not enabled");
    root.configure(&example(true));
    let calls = root.call("start_service");
    let command = format!(
        "procd_set_param command {FAIRWEIR} router --config {} --state-dir {}\n",
        toml.display(),
        root.path("run/fairweir/state").display()
    );
    assert!(calls.contains(&command) && calls.ends_with("procd_close_instance\n"), "{calls}");
    let text = fs::read_to_string(&toml).unwrap();
    assert!(text.contains("lan = \"br-lan\"\nwan = \"eth1\"\n"), "{text}");
    assert!(text.contains("match = [\"host:tv\", \"mac:02:00:5e:00:53:01\"]"), "{text}");
    // A changed weight leaves the instance unchanged; another key of the router changes it.
    root.configure(&example(true).replace("'4'", "'5'"));
    assert_eq!(root.call("start_service"), calls);
    root.configure(&example(true).replace("#option upload '0'", "option upload '1'"));
    assert_ne!(root.call("start_service"), calls);
    // An error keeps the old configuration.
    let good = fs::read_to_string(&toml).unwrap();
    for wrong in ["option uplod '1'\n", "option capacity 'fast'\n"] {
        root.configure(&example(true).replacen(
            "#option upload",
            &format!("{wrong}\t#option upload"),
            1,
        ));
        let calls = root.call("start_service");
        assert!(calls.contains("logger -t fairweir the configuration is wrong"), "{calls}");
        assert!(calls.contains(&command), "{calls}");
        assert_eq!(fs::read_to_string(&toml).unwrap(), good);
    }
    assert_eq!(root.call("service_triggers"), "procd_add_reload_trigger fairweir\n");
    root.call("stop_service");
    assert!(!toml.exists());
    // The network is not up yet, so nothing starts.
    root.configure(&example(true));
    fs::remove_file(root.path("net.wan")).unwrap();
    assert_eq!(
        root.call("start_service"),
        "logger -t fairweir waiting for the networks of lan and wan\n"
    );
    // The router starts if the file names the interfaces.
    root.configure(&example(true).replace("#option wan", "option wan"));
    assert!(root.call("start_service").contains(&command));
    assert!(fs::read_to_string(&toml).unwrap().contains("wan = \"pppoe-wan\"\n"));
    root.configure(&example(true).replace("#list lan", "list lan"));
    fs::write(root.path("net.wan6"), "wwan0").unwrap();
    assert!(root.call("reload_service").contains(&command));
    assert!(fs::read_to_string(&toml).unwrap().contains("wan = \"wwan0\"\n"));
    // IPv4 comes through another network.
    fs::write(root.path("net.modem"), "ds-wan6").unwrap();
    root.call("reload_service");
    let text = fs::read_to_string(&toml).unwrap();
    let names = "lan = [\"br-lan\", \"br-guest\"]\nwan = [\"wwan0\", \"ds-wan6\"]\n";
    assert!(text.contains(names), "{text}");
}

#[test]
fn the_init_script_runs_the_daemon_with_the_configuration_of_uci() {
    for shell in SHELLS {
        instances(shell);
    }
}

#[test]
fn a_network_that_comes_up_reloads() {
    for shell in SHELLS {
        let root = Root::new(shell);
        let log = root.path("log");
        let init = root.path("init");
        fs::write(&init, format!("#!/bin/sh\necho \"$1\" >>{}\n", log.display())).unwrap();
        fs::write(root.path("logger"), "#!/bin/sh\n").unwrap();
        for file in ["init", "logger"] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(root.path(file), mode).unwrap();
        }
        let mut said = Vec::new();
        for (action, interface) in
            [("ifup", "wan"), ("ifdown", "wan"), ("ifup", "modem"), ("ifup", "loopback")]
        {
            let path = format!("{}:/usr/bin:/bin", root.dir.path().display());
            let output = Command::new(shell[0])
                .args(&shell[1..])
                .arg(format!("{FILES}/fairweir.hotplug"))
                .envs([("ACTION", action), ("INTERFACE", interface), ("DEVICE", "eth1")])
                .env("INIT", &init)
                .env("PATH", path)
                .output()
                .unwrap();
            assert!(output.status.success(), "{output:?}");
            said.push(fs::read_to_string(&log).unwrap_or_default());
            let _ = fs::remove_file(&log);
        }
        assert_eq!(said, ["enabled\nreload\n", "", "enabled\nreload\n", ""]);
    }
}

#[test]
fn the_package_has_what_opkg_needs_and_no_large_binary() {
    let dir = TempDir::new().unwrap();
    let make = |binary: &str| {
        Command::new(format!("{FILES}/../make-ipk"))
            .envs([("FAIRWEIR", binary), ("ARCHITECTURE", "x86_64"), ("SOURCE_DATE_EPOCH", "1")])
            .env("OUT", dir.path())
            .output()
            .unwrap()
    };
    let large = make(FAIRWEIR);
    assert!(!large.status.success(), "a build of the tests is larger than 8 MiB: {large:?}");
    let made = make("/bin/true");
    assert!(made.status.success(), "{made:?}");
    let ipk = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    let list = |script: &str| {
        let output = Command::new("sh").args(["-euc", script, "sh"]).arg(&ipk).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(list("tar -tzf $1"), "./debian-binary\n./data.tar.gz\n./control.tar.gz\n");
    let data = list("tar -xOzf $1 ./data.tar.gz | tar -tzvf -");
    for (mode, file) in [
        ("-rwxr-xr-x", "./usr/sbin/fairweir"),
        ("-rw-------", "./etc/config/fairweir"),
        ("-rwxr-xr-x", "./etc/init.d/fairweir"),
        ("-rw-r--r--", "./etc/hotplug.d/iface/60-fairweir"),
    ] {
        assert!(data.lines().any(|l| l.starts_with(mode) && l.ends_with(file)), "{file}: {data}");
    }
    let control = list("tar -xOzf $1 ./control.tar.gz | tar -xOzf - ./control ./conffiles");
    assert!(control.contains("Architecture: x86_64\n"), "{control}");
    assert!(control.lines().any(|line| line == "/etc/config/fairweir"), "{control}");
}
