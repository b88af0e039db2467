//! `fairweir status`: one line for every daemon of this machine.

use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use fairweir_config::text;
use fairweir_daemon::{Access, Client, Request, control_socket, instances};
use serde_json::Value;

use crate::cli::OverviewArgs;
use crate::daemon_args::RunDir;
use crate::exit::{Exit, reworded};
use crate::host;
use crate::host::cli::StatusArgs;
use crate::host::client::device_of;
use crate::instance::MARKET_AGENT;
#[cfg(feature = "isp")]
use crate::isp;
use crate::table::{self, Align};
use crate::words::chained;

/// How long a daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) fn run(args: &OverviewArgs) -> anyhow::Result<()> {
    let run_dir = &args.run_dir.run_dir;
    if args.dev.is_some() || args.json {
        // Options from when this command printed the status of a single daemon.
        eprintln!(
            "fairweir: `fairweir host status` and `fairweir router status` replace `fairweir status` with options"
        );
        let (dev, run_dir) = (args.dev.clone(), RunDir { run_dir: run_dir.clone() });
        return host::status::run(None, &StatusArgs { dev, json: args.json, run_dir });
    }
    let mut failed = None;
    let mut rows = Vec::new();
    for name in instances(run_dir)? {
        let state = state(args, &name).unwrap_or_else(|e| {
            failed.get_or_insert(Exit::of(&e));
            chained(&e)
        });
        rows.push(vec![called(&name), state]);
    }
    match UnixStream::connect(control_socket(&args.page_dir, PAGE)) {
        Ok(_) => {
            rows.push(vec![PAGE.to_owned(), "`fairweir page --open` prints a link".to_owned()])
        }
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            rows.push(vec![PAGE.to_owned(), "its socket is for root and its own user".to_owned()]);
        }
        Err(_) => {}
    }
    if rows.is_empty() {
        let what = format!(
            "no daemon runs (no socket in {}); `fairweir setup` starts one",
            run_dir.display()
        );
        return Err(reworded(Exit::NotRunning, what));
    }
    table::print(&mut text::stdout(), &[("DAEMON", Align::Left), ("STATE", Align::Left)], &rows)?;
    match failed {
        None => Ok(()),
        Some(exit) => Err(reworded(exit, "not every daemon answered")),
    }
}

/// The page's instance name.
const PAGE: &str = "page";

/// The instance's name as in commands.
fn called(name: &str) -> String {
    match device_of(name) {
        Some(dev) => format!("{} {dev}", &name[..name.len() - dev.len() - 1]),
        None if name == MARKET_AGENT => "market agent".to_owned(),
        None => name.to_owned(),
    }
}

/// The daemon's own description of its state.
fn state(args: &OverviewArgs, name: &str) -> anyhow::Result<String> {
    let mut client = Client::connect(&args.run_dir.run_dir, name, Access::Read, PATIENCE)?;
    let status: Value = client.ask(&Request::Status)?;
    if device_of(name).is_some() {
        return Ok(host::show::headline(&serde_json::from_value(status)?));
    }
    #[cfg(feature = "isp")]
    if name == isp::NAME {
        return Ok(isp::headline(&serde_json::from_value(status)?));
    }
    let mut parts = Vec::new();
    for (key, noun) in [("bundles", "bundle"), ("classes", "class")] {
        let number = status[key].as_array().map(Vec::len);
        parts.extend(number.map(|number| format!("{noun}: {number}")));
    }
    parts.extend(status["open_slot"].as_u64().map(|slot| format!("slot {slot} is open")));
    parts.extend(status["since_s"].as_f64().map(|s| format!("up {} min", s as u64 / 60)));
    for key in ["config_error", "error"] {
        parts.extend(status[key].as_str().map(str::to_owned));
    }
    Ok(if parts.is_empty() { "runs".to_owned() } else { parts.join("  ") })
}
