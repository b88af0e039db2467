//! `fairweir page` beside a real daemon: what it shows and changes, and which requests it refuses.
//!
//! The tests write HTTP by hand: no library would send such requests.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use fairweir_testing::privileged;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use sha2::{Digest, Sha256};

mod browsers;
mod demo;
mod evening;
mod fuzz;
use crate::common::FAIRWEIR;
use crate::common::page::{GROUP, Page, start_isp};
use crate::common::stage::{Daemon, SERVERS, Stage};

const SECONDS_3: Duration = Duration::from_secs(3);

/// A home with a daemon and the page.
struct Scene {
    page: Page,
    daemon: Daemon,
    stage: Stage,
}

/// The page's answer.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

/// A browser session that is signed in.
struct Browser<'s> {
    scene: &'s Scene,
    cookie: String,
    csrf: String,
}

fn configuration() -> String {
    format!(
        "version = 1\n[host]\ncontrol = \"fairweir\"\n\
         [[group]]\nname = \"server\"\nweight = 3\nmatch = [\"ip:{}\"]\n",
        SERVERS[0]
    )
}

impl Scene {
    fn new(more: &[&str]) -> Scene {
        Scene::of(Stage::new(), &configuration(), more)
    }

    /// Sets up a scene on this stage.
    fn of(stage: Stage, configuration: &str, more: &[&str]) -> Scene {
        stage.configure(configuration);
        let daemon = stage.start(&["--admin-group", GROUP]);
        let page = Page::start(&stage, "0", more);
        Scene { page, daemon, stage }
    }

    /// Starts `fairweir isp` on a separate device, with 32 subscribers.
    fn start_isp(&self) -> Daemon {
        let mut file = "version = 1\n[isp]\ndevice = \"sub\"\nwhen_gone = \"open\"\n[[plan]]\nname = \"home-20\"\n\
             download = \"20mbit\"\n[[subscriber]]\nname = \"alice\"\nplan = \"home-20\"\n\
             addresses = [\"192.0.2.1\", \"2001:db8:1::/56\"]\n"
            .to_owned();
        for i in 10..41 {
            file.push_str(&format!(
                "[[subscriber]]\nname = \"customer-{i}\"\nplan = \"home-20\"\n\
                 addresses = [\"198.51.100.{i}\"]\n"
            ));
        }
        self.stage.at_home(|| fairweir_linux::link::create_ifb("sub", "").unwrap());
        start_isp(&self.stage, &file, false, 32)
    }

    fn connect(&self) -> TcpStream {
        let address: SocketAddr = self.page.host.parse().unwrap();
        let stream = self.stage.at_home(|| TcpStream::connect(address).unwrap());
        stream.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
        stream
    }

    /// Sends bytes on a new connection, and reads until the page closes it.
    fn send(&self, request: &[u8]) -> Answer {
        let mut stream = self.connect();
        // The page may close before it has read the whole request.
        let _ = stream.write_all(request);
        let mut text = Vec::new();
        let _ = stream.read_to_end(&mut text);
        let text = String::from_utf8_lossy(&text);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|s| s.parse().ok()).unwrap_or(0);
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }

    fn get(&self, path: &str, headers: &str) -> Answer {
        let host = &self.page.host;
        let head =
            format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\r\n");
        self.send(head.as_bytes())
    }

    fn sign_in(&self) -> Browser<'_> {
        let link = self.page.link();
        let (_, path) = link["http://".len()..].split_once('/').unwrap();
        let answer = self.get(&format!("/{path}"), "");
        assert_eq!(answer.status, 200, "{}", answer.head);
        let cookie = answer.head.to_lowercase();
        let at = cookie.find("set-cookie: ").unwrap() + "set-cookie: ".len();
        let cookie = answer.head[at..].split(';').next().unwrap().to_owned();
        let mut browser = Browser { scene: self, cookie, csrf: String::new() };
        let document = browser.get("/").body;
        browser.csrf = document
            .split_once("name=\"csrf\" value=\"")
            .map_or_else(String::new, |(_, rest)| rest.split('"').next().unwrap().to_owned());
        browser
    }

    fn weight(&self) -> u64 {
        self.daemon.status()["groups"][0]["weight"].as_u64().unwrap()
    }

    fn set_file(&self) -> Option<String> {
        self.stage.set_file()
    }
}

