//! Subscribers reported by RADIUS accounting and by DHCP servers, with FreeRADIUS' client and real packets.

use std::fs;
use std::io::Write;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fairweir_testing::{can_run, note, privileged};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use super::{FILE, PATIENCE, UNPOLICED_MBIT, access, passed};
use crate::common::access::{Access, NOBODY4};
use crate::common::stage::Daemon;

const SECRET: &str = "a secret of sixteen bytes";
const COA_SECRET: &str = "another one of sixteen bytes";
const ACCOUNTING: u16 = 1813;
const COA: u16 = 3799;

fn with_radius(more: &str) -> Access {
    let radius = "[radius]\nlisten = \"127.0.0.1:1813\"\nclients = [\"127.0.0.1\"]\n\
                  secret_file = \"radius.secret\"\nplan = \"home-20\"\n";
    let access = access(&format!("{FILE}{radius}{more}"));
    for (file, secret) in [("radius.secret", SECRET), ("coa.secret", COA_SECRET)] {
        let file = access.write(file, &format!("{secret}\n"));
        fs::set_permissions(file, fs::Permissions::from_mode(0o600)).unwrap();
    }
    access
}

/// Whether FreeRADIUS' client is installed.
fn has_radclient() -> bool {
    can_run(Path::new("/usr/bin/radclient").exists(), "radclient (freeradius-utils)")
}

/// A relay between radclient and the daemon that records what was sent and how long each answer took.
struct Between {
    port: u16,
    heard: Arc<Mutex<Vec<Heard>>>,
}

type Heard = (Vec<u8>, Duration);

impl Between {
    fn start(access: &Access, at: u16) -> Between {
        let (front, back) = access.at_router(|| {
            let [front, back] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
            back.connect(("127.0.0.1", at)).unwrap();
            back.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            (front, back)
        });
        let port = front.local_addr().unwrap().port();
        let heard = Arc::new(Mutex::new(Vec::new()));
        let known = Arc::clone(&heard);
        std::thread::spawn(move || {
            let mut bytes = [0; 8_192];
            while let Ok((length, from)) = front.recv_from(&mut bytes) {
                let packet = bytes[..length].to_vec();
                let sent = Instant::now();
                back.send(&packet).unwrap();
                if let Ok(length) = back.recv(&mut bytes) {
                    known.lock().unwrap().push((packet, sent.elapsed()));
                    let _ = front.send_to(&bytes[..length], from);
                }
            }
        });
        Between { port, heard }
    }

    /// Sends an accounting packet; returns whether there was an answer that is valid for the secret.
    fn account(&self, access: &Access, secret: &str, attributes: &str) -> bool {
        self.ask(access, "acct", secret, attributes).is_ok()
    }

