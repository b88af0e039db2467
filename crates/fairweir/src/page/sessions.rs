//! Who is signed in.
//!
//! The code in a link signs one browser in, once, within [`CODE_AGE_MAX`]. The browser then has a cookie with a random
//! token. Scripts cannot read the cookie, and other sites cannot make the browser send it. A request that changes
//! something must also contain the session's second token, which only a document of this page has. Tokens are kept only
//! in memory: a restart of the page ends all sessions.

use std::sync::{Mutex, MutexGuard};

use fairweir_config::host::set::Changes;
use fairweir_core::units::{Span, Time};

/// How long a link works.
const CODE_AGE_MAX: Span = Span::secs(300);
const CODES_MAX: usize = 16;

/// A session that is not used for this time ends.
const IDLE_MAX: Span = Span::secs(12 * 3_600);
const SESSIONS_MAX: usize = 32;

/// The most changes that can be undone. The last change is undone first.
const UNDO_MAX: usize = 32;

/// The name of the cookie.
const COOKIE: &str = "fairweir_page";

/// 256 random bits, in hexadecimal.
#[derive(Clone, Debug)]
pub(super) struct Token(String);

/// A change that was made, and how to undo it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Undo {
    /// The daemon's instance.
    pub(super) daemon: String,
    /// A description of the change, for people.
    pub(super) message: String,
    /// The changes that undo it.
    pub(super) changes: Changes,
}

/// All sessions and unused codes; see the module.
#[derive(Default)]
pub(super) struct Sessions(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    codes: Vec<(Token, Time)>,
    sessions: Vec<Session>,
}

struct Session {
    cookie: Token,
    csrf: Token,
    used_at: Time,
    undo: Vec<Undo>,
}

/// A signed-in browser, as passed to handlers.
#[derive(Clone, Debug)]
pub(super) struct SignedIn {
    cookie: Token,
    /// The token that forms of this session contain.
    pub(super) csrf: Token,
}

impl Token {
    fn random() -> Token {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).expect("invariant: Linux has getrandom(2)");
        Token(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares in constant time: the position of the first difference has no effect.
    pub(super) fn is(&self, text: &str) -> bool {
        let differences = self.0.bytes().zip(text.bytes()).fold(0, |all, (a, b)| all | (a ^ b));
        self.0.len() == text.len() && differences == 0
    }
}

impl Sessions {
    /// A new code that signs one browser in.
    pub(super) fn new_code(&self, now: Time) -> Token {
        let mut inner = self.lock(now);
        if inner.codes.len() == CODES_MAX {
            inner.codes.remove(0);
        }
        let code = Token::random();
        inner.codes.push((code.clone(), now));
        code
    }

    /// Signs a browser in if the code is valid; returns the value of `Set-Cookie`.
    pub(super) fn enter(&self, code: &str, now: Time) -> Option<String> {
        let mut inner = self.lock(now);
        let i = inner.codes.iter().position(|(known, _)| known.is(code))?;
        inner.codes.remove(i);
        if inner.sessions.len() == SESSIONS_MAX {
            // Sessions are in the order of their last use.
            inner.sessions.remove(0);
        }
        let (cookie, csrf) = (Token::random(), Token::random());
        let text = format!("{COOKIE}={}; Path=/; HttpOnly; SameSite=Strict", cookie.as_str());
        inner.sessions.push(Session { cookie, csrf, used_at: now, undo: Vec::new() });
        Some(text)
    }

    /// The session of a request with this `Cookie` header.
    pub(super) fn find(&self, cookies: &str, now: Time) -> Option<SignedIn> {
        let mut inner = self.lock(now);
        let mut texts = cookies.split(';').filter_map(|pair| pair.trim().split_once('='));
        let sessions = &mut inner.sessions;
        let i = texts.find_map(|(name, value)| {
            let is_it = |session: &Session| name == COOKIE && session.cookie.is(value);
            sessions.iter().position(is_it)
        })?;
        let mut session = sessions.remove(i);
        session.used_at = now;
        let signed_in = SignedIn { cookie: session.cookie.clone(), csrf: session.csrf.clone() };
        sessions.push(session);
        Some(signed_in)
    }

