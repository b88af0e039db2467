//! What a resolver knows of connections, kept for its successor: a restarted daemon did not hear how they began.

use serde::{Deserialize, Serialize};

use super::{Known, Resolver, browsed::Browsed};
use crate::host_name::HostName;
use crate::sites::{Attribution, Connection, Reason};

/// A decided connection; only `claimed` depends on the policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The connection.
    pub connection: Connection,
    /// The owner of its socket.
    pub user: Option<u32>,
    /// The source on the wire.
    pub reason: Reason,
    /// The host, if the wire names one.
    pub name: Option<HostName>,
    /// The group that the browser's extension names.
    pub claimed: Option<Claimed>,
}

/// The extension names a group of the policy, or no group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claimed {
    /// The group's index.
    pub group: Option<usize>,
}

impl Resolver {
    /// The last [`KEPT_MAX`] decided connections, in the order in which they opened.
    pub fn kept(&self) -> Vec<Kept> {
        let kept = |known: &Known| {
            let Attribution { reason, name, .. } =
                known.attribution.clone().filter(|_| known.is_final)?;
            let told = known.told().filter(|attribution| attribution.reason == Reason::Extension);
            let claimed = told.map(|attribution| Claimed { group: attribution.group });
            let is_worth_it = name.is_some() || claimed.is_some();
            let Known { connection, user, .. } = *known;
            is_worth_it.then_some(Kept { connection, user, reason, name, claimed })
        };
        let last = self.connections.values().rev().filter_map(kept).take(KEPT_MAX);
        let mut last: Vec<Kept> = last.collect();
        last.reverse();
        last
    }

    /// Takes over a connection that an earlier resolver knew, unless its ports are already in use again.
    pub fn handle_kept(&mut self, kept: Kept) {
        let Kept { connection, user, reason, name, claimed } = kept;
        if self.connections.len() >= super::CONNECTIONS_MAX
            || self.numbers.contains_key(&connection.flow)
        {
            return;
        }
        let browsed = claimed.map(|Claimed { group }| {
            let mut browsed = Browsed::default();
            // Treated as the group for which it was opened: the next votes are divided by that.
            browsed.votes.set_opener(Some(group), false);
            browsed.guess =
                Some(Attribution { reason: Reason::Extension, name: name.clone(), group });
            Box::new(browsed)
        });
        let group = name.as_ref().and_then(|name| self.sites.group_of(name));
        let attribution = Some(Attribution { reason, name, group });
        let number = self.insert(Known {
            connection,
            pending: None,
            attribution,
            is_final: true,
            user,
            browsed,
        });
        self.note_host(number);
        self.command_bind(number);
    }
}

/// Most connections that are kept: what a browser opens in hours.
pub const KEPT_MAX: usize = 16_384;
