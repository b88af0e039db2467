//! Runs an application with real sockets in real time.
//!
//! The application is the simulator's: a state machine that states what it wants from connections,
//! by slot. Here a slot is a TCP connection, and a request is a packet that states how much the
//! server has to write. One thread waits for sockets or for the application's next deadline,
//! whichever comes first, tells the application what happened, and does what it wants.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::os::fd::AsFd;

use fairweir_core::units::{Bytes, Span, Time};
use fairweir_scenario::PING_PAYLOAD;
use fairweir_scenario::app::{App, Outcome, Want};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::{TimeSpec, TimeValLike};
use socket2::{Domain, Socket, Type};

use super::super::request;
use super::{BUFFER, udp_socket};
use crate::clock::Clock;
use crate::job::Job;

/// An application with its sockets.
pub(super) struct Driver<'j> {
    job: &'j Job,
    clock: Clock,
    app: App,
    /// Connections by the application's slots.
    slots: Vec<Option<Connection>>,
    /// Number of connections ever opened.
    opened: u64,
    datagrams: Option<UdpSocket>,
    buffer: Vec<u8>,
}

struct Connection {
    stream: TcpStream,
    /// Serial number of the connection among all that were ever opened.
    serial: u64,
    is_open: bool,
    received: Bytes,
}

impl Driver<'_> {
    pub(super) fn new(job: &Job, clock: Clock) -> Driver<'_> {
        Driver {
            job,
            clock,
            app: job.app(),
            slots: Vec::new(),
            opened: 0,
            datagrams: None,
            buffer: vec![0; BUFFER],
        }
    }

    /// Runs from now on until the flow stops.
    pub(super) fn play(mut self) -> io::Result<Outcome> {
        let stop = self.job.stop();
        self.app.handle_start(self.clock.now());
        self.serve()?;
        loop {
            let now = self.clock.now();
            if now >= stop {
                break;
            }
            if self.app.next_timeout().is_some_and(|due| due <= now) {
                self.app.handle_timeout(now);
                self.serve()?;
                continue;
            }
            let due = self.app.next_timeout().map_or(stop, |due| due.min(stop));
            for ready in self.wait(due)? {
                match ready {
                    Ready::Answers => self.read_answers()?,
                    Ready::Connection { slot, serial } => self.handle_ready(slot, serial)?,
                }
            }
        }
        self.app.handle_stop(self.clock.now());
        self.serve()?;
        Ok(self.app.outcome())
    }

    /// Waits until a socket is ready or the time is `due`.
    fn wait(&self, due: Time) -> io::Result<Vec<Ready>> {
        let mut sources = Vec::new();
        let mut fds = Vec::new();
        if let Some(socket) = &self.datagrams {
            sources.push(Ready::Answers);
            fds.push(PollFd::new(socket.as_fd(), PollFlags::POLLIN));
        }
        for (slot, connection) in self.slots.iter().enumerate() {
            let Some(Connection { stream, serial, is_open, .. }) = connection else { continue };
            let events = if *is_open { PollFlags::POLLIN } else { PollFlags::POLLOUT };
            sources.push(Ready::Connection { slot: slot as u32, serial: *serial });
            fds.push(PollFd::new(stream.as_fd(), events));
        }
        let wait = due.since(self.clock.now()).min(WAIT_MAX).as_nanos() as i64;
        match ppoll(&mut fds, Some(TimeSpec::nanoseconds(wait)), None) {
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(Vec::new()),
            Err(e) => return Err(e.into()),
        }
        let is_ready = |fd: &PollFd<'_>| fd.any().unwrap_or(true);
        let ready = sources.into_iter().zip(&fds).filter(|(_, fd)| is_ready(fd));
        Ok(ready.map(|(source, _)| source).collect())
    }

    /// Does what the application wants.
    fn serve(&mut self) -> io::Result<()> {
        while let Some(want) = self.app.poll_want() {
            match want {
                Want::Open { slot } => self.open(slot)?,
                Want::Close { slot } => self.slots[slot as usize] = None,
                Want::Fetch { slot, volume } => {
                    let connection = self.slots[slot as usize].as_mut();
                    let connection = connection.ok_or_else(|| io::Error::other("no connection"))?;
                    // It is small and first in the send buffer, so the kernel takes it all.
                    connection.stream.write_all(&request::written(volume))?;
                }
                Want::Ping { id } => self.ask(id)?,
                Want::Write { .. } | Want::Withdraw { .. } | Want::Datagram { .. } => {
                    return Err(io::Error::other("a client does not send like a server"));
                }
            }
        }
        Ok(())
    }

    fn open(&mut self, slot: u32) -> io::Result<()> {
        let socket = Socket::new(Domain::for_address(self.job.server), Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&self.job.server.into()) {
            Err(e) if e.raw_os_error() != Some(Errno::EINPROGRESS as i32) => return Err(e),
            _ => {}
        }
        self.opened += 1;
        let (stream, serial) = (socket.into(), self.opened);
        let slot = slot as usize;
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, || None);
        }
        self.slots[slot] =
            Some(Connection { stream, serial, is_open: false, received: Bytes::ZERO });
        Ok(())
    }

    fn handle_ready(&mut self, slot: u32, serial: u64) -> io::Result<()> {
        // An earlier event may have closed the connection and reopened its slot.
        let connection = self.slots[slot as usize].as_mut();
        let Some(connection) = connection.filter(|c| c.serial == serial) else { return Ok(()) };
        if !connection.is_open {
            if let Some(error) = connection.stream.take_error()? {
                return Err(error);
            }
            connection.is_open = true;
            self.app.handle_opened(self.clock.now(), slot);
            return self.serve();
        }
        match connection.stream.read(&mut self.buffer) {
            Ok(0) => return Err(io::Error::other("the server closed too early")),
            Ok(length) => connection.received += Bytes::new(length as u64),
            Err(e) if is_temporary(&e) => return Ok(()),
            Err(e) => return Err(e),
        }
        self.app.handle_received(self.clock.now(), slot, connection.received);
        self.serve()
    }

    fn ask(&mut self, id: u64) -> io::Result<()> {
        let socket = match &mut self.datagrams {
            Some(socket) => socket,
            none => {
                let socket = udp_socket(self.job.server)?;
                socket.set_nonblocking(true)?;
                none.insert(socket)
            }
        };
        let mut payload = [0; PING_PAYLOAD as usize];
        payload[..8].copy_from_slice(&id.to_be_bytes());
        socket.send(&payload).map(drop)
    }

    fn read_answers(&mut self) -> io::Result<()> {
        let Some(socket) = &self.datagrams else { return Ok(()) };
        let mut payload = [0; PING_PAYLOAD as usize];
        loop {
            match socket.recv(&mut payload) {
                Ok(length) if length == payload.len() => {
                    let mut id = [0; 8];
                    id.copy_from_slice(&payload[..8]);
                    self.app.handle_pong(self.clock.now(), u64::from_be_bytes(id));
                }
                Ok(_) => {}
                Err(e) if is_temporary(&e) => return self.serve(),
                Err(e) => return Err(e),
            }
        }
    }
}

