//! Accepts connections, and limits them so that no local user or web page can exhaust the process.
//!
//! Every user of this machine can connect, and so can every page that a browser here shows. There are
//! at most [`CONNECTIONS_MAX`] connections. A further one closes the oldest connection that has not
//! shown a session cookie, or the oldest of all if each has shown one. A connection that sends no whole
//! request ends after [`PATIENCE`]. Output is produced only as fast as the client reads it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tower_service::Service;

/// The most connections at a time.
const CONNECTIONS_MAX: usize = 64;

/// How long a client may take to send the head of a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// The largest head of a request, and the most output buffered for a slow reader, in bytes.
const BUFFER_MAX: usize = 16 << 10;

/// Set once a request on this connection carries a valid session cookie.
#[derive(Clone, Debug, Default)]
pub(super) struct IsSignedIn(Arc<AtomicBool>);

impl IsSignedIn {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

struct Connection {
    number: u64,
    is_signed_in: IsSignedIn,
    task: JoinHandle<()>,
}

/// Serves until the process ends.
pub(super) async fn serve(listener: TcpListener, router: Router) {
    let open = Arc::new(Mutex::new(VecDeque::<Connection>::new()));
    for number in 0.. {
        let stream = loop {
            match listener.accept().await {
                Ok((stream, _)) => break stream,
                // No file descriptor is free; retry after a pause.
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        };
        let removed = remove_one_if_full(&mut open.lock().unwrap_or_else(|e| e.into_inner()));
        if let Some(connection) = removed {
            connection.task.abort();
            // The connection is open until its task has ended.
            let _ = connection.task.await;
        }
        let is_signed_in = IsSignedIn::default();
        let mut all = open.lock().unwrap_or_else(|e| e.into_inner());
        let (router, mark, to_end) = (router.clone(), is_signed_in.clone(), Arc::clone(&open));
        let task = tokio::spawn(async move {
            let answer = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                let mut request = request.map(Body::new);
                request.extensions_mut().insert(mark.clone());
                router.clone().call(request)
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(PATIENCE).max_buf_size(BUFFER_MAX);
            // An error of the connection does not matter.
            let _ = builder.serve_connection(TokioIo::new(stream), answer).await;
            let mut all = to_end.lock().unwrap_or_else(|e| e.into_inner());
            all.retain(|c| c.number != number);
        });
        all.push_back(Connection { number, is_signed_in, task });
    }
}

/// If the table is full, removes a connection to make room for a new one.
fn remove_one_if_full(all: &mut VecDeque<Connection>) -> Option<Connection> {
    if all.len() < CONNECTIONS_MAX {
        return None;
    }
    let i = all.iter().position(|c| !c.is_signed_in.is_set()).unwrap_or(0);
    all.remove(i)
}
