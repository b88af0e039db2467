//! One direction of a connection: moves bytes from one socket to another through a kernel pipe.
//!
//! A pipe is borrowed for each move and returned when it is empty, so an idle connection has no pipe.
//! Bytes that the sink does not take stay in the pipe, and nothing more is read until they are gone.

use std::io::{self, PipeReader, PipeWriter};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SpliceFFlags, fcntl, splice};

/// Pool of empty pipes.
#[derive(Debug, Default)]
pub(crate) struct Pipes {
    empty: Vec<Pipe>,
    /// Number of existing pipes, including borrowed ones.
    pub(crate) number: usize,
}

#[derive(Debug)]
struct Pipe {
    reader: PipeReader,
    writer: PipeWriter,
}

/// One direction of a connection; see the module.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    /// The borrowed pipe and the number of bytes in it.
    parked: Option<(Pipe, usize)>,
    /// The source may be readable. Events are edge-triggered: this stays true until a read would block.
    pub(crate) can_read: bool,
    /// The sink may be writable; cleared likewise when a write would block.
    pub(crate) can_write: bool,
    /// The source has reached its end of stream.
    has_ended: bool,
    /// The end of stream has been passed on to the sink.
    is_done: bool,
}

impl Lane {
    /// A lane between two sockets whose readiness is not yet known.
    pub(crate) fn new() -> Lane {
        Lane { can_write: true, ..Lane::default() }
    }

    /// Whether a pull may move something.
    pub(crate) fn is_ready(&self) -> bool {
        self.can_read && self.can_write && self.parked.is_none() && !self.has_ended
    }

    /// Whether all bytes and the end of stream have been passed on to the sink.
    pub(crate) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Moves the parked bytes if the sink takes them.
    ///
    /// # Errors
    /// If the sink is broken.
    pub(crate) fn flush(&mut self, to: &TcpStream, pipes: &mut Pipes) -> io::Result<()> {
        if let Some((pipe, parked)) = self.parked.take_if(|_| self.can_write) {
            self.push(pipe, parked, to, pipes)?;
        }
        self.pass_end(to)
    }

    /// Moves at most `max` bytes; returns how many were taken from the source.
    ///
    /// # Errors
    /// If one of the sockets is broken.
    pub(crate) fn pull(
        &mut self,
        from: &TcpStream,
        to: &TcpStream,
        max: usize,
        pipes: &mut Pipes,
    ) -> io::Result<usize> {
        let pipe = pipes.take()?;
        match splice(from.as_fd(), None, pipe.writer.as_fd(), None, max, FLAGS) {
            Ok(0) => {
                pipes.empty.push(pipe);
                self.has_ended = true;
                self.pass_end(to)?;
                Ok(0)
            }
            Ok(taken) => {
                self.push(pipe, taken, to, pipes)?;
                Ok(taken)
            }
            Err(Errno::EAGAIN) => {
                pipes.empty.push(pipe);
                self.can_read = false;
                Ok(0)
            }
            Err(e) => {
                pipes.empty.push(pipe);
                Err(e.into())
            }
        }
    }

    fn push(
        &mut self,
        pipe: Pipe,
        mut parked: usize,
        to: &TcpStream,
        pipes: &mut Pipes,
    ) -> io::Result<()> {
        while parked > 0 {
            match splice(pipe.reader.as_fd(), None, to.as_fd(), None, parked, FLAGS) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(moved) => parked -= moved,
                Err(Errno::EAGAIN) => {
                    self.can_write = false;
                    self.parked = Some((pipe, parked));
                    return Ok(());
                }
                Err(e) => {
                    pipes.number -= 1;
                    return Err(e.into());
                }
            }
        }
        pipes.empty.push(pipe);
        Ok(())
    }

    fn pass_end(&mut self, to: &TcpStream) -> io::Result<()> {
        if self.has_ended && self.parked.is_none() && !self.is_done {
            self.is_done = true;
            to.shutdown(Shutdown::Write)?;
        }
        Ok(())
    }

    /// Discards the parked bytes.
    pub(crate) fn close(&mut self, pipes: &mut Pipes) {
        pipes.number -= usize::from(self.parked.take().is_some());
    }
}

impl Pipes {
    fn take(&mut self) -> io::Result<Pipe> {
        if let Some(pipe) = self.empty.pop() {
            return Ok(pipe);
        }
        let (reader, writer) = io::pipe()?;
        // Each segment occupies a page whatever its size; with the default of 16 pages reads come up short.
        let _ = fcntl(&writer, FcntlArg::F_SETPIPE_SZ(PIPE_BYTES));
        self.number += 1;
        Ok(Pipe { reader, writer })
    }

    /// Closes the pipes that are not needed.
    pub(crate) fn shrink(&mut self) {
        self.number -= self.empty.len().saturating_sub(EMPTY_MAX);
        self.empty.truncate(EMPTY_MAX);
    }
}

/// 64 segments of a page each, which is more than a grant.
const PIPE_BYTES: i32 = 64 * 4_096;
const EMPTY_MAX: usize = 16;
const FLAGS: SpliceFFlags = SpliceFFlags::SPLICE_F_MOVE.union(SpliceFFlags::SPLICE_F_NONBLOCK);

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        far.set_nonblocking(true).unwrap();
        (near, far)
    }

    #[test]
    fn what_the_sink_does_not_take_waits_in_one_pipe_and_nothing_is_lost() {
        let ((mut source, from), (mut sink, to)) = (pair(), pair());
        let sent: Vec<u8> = (0..3_000_000_u32).map(|i| (i * 7 + i / 255) as u8).collect();
        let text = sent.clone();
        let writer = std::thread::spawn(move || source.write_all(&text).unwrap());
        let (mut lane, mut pipes) = (Lane::new(), Pipes::default());
        let (mut taken, mut received, mut buffer) = (0, Vec::new(), vec![0; 50_000]);
        while taken < sent.len() {
            lane.can_read = true;
            if lane.is_ready() {
                taken += lane.pull(&from, &to, 30_000, &mut pipes).unwrap();
            } else {
                // Only a full sink stops the lane.
                assert!(lane.parked.is_some() && !lane.can_write);
                let n = sink.read(&mut buffer).unwrap();
                received.extend_from_slice(&buffer[..n]);
                lane.can_write = true;
                lane.flush(&to, &mut pipes).unwrap();
            }
            assert_eq!(pipes.number, 1);
        }
        writer.join().unwrap();
        let rest = std::thread::spawn(move || {
            sink.read_to_end(&mut received).unwrap();
            received
        });
        // The source was closed: the end of stream is passed on after all bytes.
        while !lane.is_done() {
            (lane.can_read, lane.can_write) = (true, true);
            lane.flush(&to, &mut pipes).unwrap();
            if lane.is_ready() {
                assert_eq!(lane.pull(&from, &to, 30_000, &mut pipes).unwrap(), 0);
            }
        }
        assert!(rest.join().unwrap() == sent, "other bytes than were sent");
    }
}
