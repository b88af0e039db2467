//! The handlers. All require a session, except `/enter` and the assets.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{DefaultBodyLimit, Form, FromRequestParts, Query, State as FromState};
use axum::http::StatusCode;
use axum::http::header::{self, HeaderMap};
use axum::http::request::Parts;
use axum::middleware::from_fn_with_state;
use axum::response::sse::{Event, Sse};
use axum::response::{Html, IntoResponse, Redirect, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use fairweir_config::host::set::Changes;
use fairweir_config::not_one_of;
use fairweir_daemon::{Access, Client};
use fairweir_linux::monotonic_now;
use futures_util::stream::{self, Stream};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use super::ask::PageStatus;
use super::connections::IsSignedIn;
use super::guard::{Hosts, guard};
use super::html::{self, Forms};
use super::past::{self, PastSpan, PastView, Recorded};
use super::sessions::{Sessions, SignedIn, Undo};
use super::shown::{DaemonView, View};
use super::view::Watcher;
use crate::host::cli::parse_days;
use crate::host::wire::{Changed, HostRequest, TimedChange};
use crate::instance::PROXY;
use crate::isp;
use crate::page::history::record::History;
use crate::page::history::suggest::Suggested;
use crate::page::history::{self, Points};

/// The longest body of a request, in bytes.
const BODY_MAX: usize = 4 << 10;

/// How often browsers receive a new view.
const PERIOD: Duration = Duration::from_secs(1);

/// How long to wait for a daemon to apply a change; a daemon takes a few ticks.
const PATIENCE: Duration = Duration::from_secs(5);

/// The state that all handlers share.
pub(super) struct State {
    hosts: Hosts,
    url: String,
    run_dir: PathBuf,
    is_read_only: bool,
    sessions: Sessions,
    watcher: Watcher,
    history: Option<History>,
}

type Shared = FromState<Arc<State>>;

impl State {
    pub(super) fn new(
        run_dir: &Path,
        address: SocketAddr,
        is_read_only: bool,
        history: Option<History>,
    ) -> State {
        State {
            hosts: Hosts::of(address),
            url: format!("http://{address}/"),
            run_dir: run_dir.to_owned(),
            is_read_only,
            sessions: Sessions::default(),
            watcher: Watcher::new(run_dir),
            history,
        }
    }

    pub(super) fn status(&self) -> PageStatus {
        PageStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            url: self.url.clone(),
            read_only: self.is_read_only,
            records: self.history.is_some(),
        }
    }

    /// The points of a part of the history.
    ///
    /// # Errors
    /// The reason why there are none.
    pub(super) async fn history(&self, query: history::Query) -> Result<Points, String> {
        self.read_history(move |history| history.points(&query)).await
    }

    /// The weights that would have helped in the last hour.
    ///
    /// # Errors
    /// The reason why they are not known.
    pub(super) async fn suggestions(&self) -> Result<Vec<Suggested>, String> {
        self.read_history(|history| history.suggest()).await
    }

    /// What groups received in the last `span`, by daemon, or the reason why it is not known.
    async fn past(
        &self,
        view: &View,
        span: &'static PastSpan,
    ) -> Result<BTreeMap<String, PastView>, String> {
        let query = history::Query::last(span.span_s, span.step_s, fairweir_daemon::unix_now());
        let (from, to) = (query.from, query.to);
        let all = self.read_history(move |history| {
            let (mut all, mut query) = (Vec::new(), query);
            loop {
                // Reads in pieces, so that recording does not wait while a whole month is read.
                let Points { points, next, .. } = history.points(&query)?;
                all.extend(points);
                match next.filter(|&next| next > query.from) {
                    Some(next) => query.from = next,
                    None => return Ok(all),
                }
            }
        });
        let points = all.await?;
        let of = |daemon: &DaemonView| {
            (daemon.name.clone(), past::past_view(daemon, span, from, to, &points))
        };
        let is_recorded = |daemon: &&DaemonView| daemon.link.is_some() || daemon.name == PROXY;
        Ok(view.daemons.iter().filter(is_recorded).map(of).collect())
    }

    /// What a document shows about the history.
    async fn recorded(&self, view: &View, span: Option<&'static PastSpan>) -> Recorded {
        let Some(history) = &self.history else { return Recorded::default() };
        let mut recorded = Recorded { is_on: true, ..Recorded::default() };
        match self.suggestions().await {
            Ok(suggestions) => recorded.suggestions = suggestions,
            Err(why) => recorded.fault = Some(why),
        }
        if let Some(span) = span
            && let Ok(past) = self.past(view, span).await
        {
            recorded.past = Some((span, past));
        }
        recorded.fault = recorded.fault.or_else(|| history.fault());
        recorded
    }

    async fn read_history<T: Send + 'static>(
        &self,
        read: impl FnOnce(&History) -> Result<T, String> + Send + 'static,
    ) -> Result<T, String> {
        let Some(history) = self.history.clone() else {
            return Err("this page records no history".to_owned());
        };
        spawn_blocking(move || read(&history)).await.unwrap_or_else(|e| Err(e.to_string()))
    }

    /// A new link that signs one browser in.
    pub(super) fn new_link(&self) -> String {
        let code = self.sessions.new_code(monotonic_now());
        format!("{}/enter?code={}", self.hosts.origin(), code.as_str())
    }
}

