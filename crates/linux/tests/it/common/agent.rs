//! A separate process whose executable may have any name: the program `agent`, linked under that name.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;

use fairweir_linux::netns::Netns;

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

    /// As [`Agent::start`], for an unprivileged user with only these capabilities, named as in setpriv(1).
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
        std::fs::hard_link(env!("CARGO_BIN_EXE_fairweir-test-agent"), &link).unwrap();
        let mut child = netns.run(|| {
            command(&link)
                .args(task.split(' '))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        });
        let output = BufReader::new(child.stdout.take().unwrap());
        Agent { input: child.stdin.take(), output, child, link }
    }

    /// Lets the agent create its socket, and returns its line about it.
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