impl Browser<'_> {
    fn get(&self, path: &str) -> Answer {
        self.scene.get(path, &format!("Cookie: {}\r\n", self.cookie))
    }

    fn post_with(&self, path: &str, body: &str, headers: &str) -> Answer {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nCookie: {}\r\n\
             Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {}\r\n{headers}\r\n",
            self.scene.page.host,
            self.cookie,
            body.len()
        );
        self.scene.send(&[head.as_bytes(), body.as_bytes()].concat())
    }

    fn post(&self, path: &str, body: &str) -> Answer {
        let origin = format!("Origin: http://{}\r\n", self.scene.page.host);
        self.post_with(path, body, &origin)
    }

    fn set(&self, key: &str, value: &str) -> Answer {
        self.post("/set", &self.body(key, value))
    }

    fn timed(&self, group: &str, change: &str, span: &str) -> Answer {
        let csrf = &self.csrf;
        let form = format!("csrf={csrf}&daemon=host-wan&group={group}&change={change}&span={span}");
        self.post("/timed", &form)
    }

    fn body(&self, key: &str, value: &str) -> String {
        format!("csrf={}&daemon=host-wan&key={key}&value={value}", self.csrf)
    }

    /// A stream of events whose response head has been read.
    fn events(&self) -> TcpStream {
        let mut stream = self.scene.connect();
        let (host, cookie) = (&self.scene.page.host, &self.cookie);
        let head = format!("GET /events HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        read_until(&mut stream, "\r\n\r\n");
        stream
    }
}

fn read_until(stream: &mut TcpStream, end: &str) -> String {
    let mut text = String::new();
    let mut buffer = [0; 4_096];
    while !text.contains(end) {
        let n = stream.read(&mut buffer).unwrap();
        assert!(n > 0, "ended before {end:?}: {text}");
        text.push_str(&String::from_utf8_lossy(&buffer[..n]));
    }
    text
}

#[test]
fn the_page_says_where_it_listens_and_ends_when_asked() {
    if !privileged() {
        return;
    }
    let scene = Scene::new(&["--read-only"]);
    let dir = scene.stage.path("page");
    let page = |args: &str| {
        let mut command = Command::new(FAIRWEIR);
        command.arg("page").args(args.split(' ')).arg("--page-dir").arg(&dir);
        command.output().unwrap()
    };
    let output = page("status --json");
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(status["url"], format!("http://{}/", scene.page.host), "{status}");
    assert_eq!(status["pid"], scene.page.id(), "{status}");
    assert_eq!((&status["read_only"], &status["records"]), (&true.into(), &true.into()));
    let said = String::from_utf8(page("status").stdout).unwrap();
    assert!(said.contains("it changes nothing, and records a history"), "{said}");
    let output = page("off");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("has ended"), "{output:?}");
    assert_eq!(page("status").status.code(), Some(3));
    assert_eq!(page("off").stdout, b"it does not run\n");
    assert_eq!(scene.daemon.status()["dev"], "wan", "the daemon goes on");
}