    /// Records a change that this session made, so that it can be undone.
    pub(super) fn note(&self, who: &SignedIn, undo: Undo, now: Time) {
        let mut inner = self.lock(now);
        let Some(session) = inner.session(who) else { return };
        if session.undo.len() == UNDO_MAX {
            session.undo.remove(0);
        }
        session.undo.push(undo);
    }

    /// The last change of this session that has not been undone.
    pub(super) fn last_change(&self, who: &SignedIn, now: Time) -> Option<Undo> {
        self.lock(now).session(who)?.undo.last().cloned()
    }

    /// Removes and returns the last change of this session that has not been undone.
    pub(super) fn take_last_change(&self, who: &SignedIn, now: Time) -> Option<Undo> {
        self.lock(now).session(who)?.undo.pop()
    }

    /// Locks the state, after removing expired codes and sessions.
    fn lock(&self, now: Time) -> MutexGuard<'_, Inner> {
        let mut inner = self.0.lock().unwrap_or_else(|e| e.into_inner());
        inner.codes.retain(|(_, made_at)| now.since(*made_at) < CODE_AGE_MAX);
        inner.sessions.retain(|session| now.since(session.used_at) < IDLE_MAX);
        inner
    }
}

impl Inner {
    fn session(&mut self, who: &SignedIn) -> Option<&mut Session> {
        self.sessions.iter_mut().find(|session| session.cookie.is(who.cookie.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::ZERO;

    fn cookie_of(set_cookie: &str) -> &str {
        set_cookie.split(';').next().unwrap()
    }

    #[test]
    fn a_code_signs_in_once_and_not_late() {
        let sessions = Sessions::default();
        let code = sessions.new_code(NOW);
        assert!(
            sessions.enter("", NOW).is_none() && sessions.enter(&"0".repeat(64), NOW).is_none()
        );
        let set_cookie = sessions.enter(code.as_str(), NOW).unwrap();
        assert!(set_cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict"), "{set_cookie}");
        assert!(sessions.enter(code.as_str(), NOW).is_none());
        let late = sessions.new_code(NOW);
        assert!(sessions.enter(late.as_str(), NOW + CODE_AGE_MAX).is_none());
    }

    #[test]
    fn only_the_whole_cookie_is_a_session_until_it_is_idle_too_long() {
        let sessions = Sessions::default();
        let set_cookie = sessions.enter(sessions.new_code(NOW).as_str(), NOW).unwrap();
        let cookie = cookie_of(&set_cookie);
        assert!(sessions.find(&format!("a=b; {cookie}"), NOW).is_some());
        for wrong in ["", "fairweir_page=", &cookie[..cookie.len() - 1], &format!("{cookie}0"), "x"]
        {
            assert!(sessions.find(wrong, NOW).is_none(), "{wrong}");
        }
        let almost = NOW + IDLE_MAX - Span::secs(1);
        assert!(sessions.find(cookie, almost).is_some());
        assert!(sessions.find(cookie, almost + Span::secs(2)).is_some(), "it was used");
        assert!(sessions.find(cookie, almost + Span::secs(2) + IDLE_MAX).is_none());
    }

    #[test]
    fn all_is_bounded_and_the_session_used_last_stays() {
        let sessions = Sessions::default();
        let enter = || sessions.enter(sessions.new_code(NOW).as_str(), NOW).unwrap();
        let (first, second) = (enter(), enter());
        for _ in 2..SESSIONS_MAX {
            enter();
        }
        let first = sessions.find(cookie_of(&first), NOW).unwrap();
        enter();
        assert!(sessions.find(cookie_of(&second), NOW).is_none());
        for i in 0..2 * UNDO_MAX {
            let (daemon, message) = (String::new(), i.to_string());
            sessions.note(&first, Undo { daemon, message, changes: Changes::new() }, NOW);
        }
        for i in (UNDO_MAX..2 * UNDO_MAX).rev() {
            assert_eq!(sessions.take_last_change(&first, NOW).unwrap().message, i.to_string());
        }
        assert!(sessions.last_change(&first, NOW).is_none());
        let codes: Vec<Token> = (0..=CODES_MAX).map(|_| sessions.new_code(NOW)).collect();
        assert!(sessions.enter(codes[0].as_str(), NOW).is_none());
    }
}