#[cfg(any(test, fuzzing))]
impl State {
    /// Signs a browser in; returns its cookie and the token of its forms.
    pub(super) fn sign_in(&self) -> (String, String) {
        let now = monotonic_now();
        let cookie = self.sessions.enter(self.sessions.new_code(now).as_str(), now);
        let cookie = cookie.unwrap_or_default();
        let cookie = cookie.split(';').next().unwrap_or_default().to_owned();
        let signed_in = self.sessions.find(&cookie, now);
        (cookie, signed_in.map(|who| who.csrf.as_str().to_owned()).unwrap_or_default())
    }
}

pub(super) fn router(state: Arc<State>) -> Router {
    let hosts = state.hosts.clone();
    Router::new()
        .route("/", get(document))
        .route("/enter", get(enter))
        .route("/events", get(events))
        .route("/history", get(history))
        .route("/status", get(status))
        .route("/subscribers", get(subscribers))
        .route("/set", post(set))
        .route("/timed", post(timed))
        .route("/undo", post(undo))
        .route("/assets/{name}", get(asset))
        .with_state(state)
        .layer(DefaultBodyLimit::max(BODY_MAX))
        .layer(from_fn_with_state(hosts, guard))
}

impl FromRequestParts<Arc<State>> for SignedIn {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &Arc<State>) -> Result<Self, Response> {
        let cookies = parts.headers.get(header::COOKIE).and_then(|value| value.to_str().ok());
        let found = cookies.and_then(|cookies| state.sessions.find(cookies, monotonic_now()));
        let Some(signed_in) = found else {
            let text = "You are not signed in. Run `fairweir page --open` and open the link that it \
                        prints.";
            let page = Html(html::sentence(text, false));
            return Err((StatusCode::UNAUTHORIZED, page).into_response());
        };
        if let Some(mark) = parts.extensions.get::<IsSignedIn>() {
            mark.set();
        }
        Ok(signed_in)
    }
}

#[derive(Deserialize)]
struct Code {
    code: String,
}

async fn enter(FromState(state): Shared, Query(Code { code }): Query<Code>) -> Response {
    match state.sessions.enter(&code, monotonic_now()) {
        // Not a redirect: after a redirect from another site, browsers would not send the cookie.
        Some(cookie) => {
            let page = Html(html::sentence("You are signed in.", true));
            ([(header::SET_COOKIE, cookie)], page).into_response()
        }
        None => {
            let text = "This link was used already, or is too old. `fairweir page --open` prints a \
                        new one.";
            (StatusCode::FORBIDDEN, Html(html::sentence(text, false))).into_response()
        }
    }
}

#[derive(Deserialize)]
struct Span {
    span: Option<String>,
}

async fn document(
    FromState(state): Shared,
    who: SignedIn,
    Query(Span { span }): Query<Span>,
) -> Html<String> {
    let view = view(&state).await;
    let recorded = state.recorded(&view, past::span_of(span.as_deref())).await;
    Html(state.document(&view, &recorded, &who, None))
}

/// Handler for the history of all daemons.
async fn history(
    FromState(state): Shared,
    _: SignedIn,
    Query(Span { span }): Query<Span>,
) -> Response {
    let Some(span) = past::span_of(span.as_deref()) else {
        return (StatusCode::NOT_FOUND, "there is no such span\n").into_response();
    };
    let view = view(&state).await;
    match state.past(&view, span).await {
        Ok(past) => Json(past).into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
    }
}