#[test]
fn a_weight_is_changed_stored_and_undone_without_a_script() {
    if !privileged() {
        return;
    }
    let scene = Scene::new(&[]);
    let browser = scene.sign_in();
    let document = browser.get("/").body;
    for wanted in ["host-wan", "server", "value=\"3\"", "ip:10.9.0.1", "data-field=\"demand\">"] {
        assert!(document.contains(wanted), "no {wanted}: {document}");
    }
    let answer = browser.set("weight.server", "8");
    assert_eq!(answer.status, 303, "{}", answer.body);
    assert_eq!(scene.weight(), 8);
    assert!(scene.set_file().unwrap().contains("server = 8"));
    assert_eq!(fs::read_to_string(scene.stage.path("fairweir.toml")).unwrap(), configuration());
    assert!(browser.get("/").body.contains("Last change: weight.server = 8"));
    assert_eq!(browser.set("latency", "9ms").status, 303);
    assert_eq!(scene.daemon.status()["latency_ms"], 9.0);
    for _ in 0..2 {
        assert_eq!(browser.post("/undo", &format!("csrf={}", browser.csrf)).status, 303);
    }
    assert_eq!((scene.weight(), scene.set_file()), (3, None));
    assert_eq!(browser.post("/undo", &format!("csrf={}", browser.csrf)).status, 422);
    // A change survives a restart of the daemon, and an invalid request changes nothing.
    assert_eq!(browser.set("weight.server", "5").status, 303);
    for (key, value) in [("weight.server", "0"), ("weight.x", "2"), ("latency", "9"), ("dev", "lo")]
    {
        let answer = browser.set(key, value);
        assert_eq!(answer.status, 422, "{key}={value}: {}", answer.body);
    }
    assert_eq!(scene.weight(), 5);
    assert!(scene.daemon.status()["config_error"].is_null());
    let Scene { stage, .. } = &scene;
    assert!(stage.fairweir("off").status.success());
    let again = stage.start(&["--admin-group", GROUP]);
    assert_eq!(again.status()["groups"][0]["weight"], 5);
    let events = read_until(&mut browser.events(), "\"weight\":5");
    assert!(events.contains("data: {\"daemons\":[{\"name\":\"host-wan\""), "{events}");
}

#[test]
fn a_group_is_boosted_and_paused_for_a_time_without_a_script() {
    if !privileged() {
        return;
    }
    let scene = Scene::new(&[]);
    let browser = scene.sign_in();
    assert!(browser.get("/").body.contains("action=\"/timed\""));
    let timed = || scene.daemon.status()["groups"][0]["timed"].clone();
    assert_eq!(browser.timed("server", "boost", "30m").status, 303);
    assert_eq!(scene.weight(), 12, "four times the configured weight");
    let document = browser.get("/").body;
    assert!(document.contains("For a time: boosted to weight 12, "), "{document}");
    // The form of the weight still shows the value that it changes.
    assert!(document.contains("value=\"3\""), "{document}");
    for (group, change, span) in [
        ("x", "pause", "30m"),
        ("server", "stop", "30m"),
        ("server", "pause", ""),
        ("server", "pause", "-1m"),
        ("server", "pause", "0s"),
        ("server", "pause", "9999999m"),
        ("default", "end", ""),
    ] {
        let answer = browser.timed(group, change, span);
        assert_eq!(answer.status, 422, "{group} {change} {span}: {}", answer.body);
    }
    assert_eq!(timed()["change"]["boost"]["weight"], serde_json::Value::Null, "unchanged");
    assert_eq!(browser.timed("server", "pause", "1h").status, 303);
    assert_eq!((scene.weight(), timed()["change"].as_str()), (3, Some("pause")));
    assert_eq!(browser.timed("server", "end", "").status, 303);
    assert_eq!((timed(), scene.set_file()), (serde_json::Value::Null, None));
}

