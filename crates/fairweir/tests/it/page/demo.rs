//! `fairweir demo`: real TCP, the real daemon, and the page showing it.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use fairweir_testing::privileged;
use serde_json::Value;
use tempfile::TempDir;

use crate::common::FAIRWEIR;

/// A demo in separate directories, with an `xdg-open` that only records what it should open.
struct Demo {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
    host: String,
    path: String,
    dir: TempDir,
}

impl Demo {
    fn start() -> Demo {
        let dir = TempDir::new().unwrap();
        for name in ["", "bin", "tmp"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
            fs::set_permissions(dir.path().join(name), Permissions::from_mode(0o711)).unwrap();
        }
        let opener = dir.path().join("bin/xdg-open");
        fs::write(&opener, format!("#!/bin/sh\necho \"$1\" >{}/opened\n", dir.path().display()))
            .unwrap();
        fs::set_permissions(&opener, Permissions::from_mode(0o755)).unwrap();
        let path =
            format!("{}:{}", dir.path().join("bin").display(), std::env::var("PATH").unwrap());
        let mut command = Command::new(FAIRWEIR);
        command.args(["demo", "--duration", "10s"]).env("PATH", path).env("DISPLAY", ":77");
        command
            .env("TMPDIR", dir.path().join("tmp"))
            .env_remove("SUDO_USER")
            .env_remove("RUST_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let link = lines.nth(1).unwrap().unwrap();
        let (host, path) = link.trim()["http://".len()..].split_once('/').unwrap();
        let (host, path) = (host.to_owned(), format!("/{path}"));
        Demo { child, lines, host, path, dir }
    }

    fn ask(&self, method: &str, path: &str, headers: &str, body: &str) -> String {
        let (host, length) = (&self.host, body.len());
        let mut stream = TcpStream::connect(host).unwrap();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\
             Content-Type: application/x-www-form-urlencoded\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn end(mut self) -> (String, TempDir) {
        let rest: Vec<String> = self.lines.by_ref().map_while(Result::ok).collect();
        assert!(self.child.wait().unwrap().success(), "{rest:?}");
        (rest.join("\n"), self.dir)
    }
}

/// The part of `text` between two strings.
fn between<'t>(text: &'t str, before: &str, after: &str) -> &'t str {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("no {before}: {text}"));
    rest.split_once(after).unwrap().0
}

#[test]
fn the_demo_shows_real_tcp_on_its_page_and_leaves_nothing() {
    if !privileged() {
        return;
    }
    let demo = Demo::start();
    let answer = demo.ask("GET", &demo.path, "", "");
    let cookie = between(&answer, "set-cookie: ", ";");
    let cookie = format!("Cookie: {cookie}\r\nOrigin: http://{}\r\n", demo.host);
    let groups = || {
        let answer = demo.ask("GET", "/status", &cookie, "");
        let view: Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        view["daemons"][0]["link"]["groups"].clone()
    };
    let deadline = Instant::now() + Duration::from_secs(9);
    // The video starts after 4 s.
    while groups()[0]["rateBps"].as_u64().is_none_or(|rate| rate <= 10_000_000) {
        assert!(Instant::now() < deadline, "{}", groups());
        thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(
        (groups()[0]["name"].as_str(), groups()[1]["name"].as_str()),
        (Some("video"), Some("bulk"))
    );
    // The visitor changes a weight.
    let document = demo.ask("GET", "/", &cookie, "");
    let csrf = between(&document, "name=\"csrf\" value=\"", "\"");
    let body = format!("csrf={csrf}&daemon=host-wan&key=weight.video&value=1");
    let answer = demo.ask("POST", "/set", &cookie, &body);
    assert!(answer.starts_with("HTTP/1.1 303"), "{answer}");
    assert_eq!(groups()[0]["weight"], 1);
    // The browser got another link, which also works once.
    let opened = fs::read_to_string(demo.dir.path().join("opened")).unwrap();
    assert!(opened.contains("/enter?code=") && !opened.contains(&demo.path), "{opened}");
    let (said, dir) = demo.end();
    assert!(said.contains("A browser opens it.") && said.contains("fairweir"), "{said}");
    let left: Vec<_> = fs::read_dir(dir.path().join("tmp")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_page_of_a_killed_demo_ends_with_it() {
    if !privileged() {
        return;
    }
    let mut demo = Demo::start();
    assert!(demo.ask("GET", &demo.path, "", "").contains("200 OK"));
    demo.child.kill().unwrap();
    demo.child.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while TcpStream::connect(&demo.host).is_ok() {
        assert!(Instant::now() < deadline, "the page still runs");
        thread::sleep(Duration::from_millis(50));
    }
}
