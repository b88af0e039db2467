//! `fairweir page`: shows in a browser how the links of this machine are shared, and changes weights.
//!
//! One process serves all daemons. It has no privileges: it sends requests to the daemons over their Unix sockets. A
//! change is a request too; the daemon checks, applies and stores it. The process listens only on 127.0.0.1, and
//! everything that the browser loads is in this binary.
//!
//! | module | its job |
//! |---|---|
//! | [`link`] | the Unix socket: links that work once, and the history |
//! | [`daemons`] | sends the same request to all daemons |
//! | [`sessions`] | who is signed in: codes, cookies, tokens against forged requests, undo |
//! | [`connections`] | accepts connections, and limits their number and duration |
//! | [`guard`] | which requests are answered: `Host`, `Origin`, headers of every answer |
//! | [`routes`] | the handlers |
//! | [`view`] | what is shown: the daemons' numbers, with a sentence for each state |
//! | [`operator`] | the view of `fairweir isp`: plans and segments |
//! | [`household`] | the view of the credit market's agent, and of the gateway's proxy |
//! | [`history`] | what groups received: recorded, printed, and weights that would have helped |
//! | [`past`] | the history, for a chart and a table |
//! | [`html`] | the view as a document that needs no script |
//!
//! docs/develop/security.md lists what others can send to this process.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;

use anyhow::Context;
use fairweir_daemon::{OpenTo, StateDir, control_socket, listen};
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Uid, User, geteuid, setgid, setgroups, setuid};
use tokio::signal::unix::{SignalKind, signal};
use tracing::{info, warn};

use crate::cli::{PageArgs, PageCommand};
use crate::exit::Usage;
use crate::page::history::record::History;

pub(crate) mod ask;
mod connections;
mod daemons;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod guard;
mod heard;
pub(crate) mod history;
mod household;
mod html;
mod link;
mod operator;
mod past;
mod routes;
mod sessions;
mod shown;
mod view;

/// The history's file name in `--state-dir`.
const FILE: &str = "history.sqlite";

/// The instance name of the page; it names the socket in `--page-dir`.
const NAME: &str = "page";

pub(crate) fn run(args: &PageArgs) -> anyhow::Result<()> {
    match &args.command {
        Some(PageCommand::Status { json, page_dir }) => return ask::print_status(page_dir, *json),
        Some(PageCommand::Off { page_dir }) => return ask::end(page_dir),
        None => {}
    }
    if args.open {
        return link::print(&args.page_dir);
    }
    let user = unprivileged_user(&args.user)?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, args.port));
    let listener =
        TcpListener::bind(address).with_context(|| format!("cannot listen at {address}"))?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let group = user.as_ref().map(|&(_, group)| group);
    let socket = listen(&control_socket(&args.page_dir, NAME), OpenTo::group(group))?;
    let state_dir = StateDir::new(&args.state_dir);
    if let Some((user, group)) = user {
        // An error does not matter: taking the lock below reports what is wrong.
        let _ = state_dir.give_to(user, group);
        drop_privileges(user, group)?;
    }
    nix::sys::prctl::set_no_new_privs()?;
    let run_dir = &args.run_dir.run_dir;
    let history = match (args.history_size, state_dir.lock()) {
        (0, _) => None,
        (bytes_max, Ok(lock)) => Some((lock, History::open(&state_dir.path_of(FILE), bytes_max))),
        (_, Err(e)) => {
            warn!("no history is recorded: {e}");
            None
        }
    };
    if let Some((_, history)) = &history {
        history.begin(run_dir)?;
    }
    let history = history.as_ref().map(|(_, history)| history);
    let state = routes::State::new(run_dir, address, args.read_only, history.cloned());
    let state = Arc::new(state);
    link::greet(&state)?;
    if args.until_stdin_closes {
        std::thread::spawn(|| {
            // The end of stdin and a read error have the same effect.
            let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
            let _ = nix::sys::signal::kill(nix::unistd::getpid(), Signal::SIGTERM);
        });
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .build()?;
    runtime.block_on(async {
        let router = routes::router(Arc::clone(&state));
        tokio::spawn(link::serve(tokio::net::UnixListener::from_std(socket)?, state));
        let listener = tokio::net::TcpListener::from_std(listener)?;
        tokio::spawn(connections::serve(listener, router));
        info!("the page is at http://{address}/; `fairweir page --open` prints a link");
        let (mut term, mut int) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        std::future::poll_fn(|cx| match (term.poll_recv(cx), int.poll_recv(cx)) {
            (std::task::Poll::Pending, std::task::Poll::Pending) => std::task::Poll::Pending,
            _ => std::task::Poll::Ready(()),
        })
        .await;
        Ok::<_, anyhow::Error>(())
    })?;
    // A request to a daemon that hangs must not delay the end of this process.
    runtime.shutdown_background();
    if let Some(history) = history {
        // `flush` has logged an error already.
        let _ = history.flush();
    }
    let _ = std::fs::remove_file(control_socket(&args.page_dir, NAME));
    Ok(())
}

/// Threads for requests to daemons. One serves all browsers' views; the others make changes.
const BLOCKING_THREADS_MAX: usize = 4;

/// The user and group to switch to, if the caller is root.
fn unprivileged_user(name: &str) -> anyhow::Result<Option<(Uid, Gid)>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    match User::from_name(name)? {
        Some(user) if !user.uid.is_root() => Ok(Some((user.uid, user.gid))),
        Some(_) => {
            Err(Usage(format!("--user: `{name}` is root; name an unprivileged user")).into())
        }
        None => {
            let what = format!("--user: there is no user `{name}`; name an unprivileged user");
            Err(Usage(what).into())
        }
    }
}

/// Gives up root permanently: changing all user ids also clears every capability.
fn drop_privileges(user: Uid, group: Gid) -> anyhow::Result<()> {
    setgroups(&[group]).context("cannot leave the groups of root")?;
    setgid(group).context("cannot become the group")?;
    setuid(user).context("cannot become the user")?;
    assert!(setuid(Uid::from_raw(0)).is_err(), "invariant: root is not to be had again");
    Ok(())
}