/// A socket that is ready.
#[derive(Clone, Copy)]
enum Ready {
    Answers,
    Connection { slot: u32, serial: u64 },
}

/// Maximum wait, even if the next deadline is later.
const WAIT_MAX: Span = Span::secs(1);

fn is_temporary(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use fairweir_scenario::Scenario;

    use super::super::super::serve;
    use super::*;

    #[test]
    fn downloads_are_as_many_and_as_large_as_the_application_says_on_as_many_connections() {
        let text = "version = 1\nname = \"x\"\nduration = \"1s\"\n[link]\nrate = \"9mbit\"\n\
                    [[group]]\nname = \"a\"\nweight = 1\n[[flow]]\ngroup = \"a\"\n\
                    kind = \"short\"\nrate_per_s = 200\nsize = \"30kB\"\nsigma = 1\nstop = \"0.6s\"";
        let flow = Scenario::parse(text, "x").unwrap().flows.remove(0);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let job = Job::new(&flow, listener.local_addr().unwrap(), 1_500, 1);
        let clock = Clock::starting_in(Span::ZERO);
        let of_server = job.clone();
        // The server runs until the test's process ends.
        thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                let job = of_server.clone();
                thread::spawn(move || serve::respond(stream, &job, clock));
            }
        });
        let Outcome::Short(played) = Driver::new(&job, clock).play().unwrap() else { panic!() };
        // The same downloads, each finished at once.
        let mut app = job.app();
        app.handle_start(Time::ZERO);
        let (mut arrived, mut volume) = (0, Bytes::ZERO);
        while let Some(due) = app.next_timeout().filter(|&due| due < job.stop()) {
            app.handle_timeout(due);
            while let Some(want) = app.poll_want() {
                match want {
                    Want::Open { slot } => app.handle_opened(due, slot),
                    Want::Fetch { slot, volume: Some(size) } => {
                        (arrived, volume) = (arrived + 1, volume + size);
                        app.handle_received(due, slot, size);
                    }
                    _ => {}
                }
            }
        }
        let complete = played.completions.len() as u64;
        assert_eq!(complete + played.unfinished, arrived, "{played:?}");
        assert!(arrived > 80 && played.unfinished < 20, "{played:?}");
        assert!(played.volume <= volume && played.volume > Bytes::ZERO, "{played:?} {volume}");
        assert!(played.unfinished > 0 || played.volume == volume, "{played:?} {volume}");
    }
}
