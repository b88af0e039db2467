//! `fairweir proxy` recognises 20 clients: real programs through the gateway, and recorded DHCP requests.

use std::fs;
use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fairweir_testing::{can_run, note, privileged, two_of_three};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde_json::Value;

use crate::common::home::{Device, devices, has_nat};
use crate::common::stage::{Daemon, Stage};

const PATIENCE: Duration = Duration::from_secs(20);
/// The address of all servers.
const SERVER: &str = "10.9.0.3";

/// A program that opens a connection to `host`, and the expected recognition.
struct Program {
    name: &'static str,
    /// `HOST`, `URL` (port 80), `SECURE` (port 443) and `DIR` stand for the host, its URLs and a directory.
    command: &'static str,
    host: &'static str,
    app: &'static str,
    /// The evidence that its request must give, besides the first packet, of this machine's system; `None` if optional.
    agent: Option<&'static str>,
}

const PROGRAMS: [Program; 9] = [
    Program {
        name: "chromium, TLS",
        command: "chromium --headless=new --no-sandbox --disable-gpu --disable-background-networking \
                  --disable-component-update --disable-sync --no-first-run --user-data-dir=DIR \
                  --ignore-certificate-errors --host-resolver-rules=MAP~*~10.9.0.3 \
                  --dump-dom SECURE",
        host: "www.youtube.com",
        app: "youtube",
        agent: None,
    },
    Program {
        name: "chromium, HTTP",
        command: "chromium --headless=new --no-sandbox --disable-gpu --disable-background-networking \
                  --disable-component-update --disable-sync --no-first-run --user-data-dir=DIR \
                  --disable-features=HttpsUpgrades,HttpsFirstBalancedModeAutoEnable \
                  --host-resolver-rules=MAP~*~10.9.0.3 --dump-dom URL",
        host: "www.netflix.com",
        app: "netflix",
        agent: Some("X11"),
    },
    Program {
        name: "firefox-esr, HTTP",
        command: "firefox-esr --headless --no-remote --profile DIR --screenshot DIR/x.png URL",
        host: "open.spotify.com",
        app: "spotify",
        agent: Some("Firefox"),
    },
    Program {
        name: "curl, TLS",
        command: "curl -sk -m 3 --connect-to ::10.9.0.3: SECURE",
        host: "www.twitch.tv",
        app: "twitch",
        agent: None,
    },
    Program {
        name: "wget",
        command: "wget -q -T 3 -t 1 -O /dev/null --no-proxy URL",
        host: "www.hulu.com",
        app: "hulu",
        agent: None,
    },
    Program {
        name: "busybox wget",
        command: "busybox wget -q -O /dev/null --header Host:~HOST http://10.9.0.3/",
        host: "www.disneyplus.com",
        app: "disney-plus",
        agent: None,
    },
    Program {
        name: "python",
        command: "python3 -c import~urllib.request;urllib.request.urlopen('URL',timeout=3)",
        host: "www.peacocktv.com",
        app: "peacock",
        agent: None,
    },
    Program {
        name: "node",
        command: "node -e fetch('URL').catch(()=>0);setTimeout(()=>process.exit(),2000)",
        host: "www.crunchyroll.com",
        app: "crunchyroll",
        agent: None,
    },
    Program {
        name: "openssl",
        command: "openssl s_client -connect 10.9.0.3:443 -servername HOST",
        host: "www.dazn.com",
        app: "dazn",
        agent: None,
    },
];