#[derive(Deserialize)]
struct Find {
    find: String,
}

/// Handler for the search of subscribers of `fairweir isp`, by address or by the begin of their name.
async fn subscribers(
    FromState(state): Shared,
    _: SignedIn,
    Query(Find { find }): Query<Find>,
) -> Html<String> {
    let text = find.trim().to_owned();
    let asked = spawn_blocking(move || {
        let client = Client::connect(&state.run_dir, isp::NAME, Access::Read, PATIENCE);
        client.and_then(|mut client| isp::find(&mut client, &text))
    });
    let found = match asked.await {
        Ok(found) => found.map_err(|e| fairweir_config::one_line(&e.to_string())),
        Err(e) => Err(e.to_string()),
    };
    Html(html::subscribers(find.trim(), &found))
}

async fn status(FromState(state): Shared, _: SignedIn) -> Response {
    Json(&*view(&state).await).into_response()
}

/// Streams the view once a second. A slow browser receives fewer views.
async fn events(
    FromState(state): Shared,
    _: SignedIn,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let ticks = tokio::time::interval(PERIOD);
    Sse::new(stream::unfold((state, ticks), |(state, mut ticks)| async move {
        ticks.tick().await;
        let view = view(&state).await;
        let event = Event::default().json_data(&*view).unwrap_or_default();
        ticks.reset_after(PERIOD);
        Some((Ok(event), (state, ticks)))
    }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetForm {
    csrf: String,
    daemon: String,
    key: String,
    value: String,
}

async fn set(
    FromState(state): Shared,
    who: SignedIn,
    headers: HeaderMap,
    Form(form): Form<SetForm>,
) -> Response {
    let changed = async {
        state.may_change(&who, &form.csrf)?;
        let text = format!("{}={}", form.key, form.value.trim());
        let change = crate::host::set::change(&text).map_err(|e| refused(e.to_string()))?;
        state.change(&form.daemon, Changes::from([change])).await
    };
    let changed = changed.await.map(|changed| {
        let (daemon, message) = (form.daemon.clone(), changed.message.clone());
        let undo = Undo { daemon, message, changes: changed.undo };
        state.sessions.note(&who, undo, monotonic_now());
        changed.message
    });
    state.outcome(&who, &headers, changed).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TimedForm {
    csrf: String,
    daemon: String,
    group: String,
    change: String,
    span: String,
}

impl TimedForm {
    fn request(&self) -> Result<HostRequest, String> {
        let group = self.group.clone();
        let change = match self.change.as_str() {
            "boost" => TimedChange::Boost { weight: None },
            "pause" => TimedChange::Pause,
            "end" => return Ok(HostRequest::EndTimed { group }),
            other => return Err(not_one_of(other, &["boost", "pause", "end"])),
        };
        let span = parse_days(self.span.trim())?;
        Ok(HostRequest::Timed { group, change, for_s: span.as_secs_f64() as u64 })
    }
}

/// Boosts or pauses a group for a time, or ends a boost or pause.
async fn timed(
    FromState(state): Shared,
    who: SignedIn,
    headers: HeaderMap,
    Form(form): Form<TimedForm>,
) -> Response {
    let changed = async {
        state.may_change(&who, &form.csrf)?;
        let request = form.request().map_err(refused)?;
        state.ask(&form.daemon, move |client| client.tell(&request, &mut |_, _| ())).await
    };
    let changed = changed.await;
    state.outcome(&who, &headers, changed).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UndoForm {
    csrf: String,
}

async fn undo(
    FromState(state): Shared,
    who: SignedIn,
    headers: HeaderMap,
    Form(form): Form<UndoForm>,
) -> Response {
    let undone = async {
        state.may_change(&who, &form.csrf)?;
        let last = state.sessions.take_last_change(&who, monotonic_now());
        let last = last.ok_or_else(|| refused("there is nothing to undo".to_owned()))?;
        let changed = state.change(&last.daemon, last.changes.clone()).await;
        if changed.is_err() {
            state.sessions.note(&who, last.clone(), monotonic_now());
        }
        changed.map(|_| format!("undone: {}", last.message))
    };
    let undone = undone.await;
    state.outcome(&who, &headers, undone).await
}

/// The reply to a script that made a change.
#[derive(Serialize)]
struct Outcome {
    message: String,
    /// The change that can be undone next.
    undo: Option<String>,
}

type Refusal = (StatusCode, String);

fn refused(why: String) -> Refusal {
    (StatusCode::UNPROCESSABLE_ENTITY, why)
}

impl State {
    fn may_change(&self, who: &SignedIn, csrf: &str) -> Result<(), Refusal> {
        if self.is_read_only {
            return Err((StatusCode::FORBIDDEN, "this page only shows".to_owned()));
        }
        if !who.csrf.is(csrf) {
            let why = "the form is of another session; reload the page".to_owned();
            return Err((StatusCode::FORBIDDEN, why));
        }
        Ok(())
    }

    async fn change(self: &Arc<State>, daemon: &str, changes: Changes) -> Result<Changed, Refusal> {
        self.ask(daemon, |client| client.ask(&HostRequest::Set { changes })).await
    }

    /// Sends a request for a change to a daemon.
    async fn ask<T: Send + 'static>(
        self: &Arc<State>,
        daemon: &str,
        ask: impl FnOnce(&mut Client) -> Result<T, fairweir_daemon::Error> + Send + 'static,
    ) -> Result<T, Refusal> {
        // The client's name for a daemon is looked up in the list and never used as a path.
        let names = fairweir_daemon::instances(&self.run_dir).unwrap_or_default();
        let Some(name) = names.into_iter().find(|name| name == daemon) else {
            return Err(refused("no such daemon runs".to_owned()));
        };
        let state = Arc::clone(self);
        let changed = spawn_blocking(move || {
            let mut client = Client::connect(&state.run_dir, &name, Access::Change, PATIENCE)?;
            let changed = ask(&mut client);
            state.watcher.forget();
            changed
        });
        match changed.await {
            Ok(changed) => changed.map_err(|e| refused(fairweir_config::one_line(&e.to_string()))),
            Err(e) => Err((StatusCode::INTERNAL_SERVER_ERROR, e.to_string())),
        }
    }

    /// Replies with JSON to a script, and otherwise with the document and the message.
    async fn outcome(
        self: &Arc<State>,
        who: &SignedIn,
        headers: &HeaderMap,
        outcome: Result<String, Refusal>,
    ) -> Response {
        let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
        let is_script = accepts == Some("application/json");
        let (status, message) = match outcome {
            // A redirect, so that reloading the page does not send the form again.
            Ok(_) if !is_script => return Redirect::to("/").into_response(),
            Ok(message) => (StatusCode::OK, message),
            Err(refusal) => refusal,
        };
        if is_script {
            let undo = self.sessions.last_change(who, monotonic_now()).map(|undo| undo.message);
            return (status, Json(Outcome { message, undo })).into_response();
        }
        let view = view(self).await;
        let recorded = self.recorded(&view, None).await;
        (status, Html(self.document(&view, &recorded, who, Some(&message)))).into_response()
    }

    fn document(
        &self,
        view: &View,
        recorded: &Recorded,
        who: &SignedIn,
        message: Option<&str>,
    ) -> String {
        let undo = self.sessions.last_change(who, monotonic_now());
        let forms = Forms { csrf: who.csrf.as_str(), undo: undo.as_ref() };
        html::document(view, recorded, (!self.is_read_only).then_some(forms), message)
    }
}

async fn view(state: &Arc<State>) -> Arc<View> {
    let state = Arc::clone(state);
    spawn_blocking(move || state.watcher.view()).await.unwrap_or_default()
}

/// The name, type and contents of each file that the document loads.
const ASSETS: [(&str, &str, &str); 5] = [
    ("page.js", "text/javascript", include_str!("assets/page.js")),
    ("page.css", "text/css", include_str!("assets/page.css")),
    ("uplot.js", "text/javascript", include_str!("assets/uplot.js")),
    ("uplot.css", "text/css", include_str!("assets/uplot.css")),
    ("icon.svg", "image/svg+xml", include_str!("assets/icon.svg")),
];

async fn asset(axum::extract::Path(name): axum::extract::Path<String>) -> Response {
    match ASSETS.iter().find(|(known, ..)| *known == name) {
        Some(&(_, kind, contents)) => ([(header::CONTENT_TYPE, kind)], contents).into_response(),
        None => (StatusCode::NOT_FOUND, "there is no such file\n").into_response(),
    }
}