#[test]
fn the_history_is_shown_to_sessions_alone() {
    if !privileged() {
        return;
    }
    let scene = Scene::new(&[]);
    let browser = scene.sign_in();
    drop((scene.stage.download(SERVERS[0]), thread::sleep(SECONDS_3)));
    for path in ["/history?span=hour", "/?span=hour"] {
        assert_eq!(scene.get(path, "").status, 401, "{path}");
    }
    let past: serde_json::Value =
        serde_json::from_str(&browser.get("/history?span=hour").body).unwrap();
    let past = &past["host-wan"];
    assert_eq!(
        (past["spanS"].as_u64(), &past["groups"][0]["name"]),
        (Some(3_600), &"server".into())
    );
    let group = &past["groups"][0];
    assert!(group["receivedBytes"].as_u64().unwrap() > 100_000, "{group}");
    let steps = past["timesS"].as_array().unwrap().len();
    assert!((360..=362).contains(&steps) && group["ratesBps"].as_array().unwrap().len() == steps);
    let document = browser.get("/?span=hour").body;
    assert!(
        document.contains("Received in the last hour") && document.contains("data-span=\"hour\"")
    );
    assert!(document.contains("Suggested weights: 0"), "{document}");
    for wrong in ["/history", "/history?span=year", "/history?span=hour'"] {
        assert_eq!(browser.get(wrong).status, 404, "{wrong}");
    }
    assert!(!browser.get("/?span=%3Cscript%3E").body.contains("data-span"));
    // Only the page's user may ask for what every local user could ask for otherwise.
    let as_other = scene.stage.at_home(|| {
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid=1",
            "--regid=1",
            "--clear-groups",
            FAIRWEIR,
            "history",
            "--page-dir",
        ]);
        command.arg(scene.stage.path("page")).output().unwrap()
    });
    assert_eq!(as_other.status.code(), Some(4), "{as_other:?}");
    assert!(String::from_utf8_lossy(&as_other.stderr).contains("not permitted"), "{as_other:?}");
}

#[test]
fn the_script_is_compiled_from_its_source() {
    let source = include_bytes!("../../../../../web/page/page.ts");
    let sum: String = Sha256::digest(source).iter().map(|byte| format!("{byte:02x}")).collect();
    let first = include_str!("../../../src/page/assets/page.js").lines().next().unwrap();
    assert!(first.contains(&sum), "page.ts has changed: run `make page-script`\n{first}");
}

#[test]
fn a_pause_lets_all_traffic_pass_until_it_is_resumed() {
    if !privileged() {
        return;
    }
    let scene = Scene::new(&[]);
    let browser = scene.sign_in();
    let text = "version = 1\n[host]\ncontrol = \"static\"\ncapacity = \"20mbit\"\n";
    scene.stage.configure(text);
    let download = scene.stage.download(SERVERS[0]);
    download.wait_for_rate(16.0..20.0, Duration::from_secs(5));
    assert_eq!(browser.set("paused", "true").status, 303);
    download.wait_for_rate(34.0..40.0, SECONDS_3);
    let status = scene.daemon.status();
    assert!(status["paused"] == true && status["enforcing"] == false, "{status}");
    assert!(browser.get("/").body.contains("paused: all traffic passes unshaped"));
    assert_eq!(browser.set("paused", "").status, 303);
    download.wait_for_rate(16.0..20.0, Duration::from_secs(5));
    assert!(!download.is_broken() && scene.set_file().is_none());
}

#[test]
fn a_daemon_that_hangs_does_not_hold_the_page() {
    if !privileged() {
        return;
    }
    let scene = Scene::new(&[]);
    let browser = scene.sign_in();
    scene.daemon.signal(Signal::SIGSTOP);
    thread::sleep(Duration::from_secs(1));
    assert!(browser.get("/").body.contains("does not answer"));
    thread::sleep(Duration::from_secs(1));
    // The daemon is not asked again for a while.
    let begin = Instant::now();
    assert!(browser.get("/").body.contains("does not answer"));
    assert!(begin.elapsed() < Duration::from_millis(700), "{:?}", begin.elapsed());
    scene.daemon.signal(Signal::SIGCONT);
    let deadline = Instant::now() + Duration::from_secs(10);
    while browser.get("/").body.contains("does not answer") {
        assert!(Instant::now() < deadline, "it is never asked again");
        thread::sleep(Duration::from_millis(500));
    }
    assert!(browser.get("/").body.contains("data-group=\"server\""));
}

