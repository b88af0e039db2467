//! A network between a server and PostgreSQL that the test can cut.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Forwards connections to a Unix socket, and stops while it is cut, like a partitioned network. Data sent in
/// the meantime arrive when the network is restored.
pub(super) struct Relay {
    pub(super) address: SocketAddr,
    state: Arc<RelayState>,
}

#[derive(Default)]
struct RelayState {
    is_cut: AtomicBool,
    has_ended: AtomicBool,
}

impl Relay {
    pub(super) fn start(to: PathBuf) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let state: Arc<RelayState> = Arc::default();
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming() {
                if shared.has_ended.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(client), Ok(server)) = (client, UnixStream::connect(&to)) else { continue };
                let (Ok(up), Ok(down)) = (client.try_clone(), server.try_clone()) else { continue };
                let [one, other] = [Arc::clone(&shared), Arc::clone(&shared)];
                thread::spawn(move || {
                    forward(&client, &server, &one);
                    let _ = server.shutdown(Shutdown::Both);
                });
                thread::spawn(move || {
                    forward(&down, &up, &other);
                    let _ = up.shutdown(Shutdown::Both);
                });
            }
        });
        Relay { address, state }
    }

    pub(super) fn cut(&self, is_cut: bool) {
        self.state.is_cut.store(is_cut, Ordering::Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.cut(false);
        self.state.has_ended.store(true, Ordering::Relaxed);
        // Wakes the listening thread.
        let _ = TcpStream::connect(self.address);
    }
}

fn forward(mut from: impl Read, mut to: impl Write, state: &RelayState) {
    let mut bytes = [0; 16 << 10];
    loop {
        let read = from.read(&mut bytes);
        // The end of a connection is not forwarded either.
        while state.is_cut.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(1));
        }
        match read {
            Ok(1..) if to.write_all(&bytes[..read.unwrap_or(0)]).is_ok() => {}
            _ => return,
        }
    }
}
