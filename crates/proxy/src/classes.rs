//! State shared by the connections of each class: rate, payload counters and receive buffers.

use std::collections::BTreeMap;

use fairweir_core::relay::Scheduler;
use fairweir_core::units::{Rate, Time};

use crate::Kernel;
use crate::connection::Connection;
use crate::rules::Rules;

/// Current counters of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassCounts {
    /// The rate that its connections share; `None` if unlimited.
    pub rate: Option<Rate>,
    /// Number of open connections.
    pub connections: usize,
    /// Payload bytes since the start: down, up.
    pub bytes: [u64; 2],
}

/// The classes of the rules, followed by one class for all other connections.
#[derive(Debug, Default)]
pub(crate) struct Classes(Vec<Class>);

#[derive(Debug)]
pub(crate) struct Class {
    name: String,
    pub(crate) scheduler: Scheduler,
    pub(crate) bytes: [u64; 2],
    connections: usize,
    /// Sum of the alphas of the connections that have moved data recently.
    alphas: u64,
}

impl Classes {
    /// The classes of `rules`. A class whose name is also in `old` keeps its byte counters.
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

    /// Index of the class of connections that no rule names.
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

    /// Moves the connection to `class`.
    pub(crate) fn enter(&mut self, connection: &mut Connection, class: usize) {
        self.0[class].connections += 1;
        connection.class = class;
    }

    pub(crate) fn leave(&mut self, id: usize, connection: &Connection) {
        let class = &mut self.0[connection.class];
        class.connections -= 1;
        class.scheduler.handle_idle(id);
    }

    /// Resets the sum of the alphas; the caller then calls [`Classes::count_alpha`] for each connection.
    pub(crate) fn forget_alphas(&mut self) {
        self.0.iter_mut().for_each(|class| class.alphas = 0);
    }

    pub(crate) fn count_alpha(&mut self, connection: &Connection) {
        if connection.is_active {
            self.0[connection.class].alphas += u64::from(connection.alpha.as_u8());
        }
    }

    /// Adapts the connection's receive buffer to its share of the class's rate.
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
