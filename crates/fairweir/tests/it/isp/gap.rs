//! Policing while the daemon is not running.

use std::collections::VecDeque;
use std::fs::{self, Permissions};
use std::io::{self, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use fairweir_linux::netns::Netns;
use fairweir_testing::{note, one_at_a_time, privileged};
use nix::sys::signal::Signal;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, setsockopt, sockopt};

use super::{FILE, PATIENCE, access, assert_free};
use crate::common::access::{ALICE4, Access};
use crate::common::only_error_line;
use crate::common::stage::Daemon;

/// Rate of Alice's plan.
const PLAN_MBIT: f64 = 20.0;
/// Maximum rate in a window: 0.06 s without a policer would exceed it, and a daemon takes longer to start.
const MOST_MBIT: f64 = 1.6 * PLAN_MBIT;
const BEGINNING: Duration = Duration::from_secs(3);
const WINDOW: Duration = Duration::from_millis(200);
const SHORT: Duration = Duration::from_millis(20);
const PAYLOAD: usize = 1_250;
/// Size of each datagram on the wire in bytes, headers included.
const FRAME: f64 = (PAYLOAD + 42) as f64;

/// UDP to Alice at three times her plan's rate, and when each datagram arrived by the kernel's clock.
struct Flood {
    began: Instant,
    stop: Arc<AtomicBool>,
    sender: JoinHandle<()>,
    receiver: JoinHandle<Vec<Duration>>,
}

/// The arrivals of a flood.
struct Came {
    at: Vec<Duration>,
}

impl Flood {
    fn start(access: &Access) -> Flood {
        let stop = Arc::new(AtomicBool::new(false));
        let receiver = access.at_homes(|| UdpSocket::bind((ALICE4, 0)).unwrap());
        let sender = access.at_edge(|| UdpSocket::bind("10.8.0.1:0").unwrap());
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        setsockopt(&receiver, sockopt::ReceiveTimestampns, &true).unwrap();
        setsockopt(&receiver, sockopt::RcvBufForce, &(16 << 20)).unwrap();
        receiver.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let is_over = Arc::clone(&stop);
        let sender = thread::spawn(move || flood(&sender, &is_over));
        let is_over = Arc::clone(&stop);
        let receiver = thread::spawn(move || receive(&receiver, &is_over));
        Flood { began: Instant::now(), stop, sender, receiver }
    }

    fn end(self) -> Came {
        self.stop.store(true, Ordering::Relaxed);
        self.sender.join().unwrap();
        let mut at = self.receiver.join().unwrap();
        // Datagrams from several CPUs may be out of order.
        at.sort();
        Came { at }
    }
}

/// Sends at a constant rate; datagrams that could not be sent in time are skipped.
fn flood(socket: &UdpSocket, stop: &AtomicBool) {
    let gap = Duration::from_secs_f64(FRAME * 8.0 / (3.0 * PLAN_MBIT * 1e6));
    let payload = [0; PAYLOAD];
    let mut due = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let now = Instant::now();
        due = due.max(now.checked_sub(2 * gap).unwrap_or(now));
        thread::sleep(due.saturating_duration_since(now));
        // A device with a full queue refuses the datagram.
        let _ = socket.send(&payload);
        due += gap;
    }
}

fn receive(socket: &UdpSocket, stop: &AtomicBool) -> Vec<Duration> {
    let mut at = Vec::new();
    let mut payload = [0; 2_048];
    let mut control = nix::cmsg_space!(nix::sys::time::TimeSpec);
    while !stop.load(Ordering::Relaxed) {
        let mut parts = [IoSliceMut::new(&mut payload)];
        let got =
            recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), MsgFlags::empty());
        match got {
            Ok(got) => at.extend(got.cmsgs().unwrap().filter_map(|message| match message {
                ControlMessageOwned::ScmTimestampns(time) => Some(Duration::from(time)),
                _ => None,
            })),
            Err(e) => assert_eq!(io::Error::from(e).kind(), io::ErrorKind::WouldBlock),
        }
    }
    at
}

