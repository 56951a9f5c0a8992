//! A plan at work on an emulated card: how often what has happened.

use std::collections::BTreeMap;

use super::fault::{Action, FaultPlan, Trigger};

/// Counts calls by kind.
#[derive(Debug, Default)]
pub(crate) struct FaultCounter {
    plan: FaultPlan,
    seen: BTreeMap<Trigger, u64>,
}

impl FaultCounter {
    /// Counts for a plan, from the first call on.
    pub(crate) fn new(plan: FaultPlan) -> Self {
        Self { plan, seen: BTreeMap::new() }
    }

    /// Something happens; what goes wrong with it.
    pub(crate) fn happens(&mut self, trigger: Trigger) -> Option<Action> {
        if !self.plan.mentions(trigger) {
            return None;
        }
        let seen = self.seen.entry(trigger).or_default();
        *seen += 1;
        self.plan.action(trigger, *seen)
    }
}
