//! Handles requests of RADIUS servers to change or end sessions. See `fairweir_core::radius::coa`.
//!
//! A request is acknowledged once its effect is in the journal and in the kernel. A plan that it sets ends with the
//! session, like one that a command sets: access servers that do not know of it continue to report the previous plan.

use fairweir_config::isp::CoaSection;
use fairweir_core::radius::claims::Source;
use fairweir_core::radius::coa::{Answers, Ask, Cause, Named, Outcome, Request};
use fairweir_core::radius::{Session, Sessions};
use fairweir_core::units::Time;
use fairweir_daemon::unix_now;

use super::nas::NasTable;
use super::port::{Kind, Port, result_of};
use super::{Known, without};
use crate::isp::registry::{Change, Origin, Registry};
use crate::isp::sessions::Subscribers;
use crate::isp::wire::CoaStatus;
use crate::words::chained;

/// The port and its settings; see the module.
pub(super) struct Coa {
    pub(super) section: CoaSection,
    port: Port,
    answers: Answers,
}

const KIND: Kind = Kind {
    table: "coa",
    packet: "CoA or Disconnect request",
    results: &[
        "changed",
        "disconnected",
        "repeated",
        "refused",
        "not_found",
        "multiple",
        "failed",
        "foreign",
        "oversized",
        "malformed",
        "forged",
        "untimely",
    ],
};

impl Coa {
    /// Starts to listen.
    ///
    /// # Errors
    /// If the address is not of this host, or in use.
    pub(super) fn bind(section: CoaSection) -> anyhow::Result<Coa> {
        let port = Port::bind(KIND, &section.endpoint)?;
        Ok(Coa { section, port, answers: Answers::since(unix_now()) })
    }

    pub(super) fn port(&self) -> &Port {
        &self.port
    }

    /// Handles the waiting requests.
    pub(super) fn handle_ready(
        &mut self,
        daemon: &mut impl Subscribers,
        sessions: &mut Sessions,
        (plan_by, nas): (&[Source], &mut NasTable),
        now: Time,
    ) {
        let Coa { section, port, answers } = self;
        let secret = section.endpoint.secret.as_bytes();
        port.receive(&section.endpoint, now, |port, bytes, from| {
            let now_s = unix_now();
            let judged = Request::read(bytes, secret).and_then(|request| {
                let before = answers.judge(&request, from, now, now_s)?;
                Ok((request, before))
            });
            let (request, before) = match judged {
                Ok(judged) => judged,
                Err(e) => return port.count(result_of(e), from, &e.to_string(), now),
            };
            let (outcome, why) = match before {
                Some(outcome) => (outcome, String::new()),
                None => {
                    let rules = (section.strict, plan_by);
                    let done = apply(&request, rules, daemon, sessions, now_s);
                    let outcome = done.as_ref().map(|_| ()).map_err(|(cause, _)| *cause);
                    if let Ok(Some(of)) = &done {
                        nas.count_request(&of.nas, result(request.ask, outcome));
                    }
                    answers.settle(&request, from, outcome, now);
                    (
                        outcome,
                        done.err().map(|(cause, why)| format!("{cause}{why}")).unwrap_or_default(),
                    )
                }
            };
            let result = before.map_or_else(|| result(request.ask, outcome), |_| "repeated");
            port.answer(&request.answer(outcome, secret), from);
            port.count(result, from, &why, now);
        });
    }

    pub(super) fn status(&self) -> CoaStatus {
        CoaStatus {
            listen: self.section.endpoint.listen.to_string(),
            packets: self.port.packets(),
            dropped_packets: self.port.dropped(),
        }
    }
}

fn result(ask: Ask, outcome: Outcome) -> &'static str {
    match outcome {
        Ok(()) if ask == Ask::Change => "changed",
        Ok(()) => "disconnected",
        Err(Cause::NotFound) => "not_found",
        Err(Cause::Multiple) => "multiple",
        Err(Cause::Resources) => "failed",
        Err(
            Cause::UnsupportedAttribute
            | Cause::MissingAttribute
            | Cause::InvalidRequest
            | Cause::UnsupportedService
            | Cause::InvalidValue,
        ) => "refused",
    }
}

