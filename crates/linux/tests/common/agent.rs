//! A process of its own with an executable of any name: the test binary, linked under that name,
//! which runs its ignored test `agent`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use fairweir_core::receiver::{ConnectionSample, ConnectionWindow, Windows};
use fairweir_core::units::{Bytes, Rate};
use fairweir_linux::netns::Netns;
use fairweir_linux::police::Hook;
use fairweir_linux::{Host, HostSpec, Mode};

/// To which an agent that does `bound` bounds all connections.
pub(crate) const BOUND_BYTES: u64 = 50_000;

const TASK: &str = "FAIRWEIR_TEST_AGENT";

/// A running agent; ends when dropped.
pub(crate) struct Agent {
    pub(crate) child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    link: PathBuf,
}

impl Agent {
    /// Starts an agent whose executable is called `name`; it makes no socket before
    /// [`Agent::go`].
    pub(crate) fn start(netns: &Netns, name: &str, user: u32, task: &str) -> Agent {
        Agent::start_by(netns, name, task, |link| {
            let mut command = Command::new(link);
            command.uid(user);
            command
        })
    }

    /// The same for an unprivileged user with just these capabilities, as setpriv(1) names them.
    pub(crate) fn start_with(
        netns: &Netns,
        name: &str,
        capabilities: &[&str],
        task: &str,
    ) -> Agent {
        let list: String = capabilities.iter().map(|c| format!(",+{c}")).collect();
        Agent::start_by(netns, name, task, |link| {
            let mut command = Command::new("setpriv");
            command.args(["--reuid", "65534", "--clear-groups", "--no-new-privs"]);
            for set in ["--inh-caps", "--ambient-caps", "--bounding-set"] {
                command.arg(format!("{set}=-all{list}"));
            }
            command.arg(link);
            command
        })
    }

    fn start_by(
        netns: &Netns,
        name: &str,
        task: &str,
        command: impl FnOnce(&Path) -> Command + Send,
    ) -> Agent {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!(
            "agents-{}-{:?}",
            std::process::id(),
            thread::current().id()
        ));
        std::fs::create_dir_all(&folder).unwrap();
        let link = folder.join(name);
        let _ = std::fs::remove_file(&link);
        std::fs::hard_link(std::env::current_exe().unwrap(), &link).unwrap();
        let mut child = netns.run(|| {
            command(&link)
                .args(["agent", "--exact", "--ignored"])
                .env(TASK, task)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        });
        let output = BufReader::new(child.stdout.take().unwrap());
        Agent { input: child.stdin.take(), output, child, link }
    }

    /// Lets it make its socket and returns what it says about it.
    pub(crate) fn go(&mut self) -> String {
        self.input.as_mut().unwrap().write_all(b"go\n").unwrap();
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if let Some((_, answer)) = line.split_once("ready ") {
                return answer.trim().to_owned();
            }
            line.clear();
        }
        panic!("the agent ended early");
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_file(&self.link);
        let _ = self.link.parent().map(std::fs::remove_dir);
    }
}

/// What the agent does; returns at once in a process that is none.
pub(crate) fn main() {
    let Ok(task) = std::env::var(TASK) else {
        return;
    };
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
    thread::spawn(move || {
        let (verb, address) = task.split_once(' ').unwrap();
        perform(verb, address);
    });
    // The parent's end of the pipe closes however the parent ends.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    std::process::exit(0);
}

fn perform(verb: &str, address: &str) {
    match verb {
        "tcp-connect" => {
            let stream = TcpStream::connect(address).unwrap();
            ready(stream.local_addr().unwrap());
            drain(stream);
        }
        "tcp-listen" => {
            let listener = TcpListener::bind(address).unwrap();
            ready(listener.local_addr().unwrap());
            for stream in listener.incoming() {
                drain(stream.unwrap());
            }
        }
        "udp-bound" => {
            let socket = UdpSocket::bind(address).unwrap();
            ready(socket.local_addr().unwrap());
            while socket.recv(&mut [0; 2_000]).is_ok() {}
        }
        "udp-connected" => {
            let wildcard = if address.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
            let socket = UdpSocket::bind(wildcard).unwrap();
            socket.connect(address).unwrap();
            ready(socket.local_addr().unwrap());
            while socket.recv(&mut [0; 2_000]).is_ok() {}
        }
        "host" | "host-clsact" => {
            let policy = crate::common::policy(&[("a", &["app:nobody"])]);
            let spec = HostSpec { dev: address.into(), policy, mode: Mode::Shape, census: false };
            let mut host = match verb {
                "host" => Host::attach(&spec).unwrap(),
                _ => Host::attach_by_clsact(&spec).unwrap(),
            };
            host.apply(&crate::common::allocation(&[Rate::mbit(5); 2])).unwrap();
            assert_eq!(host.limits(), [""; 0]);
            ready(std::process::id());
            loop {
                host.beat().unwrap();
                thread::sleep(Duration::from_millis(200));
            }
        }
        "bound" => {
            let policy = crate::common::policy(&[]);
            let spec = HostSpec { dev: address.into(), policy, mode: Mode::Count, census: false };
            let mut host = Host::attach(&spec).unwrap();
            ready(std::process::id());
            let window = Bytes::new(BOUND_BYTES);
            loop {
                let samples = host.take_connections().unwrap();
                let bound = |s: &ConnectionSample| ConnectionWindow { id: s.id, window };
                let connections = samples.iter().map(bound).collect();
                host.apply_windows(&Windows { connections, initial: vec![Some(window)] }).unwrap();
                host.beat().unwrap();
                thread::sleep(Duration::from_millis(200));
            }
        }
        "police" => {
            let _police = crate::common::police(address, Hook::Xdp);
            ready(std::process::id());
            thread::sleep(Duration::from_secs(600));
        }
        _ => panic!("the agent cannot {verb}"),
    }
}

/// Past the test harness, which would capture it.
fn ready(what: impl std::fmt::Display) {
    let mut output = std::io::stdout().lock();
    output.write_all(format!("ready {what}\n").as_bytes()).unwrap();
    output.flush().unwrap();
}

fn drain(mut stream: TcpStream) {
    let mut buffer = [0; 65_536];
    while stream.read(&mut buffer).is_ok_and(|n| n > 0) {}
}