/// A DHCP request: the client's name, options 55 and 60, and the systems and kinds of which one is right.
type Asks = (&'static str, &'static str, &'static str, &'static str, &'static str);

/// Options as recorded: with tcpdump for the programs on Debian 12, and otherwise in the sources that
/// `dist/recognition/devices.toml` names.
const ASKS: [Asks; 10] = [
    ("dhclient 4.4.3", "1,28,2,3,15,6,119,12,44,47,26,121,42", "", "linux", ""),
    ("dhcpcd 9.4.1", "1,3,28,33,51,58,59", "dhcpcd-9.4.1:Linux-6.18:x86_64:x", "linux", ""),
    ("iPhone, iOS 15", "1,121,3,6,15,108,114,119,252", "", "ios", "phone"),
    ("iPhone, older", "1,121,3,6,15,119,252", "", "ios", "phone"),
    ("Mac", "1,121,3,6,15,108,114,119,252,95,44,46", "", "macos", "computer"),
    ("Android 8 phone", "1,3,6,15,26,28,51,58,59,43", "android-dhcp-8.0.0", "android", "phone"),
    (
        "Android 14 phone",
        "1,3,6,15,26,28,51,58,59,43,114,108",
        "android-dhcp-14",
        "android",
        "phone",
    ),
    ("Windows 10", "1,3,6,15,31,33,43,44,46,47,119,121,249,252", "MSFT 5.0", "windows", "computer"),
    ("Chromebook", "1,121,33,3,6,12,15,26,28,51,54,58,59,119,252", "", "chromeos", "computer"),
    ("LG television", "252,3,42,15,6,1,12", "", "linux", "television"),
];

/// Applications that browsers contact by themselves.
const OF_BROWSERS: [&str; 2] = ["chrome-update", "firefox-update"];

/// The operating system of the programs.
const HERE: &str = "linux";

/// Sends a DHCP request from a device's own socket.
fn ask(device: &Device, requests: &str, vendor: &str) {
    let mut message = vec![0; 240];
    message[..3].copy_from_slice(&[1, 1, 6]);
    let mac = device.mac.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap());
    message.splice(28..34, mac);
    message[236..].copy_from_slice(&[99, 130, 83, 99]);
    message.extend([53, 1, 1]);
    let requests: Vec<u8> = requests.split(',').map(|n| n.parse().unwrap()).collect();
    for (code, value) in [(55, &requests[..]), (60, vendor.as_bytes())] {
        if !value.is_empty() {
            message.extend([code, value.len() as u8]);
            message.extend(value);
        }
    }
    message.push(255);
    device.run(|| {
        let socket = UdpSocket::bind("0.0.0.0:68").unwrap();
        socket.set_broadcast(true).unwrap();
        socket.send_to(&message, "255.255.255.255:67").unwrap();
    });
}

/// Runs the program until the proxy has counted its traffic.
fn play(device: &Device, program: &Program, daemon: &Daemon) {
    let dir = tempfile::tempdir().unwrap();
    let words = program.command.split_whitespace().map(|word| {
        word.replace('~', " ")
            .replace("SECURE", &format!("https://{}/", program.host))
            .replace("URL", &format!("http://{}/", program.host))
            .replace("HOST", program.host)
            .replace("DIR", &dir.path().display().to_string())
    });
    let words: Vec<String> = words.collect();
    // Host names lead to the server through a hosts file that only this program sees.
    let script = format!(
        "echo {SERVER} {} > {}/hosts && mount --bind {}/hosts /etc/hosts && exec timeout -k 1 25 \"$@\"",
        program.host,
        dir.path().display(),
        dir.path().display()
    );
    device.run(|| {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", &script, "sh"]).args(&words);
        command.env("HOME", dir.path()).env_remove("http_proxy").env_remove("HTTP_PROXY");
        command.env_remove("https_proxy").env_remove("HTTPS_PROXY").env_remove("ALL_PROXY");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.process_group(0);
        let mut child = command.spawn().unwrap();
        let begin = Instant::now();
        let is_seen = |status: &Value| {
            app_of(status, device, program) == program.app
                && missing(status, device, program).is_none()
        };
        while !is_seen(&daemon.status()) && begin.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(100));
        }
        let _ = killpg(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
        let _ = child.wait();
    });
}

/// The application of the program's connections, or else another one of its device, except for the updates that
/// browsers look for.
fn app_of(status: &Value, device: &Device, program: &Program) -> String {
    let usage = status["usage"].as_array().unwrap();
    let is_its = |usage: &&Value| usage["device"] == device.address.as_str();
    let apps: Vec<&str> = usage.iter().filter(is_its).filter_map(|u| u["app"].as_str()).collect();
    let found = apps.iter().find(|app| **app == program.app);
    let other = || apps.iter().find(|app| !OF_BROWSERS.contains(app));
    found.or_else(other).copied().unwrap_or_default().to_owned()
}

fn portrait<'s>(status: &'s Value, device: &Device) -> &'s Value {
    let all = status["devices"].as_array().unwrap();
    all.iter().find(|portrait| portrait["mac"] == device.mac.as_str()).unwrap_or(&Value::Null)
}

/// The expected evidence that the daemon has not seen yet.
fn missing(status: &Value, device: &Device, program: &Program) -> Option<&'static str> {
    let evidence = portrait(status, device)["evidence"].to_string();
    ["MSTNW"].into_iter().chain(program.agent).find(|seen| !evidence.contains(seen))
}