/// Carries out a request; returns a session of the user. An error has the cause for the reply, and words for the log.
fn apply(
    request: &Request,
    (strict, plan_by): (bool, &[Source]),
    daemon: &mut impl Subscribers,
    sessions: &mut Sessions,
    now_s: u64,
) -> Result<Option<Session>, (Cause, String)> {
    let plain = |cause| (cause, String::new());
    request.check(strict).map_err(plain)?;
    let user = find(&request.named, daemon.registry(), sessions).map_err(|cause| {
        let Named { user, number, .. } = &request.named;
        let named = [user, number].into_iter().flatten().map(|text| format!(" {text}"));
        (cause, format!(":{}", named.collect::<String>()))
    })?;
    let mut over = None;
    let record = daemon.registry().subscribers().get(user.as_str());
    let of = record.and_then(|record| record.session().cloned());
    let change = match request.ask {
        Ask::Disconnect => {
            let registry = daemon.registry();
            over = one_session(&request.named, &user, registry, sessions).map_err(plain)?;
            without(registry, sessions, &user, |session| Some(session) == over.as_ref())
        }
        Ask::Change => {
            let plan = request.plan(plan_by, &Known(daemon.registry()));
            let plan = plan.map_err(|(cause, why)| (cause, format!(": {why}")))?;
            Change::Alter { name: user.clone(), addresses: None, plan }
        }
    };
    let done = daemon.change_sessions(&[change]);
    let done = done.map_err(|e| (Cause::Resources, format!(": {}", chained(&e))))?;
    if let Some(e) = done.into_iter().find_map(Result::err) {
        return Err((Cause::InvalidValue, format!(": {e}")));
    }
    if let Some(over) = over {
        sessions.end(&user, &over, request.time_s(now_s));
    }
    Ok(of)
}

/// The session of a user that is meant; `None` if no packet has reported it.
fn one_session(
    named: &Named,
    user: &str,
    registry: &Registry,
    sessions: &Sessions,
) -> Result<Option<Session>, Cause> {
    let Named { addresses, .. } = named;
    let has = registry.subscribers().get(user).map_or(&[][..], |record| &*record.addresses);
    let is_alone = sessions.of(user).nth(1).is_none();
    let is_meant = |session: &&Session| {
        let of = sessions.addresses_of(user, session, has);
        is_named(named, session) && (is_alone || addresses.iter().all(|a| of.contains(a)))
    };
    let mut meant = sessions.of(user).filter(is_meant);
    match (meant.next(), meant.next()) {
        (_, Some(_)) => Err(Cause::Multiple),
        (None, None) if !is_alone => Err(Cause::NotFound),
        (one, None) => Ok(one.cloned()),
    }
}

/// Whether the number and the access server in a request match those of a session.
fn is_named(named: &Named, session: &Session) -> bool {
    named.number.as_ref().is_none_or(|number| session.number == *number)
        && named.nas.as_ref().is_none_or(|nas| session.nas.is(nas))
}

/// The user whose session is meant. The cost depends only on the number of sessions with the same session number.
fn find(named: &Named, registry: &Registry, sessions: &Sessions) -> Result<String, Cause> {
    let Named { user, number, addresses, .. } = named;
    let is_meant = |one: &&str| {
        let record = registry.subscribers().get(*one);
        let is_any = named.number.is_none() && named.nas.is_none();
        record.is_some_and(|record| {
            record.origin == Origin::Radius
                && addresses.iter().all(|a| record.addresses.contains(a))
        }) && user.as_ref().is_none_or(|user| user == one)
            && (is_any || sessions.of(one).any(|session| is_named(named, session)))
    };
    let one = match (user, addresses.first()) {
        (Some(user), _) => Some(user.as_str()),
        (None, Some(address)) => registry.owner_of(*address).map(|owner| &**owner),
        (None, None) => {
            let number = number.as_deref().unwrap_or_default();
            let mut meant = sessions.users_of(number).map(String::as_str).filter(is_meant);
            let first = meant.next();
            if meant.next().is_some() {
                return Err(Cause::Multiple);
            }
            first
        }
    };
    one.filter(is_meant).map(str::to_owned).ok_or(Cause::NotFound)
}