#[test]
fn requests_that_are_not_of_this_page_are_refused() {
    if !privileged() {
        return;
    }
    let scene = Scene::new(&[]);
    let browser = scene.sign_in();
    let host = &scene.page.host;
    let cookie = format!("Cookie: {}\r\nConnection: close\r\n", browser.cookie);
    // DNS rebinding: the browser connects to the page, but with another name in its request.
    let port = host.rsplit(':').next().unwrap();
    for name in [format!("evil.example:{port}"), "evil.example".to_owned(), String::new()] {
        let answer =
            scene.send(format!("GET / HTTP/1.1\r\nHost: {name}\r\n{cookie}\r\n").as_bytes());
        assert!(matches!(answer.status, 400 | 421), "{name}: {}", answer.head);
        assert!(!answer.body.contains("server"));
    }
    let answer = scene.send(format!("GET / HTTP/1.1\r\n{cookie}\r\n").as_bytes());
    assert!(matches!(answer.status, 400 | 421), "no Host: {}", answer.head);
    // A request from another origin, or without an origin, with the right cookie and token.
    let body = browser.body("weight.server", "9");
    for origin in ["", "Origin: null\r\n", "Origin: http://evil.example\r\n"] {
        assert_eq!(browser.post_with("/set", &body, origin).status, 403, "{origin}");
    }
    let own = format!("Origin: http://{host}\r\n");
    let same_site = format!("{own}Sec-Fetch-Site: same-site\r\n");
    assert_eq!(browser.post_with("/set", &body, &same_site).status, 403);
    // The right origin with a wrong token, with the token of another session, and without a token.
    let other = scene.sign_in();
    for csrf in ["", "0", &"0".repeat(64), &other.csrf, &browser.csrf[1..]] {
        let body = body.replace(&browser.csrf, csrf);
        assert_eq!(browser.post("/set", &body).status, 403, "{csrf}");
        assert_eq!(browser.post("/undo", &format!("csrf={csrf}")).status, 403, "{csrf}");
        let timed = format!("csrf={csrf}&daemon=host-wan&group=server&change=pause&span=1h");
        assert_eq!(browser.post("/timed", &timed).status, 403, "{csrf}");
    }
    assert_eq!(browser.post("/set", "daemon=host-wan&key=paused&value=true").status, 422);
    assert_eq!(browser.get("/set?key=paused&value=true&daemon=host-wan").status, 405);
    assert!(scene.daemon.status()["groups"][0]["timed"].is_null());
    assert_eq!((scene.weight(), scene.set_file()), (3, None));
    // The same form is accepted if it is sent as the page sends it.
    assert_eq!(browser.post("/set", &body).status, 303);
    assert_eq!(scene.weight(), 9);
}

#[test]
fn nothing_is_shown_without_a_session() {
    if !privileged() {
        return;
    }
    let scene = Scene::new(&[]);
    let link = scene.page.link();
    let (_, path) = link["http://".len()..].split_once('/').unwrap();
    let path = format!("/{path}");
    let first = scene.get(&path, "");
    assert_eq!(first.status, 200);
    assert!(first.head.contains("HttpOnly; SameSite=Strict"), "{}", first.head);
    assert_eq!(scene.get(&path, "").status, 403, "a link works once");
    for code in ["", "0", &"0".repeat(64)] {
        assert_eq!(scene.get(&format!("/enter?code={code}"), "").status, 403);
    }
    let old = format!("Cookie: fairweir_page={}\r\n", "0".repeat(64));
    for cookie in ["", "Cookie: fairweir_page=\r\n", &old] {
        for path in ["/", "/events", "/status"] {
            let answer = scene.get(path, cookie);
            assert_eq!(answer.status, 401, "{path}");
            assert!(!answer.body.contains("host-wan") && !answer.body.contains("csrf"));
        }
    }
    let head = scene.get("/", "").head;
    for wanted in
        ["default-src 'none'; script-src 'self'", "frame-ancestors 'none'", "nosniff", "no-store"]
    {
        assert!(head.contains(wanted), "no {wanted}: {head}");
    }
    assert!(!head.contains("unsafe-inline"));
    for path in [
        "/assets/../../../../etc/passwd",
        "/assets/%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "/assets/",
        "/../etc/passwd",
        "/assets/page.ts",
        "//etc/passwd",
        "/assets/page.js%00",
    ] {
        let answer = scene.get(path, "");
        assert!(matches!(answer.status, 400 | 404), "{path}: {}", answer.head);
        assert!(!answer.body.contains("root:"));
    }
    assert_eq!(scene.get("/assets/page.js", "").status, 200);
}