/// A server that reads the client's first data and sends an HTTP response.
fn serve(stage: &Stage, port: u16) {
    let listener = stage.at_internet(|| TcpListener::bind(("0.0.0.0", port)).unwrap());
    thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                stream.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
                let _ = stream.read(&mut [0; 4_096]);
                let _ = std::io::Write::write_all(
                    &mut stream,
                    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello",
                );
            });
        }
    });
}

/// Counts of right, wrong and missing answers.
#[derive(Default)]
struct Score {
    right: usize,
    unknown: usize,
    wrong: Vec<String>,
}

impl Score {
    fn count(&mut self, who: &str, known: &Value, wanted: &str) {
        match known.as_str() {
            None => self.unknown += 1,
            Some(known) if known == wanted => self.right += 1,
            Some(known) => self.wrong.push(format!("{who}: {known}")),
        }
    }
}

fn twenty_clients_are_recognised() {
    let stage = Stage::with_link(100.0);
    let names = ["client"; PROGRAMS.len() + ASKS.len() + 1];
    let home = devices(&stage, names);
    for family in ["iptables", "ip6tables"] {
        let path = format!("/proc/sys/net/bridge/bridge-nf-call-{family}");
        // Only exists in a kernel with br_netfilter.
        stage.at_home(|| fs::write(path, "0").unwrap_or_default());
    }
    [80, 443].into_iter().for_each(|port| serve(&stage, port));
    let text = "version = 1\n[proxy]\nlan = [\"br-lan\"]\n\
                [[class]]\nname = \"phones\"\nmatch = [\"os:ios\"]\n\
                [[class]]\nname = \"all\"\nmatch = [\"ip:192.168.7.0/24\"]\n";
    fs::write(stage.path("proxy.toml"), text).unwrap();
    let daemon = stage.start_proxy(None);
    let (programs, rest) = home.split_at(PROGRAMS.len());
    let (asking, udhcpc) = rest.split_at(ASKS.len());
    let begin = Instant::now();
    // Only two browsers at a time, because there are two cores.
    let (heavy, light) = PROGRAMS.split_at(3);
    thread::scope(|scope| {
        for (device, program) in programs.iter().skip(heavy.len()).zip(light) {
            scope.spawn(|| play(device, program, &daemon));
        }
        scope.spawn(|| {
            for (device, program) in programs.iter().zip(heavy).take(2) {
                play(device, program, &daemon);
            }
        });
        scope.spawn(|| play(&programs[2], &heavy[2], &daemon));
        for (device, (_, requests, vendor, _, _)) in asking.iter().zip(ASKS) {
            ask(device, requests, vendor);
        }
        udhcpc[0].run(|| {
            let args = "-i eth0 -n -q -f -t 1 -T 1 -s /bin/true";
            let _ = Command::new("udhcpc").args(args.split(' ')).output();
        });
    });
    let status = daemon.status();
    note(&format!("{} clients in {:.1} s", home.len(), begin.elapsed().as_secs_f64()));
    let (mut apps, mut systems, mut kinds) = <(Score, Score, Score)>::default();
    let mut absent = Vec::new();
    for (device, program) in programs.iter().zip(&PROGRAMS) {
        apps.count(program.name, &app_of(&status, device, program).into(), program.app);
        let known = portrait(&status, device);
        systems.count(program.name, &known["os"]["known"], HERE);
        kinds.count(program.name, &known["kind"]["known"], "computer");
        if let Some(seen) = missing(&status, device, program) {
            absent.push(format!("{}: no {seen} in {}", program.name, known["evidence"]));
        }
    }
    for (device, (name, _, _, os, kind)) in asking.iter().zip(ASKS) {
        let known = portrait(&status, device);
        systems.count(name, &known["os"]["known"], os);
        kinds.count(name, &known["kind"]["known"], kind);
        if known["evidence"][0]["source"] != "dhcp" {
            absent.push(format!("{name}: not heard"));
        }
    }
    let known = portrait(&status, &udhcpc[0]);
    systems.count("udhcpc", &known["os"]["known"], HERE);
    if !known["evidence"].to_string().contains("udhcp ") {
        absent.push("udhcpc: not heard".to_owned());
    }
    note(&format!(
        "applications: {} of {} right; systems: {} right, {} unknown, wrong {:?}; kinds: {} right, {} \
         unknown, wrong {:?}",
        apps.right,
        PROGRAMS.len(),
        systems.right,
        systems.unknown,
        systems.wrong,
        kinds.right,
        kinds.unknown,
        kinds.wrong,
    ));
    assert!(absent.is_empty(), "{absent:#?}\n{status:#}");
    assert!(apps.right * 100 >= PROGRAMS.len() * 95, "{:?}\n{status:#}", apps.wrong);
    assert!(systems.wrong.is_empty() && kinds.wrong.is_empty());
    assert!(systems.right >= 7, "{}", systems.right);
}

