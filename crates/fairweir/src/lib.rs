//! fairweir: share a download by weight, from the receiving end.
//!
//! The only binary: the daemon of the receiving host, the commands that talk to it, and the simulator and the lab, in
//! which scenarios are played. All the code is in this library, so that it can also be fuzzed.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(all(feature = "demo", feature = "market", feature = "proxy", feature = "top")),
    allow(dead_code, unused_imports, reason = "it serves commands that are left out")
)]

use std::env;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::FromArgMatches;
use fairweir_config::{ConfigError, text};
use nix::unistd::geteuid;
use tracing_subscriber::EnvFilter;

mod check;
mod cli;
mod daemon_args;
#[cfg(feature = "demo")]
mod demo;
mod device;
mod doctor;
#[cfg(feature = "evidence")]
mod evidence;
mod exit;
mod extension;
#[cfg(all(any(test, fuzzing), feature = "page"))]
pub mod fuzz;
mod generate;
mod host;
mod init;
mod instance;
#[cfg(feature = "isp")]
mod isp;
#[cfg(feature = "lab")]
mod lab;
mod listener;
mod local_time;
#[cfg(feature = "market")]
mod market;
mod off;
mod overview;
#[cfg(feature = "page")]
mod page;
#[cfg(feature = "lab")]
mod play;
mod progress;
#[cfg(feature = "proxy")]
mod proxy;
mod questions;
#[cfg(feature = "evidence")]
mod schemas;
mod sender;
#[cfg(feature = "page")]
mod setup;
mod signals;
#[cfg(feature = "lab")]
mod sim;
mod table;
#[cfg(feature = "top")]
mod terminal;
mod words;

use cli::{Cli, Subcommand};

/// Runs the command line.
pub fn main() -> ExitCode {
    let first = env::args_os().nth(1).and_then(|argument| argument.into_string().ok());
    // The lab starts this binary under other names; people never do.
    #[cfg(feature = "lab")]
    if let Some(agent) = first.as_ref().filter(|name| fairweir_lab::is_agent(name)) {
        return fairweir_lab::agent_main(agent);
    }
    if first.as_ref().is_some_and(|name| host::guard::is_guard(name)) {
        log_to_stderr(0, "info");
        return host::guard::main(&env::args().skip(2).collect::<Vec<_>>())
            .map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    #[cfg(feature = "proxy")]
    if first.as_ref().is_some_and(|name| proxy::guard::is_guard(name)) {
        log_to_stderr(0, "info");
        return proxy::guard::main().map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS);
    }
    let second = env::args_os().nth(2).and_then(|argument| argument.into_string().ok());
    if first.is_some_and(|first| extension::is_started_by_browser(&first, second.as_deref())) {
        return ended(extension::host_main());
    }
    let args: Vec<String> =
        env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    let cli = match cli::command().try_get_matches().and_then(|found| Cli::from_arg_matches(&found))
    {
        Ok(cli) => cli,
        Err(error) => {
            return cli::mistakes::answer(&error, &args).unwrap_or_else(|e| ended(Err(e.into())));
        }
    };
    // doctor reports itself which of the features that it tries matter, so the log needs only warnings.
    let level = if matches!(cli.command, Subcommand::Doctor(_)) { "warn" } else { "info" };
    log_to_stderr(cli.verbose, level);
    ended(run(cli.command))
}

/// Prints the error, if there is one, and returns the exit code.
fn ended(outcome: anyhow::Result<()>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // The reader closed the output early, as `head` does.
        Err(e) if is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            let (words, code) = (in_words(&e), exit::Exit::of(&e).code());
            // Prints all mistakes of a file, each on its own line.
            let of_file = e.chain().find_map(|cause| cause.downcast_ref::<ConfigError>());
            match of_file.map(|error| error.all().collect::<Vec<_>>()).unwrap_or_default() {
                several if several.len() > 1 => {
                    several.iter().for_each(|one| eprintln!("fairweir: {one}"));
                }
                _ => eprintln!("fairweir: {}", text::escaped(&words)),
            }
            // A caller that asked for JSON gets the error as JSON, unless a part of the output is already written.
            if env::args_os().any(|arg| arg == "--json") && !text::has_written() {
                let error = serde_json::json!({ "error": words, "exit_code": code });
                let _ = writeln!(text::stdout(), "{error}");
            }
            ExitCode::from(code)
        }
    }
}

fn run(command: Subcommand) -> anyhow::Result<()> {
    match command {
        Subcommand::Host(args) => host::run(&args, off::of_role),
        Subcommand::Router(args) => host::run_router(&args, off::of_role),
        #[cfg(feature = "isp")]
        Subcommand::Isp(args) => isp::run(&args),
        Subcommand::Extension(command) => extension::run(&command),
        #[cfg(feature = "market")]
        Subcommand::Market(command) => market::run(&command),
        #[cfg(feature = "proxy")]
        Subcommand::Proxy(args) => proxy::run(&args),
        Subcommand::Sender(args) => sender::run(&args),
        Subcommand::Status(args) => overview::run(&args),
        #[cfg(feature = "top")]
        Subcommand::Top(args) => host::top::run(None, &args),
        #[cfg(feature = "page")]
        Subcommand::Page(args) => page::run(&args),
        #[cfg(feature = "page")]
        Subcommand::History(args) => page::history::run(&args),
        #[cfg(feature = "page")]
        Subcommand::Suggest(args) => page::history::suggest::run(&args),
        Subcommand::Reload(args) => host::reload::run(None, &args),
        Subcommand::Set(args) => host::set::run(None, &args),
        Subcommand::Boost(args) => host::timing::boost(None, &args),
        Subcommand::Pause(args) => host::timing::pause(None, &args),
        Subcommand::ResetQuota(args) => host::timing::reset_quota(None, &args),
        Subcommand::Off(args) => off::run(&args),
        Subcommand::Check(args) => check::run(&args),
        Subcommand::Init(args) => init::run(&args),
        #[cfg(feature = "page")]
        Subcommand::Setup(args) => setup::run(&args),
        Subcommand::Doctor(args) => doctor::run(&args),
        #[cfg(feature = "demo")]
        Subcommand::Demo(args) => demo::run(&args),
        #[cfg(feature = "lab")]
        Subcommand::Lab(command) => lab::run(&command),
        #[cfg(feature = "lab")]
        Subcommand::Sim(command) => sim::run(&command),
        #[cfg(feature = "evidence")]
        Subcommand::Evidence(command) => evidence::run(&command),
        Subcommand::Generate(command) => generate::run(&command),
    }
}

/// Log levels: `RUST_LOG` if set, otherwise `level`; `-v` means DEBUG, `-vv` TRACE.
fn log_to_stderr(verbose: u8, level: &str) {
    let level = match verbose {
        0 => level,
        1 => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        // Otherwise the logger would report on stderr that stderr is closed, and panic.
        .log_internal_errors(false)
        .init();
}

/// The chain of causes in one line; further lines of an error (the log of the BPF verifier) come last.
fn in_words(error: &anyhow::Error) -> String {
    let words = words::chained(error);
    let refused = exit::Exit::of(error) == exit::Exit::NotPermitted;
    let hint = if refused && !geteuid().is_root() { "; run it as root" } else { "" };
    match words.split_once('\n') {
        Some((first, rest)) => format!("{first}{hint}\n{rest}"),
        None => format!("{words}{hint}"),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