#[test]
fn a_subscriber_is_found_by_address_and_by_the_beginning_of_its_name() {
    if !privileged() {
        return;
    }
    let scene = Scene::new(&[]);
    let _isp = scene.start_isp();
    let browser = scene.sign_in();
    let find = |text: &str| {
        let answer = browser.get(&format!("/subscribers?find={text}"));
        assert_eq!(answer.status, 200, "{text}: {}", answer.head);
        let rows = answer.body.split("<th scope=\"row\">").skip(1);
        let names = rows.map(|row| row.split('<').next().unwrap().to_owned());
        // The table has one row for each direction.
        (names.step_by(2).collect::<Vec<_>>(), answer.body)
    };
    let (names, body) = find("alice");
    assert_eq!(names, ["alice"]);
    assert!(body.contains("192.0.2.1 2001:db8:1::/56") && body.contains("home-20"), "{body}");
    assert!(body.contains("20.0") && body.contains("not policed"), "{body}");
    for address in ["192.0.2.1", "2001%3adb8%3a1%3a0%3a0%3a%3a7", "+192.0.2.1+"] {
        assert_eq!(find(address).0, ["alice"], "{address}");
    }
    let (names, body) = find("customer-");
    assert_eq!((names.len(), names[0].as_str()), (20, "customer-10"));
    assert!(body.contains("There are more"), "{body}");
    for nobody in ["", "lice", "192.0.2.77", "%3Cscript%3E", "%00"] {
        let (names, body) = find(nobody);
        assert!(names.is_empty() && !body.contains("<script>"), "{nobody}: {body}");
    }
    assert!(browser.get("/").body.contains("action=\"/subscribers\""));
    assert_eq!(scene.get("/subscribers?find=alice", "").status, 401);
}

/// Whatever is sent in a session, the page neither fails nor exits. Random numbers come from a fixed seed.
#[test]
fn no_request_makes_an_error_of_the_server() {
    if !privileged() {
        return;
    }
    let scene = Scene::new(&[]);
    let browser = scene.sign_in();
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = |n: usize| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed % n as u64) as usize
    };
    let long = "x".repeat(3_000);
    let values = [
        "",
        "0",
        "-1",
        "18446744073709551616",
        "1e309",
        "NaN",
        "%00",
        "%ff%fe",
        "%",
        "%zz",
        "..%2f",
        "host-wan",
        "weight.server",
        "weight.",
        "latency",
        "paused",
        "10ms",
        "day",
        "month",
        "%F0%9F%90%99",
        "a%0d%0ab",
        "[]",
        "{\"a\":1}",
        "'%22%3C%3E%26",
        "192.0.2.1",
        &long,
    ];
    let names =
        ["csrf", "daemon", "key", "value", "group", "change", "span", "find", "code", "other", ""];
    let routes = [
        "/",
        "/status",
        "/history",
        "/subscribers",
        "/enter",
        "/set",
        "/undo",
        "/timed",
        "/assets/x",
        "/none",
    ];
    let methods =
        ["GET", "GET", "POST", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"];
    let types = ["application/x-www-form-urlencoded", "application/json", "text/plain", ""];
    for round in 0..400 {
        let mut fields = Vec::new();
        for _ in 0..below(5) {
            let name = names[below(names.len())];
            let value = match name {
                "csrf" if below(4) > 0 => browser.csrf.as_str(),
                "daemon" if below(2) > 0 => "host-wan",
                _ => values[below(values.len())],
            };
            fields.push(format!("{name}={value}"));
        }
        let fields = fields.join("&");
        let (method, route) = (methods[below(methods.len())], routes[below(routes.len())]);
        let (query, body) =
            if below(2) == 0 { (fields.as_str(), "") } else { ("", fields.as_str()) };
        let (host, cookie) = (&scene.page.host, &browser.cookie);
        let (kind, length) = (types[below(types.len())], body.len());
        let head = format!(
            "{method} {route}?{query} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nCookie: {cookie}\r\n\
             Origin: http://{host}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\r\n"
        );
        let answer = scene.send(&[head.as_bytes(), body.as_bytes()].concat());
        assert!(
            (200..500).contains(&answer.status),
            "round {round}: {head}{body}\n{}",
            answer.head
        );
    }
    assert_eq!(browser.get("/").status, 200, "it still runs, and the session is as it was");
}

