//! Helper code that all tests of this binary use.
#![allow(unreachable_pub)]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use fairweir_testing::can_run;

pub mod access;
pub mod browser;
pub mod deb;
pub mod far;
pub mod film;
pub mod forger;
pub mod home;
pub mod oracle;
pub mod page;
pub mod played;
pub mod process;
pub mod schema;
pub mod sites;
pub mod stage;
pub mod web;

/// The binary under test.
pub const FAIRWEIR: &str = env!("CARGO_BIN_EXE_fairweir");

/// The binary for daemons and pages: FAIRWEIR_BINARY can name a release build, whose cost is measured then.
pub fn daemon_binary() -> String {
    std::env::var("FAIRWEIR_BINARY").unwrap_or(FAIRWEIR.to_owned())
}

/// Runs the binary and waits for its end.
pub fn fairweir(args: &[&str]) -> Output {
    let output = Command::new(FAIRWEIR).args(args).env_remove("RUST_LOG").output().unwrap();
    schema::check(args, &output);
    output
}

/// Whether `promtool` is installed.
pub fn has_promtool() -> bool {
    let found = Command::new("promtool").arg("--version").output().is_ok();
    can_run(found, "promtool; `make test-deps` installs it")
}

/// Checks OpenMetrics text with `promtool check metrics`, which reads the older format, in which the family of
/// a counter has the name of its samples.
///
/// # Panics
/// With promtool's output, if it reports an error.
pub fn check_metrics(text: &str) {
    if !has_promtool() {
        return;
    }
    let line = |line: &str| match line.strip_suffix(" counter") {
        Some(head) if line.starts_with("# TYPE ") => format!("{head}_total counter\n"),
        _ => format!("{line}\n"),
    };
    let mut old: String = text.lines().map(line).collect();
    for name in text.lines().filter_map(|l| l.strip_prefix("# TYPE ")?.strip_suffix(" counter")) {
        old = old.replace(&format!("# HELP {name} "), &format!("# HELP {name}_total "));
    }
    let mut command = Command::new("promtool");
    command.args(["check", "metrics"]).stdin(Stdio::piped());
    let mut promtool = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    promtool.stdin.take().unwrap().write_all(old.as_bytes()).unwrap();
    let output = promtool.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}\n{old}");
}

/// The single line on stderr, without the line break.
///
/// # Panics
/// If there is not exactly one.
pub fn only_error_line(output: &Output) -> String {
    let text = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "one line on stderr, not: {text}");
    assert!(text.ends_with('\n'), "a whole line: {text}");
    text.trim_end().to_owned()
}

/// Runs `fairweir check` on a file.
pub fn check(file: &Path) -> Output {
    fairweir(&["check", file.to_str().unwrap()])
}
