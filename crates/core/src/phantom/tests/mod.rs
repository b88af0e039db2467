//! Tests what the papers promise of phantom queues, judged by oracles, on random plans and packets.

mod control;
mod drain;
mod flows;
mod oracle;
mod world;