impl Came {
    /// The maximum rate of any window, in Mbit/s. The start is excluded, since an idle subscriber may start faster.
    fn most(&self, span: Duration) -> f64 {
        let begin = self.at.first().copied().unwrap_or_default();
        let mut window = VecDeque::new();
        let mut most = 0;
        for at in self.at.iter().map(|at| *at - begin).filter(|at| *at > BEGINNING) {
            window.push_back(at);
            while window.front().is_some_and(|first| at - *first >= span) {
                window.pop_front();
            }
            most = most.max(window.len());
        }
        most as f64 * FRAME * 8.0 / span.as_secs_f64() / 1e6
    }

    /// A busy machine delivers packets in bursts, so that windows of 20 ms tell nothing about the policer there.
    fn assert_policed(&self, what: &str) {
        let [short, long] = [SHORT, WINDOW].map(|span| self.most(span));
        note(&format!("{what}: at most {short:.1} Mbit/s in {SHORT:?}, {long:.1} in {WINDOW:?}"));
        assert!(long < MOST_MBIT, "{what}: {long:.1} Mbit/s in {WINDOW:?}");
    }
}

/// The directory in which the policer of this router's `sub` is pinned.
fn pins(access: &Access) -> PathBuf {
    let netns = access.at_router(|| Netns::current_cookie().unwrap());
    PathBuf::from(format!("/sys/fs/bpf/fairweir-isp/{netns}/sub"))
}

fn table(count: u32) -> String {
    let row = |n: u32| format!("s{n},10.{}.{}.{},home-20\n", n >> 16, n >> 8 & 255, n & 255);
    format!("name,addresses,plan\n{}", (0..count).map(row).collect::<String>())
}

/// A restart: the signal that ends the daemon, and what is done before the next daemon starts.
fn restart(access: &Access, signal: Signal, between: impl FnOnce()) -> (Came, String) {
    let daemon = access.start();
    let flood = Flood::start(access);
    thread::sleep(Duration::from_secs(6));
    let (began, ended) = (flood.began, Instant::now());
    daemon.signal(signal);
    daemon.end();
    between();
    let daemon = access.start();
    note(&format!("restarted after {:.2?} to {:.2?}", ended - began, began.elapsed()));
    thread::sleep(Duration::from_secs(1));
    let came = flood.end();
    daemon.signal(Signal::SIGTERM);
    let (_, log) = daemon.end();
    (came, log)
}

#[test]
fn a_restart_has_no_gap_and_keeps_the_state() {
    if !privileged() {
        return;
    }
    for (hook, count) in [("", 1_000), ("uplink = \"up\"\nhook = \"xdp\"\n", 1_000), ("", 100_000)]
    {
        one_at_a_time(|| {
            let file = FILE.replace("version = 1", "version = 1\nsubscribers = \"all.csv\"");
            let access = access(&file.replace("device = ", &format!("{hook}device = ")));
            access.write("all.csv", &table(count));
            for signal in [Signal::SIGTERM, Signal::SIGKILL] {
                let (came, log) = restart(&access, signal, || ());
                let what = format!("{signal} with {count} subscribers ({hook:?})");
                came.assert_policed(&what);
                assert!(log.contains("the state of subscribers is kept"), "{log}");
            }
            access.fairweir("isp off");
            assert!(!pins(&access).exists());
        });
    }
}

