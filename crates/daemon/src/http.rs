//! Metrics over HTTP, on a loopback address or a Unix socket. It implements only as much of HTTP as
//! Prometheus or a reverse proxy needs.
//!
//! Every local user can connect to a loopback address. So names of members (subscribers,
//! connections) are sent only over the Unix socket, which is open to one group.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use fairweir_core::units::{Span, Time};
use nix::unistd::Gid;

use crate::run_dir::OpenTo;
use crate::{Error, run_dir};

/// The most clients at a time; a further one replaces the oldest.
const CLIENTS_MAX: usize = 16;
/// The longest request, in bytes.
const REQUEST_MAX: usize = 8 << 10;
/// How long a client may take for its request and for reading the reply.
const PATIENCE: Span = Span::secs(10);
/// The most members that a request may ask for.
const TOP_MAX: usize = 10_000;

/// A listener and its clients.
pub(crate) struct Http {
    listener: Listener,
    clients: Vec<Client>,
}

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

struct Client {
    stream: Stream,
    since: Time,
    input: Vec<u8>,
    output: Vec<u8>,
    is_answered: bool,
}

impl Http {
    /// Listens at a loopback address.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn bind(address: SocketAddr) -> Result<Http, Error> {
        let bind = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true).map(|()| listener)
        };
        let listener: io::Result<TcpListener> = bind();
        let listener = listener.map_err(|e| Error::io(format!("serve metrics at {address}"), e))?;
        Ok(Http { listener: Listener::Tcp(listener), clients: Vec::new() })
    }

    /// Listens at a Unix socket, for root and a group.
    ///
    /// # Errors
    /// If the kernel refuses, or others may write to its directory.
    pub(crate) fn bind_unix(path: &Path, group: Option<Gid>) -> Result<Http, Error> {
        let listener = run_dir::listen(path, OpenTo::group(group))?;
        Ok(Http { listener: Listener::Unix(listener, path.to_owned()), clients: Vec::new() })
    }

    /// The descriptors to wait for, until readable or (true) writable.
    pub(crate) fn waits_for(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        let clients = self.clients.iter().map(|c| (c.stream.as_fd(), c.is_answered));
        clients.chain([(self.listener.as_fd(), false)])
    }

    /// Answers the requests that have arrived; `metrics` makes the text with a number of members.
    pub(crate) fn serve(
        &mut self,
        now: Time,
        mut metrics: impl FnMut(usize) -> Result<String, String>,
    ) {
        while let Ok(stream) = self.listener.accept() {
            if self.clients.len() == CLIENTS_MAX {
                self.clients.remove(0);
            }
            let (input, output) = (Vec::new(), Vec::new());
            self.clients.push(Client { stream, since: now, input, output, is_answered: false });
        }
        let top_max = match self.listener {
            Listener::Tcp(_) => 0,
            Listener::Unix(..) => TOP_MAX,
        };
        self.clients.retain_mut(|client| client.serve(now, top_max, &mut metrics).unwrap_or(false));
    }
}

impl Listener {
    fn accept(&self) -> io::Result<Stream> {
        match self {
            Listener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true).map(|()| Stream::Tcp(stream))
            }
            Listener::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(true).map(|()| Stream::Unix(stream))
            }
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener, _) => listener.as_fd(),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Listener::Unix(_, path) = self {
            let _ = fs::remove_file(path);
        }
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Stream::Tcp(stream) => stream.as_fd(),
            Stream::Unix(stream) => stream.as_fd(),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Client {
    /// Serves a client; returns whether it is to be kept.
    fn serve(
        &mut self,
        now: Time,
        top_max: usize,
        metrics: &mut impl FnMut(usize) -> Result<String, String>,
    ) -> io::Result<bool> {
        if now.since(self.since) > PATIENCE {
            return Ok(false);
        }
        let mut buffer = [0; 1024];
        while !self.is_answered {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(false),
                Ok(n) => self.input.extend_from_slice(&buffer[..n]),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(e) => return Err(e),
            }
            if self.input.len() > REQUEST_MAX {
                return Ok(false);
            }
            if self.input.windows(4).any(|end| end == b"\r\n\r\n") {
                self.output = answer(&self.input, top_max, metrics).into_bytes();
                self.is_answered = true;
            }
        }
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(n) => drop(self.output.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(e) => return Err(e),
            }
        }
        Ok(false)
    }
}

fn answer(
    request: &[u8],
    top_max: usize,
    metrics: &mut impl FnMut(usize) -> Result<String, String>,
) -> String {
    let line = request.split(|&b| b == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, target) = (words.next(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let top = query.split('&').find_map(|pair| pair.strip_prefix("top="));
    let (status, body) = match (method, path, top.map_or(Ok(0), str::parse::<usize>)) {
        (Some("GET"), "/metrics", Ok(1..)) if top_max == 0 => {
            ("403 Forbidden", "top=N is served over the Unix socket only\n".to_owned())
        }
        (Some("GET"), "/metrics", Ok(top)) => match metrics(top.min(top_max)) {
            Ok(text) => ("200 OK", text),
            Err(e) => ("503 Service Unavailable", format!("{e}\n")),
        },
        (Some("GET"), "/metrics", Err(_)) => {
            ("400 Bad Request", "top is not a number\n".to_owned())
        }
        (Some("GET"), ..) => ("404 Not Found", "only /metrics and /metrics?top=N\n".to_owned()),
        _ => ("405 Method Not Allowed", "only GET\n".to_owned()),
    };
    let kind = match status {
        "200 OK" => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        _ => "text/plain; charset=utf-8",
    };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_gets_metrics_and_others_an_error() {
        let mut metrics = |top: usize| Ok(format!("up {top}\n"));
        let mut ask = |line: &str, top_max: usize| {
            answer(format!("{line}\r\n\r\n").as_bytes(), top_max, &mut metrics)
        };
        let good = ask("GET /metrics?top=3 HTTP/1.1\r\nHost: x", TOP_MAX);
        assert!(good.starts_with("HTTP/1.1 200 OK\r\n") && good.ends_with("\r\n\r\nup 3\n"));
        assert!(good.contains("Content-Length: 5\r\n"));
        assert!(ask("GET /metrics HTTP/1.1", 0).ends_with("up 0\n"));
        assert!(ask("GET /metrics?top=1 HTTP/1.1", 0).starts_with("HTTP/1.1 403"));
        assert!(ask("GET /metrics?top=all HTTP/1.1", 0).starts_with("HTTP/1.1 400"));
        assert!(ask("GET / HTTP/1.1", 0).starts_with("HTTP/1.1 404"));
        assert!(ask("POST /metrics HTTP/1.1", 0).starts_with("HTTP/1.1 405"));
        assert!(ask("", 0).starts_with("HTTP/1.1 405"));
    }

    #[test]
    fn a_unix_socket_serves_names_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run/metrics/isp.sock");
        let mut http = Http::bind_unix(&path, None).unwrap();
        let mut stream = UnixStream::connect(&path).unwrap();
        stream.write_all(b"GET /metrics?top=2 HTTP/1.1\r\n\r\n").unwrap();
        http.serve(Time::ZERO, |top| Ok(format!("up {top}\n")));
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("\r\n\r\nup 2\n"), "{text}");
        drop(http);
        assert!(!path.exists());
    }
}