#[test]
fn twenty_labelled_clients_are_right_or_unknown() {
    if !(privileged() && has_nat()) {
        return;
    }
    for program in ["chromium", "firefox-esr", "udhcpc", "wget", "node", "busybox", "openssl"] {
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
        if !can_run(found.unwrap().status.success(), program) {
            return;
        }
    }
    two_of_three(twenty_clients_are_recognised);
}

#[test]
fn a_class_by_system_follows_what_becomes_known_and_what_the_user_says() {
    if !(privileged() && has_nat()) {
        return;
    }
    let stage = Stage::with_link(100.0);
    let [phone, forger] = devices(&stage, ["phone", "forger"]);
    for family in ["iptables", "ip6tables"] {
        let path = format!("/proc/sys/net/bridge/bridge-nf-call-{family}");
        stage.at_home(|| fs::write(path, "0").unwrap_or_default());
    }
    let configure = |more: &str| {
        let text = format!(
            "version = 1\n[proxy]\nlan = [\"br-lan\"]\n[[class]]\nname = \"android\"\n\
             match = [\"os:android\"]\n[[class]]\nname = \"rest\"\nmatch = [\"ip:192.168.7.0/24\"]\n\
             {more}"
        );
        let new = stage.path("proxy.toml.new");
        fs::write(&new, text).unwrap();
        fs::rename(new, stage.path("proxy.toml")).unwrap();
    };
    configure("");
    let daemon = stage.start_proxy(None);
    let connections = |status: &Value, name: &str| {
        let classes = status["classes"].as_array().unwrap();
        classes.iter().find(|class| class["name"] == name).unwrap()["connections"].clone()
    };
    let in_class = |name: &str| {
        daemon.wait_for(name, PATIENCE, |status| connections(status, name) == 1);
    };
    let server = format!("{SERVER}:{}", stage.port()).parse().unwrap();
    let download = phone.download(server);
    in_class("rest");
    // An open connection gets another class when its device is recognised.
    ask(&phone, "1,3,6,15,26,28,51,58,59,43", "android-dhcp-14");
    in_class("android");
    // Packets that another device sends in its name have no effect.
    forger.run(|| {
        let socket = UdpSocket::bind("0.0.0.0:68").unwrap();
        socket.set_broadcast(true).unwrap();
        let mut message = vec![0; 240];
        message[..3].copy_from_slice(&[1, 1, 6]);
        let mac = phone.mac.split(':').map(|byte| u8::from_str_radix(byte, 16).unwrap());
        message.splice(28..34, mac);
        message[236..].copy_from_slice(&[99, 130, 83, 99]);
        message.extend(b"\x35\x01\x01\x3c\x08MSFT 5.0\xff");
        // More packets than a device may send: the rest is ignored.
        for _ in 0..100 {
            socket.send_to(&message, "255.255.255.255:67").unwrap();
        }
    });
    thread::sleep(Duration::from_millis(300));
    in_class("android");
    // Its own packets contradict each other: no conclusion is drawn.
    ask(&phone, "1,3,6,15,31,33,43,44,46,47,121,249,252", "MSFT 5.0");
    let again = phone.download(server);
    daemon.wait_for("conflict", PATIENCE, |status| {
        let phone = &status["devices"].as_array().unwrap()[0];
        phone["os"]["conflict"] == true && connections(status, "rest") == 2
    });
    configure(&format!("[[device]]\nmac = \"{}\"\nos = \"android\"\n", phone.mac));
    daemon.wait_for("android", PATIENCE, |status| connections(status, "android") == 2);
    let text = String::from_utf8(stage.fairweir("proxy status").stdout).unwrap();
    assert!(text.contains("android (user)"), "{text}");
    drop((download, again));
}
