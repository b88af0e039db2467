//! Replaces `baseline` in builds without the feature `reference`, which play BC-PQP only: the
//! reader of scenarios refuses other algorithms.

use std::marker::PhantomData;

use fairweir_core::phantom::{Plan, Police};
use fairweir_core::units::{Bytes, Time};

use crate::Scenario;

pub(super) fn policer(police: &crate::Police, _: &Plan) -> Option<Box<dyn Police + Send>> {
    unreachable!("a scenario with `{}` was read", police.algorithm.name())
}

#[derive(Debug)]
pub(super) struct Queues<T>(PhantomData<T>);

impl<T> Queues<T> {
    pub(super) fn new(_: &Scenario, _: Vec<usize>) -> Queues<T> {
        Queues(PhantomData)
    }

    pub(super) fn enqueue(
        &mut self,
        _: Time,
        _: (usize, usize),
        _: Bytes,
        (_, body): (usize, T),
    ) -> Option<T> {
        Some(body)
    }

    pub(super) fn next_departure(&self) -> Option<Time> {
        None
    }

    pub(super) fn poll_departure(&mut self, _: Time) -> Option<(Time, (usize, usize), Bytes, T)> {
        None
    }

    pub(super) fn waiting(&self) -> usize {
        0
    }
}