#[test]
fn slots_of_an_older_layout_are_not_used_and_policing_goes_on_by_the_new_configuration() {
    if !privileged() {
        return;
    }
    one_at_a_time(|| {
        let access = access(FILE);
        let dir = pins(&access);
        // An older version of the daemon named the directory after the inode of the network namespace.
        let inode = access.at_router(|| fs::metadata("/proc/thread-self/ns/net").unwrap().ino());
        let older = dir.parent().unwrap().with_file_name(inode.to_string());
        let forged = older.join("sub/state-0123");
        let slower = FILE.replace("download = \"20mbit\"", "download = \"10mbit\"");
        let (came, log) = restart(&access, Signal::SIGKILL, || {
            let state = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap());
            let state =
                state.filter(|entry| entry.file_name().to_string_lossy().starts_with("state-"));
            let state: Vec<_> = state.collect();
            assert_eq!(state.len(), 1);
            fs::rename(state[0].path(), dir.join("state-0123")).unwrap();
            fs::rename(dir.parent().unwrap(), &older).unwrap();
            access.write("isp.toml", &slower);
        });
        assert!(!log.contains("the state of subscribers is kept"), "{log}");
        assert!(!forged.exists() && older.exists(), "what is not used is removed");
        came.assert_policed("another layout");
        let last = *came.at.last().unwrap();
        let late = came.at.iter().filter(|at| last - **at < Duration::from_millis(500)).count();
        let mbit = late as f64 * FRAME * 8.0 / 0.5 / 1e6;
        assert!((6.0..14.0).contains(&mbit), "{mbit:.1} of 10 Mbit/s at the end");
        access.fairweir("isp off");
        assert!(!older.exists());
    });
}

#[test]
fn what_goes_on_without_a_daemon_is_ended_by_a_command_or_by_its_watchdog() {
    if !privileged() {
        return;
    }
    one_at_a_time(|| {
        let access = access(&FILE.replace("device = ", "watchdog = \"5s\"\ndevice = "));
        let begin = || {
            let daemon = access.start();
            let alice = access.download(ALICE4);
            alice.wait_for_rate(10.0..21.0, PATIENCE);
            assert!(access.isp("status").contains("if the daemon ends, policing goes on for 5 s"));
            (daemon, alice)
        };
        let end = |daemon: Daemon, signal| {
            daemon.signal(signal);
            daemon.end();
            assert!(pins(&access).exists());
        };
        // A command ends policing, both by a daemon and by a policer that a daemon left behind.
        let (daemon, alice) = begin();
        assert!(access.isp("off").contains("stopped, and removed everything"));
        assert_eq!(daemon.end().0, Some(0));
        assert!(!pins(&access).exists());
        assert_free(&alice);
        drop(alice);
        for command in ["off", "isp off"] {
            let (daemon, alice) = begin();
            end(daemon, Signal::SIGTERM);
            let said = String::from_utf8(access.fairweir(command).stdout).unwrap();
            assert!(said.contains("removed the policer that went on at sub"), "{said}");
            assert!(!pins(&access).exists());
            assert_free(&alice);
        }
        // The watchdog also ends it; until then policing continues.
        let (daemon, alice) = begin();
        end(daemon, Signal::SIGKILL);
        assert!(alice.mbit_over(Duration::from_secs(2)) < 25.0);
        assert_free(&alice);
        assert!(pins(&access).exists(), "nothing but its own program has opened it");
    });
}

#[test]
fn a_directory_where_others_may_write_is_refused() {
    if !privileged() {
        return;
    }
    let access = access(FILE);
    let dir = pins(&access);
    fs::create_dir_all(&dir).unwrap();
    let run = || {
        access.at_router(|| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_fairweir"));
            command.arg("isp").arg("--config").arg(access.path("isp.toml"));
            command.arg("--run-dir").arg(access.path("run"));
            command.arg("--state-dir").arg(access.path("state")).output().unwrap()
        })
    };
    fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
    let refused = run();
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    let error = only_error_line(&refused);
    assert!(error.contains("/sub has owner 0 and mode 777"), "{error}");
    assert!(error.contains("when_gone = \"open\""), "{error}");
    fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(&dir, Some(65_534), None).unwrap();
    let refused = run();
    assert!(only_error_line(&refused).contains("has owner 65534"), "{refused:?}");
    std::os::unix::fs::chown(&dir, Some(0), None).unwrap();
    let daemon = access.start();
    assert_eq!(daemon.status()["watchdog_s"], 600.0);
}
