//! What the connections of each class have together: rate, payload, and the receive buffers that follow.

use std::collections::BTreeMap;

use fairweir_core::relay::Scheduler;
use fairweir_core::units::{Rate, Time};

use crate::Kernel;
use crate::connection::Connection;
use crate::rules::Rules;

/// A class as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassCounts {
    /// Its rate.
    pub rate: Option<Rate>,
    /// Connections that are open.
    pub connections: usize,
    /// Payload since the start: down, up.
    pub bytes: [u64; 2],
}

/// Those of the rules, followed by one for all other connections.
#[derive(Debug, Default)]
pub(crate) struct Classes(Vec<Class>);

#[derive(Debug)]
pub(crate) struct Class {
    name: String,
    pub(crate) scheduler: Scheduler,
    pub(crate) bytes: [u64; 2],
    connections: usize,
    /// Sum of the alphas of those that have moved something lately.
    alphas: u64,
}

impl Classes {
    /// The classes of `rules`; those of the same name count on from `old`.
    pub(crate) fn new(rules: &Rules, old: Classes, now: Time) -> Classes {
        let of_rules = rules.classes().iter().map(|class| (class.name.clone(), class.rate));
        let all = of_rules.chain([(UNCLASSIFIED.to_owned(), None)]);
        let mut old: BTreeMap<String, Class> =
            old.0.into_iter().map(|class| (class.name.clone(), class)).collect();
        let new = all.map(|(name, rate)| {
            let bytes = old.remove(&name).map_or([0; 2], |class| class.bytes);
            let scheduler = Scheduler::new(rate, now);
            Class { name, scheduler, bytes, connections: 0, alphas: 0 }
        });
        Classes(new.collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// What is in no class of the rules.
    pub(crate) fn unclassified(&self) -> usize {
        self.0.len() - 1
    }

    pub(crate) fn of_mut(&mut self, index: usize) -> &mut Class {
        &mut self.0[index]
    }

    pub(crate) fn counts(&self) -> impl Iterator<Item = (&str, ClassCounts)> {
        self.0.iter().map(|class| {
            let Class { bytes, connections, .. } = *class;
            let rate = class.scheduler.rate();
            (class.name.as_str(), ClassCounts { rate, connections, bytes })
        })
    }

    pub(crate) fn deadline(&mut self, now: Time) -> Option<Time> {
        self.0.iter_mut().filter_map(|class| class.scheduler.deadline(now)).min()
    }

    /// The connection belongs to `class` from now on.
    pub(crate) fn enter(&mut self, connection: &mut Connection, class: usize) {
        self.0[class].connections += 1;
        connection.class = class;
    }

    pub(crate) fn leave(&mut self, id: usize, connection: &Connection) {
        let class = &mut self.0[connection.class];
        class.connections -= 1;
        class.scheduler.handle_idle(id);
    }

    /// Begins a new sum of the alphas; [`Classes::count_alpha`] follows for each connection.
    pub(crate) fn forget_alphas(&mut self) {
        self.0.iter_mut().for_each(|class| class.alphas = 0);
    }

    pub(crate) fn count_alpha(&mut self, connection: &Connection) {
        if connection.is_active {
            self.0[connection.class].alphas += u64::from(connection.alpha.as_u8());
        }
    }

    /// Adapts the receive buffer of the connection to its part of the class's rate.
    pub(crate) fn follow(&self, connection: &mut Connection, kernel: Kernel) {
        let class = &self.0[connection.class];
        let alpha = u64::from(connection.alpha.as_u8());
        let all = class.alphas + if connection.is_active { 0 } else { alpha };
        let rate = class.scheduler.rate();
        let rate = rate.map(|rate| rate.scale(alpha, all.max(alpha)));
        connection.follow(rate, kernel.set_receive_buffer);
    }
}

/// The class of connections that no rule names.
const UNCLASSIFIED: &str = "default";
