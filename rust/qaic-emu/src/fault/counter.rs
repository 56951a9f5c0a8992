//! The fault plan of an emulated card, with the count of each trigger.

use std::collections::BTreeMap;

use super::{Action, FaultPlan, Trigger};

/// Counts calls by kind.
#[derive(Debug, Default)]
pub struct FaultCounter {
    plan: FaultPlan,
    seen: BTreeMap<Trigger, u64>,
}

impl FaultCounter {
    /// Creates the counts of a plan, starting at the first call.
    pub fn new(plan: FaultPlan) -> Self {
        Self { plan, seen: BTreeMap::new() }
    }

    /// Counts a trigger, and returns its action in the plan.
    pub fn next_action(&mut self, trigger: Trigger) -> Option<Action> {
        if !self.plan.mentions(trigger) {
            return None;
        }
        let seen = self.seen.entry(trigger).or_default();
        *seen += 1;
        self.plan.action(trigger, *seen)
    }
}
