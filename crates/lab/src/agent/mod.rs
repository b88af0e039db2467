//! Sender and receiver of the flows, as hidden subcommands of the one binary.
//!
//! `lab-serve` runs in the internet and serves every flow. `lab-fetch` receives one flow in the
//! home, under the executable name that the scenario wants. Both read from standard input a line of
//! JSON with their jobs, then a line with the clock's epoch, and exit at the end of standard
//! input: so they outlive neither the run nor a killed lab.

use std::io::{self, BufRead, Read};
use std::process::ExitCode;
use std::thread;

use serde::de::DeserializeOwned;

use crate::clock::Clock;

#[cfg(feature = "tls")]
mod bbr;
#[cfg(feature = "tls")]
mod bundle;
mod fetch;
#[cfg(feature = "tls")]
mod quic;
mod request;
mod serve;

pub(crate) const SERVE: &str = "lab-serve";
pub(crate) const FETCH: &str = "lab-fetch";

/// Whether `name` is a hidden subcommand that [`agent_main`] runs.
pub fn is_agent(name: &str) -> bool {
    matches!(name, SERVE | FETCH)
}

/// Runs the hidden subcommand `name` until the flow or standard input ends.
pub fn agent_main(name: &str) -> ExitCode {
    let played = match name {
        SERVE => serve::main(),
        FETCH => fetch::main(),
        _ => Err(io::Error::other(format!("no agent `{name}`"))),
    };
    match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{name}: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Reads the job from standard input.
fn read_job<J: DeserializeOwned>() -> io::Result<J> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(serde_json::from_str(&line)?)
}

/// Reads the epoch from standard input; from then on the process exits when standard input ends.
fn read_clock() -> io::Result<Clock> {
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    let epoch = line.trim().parse().map_err(io::Error::other)?;
    thread::spawn(|| {
        // The process exits whatever ends the input, including an error.
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    Ok(Clock::with_epoch(epoch))
}
