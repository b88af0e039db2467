//! Properties of the page for arbitrary requests and arbitrary rows of the history. hyper parses
//! HTTP; here the router is given requests directly.

use std::cell::LazyCell;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::http::{Request, header};
use tokio::runtime::{Builder, Runtime};
use tower_service::Service;

use super::guard::HEADERS;
use super::history::store::fuzz::{self, NOW};
use super::past::{SPANS, past_view};
use super::routes::{State, router};
use super::shown::DaemonView;

thread_local! {
    static RUNTIME: LazyCell<Runtime> = LazyCell::new(|| {
        let built = Builder::new_current_thread().enable_all().max_blocking_threads(1).build();
        built.expect("the kernel gives an event loop")
    });
}

const ADDRESS: ([u8; 4], u16) = ([127, 0, 0, 1], 8070);
const MARK: &str = "<fuzz";

/// Rows of the history that [`fuzz::history`] makes from the bytes, and the view that the page makes of their points.
/// Property: each group has a rate for each time.
pub(crate) fn history(data: &[u8]) {
    fuzz::history(data, &|points| {
        for name in ["host-eth0", "router"] {
            let daemon = DaemonView { name: name.to_owned(), ..DaemonView::default() };
            let span = &SPANS[1];
            let past = past_view(&daemon, span, NOW - span.span_s, NOW, points);
            assert!(past.groups.iter().all(|group| group.rates_bps.len() == past.times_s.len()));
        }
    });
}

/// The bytes are requests, each followed by `---` on a line of its own: method and path, headers, an empty line, the
/// body. `{code}`, `{cookie}` and `{csrf}` stand for the secrets of this page. Properties: no server error; without the
/// cookie nothing is shown; from another site or without the token nothing changes.
pub(crate) fn requests(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let state = State::new(Path::new("/nonexistent"), SocketAddr::from(ADDRESS), false, None);
    let state = Arc::new(state);
    let code = state.new_link().rsplit('=').next().unwrap_or_default().to_owned();
    let (cookie, csrf) = state.sign_in();
    let secrets = [("{code}", code), ("{cookie}", cookie), ("{csrf}", csrf)];
    RUNTIME.with(|runtime| {
        for text in text.split("\n---\n").take(4) {
            runtime.block_on(request(&state, text, &secrets));
        }
    });
}

/// Placeholders, and the secrets that replace them.
type Secrets = [(&'static str, String); 3];

async fn request(state: &Arc<State>, text: &str, secrets: &Secrets) {
    let mut filled = text.to_owned();
    for (name, secret) in secrets {
        filled = filled.replace(name, secret);
    }
    let (head, body) = filled.split_once("\n\n").unwrap_or((&filled, ""));
    let mut lines = head.lines();
    let Some((method, uri)) = lines.next().and_then(|line| line.split_once(' ')) else { return };
    let mut builder = Request::builder().method(method).uri(uri);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        builder = builder.header(name, value.trim());
    }
    let Ok(request) = builder.body(Body::from(body.to_owned())) else { return };
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let has = |name| request.headers().contains_key(name);
    let (has_host, has_origin) = (has(header::HOST), has(header::ORIGIN));
    let has_cookie = request
        .headers()
        .get_all(header::COOKIE)
        .iter()
        .any(|value| value.to_str().is_ok_and(|value| value.contains(&secrets[1].1)));
    let has_token = body.contains(&secrets[2].1);
    let is_read = method == "GET" || method == "HEAD";

    let response = router(Arc::clone(state)).call(request).await;
    let response = response.unwrap_or_else(|never| match never {});
    let status = response.status().as_u16();
    // This test has no history.
    let is_missing = status == 503 && path == "/history";
    assert!(status < 500 || is_missing, "{status} to {text:?}");
    assert!(HEADERS.iter().all(|(name, _)| response.headers().contains_key(name)), "{text:?}");
    assert!(has_host || status == 421);
    let is_open = path == "/enter" || path.starts_with("/assets/");
    assert!(has_cookie || is_open || status >= 400, "{status} without a session: {text:?}");
    assert!(is_read || has_origin || status >= 400, "{status} without an origin: {text:?}");
    assert!(is_read || has_token || status >= 400, "{status} without the token: {text:?}");
    let kind = response.headers().get(header::CONTENT_TYPE).map(|kind| kind.as_bytes().to_vec());
    if kind.is_some_and(|kind| kind.starts_with(b"text/html")) {
        let html =
            to_bytes(response.into_body(), 1 << 20).await.expect("a document of 1 MiB at most");
        assert!(!String::from_utf8_lossy(&html).contains(MARK), "not escaped: {text:?}");
    }
}
