//! Metrics by HTTP on a loopback address: enough of it for Prometheus, never waiting for anybody.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use anyhow::Context;

/// The most clients at a time; for one more the oldest goes.
const CLIENTS_MAX: usize = 16;
/// The longest request.
const REQUEST_MAX: usize = 8 << 10;
/// Whoever takes longer is not heard further.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most subscribers that may be asked for.
const TOP_MAX: usize = 10_000;

/// A listener and who asks there.
pub(super) struct Http {
    listener: TcpListener,
    clients: Vec<Client>,
}

struct Client {
    stream: TcpStream,
    since: Instant,
    input: Vec<u8>,
    output: Vec<u8>,
    is_answered: bool,
}

impl Http {
    /// Listens at `address`.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(super) fn bind(address: SocketAddr) -> anyhow::Result<Http> {
        let bind = || {
            let listener = TcpListener::bind(address)?;
            listener.set_nonblocking(true).map(|()| listener)
        };
        let listener: io::Result<TcpListener> = bind();
        let listener = listener.with_context(|| format!("cannot serve metrics at {address}"))?;
        Ok(Http { listener, clients: Vec::new() })
    }

    /// What to wait for, to read or (true) to write.
    pub(super) fn waits_for(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        let clients = self.clients.iter().map(|c| (c.stream.as_fd(), c.is_answered));
        clients.chain([(self.listener.as_fd(), false)])
    }

    /// Answers whoever asks; `metrics` makes the text, with so many subscribers.
    pub(super) fn serve(&mut self, mut metrics: impl FnMut(usize) -> Result<String, String>) {
        while let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            if self.clients.len() == CLIENTS_MAX {
                self.clients.remove(0);
            }
            let (input, output) = (Vec::new(), Vec::new());
            let since = Instant::now();
            self.clients.push(Client { stream, since, input, output, is_answered: false });
        }
        self.clients.retain_mut(|client| client.serve(&mut metrics).unwrap_or(false));
    }
}

impl Client {
    /// Whether it is to be served further.
    fn serve(
        &mut self,
        metrics: &mut impl FnMut(usize) -> Result<String, String>,
    ) -> io::Result<bool> {
        if self.since.elapsed() > PATIENCE {
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
                self.output = answer(&self.input, metrics).into_bytes();
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

fn answer(request: &[u8], metrics: &mut impl FnMut(usize) -> Result<String, String>) -> String {
    let line = request.split(|&b| b == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let mut words = line.split(' ');
    let (method, target) = (words.next(), words.next().unwrap_or_default());
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let top = query.split('&').find_map(|pair| pair.strip_prefix("top="));
    let (status, body) = match (method, path, top.map_or(Ok(0), str::parse::<usize>)) {
        (Some("GET"), "/metrics", Ok(top)) => match metrics(top.min(TOP_MAX)) {
            Ok(text) => ("200 OK", text),
            Err(e) => ("503 Service Unavailable", format!("{e}\n")),
        },
        (Some("GET"), "/metrics", Err(_)) => {
            ("400 Bad Request", "top is a number of subscribers\n".to_owned())
        }
        (Some("GET"), ..) => ("404 Not Found", "only /metrics and /metrics?top=N\n".to_owned()),
        _ => ("405 Method Not Allowed", "only GET\n".to_owned()),
    };
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prometheus_gets_metrics_and_others_an_error() {
        let mut metrics = |top: usize| Ok(format!("up {top}\n"));
        let mut ask = |line: &str| answer(format!("{line}\r\n\r\n").as_bytes(), &mut metrics);
        let good = ask("GET /metrics?top=3 HTTP/1.1\r\nHost: x");
        assert!(good.starts_with("HTTP/1.1 200 OK\r\n") && good.ends_with("\r\n\r\nup 3\n"));
        assert!(good.contains("Content-Length: 5\r\n"));
        assert!(ask("GET /metrics HTTP/1.1").ends_with("up 0\n"));
        assert!(ask("GET /metrics?top=all HTTP/1.1").starts_with("HTTP/1.1 400"));
        assert!(ask("GET / HTTP/1.1").starts_with("HTTP/1.1 404"));
        assert!(ask("POST /metrics HTTP/1.1").starts_with("HTTP/1.1 405"));
        assert!(ask("").starts_with("HTTP/1.1 405"));
    }
}
