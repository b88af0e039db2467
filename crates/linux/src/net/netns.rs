//! Anonymous network namespaces, for the lab and for tests.
//!
//! A [`Netns`] is held only by a file descriptor and has no name in the file system, so it
//! disappears with its last user, also after `kill -9`.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixDatagram;
use std::thread;

use nix::sched::{CloneFlags, setns, unshare};

use crate::Error;
use crate::net::link;

/// A network namespace.
#[derive(Debug)]
pub struct Netns(OwnedFd);

impl Netns {
    /// Makes a new namespace, in which only the loopback device is up.
    ///
    /// # Errors
    /// Without CAP_SYS_ADMIN, or if the kernel has no network namespaces.
    pub fn new() -> Result<Netns, Error> {
        // A namespace belongs to a thread: a short-lived one makes it, the caller's is unchanged.
        let made = thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET)
                .map_err(|e| Error::refused("make a network namespace", e))?;
            link::set_up("lo")?;
            Netns::current()
        });
        made.join().expect("invariant: the thread does not panic")
    }

    /// The calling thread's namespace.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn current() -> Result<Netns, Error> {
        File::open(THREAD_NETNS)
            .map(|file| Netns(file.into()))
            .map_err(|e| Error::refused(format!("open {THREAD_NETNS}"), e))
    }

    /// Whether the calling thread is in this namespace.
    pub(crate) fn is_current(&self) -> bool {
        let identity = |file: &File| file.metadata().ok().map(|m| (m.dev(), m.ino()));
        let current = File::open(THREAD_NETNS).ok().and_then(|file| identity(&file));
        let own = self.0.try_clone().ok().and_then(|file| identity(&file.into()));
        current.is_some() && current == own
    }

    /// The number by which programs in the kernel know the calling thread's namespace. Unlike its
    /// inode, this number is never used again.
    ///
    /// # Errors
    /// If the kernel is older than 5.14.
    pub fn current_cookie() -> Result<u64, Error> {
        let attempted = "ask for the cookie of the network namespace";
        let socket = UnixDatagram::unbound().map_err(|e| Error::refused(attempted, e))?;
        let mut cookie = 0_u64;
        let mut length = size_of::<u64>() as libc::socklen_t;
        // SAFETY: the socket is open, and the kernel writes no more than `length` bytes.
        let answer = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_NETNS_COOKIE,
                (&raw mut cookie).cast(),
                &raw mut length,
            )
        };
        if answer == 0 { Ok(cookie) } else { Err(Error::last_os(attempted)) }
    }

    /// Runs `work` inside the namespace on a separate thread and waits for it. Processes and
    /// threads that `work` starts begin inside, too.
    ///
    /// # Panics
    /// If `work` panics, or if the caller may not enter the namespace (CAP_SYS_ADMIN).
    pub fn run<R: Send>(&self, work: impl FnOnce() -> R + Send) -> R {
        let inside = || {
            setns(&self.0, CloneFlags::CLONE_NEWNET).expect("enter a network namespace");
            work()
        };
        let result = thread::scope(|scope| scope.spawn(inside).join());
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

const THREAD_NETNS: &str = "/proc/thread-self/ns/net";
