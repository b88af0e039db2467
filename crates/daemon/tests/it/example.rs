//! The example of docs/develop/adding-a-service.md, run as a process.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fairweir_daemon::{Access, Client, Error, Lock, Request, control_socket};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(5);

/// Cargo builds examples beside the tests, one directory up.
fn example() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().parent().unwrap().join("examples/greeter")
}

struct Greeter {
    dir: tempfile::TempDir,
    child: Child,
}

impl Greeter {
    fn start() -> Greeter {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("greeting.txt"), "hello\n").unwrap();
        let mut command = Command::new(example());
        command.arg(dir.path().join("run")).arg(dir.path().join("greeting.txt"));
        let child = command.stdin(Stdio::piped()).spawn().unwrap();
        Greeter { dir, child }
    }

    fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    fn client(&self) -> Client {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match Client::connect(&self.run_dir(), "greeter", Access::Change, PATIENCE) {
                Ok(client) => return client,
                Err(e) => assert!(Instant::now() < deadline, "{e}"),
            }
            sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Greeter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn it_answers_reloads_and_stops() {
    let mut greeter = Greeter::start();
    let mut client = greeter.client();
    let greet = json!({ "request": "greet", "name": "Ada" });
    assert_eq!(client.ask::<String>(&greet).unwrap(), "hello, Ada");
    let refused = client.ask::<Value>(&json!({ "request": "greet" })).unwrap_err();
    assert!(matches!(&refused, Error::Refused(why) if why.contains("missing field `name`")));
    fs::write(greeter.dir.path().join("greeting.txt"), "good morning\n").unwrap();
    let deadline = Instant::now() + PATIENCE;
    while client.ask::<Value>(&Request::Status).unwrap()["greeting"] != "good morning" {
        assert!(Instant::now() < deadline, "a changed file is read");
        sleep(Duration::from_millis(20));
    }
    let text: String = client.ask(&Request::Metrics { top: 0 }).unwrap();
    assert!(text.contains("greeter_greetings_total 1\n"), "{text}");
    assert!(matches!(
        Lock::acquire(&greeter.run_dir(), "greeter"),
        Err(Error::AlreadyRunning { pid, .. }) if pid as u32 == greeter.child.id()
    ));
    client.tell(&Request::Off, &mut |_, _| ()).unwrap();
    assert!(greeter.child.wait().unwrap().success());
    assert!(!control_socket(&greeter.run_dir(), "greeter").exists());
    assert!(Lock::held(&greeter.run_dir()).unwrap().is_empty());
}

#[test]
fn it_ends_with_its_stdin() {
    let mut greeter = Greeter::start();
    drop(greeter.client());
    drop(greeter.child.stdin.take());
    assert!(greeter.child.wait().unwrap().success());
}

#[test]
fn the_documentation_shows_this_example() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let shown = fs::read_to_string(root.join("../../docs/develop/adding-a-service.md")).unwrap();
    let code = fs::read_to_string(root.join("examples/greeter.rs")).unwrap();
    assert!(shown.contains(&code), "copy crates/daemon/examples/greeter.rs into the document");
    assert!(code.lines().count() <= 125, "{} lines", code.lines().count());
}