    /// Sends a packet of any kind; returns the error message if it was refused or not answered.
    fn ask(
        &self,
        access: &Access,
        kind: &str,
        secret: &str,
        attributes: &str,
    ) -> Result<(), String> {
        let mut child = access.at_router(|| {
            Command::new("/usr/bin/radclient")
                .args(["-x", "-r", "1", "-t", "1"])
                .args([&format!("127.0.0.1:{}", self.port), kind, secret])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        });
        child.stdin.take().unwrap().write_all(attributes.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let said = || String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(()).ok_or_else(said)
    }
}

fn of_user(status: &str, user: &str, session: &str, more: &str) -> String {
    format!(
        "Acct-Status-Type = {status}\nUser-Name = \"{user}\"\nAcct-Session-Id = \"{session}\"\n\
         NAS-IP-Address = 10.0.0.1\n{more}"
    )
}

/// Prints how many sessions can begin per second beside existing ones. FreeRADIUS' client is itself a limit:
/// 4,000 to 5,000 per second.
#[test]
#[ignore = "long: 5 min; prints a table"]
fn starts_per_second_with_a_thousand_to_two_hundred_thousand_sessions() {
    if !privileged() || !has_radclient() {
        return;
    }
    for sessions in [1_000_u32, 20_000, 200_000] {
        let access = with_radius("");
        let address = |n: u32| std::net::Ipv4Addr::from(0x0a00_0000 + n);
        let mut journal = "{\"fairweir_isp_journal\":1}\n".to_owned();
        for n in 0..sessions {
            let spec = json!({ "name": format!("s{n}"), "addresses": [address(n).to_string()], "plan": "home-20" });
            journal += &format!("{}\n", json!([{ "set_session": spec }]));
        }
        fs::create_dir(access.path("state")).unwrap();
        fs::set_permissions(access.path("state"), fs::Permissions::from_mode(0o700)).unwrap();
        let path = access.write("state/isp.journal", &journal);
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
        let daemon = access.start();
        assert_eq!(daemon.status()["subscribers"], sessions + 2);
        const STARTS: u32 = 4_000;
        let packet = |n: u32| {
            of_user(
                "Start",
                &format!("t{n}"),
                &n.to_string(),
                &format!("Framed-IP-Address = {}\n", address(sessions + n)),
            )
        };
        let packets: Vec<String> = (0..STARTS).map(packet).collect();
        let file = access.write("packets", &packets.join("\n"));
        let began = Instant::now();
        let sent = access.at_router(|| {
            let flags = ["-q", "-p", "64", "-r", "10", "-t", "3", "-f", file.as_str()];
            Command::new("/usr/bin/radclient")
                .args(flags)
                .args(["127.0.0.1:1813", "acct", SECRET])
                .output()
                .unwrap()
        });
        assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
        let rate = f64::from(STARTS) / began.elapsed().as_secs_f64();
        assert_eq!(daemon.status()["subscribers"], sessions + STARTS + 2);
        note(&format!("{sessions} sessions: {rate:.0} starts per second"));
    }
}

fn packets(daemon: &Daemon, result: &str) -> u64 {
    daemon.status()["radius"]["packets"][result].as_u64().unwrap()
}

fn listed(access: &Access) -> Vec<String> {
    let text = access.isp("list --json");
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines
        .map(|s| format!("{} {} {} {}", s["name"], s["plan"], s["origin"], s["addresses"]))
        .map(|line| line.replace('"', ""))
        .collect()
}

const ALICE: &str = "alice home-20 file [192.0.2.1,2001:db8:1::/56]";
const BOB: &str = "bob home-40 file [192.0.2.2,2001:db8:2::/56]";

#[test]
fn sessions_of_radius_are_policed_from_the_answer_until_their_end() {
    if !privileged() || !has_radclient() {
        return;
    }
    let access = with_radius("");
    let daemon = access.start();
    let between = Between::start(&access, ACCOUNTING);
    let download = access.download(NOBODY4);
    download.wait_for_rate(UNPOLICED_MBIT..f64::MAX, PATIENCE);
    let send = |packet: &str| between.account(&access, SECRET, packet);
    let carol = "Framed-IP-Address = 192.0.2.99\nDelegated-IPv6-Prefix = 2001:db8:3::/56\n";
    assert!(send(&of_user("Start", "carol", "1", carol)));
    assert_eq!(passed(&daemon, "carol") / 1_000_000_000, 0, "she is known when the answer comes");
    download.wait_for_rate(0.0..21.0, PATIENCE);
    // The access server names another plan; a name that is no plan leaves the default.
    assert!(send(&of_user("Interim-Update", "carol", "1", &format!("{carol}Filter-Id = home-40"))));
    download.wait_for_rate(22.0..42.0, PATIENCE);
    assert!(send(&of_user("Interim-Update", "carol", "1", &format!("{carol}Filter-Id = acl-7"))));
    let of_carol = "carol home-20 radius [192.0.2.99,2001:db8:3::/56]";
    assert_eq!(listed(&access), [ALICE, BOB, of_carol]);
    // Subscribers from files and commands are not changed.
    let of_alice = "Framed-IP-Address = 192.0.2.55\n";
    assert!(send(&of_user("Start", "alice", "2", of_alice)));
    assert!(send(&of_user("Start", "dave", "3", "Framed-IP-Address = 192.0.2.1\n")));
    assert_eq!(packets(&daemon, "unusable"), 2);
    // The address moves to another user, as if the end of the session had been lost.
    assert!(send(&of_user("Start", "erin", "4", "Framed-IP-Address = 192.0.2.99\n")));
    let of_erin = "erin home-20 radius [192.0.2.99]";
    assert_eq!(listed(&access), [ALICE, BOB, "carol home-20 radius [2001:db8:3::/56]", of_erin]);
    // Acknowledged sessions are still there after a crash, and their end is handled.
    daemon.signal(Signal::SIGKILL);
    daemon.end();
    let daemon = access.start();
    assert_eq!(listed(&access).len(), 4);
    download.wait_for_rate(0.0..21.0, PATIENCE);
    assert!(send(&of_user("Stop", "erin", "4", "Framed-IP-Address = 192.0.2.99\n")));
    download.wait_for_rate(UNPOLICED_MBIT..f64::MAX, PATIENCE);
    assert!(send(&of_user("Start", "frank", "5", "Framed-IP-Address = 192.0.2.99\n")));
    assert!(send("Acct-Status-Type = Accounting-On\nNAS-IP-Address = 10.0.0.1\n"));
    assert_eq!(listed(&access), [ALICE, BOB], "also carol's, of before the restart");
    assert_eq!(packets(&daemon, "taken"), 3);
    let times = between.heard.lock().unwrap();
    let slowest = times.iter().map(|(_, took)| *took).max().unwrap();
    let mut sorted: Vec<Duration> = times.iter().map(|(_, took)| *took).collect();
    sorted.sort();
    note(&format!(
        "a session is in force {:?} after its packet (median of {}), {slowest:?} at most",
        sorted[sorted.len() / 2],
        sorted.len()
    ));
    // The machine stalls now and then, so only the median is checked.
    assert!(sorted[sorted.len() / 2] < Duration::from_millis(100), "{sorted:?}");
}

#[test]
fn forged_replayed_and_oversized_packets_change_nothing_and_are_counted() {
    if !privileged() || !has_radclient() {
        return;
    }
    let access = with_radius("");
    let daemon = access.start();
    let between = Between::start(&access, ACCOUNTING);
    let address = "Framed-IP-Address = 192.0.2.99\n";
    let start = of_user("Start", "carol", "1", address);
    assert!(!between.account(&access, "another secret", &start));
    assert_eq!(packets(&daemon, "forged"), 1);
    assert_eq!(listed(&access), [ALICE, BOB]);
    assert!(between.account(&access, SECRET, &start));
    let heard = between.heard.lock().unwrap()[0].0.clone();
    assert!(between.account(&access, SECRET, &of_user("Stop", "carol", "1", address)));
    let from_client = access.at_router(|| UdpSocket::bind("127.0.0.1:0").unwrap());
    from_client.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut bytes = [0; 8_192];
    let mut answers = |socket: &UdpSocket, packet: &[u8]| {
        socket.send_to(packet, "127.0.0.1:1813").unwrap();
        socket.recv(&mut bytes).is_ok()
    };
    // A packet repeated soon after is a retransmission: it is answered and has no effect.
    assert!(answers(&from_client, &heard));
    let mut changed = heard.clone();
    *changed.last_mut().unwrap() ^= 1;
    assert!(!answers(&from_client, &changed));
    assert!(!answers(&from_client, &[4; 5_000]));
    assert!(!answers(&from_client, b"no packet"));
    let foreign = access.at_router(|| UdpSocket::bind("127.0.0.2:0").unwrap());
    foreign.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert!(!answers(&foreign, &heard));
    assert!(between.account(&access, SECRET, &of_user("Interim-Update", "carol", "1", address)));
    let old = format!("{address}Event-Timestamp = 1000000000\n");
    assert!(!between.account(&access, SECRET, &of_user("Start", "carol", "9", &old)));
    let wanted = json!({
        "taken": 2, "repeated": 1, "forged": 2, "oversized": 1, "malformed": 1, "foreign": 1,
        "over": 1, "untimely": 1, "replayed": 0, "unusable": 0, "failed": 0, "status": 0, "ignored": 0,
    });
    assert_eq!(daemon.status()["radius"]["packets"], wanted);
    assert_eq!(listed(&access), [ALICE, BOB]);
    let metrics = access.isp("metrics");
    crate::common::check_metrics(&metrics);
    let line = "fairweir_radius_packets_total{interface=\"sub\",result=\"forged\"} 2\n";
    assert!(metrics.contains(line), "{metrics}");
    // A flood of packets with a wrong secret delays no session.
    let flood = access.at_router(|| UdpSocket::bind("127.0.0.1:0").unwrap());
    for _ in 0..20_000 {
        let _ = flood.send_to(&changed, "127.0.0.1:1813");
    }
    let asked = Instant::now();
    assert_eq!(daemon.status()["enforcing"], true);
    assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
}

#[test]
fn whatever_access_servers_and_operators_do_sessions_are_policed_or_listed_with_the_reason() {
    if !privileged() || !has_radclient() {
        return;
    }
    let access = with_radius("");
    let daemon = access.start();
    let between = Between::start(&access, ACCOUNTING);
    let send = |packet: &str| assert!(between.account(&access, SECRET, packet), "{packet}");
    let event = |event: &str, nas: &str, more: &str| {
        send(&format!("Acct-Status-Type = {event}\nAcct-Session-Id = \"1\"\n{nas}{more}"));
    };
    let (nas, named) =
        ("NAS-IP-Address = 10.0.0.1\n", "NAS-Identifier = bng\nNAS-IP-Address = 10.0.0.1\n");
    let of_flat = |more: &str| format!("User-Name = \"Flat 12\"\n{more}");
    let flat4 = of_flat("Framed-IP-Address = 192.0.2.99\n");
    event("Start", nas, &flat4);
    event("Interim-Update", named, &of_flat("Framed-IPv6-Prefix = 2001:db8:9::1/64\n"));
    let flat = "Flat%2012 home-20 radius [192.0.2.99,2001:db8:9::/64]";
    event(
        "Start",
        nas,
        "Calling-Station-Id = \"02:00:00:00:00:07\"\nFramed-IP-Address = 192.0.2.97\n",
    );
    let station = "%station:02:00:00:00:00:07 home-20 radius [192.0.2.97]";
    let sorted = |mut list: Vec<String>| {
        list.sort();
        list
    };
    assert_eq!(sorted(listed(&access)), [station, flat, ALICE, BOB]);
    assert!(access.isp("show 192.0.2.99").starts_with("Flat%2012  plan home-20"));

    // Sessions that are not policed are listed until they are policed or end.
    let of_alice = "User-Name = alice\nFramed-IP-Address = 192.0.2.55\n";
    event("Start", nas, of_alice);
    event("Start", nas, "User-Name = dave\nFramed-IP-Address = 192.0.2.2\n");
    event("Start", nas, "User-Name = erin\n");
    let status = daemon.status();
    let kinds = &status["unpoliced_by_reason"];
    let number = |kind: &str| kinds[kind].as_u64().unwrap();
    let numbers = ["configured", "address_taken", "no_address", "over"].map(number);
    assert_eq!(numbers, [1, 1, 1, 0], "{status}");
    let of_dave =
        status["unpoliced"].as_array().unwrap().iter().find(|u| u["subscriber"] == "dave");
    let of_dave = of_dave.unwrap();
    assert_eq!((&of_dave["nas"], &of_dave["session"]), (&json!("10.0.0.1"), &json!("1")));
    assert_eq!(of_dave["addresses"], json!(["192.0.2.2"]));
    assert!(
        access.isp("status").contains("dave 192.0.2.2: 192.0.2.2/32 belongs to subscriber `bob`")
    );
    let refused = access.isp_refuses("show 192.0.2.55");
    assert!(refused.contains("subscriber `alice` is not policed"), "{refused}");
    let metrics = access.isp("metrics");
    crate::common::check_metrics(&metrics);
    assert!(metrics.contains("fairweir_unpoliced{interface=\"sub\",reason=\"configured\"} 1\n"));
    event("Interim-Update", named, "User-Name = erin\nFramed-IP-Address = 192.0.2.96\n");
    event("Stop", named, of_alice);
    event("Interim-Update", nas, "User-Name = dave\nFramed-IP-Address = 192.0.2.95\n");
    assert_eq!(daemon.status()["unpoliced"], json!([]));

    // A plan set by a command ends with the session.
    let said = access.isp("change Flat%2012 --plan home-40");
    assert!(said.contains("until the session ends"), "{said}");
    event("Interim-Update", named, &flat4);
    daemon.signal(Signal::SIGKILL);
    daemon.end();
    let daemon = access.start();
    event("Interim-Update", nas, &flat4);
    let shown = access.isp("show 192.0.2.99");
    assert!(
        shown.starts_with("Flat%2012  plan home-40 by command or CoA until its end, then home-20"),
        "{shown}"
    );
    event("Stop", named, &flat4);
    event("Start", nas, "User-Name = frank\nFramed-IP-Address = 192.0.2.99\n");
    assert!(access.isp("show 192.0.2.99").starts_with("frank  plan home-20"));
    let said = access.isp("change frank --address 192.0.2.94");
    assert!(said.contains("permanently"), "{said}");
    access.isp("revert frank");

    // A packet with another status type, and a query whether the server is alive.
    send("Acct-Status-Type = Tunnel-Start\nNAS-IP-Address = 10.0.0.1\n");
    assert_eq!(packets(&daemon, "ignored"), 1);
    let ask = |secret: &str| {
        let packet = "printf 'Message-Authenticator = 0x00\n' |";
        let command = format!("{packet} radclient -q -r 1 -t 1 127.0.0.1:1813 status '{secret}'");
        let shell = || Command::new("sh").args(["-c", &command]).output().unwrap();
        access.at_router(shell).status.success()
    };
    assert!(ask(SECRET) && !ask("another secret"));
    assert_eq!((packets(&daemon, "status"), packets(&daemon, "forged")), (1, 1));
    // The access server restarts, identified by another of its names.
    send("Acct-Status-Type = Accounting-On\nNAS-Identifier = bng\n");
    assert_eq!(listed(&access), [ALICE, BOB]);
    let radius = daemon.status()["radius"].clone();
    assert_eq!(
        (&radius["dropped_packets"], &radius["note"]),
        (&json!(0), &Value::Null),
        "{radius}"
    );
}

#[test]
fn a_server_changes_and_ends_sessions_by_coa_and_disconnect() {
    if !privileged() || !has_radclient() {
        return;
    }
    let access = with_radius(
        "[coa]\nlisten = \"127.0.0.1:3799\"\nclients = [\"127.0.0.1\"]\nsecret_file = \"coa.secret\"\n",
    );
    let daemon = access.start();
    let accounting = Between::start(&access, ACCOUNTING);
    let server = Between::start(&access, COA);
    let carol = "Framed-IP-Address = 192.0.2.99\n";
    for packet in [
        of_user("Start", "carol", "1", carol),
        of_user("Start", "dave", "2", "Framed-IPv6-Prefix = 2001:db8:9::/64\n"),
        "Acct-Status-Type = Start\nUser-Name = erin\nAcct-Session-Id = 1\n\
         NAS-IP-Address = 10.0.0.2\nFramed-IP-Address = 192.0.2.97\n"
            .to_owned(),
    ] {
        assert!(accounting.account(&access, SECRET, &packet));
    }
    let download = access.download(NOBODY4);
    download.wait_for_rate(0.0..21.0, PATIENCE);
    let ask = |kind, packet: &str| server.ask(&access, kind, COA_SECRET, packet);
    let plan_of = |address: &str| {
        let shown = access.isp(&format!("show {address}"));
        shown.split_whitespace().nth(2).unwrap().to_owned()
    };
    let now = || std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs();
    let safe = || format!("Event-Timestamp = {}\nMessage-Authenticator = 0x00\n", now());
    let faster = || format!("User-Name = carol\nFilter-Id = home-40\n{}", safe());
    let before = faster();
    ask("coa", &before).unwrap();
    assert_eq!(plan_of("192.0.2.99"), "home-40", "it is in force when the answer comes");
    download.wait_for_rate(22.0..42.0, PATIENCE);
    // The access server continues to report the previous plan.
    let interim = of_user("Interim-Update", "carol", "1", &format!("{carol}Filter-Id = home-20\n"));
    assert!(accounting.account(&access, SECRET, &interim));
    daemon.signal(Signal::SIGKILL);
    daemon.end();
    let daemon = access.start();
    assert_eq!(plan_of("192.0.2.99"), "home-40", "it is kept");
    let count = |result: &str| daemon.status()["coa"]["packets"][result].as_u64().unwrap();

    // All attributes must match, and identify exactly one session.
    let of_one = "Acct-Session-Id = 1\nNAS-IP-Address = 10.0.0.2\n";
    for (packet, cause) in [
        ("User-Name = frank\n", "Session-Context-Not-Found"),
        ("User-Name = alice\n", "Session-Context-Not-Found"),
        ("User-Name = carol\nAcct-Session-Id = 2\n", "Session-Context-Not-Found"),
        ("User-Name = carol\nNAS-IP-Address = 10.0.0.2\n", "Session-Context-Not-Found"),
        ("Framed-IP-Address = 192.0.2.99\nUser-Name = dave\n", "Session-Context-Not-Found"),
        ("Acct-Session-Id = 1\n", "Multiple-Session-Selection-Unsupported"),
        ("NAS-IP-Address = 10.0.0.1\n", "Missing-Attribute"),
    ] {
        let said = ask("disconnect", packet).unwrap_err();
        assert!(said.contains(&format!("Error-Cause = {cause}")), "{packet}: {said}");
    }
    for (more, cause) in [
        ("", "Missing-Attribute"),
        ("Filter-Id = gold\n", "Invalid-Attribute-Value"),
        ("Filter-Id = home-40\nSession-Timeout = 60\n", "Unsupported-Attribute"),
    ] {
        let said = ask("coa", &format!("{of_one}{more}")).unwrap_err();
        assert!(said.contains(&format!("Error-Cause = {cause}")), "{more}: {said}");
    }
    assert_eq!(["not_found", "multiple", "refused"].map(count), [5, 1, 4]);
    assert_eq!(listed(&access).len(), 5);
    ask("coa", &format!("{of_one}Filter-Id = home-40")).unwrap();
    assert_eq!(plan_of("192.0.2.97"), "home-40");

    // Packets that are forged, foreign, late or replayed.
    let slower = |more: &str| format!("User-Name = carol\nFilter-Id = home-20\n{more}");
    let straight = Between { port: COA, heard: Arc::default() };
    straight.ask(&access, "coa", SECRET, &slower("")).unwrap_err();
    let old = slower("Event-Timestamp = 1000000000\n");
    for old in [&old, &before] {
        straight.ask(&access, "coa", COA_SECRET, old).unwrap_err();
    }
    ask("coa", &slower(&safe())).unwrap();
    ask("coa", &faster()).unwrap();
    ask("coa", &slower("")).unwrap();
    let recorded = server.heard.lock().unwrap().iter().rev().nth(1).unwrap().0.clone();
    let replay = |from: &str| {
        let socket = access.at_router(|| UdpSocket::bind(from).unwrap());
        socket.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        socket.send_to(&recorded, ("127.0.0.1", COA)).unwrap();
        socket.recv(&mut [0; 4_096]).is_ok()
    };
    assert!(replay("127.0.0.1:0") && !replay("127.0.0.2:0"));
    assert_eq!(plan_of("192.0.2.99"), "home-20", "a replay changes nothing");
    let results = ["forged", "untimely", "repeated", "foreign", "changed"];
    assert_eq!(results.map(count), [1, 2, 1, 1, 4]);

    // Disconnect: traffic then passes, and a packet of an access server that is not aware of it is listed.
    ask("disconnect", &format!("Framed-IP-Address = 192.0.2.99\n{}", safe())).unwrap();
    download.wait_for_rate(UNPOLICED_MBIT..f64::MAX, PATIENCE);
    ask("disconnect", "Framed-IPv6-Prefix = 2001:db8:9::/64\nUser-Name = dave\n").unwrap();
    assert!(accounting.account(&access, SECRET, &interim));
    assert_eq!(daemon.status()["unpoliced_by_reason"]["over"], 1);
    let of_erin = "erin home-40 radius [192.0.2.97]";
    assert_eq!(listed(&access), [ALICE, BOB, of_erin]);
    let metrics = access.isp("metrics");
    crate::common::check_metrics(&metrics);
    let line = "fairweir_coa_packets_total{interface=\"sub\",result=\"disconnected\"} 2\n";
    assert!(metrics.contains(line), "{metrics}");
    assert!(access.isp("status").contains("CoA at 127.0.0.1:3799: 4 sessions changed, 2 ended"));
    // A reload changes the secret.
    access.write("coa.secret", SECRET);
    access.isp("reload");
    let slower = format!("{of_one}Filter-Id = home-20\n");
    straight.ask(&access, "coa", COA_SECRET, &slower).unwrap_err();
    straight.ask(&access, "coa", SECRET, &slower).unwrap();
}

#[test]
fn a_plan_is_what_attributes_of_vendors_lead_to_and_what_leads_to_none_is_told() {
    if !privileged() || !has_radclient() {
        return;
    }
    let coa = "plan_by = [\"filter-id\", \"class\", \"mikrotik\", \"wispr\", \"cisco\"]\n\
               [coa]\nlisten = \"127.0.0.1:3799\"\nclients = [\"127.0.0.1\"]\nsecret_file = \"coa.secret\"\n";
    let access = with_radius(coa);
    let daemon = access.start();
    let accounting = Between::start(&access, ACCOUNTING);
    let server = Between::start(&access, COA);
    let plan_of_carol = || {
        let carol = listed(&access).into_iter().find(|line| line.starts_with("carol ")).unwrap();
        carol.split(' ').nth(1).unwrap().to_owned()
    };
    let carol = "Framed-IP-Address = 192.0.2.99\n";
    for (session, event, says, wanted) in [
        ("1", "Start", "Mikrotik-Rate-Limit = \"0/40M 9M/50M\"", "home-40"),
        ("1", "Interim-Update", "", "home-40"),
        ("1", "Interim-Update", "Class = 0x686f6d652d3230", "home-20"),
        ("1", "Interim-Update", "WISPr-Bandwidth-Max-Down = 40000000", "home-40"),
        ("1", "Interim-Update", "Cisco-AVPair = \"ip:sub-qos-policy-out=home-20\"", "home-20"),
        (
            "1",
            "Interim-Update",
            "Cisco-AVPair = \"lcp:interface-config#1=rate-limit output 40000000 1 1\"",
            "home-40",
        ),
        // An attribute that leads to no plan keeps the previous one; a new session gets the default plan.
        ("1", "Interim-Update", "Mikrotik-Rate-Limit = \"1M/30M\"", "home-40"),
        ("1", "Interim-Update", "Class = 0x00ff", "home-40"),
        ("2", "Start", "Mikrotik-Rate-Limit = \"1M/30M\"", "home-20"),
        ("2", "Interim-Update", "Maximum-Data-Rate-Downstream = 40000000", "home-20"),
    ] {
        let packet = of_user(event, "carol", session, &format!("{carol}{says}\n"));
        assert!(accounting.account(&access, SECRET, &packet), "{says}");
        assert_eq!(plan_of_carol(), wanted, "{says}");
    }
    let ask = |says: &str| {
        let packet = format!("User-Name = carol\nAcct-Session-Id = 2\n{says}\n");
        server.ask(&access, "coa", COA_SECRET, &packet)
    };
    ask("Mikrotik-Rate-Limit = \"0/40M\"").unwrap();
    assert_eq!(plan_of_carol(), "home-40");
    for (says, cause) in [
        ("Mikrotik-Rate-Limit = \"1M/30M\"", "Invalid-Attribute-Value"),
        ("Mikrotik-Rate-Limit = \"0/40M\"\nFilter-Id = home-20", "Invalid-Attribute-Value"),
        ("Maximum-Data-Rate-Downstream = 40000000", "Unsupported-Attribute"),
        ("Cisco-AVPair = \"subscriber:command=account-logoff\"", "Unsupported-Attribute"),
    ] {
        let said = ask(says).unwrap_err();
        assert!(said.contains(&format!("Error-Cause = {cause}")), "{says}: {said}");
    }
    ask("Filter-Id = home-20").unwrap();
    assert_eq!(plan_of_carol(), "home-20");

    // Counted by access server and kind.
    daemon.wait_for("the count", PATIENCE, |s| s["radius"]["nas"][0]["sessions"] == 1);
    let nas = daemon.status()["radius"]["nas"].clone();
    let packets = json!({ "start": 2, "interim": 8, "changed": 2 });
    assert_eq!((&nas[0]["nas"], &nas[0]["packets"]), (&json!("10.0.0.1"), &packets), "{nas}");
    assert_eq!(nas[0]["refused"], json!({ "unknown_plan": 2 }));
    assert_eq!(nas.as_array().unwrap().len(), 1);
    let text = access.isp("status");
    assert!(text.contains("NAS 10.0.0.1: 1 session, last packet "), "{text}");
    assert!(text.contains("; without effect, 2 unknown_plan\n"), "{text}");
    let metrics = access.isp("metrics");
    crate::common::check_metrics(&metrics);
    let line =
        "fairweir_nas_packets_total{interface=\"sub\",nas=\"10.0.0.1\",kind=\"interim\"} 8\n";
    assert!(metrics.contains(line), "{metrics}");
    daemon.signal(Signal::SIGTERM);
    let (_, log) = daemon.end();
    assert!(log.contains("no plan of download 30mbit and upload 1mbit"), "{log}");
}

#[test]
fn a_silent_session_ends_if_its_access_server_reports_others_and_every_one_is_listed() {
    if !privileged() || !has_radclient() {
        return;
    }
    let access = with_radius("stale_after = \"1s\"\n");
    let daemon = access.start();
    let between = Between::start(&access, ACCOUNTING);
    let mut number = 0;
    let mut send = |status: &str, user: &str| {
        number += 1;
        let n = ["carol", "dave", "erin"].iter().position(|one| *one == user).unwrap();
        let more = format!("Framed-IP-Address = 192.0.2.9{n}\nAcct-Session-Time = {number}\n");
        assert!(between.account(&access, SECRET, &of_user(status, user, user, &more)), "{user}");
    };
    for user in ["carol", "dave", "erin"] {
        send("Start", user);
    }
    std::thread::sleep(Duration::from_millis(500));
    send("Interim-Update", "carol");
    let began = Instant::now();
    while daemon.status()["unpoliced_by_reason"]["stale"] != 1 {
        assert!(began.elapsed() < PATIENCE, "{}", daemon.status());
        send("Interim-Update", "dave");
    }
    let of = |user: &str, n: u8| format!("{user} home-20 radius [192.0.2.9{n}]");
    // A session that never sent an Interim-Update stays, and is listed.
    assert_eq!(listed(&access), [ALICE, BOB, &of("dave", 1), &of("erin", 2)]);
    let list = access.isp("unpoliced");
    assert!(
        list.contains("192.0.2.90") && list.contains("its access server reports others"),
        "{list}"
    );
    let silent = access.isp("unpoliced --silent --json");
    let silent: Value = serde_json::from_str(&silent).unwrap();
    assert_eq!((&silent["subscriber"], &silent["kind"]), (&json!("erin"), &json!("silent")));
    assert!(access.isp_refuses("show 192.0.2.90").contains("subscriber `carol` is not policed"));
    // The session was not over.
    send("Interim-Update", "carol");
    send("Interim-Update", "erin");
    assert_eq!(listed(&access), [ALICE, BOB, &of("carol", 0), &of("dave", 1), &of("erin", 2)]);
    assert_eq!(daemon.status()["unpoliced"], json!([]));
    assert!(
        access
            .isp("show 192.0.2.90")
            .contains("session carol of NAS 10.0.0.1: last packet 0 s ago")
    );
    // While the whole access server is silent, even since before a restart, no plan ends.
    daemon.signal(Signal::SIGKILL);
    daemon.end();
    let daemon = access.start();
    daemon.wait_for("all of them", PATIENCE, |s| s["radius"]["silent"] == 3);
    let nas = daemon.status()["radius"]["nas"][0].clone();
    assert_eq!((&nas["sessions"], &nas["silent_s"]), (&json!(3), &Value::Null));
    assert_eq!(listed(&access).len(), 5);
    assert!(access.isp("unpoliced --silent").contains("since the start"));
    assert!(access.isp("status").contains("silent but policed: 3 sessions"));
    let metrics = access.isp("metrics");
    crate::common::check_metrics(&metrics);
    assert!(
        metrics.contains("fairweir_radius_silent_sessions{interface=\"sub\"} 3\n"),
        "{metrics}"
    );
}

#[test]
fn two_sessions_of_one_account_share_its_rate_and_each_ends_by_itself() {
    if !privileged() || !has_radclient() {
        return;
    }
    let access = with_radius("");
    let daemon = access.start();
    let between = Between::start(&access, ACCOUNTING);
    let send = |status: &str, session: &str, more: &str| {
        let packet = of_user(status, "carol", session, more);
        assert!(between.account(&access, SECRET, &packet), "{packet}");
    };
    let of = |n: u8| format!("Framed-IP-Address = 192.0.2.{n}\n");
    let carols = || {
        let carol = listed(&access).into_iter().find(|line| line.starts_with("carol "));
        carol.map(|line| line.split_once('[').unwrap().1.replace("192.0.2.", ""))
    };
    send("Start", "1", &of(99));
    send("Start", "2", &of(98));
    send("Interim-Update", "1", &of(99));
    assert_eq!(carols().unwrap(), "98,99]");
    access.isp("change carol --plan home-40");
    // The same after a restart, when the server has reported only one of the sessions.
    daemon.signal(Signal::SIGKILL);
    daemon.end();
    let daemon = access.start();
    send("Interim-Update", "2", &of(98));
    send("Interim-Update", "1", &of(97));
    assert_eq!(carols().unwrap(), "97,98]");
    assert!(access.isp("show 192.0.2.98").starts_with("carol  plan home-40"));
    send("Stop", "2", "");
    assert_eq!(carols().unwrap(), "97]");
    send("Stop", "1", "");
    assert_eq!(carols(), None);
    assert_eq!(packets(&daemon, "taken"), 4);
    assert_eq!(daemon.status()["unpoliced"], json!([]));
}

#[test]
fn with_a_damaged_journal_the_rest_is_policed_and_the_operator_is_told() {
    if !privileged() {
        return;
    }
    let access = access(FILE);
    let daemon = access.start();
    access.isp("add carol --address 192.0.2.99 --plan home-20");
    access.isp("add dave --address 192.0.2.98 --plan home-20");
    daemon.signal(Signal::SIGKILL);
    daemon.end();
    let path = access.path("state/isp.journal");
    let mut journal = fs::read(&path).unwrap();
    let at = String::from_utf8(journal.clone()).unwrap().find("dave").unwrap();
    journal[at + 5] = 0xff;
    fs::write(&path, &journal).unwrap();
    let daemon = access.start();
    assert_eq!(listed(&access), [ALICE, BOB, "carol home-20 api [192.0.2.99]"]);
    let error = daemon.status()["journal_error"].as_str().unwrap().to_owned();
    assert!(error.contains("isp.journal:3: not understood"), "{error}");
    assert!(access.isp("status").contains(&error));
    let metrics = access.isp("metrics");
    assert!(metrics.contains("fairweir_error{interface=\"sub\",of=\"journal\"} 1\n"), "{metrics}");
    assert_eq!(fs::read(access.path("state/isp.journal.unread")).unwrap(), journal);
    access.isp("add dave --address 192.0.2.98 --plan home-20");
    daemon.signal(Signal::SIGKILL);
    daemon.end();
    fs::remove_file(access.path("state/isp.journal.unread")).unwrap();
    let daemon = access.start();
    assert_eq!(listed(&access).len(), 4);
    assert_eq!(daemon.status()["journal_error"], Value::Null);
}

/// A session that cannot be stored is not answered, and the access server's next attempt succeeds.
#[test]
fn on_a_full_disk_a_session_is_not_answered_until_it_is_stored() {
    if !privileged() || !has_radclient() {
        return;
    }
    let access = with_radius("");
    fs::create_dir(access.path("state")).unwrap();
    let state = access.path("state").display().to_string();
    let mount = format!("mount -t tmpfs -o size=16k,mode=700 none {state} && exec \"$@\"");
    let daemon = access.start_as(&["unshare", "-m", "sh", "-c", mount.as_str(), "sh"]);
    let between = Between::start(&access, ACCOUNTING);
    let ballast = format!("/proc/{}/root{state}/ballast", daemon.pid());
    let mut file = fs::File::create(&ballast).unwrap();
    while file.write_all(&[0; 512]).is_ok() {}
    // The journal's last page has room for a few more sessions.
    let session = |n: u32| {
        let packet = of_user(
            "Start",
            &format!("user-{n}-{}", "x".repeat(80)),
            &n.to_string(),
            &format!("Framed-IP-Address = 198.51.100.{n}\n"),
        );
        between.account(&access, SECRET, &packet)
    };
    let refused = (1..40).find(|n| !session(*n)).unwrap();
    assert_eq!(packets(&daemon, "failed"), 1);
    assert_eq!(listed(&access).len() as u32, 2 + refused - 1);
    drop(file);
    fs::remove_file(ballast).unwrap();
    assert!(session(refused));
    assert_eq!(listed(&access).len() as u32, 2 + refused);
}

#[test]
fn devices_with_a_lease_of_a_dhcp_server_are_policed_until_its_end() {
    if !privileged() {
        return;
    }
    let access = access(&format!(
        "{FILE}[leases]\nfiles = [\"dnsmasq.leases\", \"kea.csv\"]\nplan = \"home-20\"\n"
    ));
    let phone = "0 02:00:00:00:00:01 192.0.2.99 phone *\n";
    let alices = "0 02:00:00:00:00:02 192.0.2.1 * *\n";
    access.write("dnsmasq.leases", &format!("{phone}{alices}"));
    let kea = |lifetime: u32| {
        format!(
            "address,duid,valid_lifetime,expire,subnet_id,pref_lifetime,lease_type,iaid,prefix_len,\
             fqdn_fwd,fqdn_rev,hostname,hwaddr,state\n\
             2001:db8:9::,00:03:00:01:02:00:00:00:00:01,{lifetime},4102444800,1,0,2,7,56,0,0,,,0\n"
        )
    };
    access.write("kea.csv", &kea(86_400));
    let daemon = access.start();
    let of_phone = "02:00:00:00:00:01 home-20 lease [192.0.2.99,2001:db8:9::/56]";
    assert_eq!(listed(&access), [of_phone, ALICE, BOB]);
    let leases = daemon.status()["leases"].clone();
    assert_eq!((&leases["devices"], &leases["refused"]), (&json!(1), &json!(1)), "{leases}");
    let download = access.download(NOBODY4);
    download.wait_for_rate(0.0..21.0, PATIENCE);
    // A reload and a restart keep the device; it is not in the journal.
    access.isp("reload");
    assert_eq!(listed(&access), [of_phone, ALICE, BOB]);
    assert!(!fs::read_to_string(access.path("state/isp.journal")).unwrap().contains("02:00"));
    // A server may be rewriting its file in place, so a missing lease is not acted upon at once.
    access.write("dnsmasq.leases", "");
    access.write("kea.csv", "");
    access.write("dnsmasq.leases", phone);
    std::thread::sleep(Duration::from_millis(2_500));
    assert!(passed(&daemon, "02:00:00:00:00:01") > 1_000_000, "the counters go on");
    assert_eq!(listed(&access)[0], of_phone, "a lease ends by its own time");
    access.write("dnsmasq.leases", alices);
    download.wait_for_rate(UNPOLICED_MBIT..f64::MAX, PATIENCE);
    assert_eq!(listed(&access)[0], "02:00:00:00:00:01 home-20 lease [2001:db8:9::/56]");
    access.write("kea.csv", &kea(0));
    daemon.wait_for("the end", PATIENCE, |s| s["leases"]["devices"] == 0);
    assert_eq!(listed(&access), [ALICE, BOB]);
    // A file that cannot be read does not stop the daemon from reading the other one.
    fs::remove_file(access.path("kea.csv")).unwrap();
    daemon.wait_for("an error", PATIENCE, |s| s["leases"]["error"].is_string());
    access.write("dnsmasq.leases", phone);
    daemon.wait_for("the phone", PATIENCE, |s| s["leases"]["devices"] == 1);
}