#[test]
fn a_page_that_only_shows_changes_nothing() {
    if !privileged() {
        return;
    }
    let scene = Scene::new(&["--read-only"]);
    let browser = scene.sign_in();
    let document = browser.get("/").body;
    assert!(document.contains("host-wan") && !document.contains("<form"), "{document}");
    assert_eq!(browser.set("weight.server", "8").status, 403);
    assert_eq!(browser.timed("server", "boost", "1h").status, 403);
    assert_eq!((scene.weight(), scene.set_file()), (3, None));
}

#[test]
fn the_process_has_no_privileges() {
    if !privileged() {
        return;
    }
    let scene = Scene::new(&[]);
    let status = fs::read_to_string(format!("/proc/{}/status", scene.page.id())).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(&format!("{name}:"))).unwrap();
        line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>()
    };
    for name in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(field(name), ["0000000000000000"], "{name}");
    }
    assert_eq!(field("NoNewPrivs"), ["1"]);
    assert!(field("Uid").iter().chain(&field("Gid")).all(|id| id != "0"), "{status}");
    // The page does not stay root.
    let output = Command::new(FAIRWEIR).args(["page", "--user", "root"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn many_connections_long_requests_and_slow_readers_are_bounded() {
    if !privileged() {
        return;
    }
    let scene = Scene::new(&[]);
    let browser = scene.sign_in();
    let mut events = browser.events();
    // Clients that never read.
    let _slow: Vec<TcpStream> = (0..8).map(|_| browser.events()).collect();
    // Bodies and heads that exceed the limits.
    let long = "x".repeat(1 << 20);
    let answer = browser.post("/set", &browser.body("weight.server", &long));
    assert!(matches!(answer.status, 0 | 413), "{}", answer.head);
    let answer = scene.get("/", &format!("X-Long: {long}\r\n"));
    assert!(matches!(answer.status, 0 | 431), "{}", answer.head);
    let chunked = format!(
        "POST /set HTTP/1.1\r\nHost: {0}\r\nOrigin: http://{0}\r\nCookie: {1}\r\n\
         Connection: close\r\nTransfer-Encoding: chunked\r\n\
         Content-Type: application/x-www-form-urlencoded\r\n\r\n{2:x}\r\n{long}\r\n0\r\n\r\n",
        scene.page.host,
        browser.cookie,
        long.len()
    );
    assert!(matches!(scene.send(chunked.as_bytes()).status, 0 | 413));
    assert_eq!(scene.weight(), 3);
    // 10,000 simultaneous connections that send nothing or half a head.
    let (_, files_max) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, files_max, files_max).unwrap();
    let mut idle = Vec::new();
    for i in 0..10_000 {
        let mut stream = scene.connect();
        if i % 2 == 0 {
            let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost:");
        }
        idle.push(stream);
    }
    let open = fs::read_dir(format!("/proc/{}/fd", scene.page.id())).unwrap().count();
    assert!(open < 120, "{open} files are open");
    // A signed-in user is still served, also on the old connection.
    assert_eq!(browser.get("/").status, 200);
    read_until(&mut events, "data: ");
    read_until(&mut events, "data: ");
    assert_eq!(browser.set("weight.server", "4").status, 303);
    let memory = fs::read_to_string(format!("/proc/{}/status", scene.page.id())).unwrap();
    let line = memory.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    // A test build is larger than the installed binary.
    assert!(kib < 64 << 10, "{line}");
    // A connection that sends no complete request is closed.
    let mut half = scene.connect();
    half.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    let mut rest = Vec::new();
    match half.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(e) => assert_ne!(e.kind(), ErrorKind::WouldBlock, "it is kept open"),
    }
}
