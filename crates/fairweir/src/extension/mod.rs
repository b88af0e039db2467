//! `fairweir extension`: what a browser's extension needs on this machine.
//!
//! An extension cannot open sockets. A *manifest* in a directory of its browser names a program,
//! which the browser starts and exchanges messages with. That program is this binary ([`host`]).
//! The commands write and remove the manifests ([`browsers`]).

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use fairweir_config::text;
use nix::unistd::geteuid;

mod browsers;
pub(crate) mod cli;
mod host;

use browsers::{Browser, Place};
use cli::{ExtensionCommand, PlaceArgs};

/// The extension's id in Chromium and browsers based on it, derived from `key` in its manifest.
const ID_CHROMIUM: &str = "lgkmfkcdbkebmicahfndngcbbnepmlho";

/// The extension's id in Firefox, as in its manifest.
const ID_FIREFOX: &str = "extension@fairweir.net";

/// The name by which the extension refers to this program.
const NAME: &str = "net.fairweir.extension";

pub(crate) fn run(command: &ExtensionCommand) -> anyhow::Result<()> {
    match command {
        ExtensionCommand::Install(args) => install(args),
        ExtensionCommand::Uninstall(args) => uninstall(args),
        ExtensionCommand::Status(args) => status(args),
        ExtensionCommand::Host(args) => host::run(&args.run_dir.run_dir),
    }
}

/// Whether a browser started this process. The first arguments are in Chromium the extension's
/// address; in Firefox the path of the manifest and the extension's id.
pub(crate) fn is_started_by_browser(first: &str, second: Option<&str>) -> bool {
    first.strip_prefix("chrome-extension://").is_some_and(|rest| rest.starts_with(ID_CHROMIUM))
        || (first.ends_with(".json") && second == Some(ID_FIREFOX))
}

/// Runs the program that a browser starts.
pub(crate) fn host_main() -> anyhow::Result<()> {
    host::run(Path::new(cli::RUN_DIR))
}

fn install(args: &PlaceArgs) -> anyhow::Result<()> {
    let place = place(args)?;
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let program = program.to_str().context("the path of this program is no UTF-8")?;
    let chosen: Vec<Browser> = match args.browser.as_slice() {
        [] => Browser::ALL.into_iter().filter(|browser| browser.is_installed()).collect(),
        named => named.to_vec(),
    };
    let out = &mut text::stdout();
    let mut count = 0;
    for browser in chosen {
        let Some(path) = place.manifest(browser) else {
            writeln!(out, "{browser}: reads only the manifests of users; use --user")?;
            continue;
        };
        browsers::write(&path, &browser.manifest(program))
            .with_context(|| format!("cannot write {}", path.display()))?;
        writeln!(out, "{browser}: {}", path.display())?;
        count += 1;
    }
    if count == 0 {
        bail!("no browser was found; name one with --browser ({})", browsers::names());
    }
    Ok(())
}

fn uninstall(args: &PlaceArgs) -> anyhow::Result<()> {
    let place = place(args)?;
    let out = &mut text::stdout();
    for browser in chosen(args) {
        let Some(path) = place.manifest(browser) else { continue };
        if browsers::remove(&path).with_context(|| format!("cannot remove {}", path.display()))? {
            writeln!(out, "removed {}", path.display())?;
        }
    }
    Ok(())
}

fn status(args: &PlaceArgs) -> anyhow::Result<()> {
    let out = &mut text::stdout();
    let root = args.root.as_deref();
    let places = [Some(Place::system(root)), home().ok().map(|home| Place::user(root, &home))];
    for browser in chosen(args) {
        let installed = if browser.is_installed() { "found" } else { "not found" };
        writeln!(out, "{browser}: {installed}")?;
        for path in places.iter().flatten().filter_map(|place| place.manifest(browser)) {
            let state = browsers::state(&path, browser);
            writeln!(out, "  {}: {state}", path.display())?;
        }
        for packaged in browser.packaged() {
            let cannot = "has no native messaging; its sites are told from the wire only";
            writeln!(out, "  {packaged}: {cannot}")?;
        }
    }
    Ok(())
}

fn chosen(args: &PlaceArgs) -> Vec<Browser> {
    if args.browser.is_empty() { Browser::ALL.to_vec() } else { args.browser.clone() }
}

/// The place that the arguments select. By default root installs for all users.
fn place(args: &PlaceArgs) -> anyhow::Result<Place> {
    let root = args.root.as_deref();
    if args.user || !geteuid().is_root() {
        return Ok(Place::user(root, &home()?));
    }
    Ok(Place::system(root))
}

fn home() -> anyhow::Result<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    home.filter(|home| home.is_absolute()).context("HOME is not set")
}
