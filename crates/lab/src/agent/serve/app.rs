//! Servers that send on their own schedule, as decided by the simulator's application of the flow.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;

use fairweir_core::units::{Bytes, Span, Time};
use fairweir_scenario::app::{App, Want};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::{TimeSpec, TimeValLike};

use super::{CHUNK, PAYLOAD, unsent_max, write};
use crate::clock::Clock;
use crate::job::Job;

/// Sends datagrams, until the flow stops, to the first client that sends a datagram.
pub(super) fn datagrams(socket: &UdpSocket, job: &Job, clock: Clock) -> io::Result<()> {
    let (_, client): (usize, SocketAddr) = socket.recv_from(&mut [0; 64])?;
    let mut app = job.app();
    app.handle_start(clock.now());
    loop {
        while let Some(want) = app.poll_want() {
            let Want::Datagram { payload: length } = want else {
                return Err(io::Error::other("UDP has no connections"));
            };
            socket.send_to(&PAYLOAD[..length as usize], client)?;
        }
        let Some(due) = app.next_timeout().filter(|&due| due < job.stop()) else { return Ok(()) };
        clock.sleep_until(due);
        app.handle_timeout(clock.now());
    }
}

/// Runs an on-off source on its single connection until the flow stops.
pub(super) fn on_off(listener: &TcpListener, job: &Job, clock: Clock) -> io::Result<()> {
    clock.sleep_until(job.start());
    listener.set_nonblocking(true)?;
    let mut server = OnOff {
        app: job.app(),
        listener,
        stream: None,
        unsent_max: Bytes::new(unsent_max(job).into()),
        is_endless: false,
        owed: Bytes::ZERO,
    };
    server.app.handle_start(clock.now());
    // The receiver ends a flow by closing, so an error while sending is normal.
    while clock.now() < job.stop() {
        server.serve();
        if server.accept(clock.now())? {
            continue;
        }
        if server.write().is_err() {
            return Ok(());
        }
        let due = server.app.next_timeout().map_or(job.stop(), |due| due.min(job.stop()));
        server.wait(clock, due)?;
        if server.app.next_timeout().is_some_and(|due| due <= clock.now()) {
            server.app.handle_timeout(clock.now());
        }
    }
    Ok(())
}

struct OnOff<'l> {
    app: App,
    listener: &'l TcpListener,
    stream: Option<TcpStream>,
    /// Maximum unsent bytes in the kernel.
    unsent_max: Bytes,
    is_endless: bool,
    /// Bytes that the application wrote and the kernel has not taken yet.
    owed: Bytes,
}

impl OnOff<'_> {
    /// Carries out what the application wants of the server.
    fn serve(&mut self) {
        while let Some(want) = self.app.poll_want() {
            match want {
                Want::Fetch { .. } => self.is_endless = true,
                Want::Withdraw { .. } => self.is_endless = false,
                Want::Write { volume, unsent_max, .. } => {
                    // While bytes are owed the kernel's buffer is full, so it counts in full.
                    if self.owed + self.unsent_max + volume <= unsent_max {
                        self.owed += volume;
                    }
                }
                // Only the client opens and closes; other wants belong to other kinds of flow.
                Want::Open { .. } | Want::Close { .. } => {}
                Want::Datagram { .. } | Want::Ping { .. } => {}
            }
        }
    }

    /// Returns whether the client has just connected.
    fn accept(&mut self, now: Time) -> io::Result<bool> {
        if self.stream.is_some() {
            return Ok(false);
        }
        match self.listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                self.stream = Some(stream);
                self.app.handle_opened(now, 0);
                Ok(true)
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn has_more(&self) -> bool {
        self.is_endless || self.owed > Bytes::ZERO
    }

    /// Writes as much of the owed bytes as the kernel takes.
    fn write(&mut self) -> io::Result<()> {
        while self.has_more() {
            let Some(stream) = &mut self.stream else { return Ok(()) };
            let endless = Bytes::new(CHUNK as u64);
            let length = if self.is_endless { endless } else { self.owed.min(endless) };
            let written = write(stream, &PAYLOAD[..length.as_u64() as usize])?;
            if written == 0 {
                return Ok(());
            }
            self.owed = self.owed.saturating_sub(Bytes::new(written));
        }
        Ok(())
    }

    /// Waits until the time is `due`, the client connects, or the kernel takes more.
    fn wait(&self, clock: Clock, due: Time) -> io::Result<()> {
        let fd = match &self.stream {
            None => Some(PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)),
            Some(stream) if self.has_more() => {
                Some(PollFd::new(stream.as_fd(), PollFlags::POLLOUT))
            }
            Some(_) => None,
        };
        let wait = due.since(clock.now()).min(WAIT_MAX).as_nanos() as i64;
        match ppoll(&mut Vec::from_iter(fd), Some(TimeSpec::nanoseconds(wait)), None) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

/// Maximum wait, even if the next deadline is later.
const WAIT_MAX: Span = Span::secs(1);
