//! What tests hold an emulated card by.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::card::Card;
use super::fault::{Action, FaultPlan};
use super::firmware::ResourceUsage;
use qaic_kmd::abi::DBC_COUNT;

/// An emulated card, from behind.
#[derive(Clone, Debug)]
pub struct Control {
    card: Arc<Card>,
    fresh: ResourceUsage,
}

impl Control {
    pub(crate) fn new(card: Arc<Card>, fresh: ResourceUsage) -> Self {
        Self { card, fresh }
    }

    /// Resets the card with everything that is on it. It is online again some time later, or after [`Self::hurry`].
    pub fn reset(&self) {
        self.card.perform(Action::Reset, None);
    }

    /// Lets the cores of a channel fail. They start again some time later, or after [`Self::hurry`]; without power never.
    /// Nothing happens where the channel is free.
    pub fn restart_cores(&self, dbc_id: u32, with_power_up: bool) {
        self.card.perform(Action::Restart { dbc_id: Some(dbc_id), powers_up: with_power_up }, None);
    }

    /// Lets everything happen at once that would happen later.
    pub fn hurry(&self) {
        self.card.hurry();
    }

    /// Replaces the plan of what goes wrong; its numbers and times begin anew.
    pub fn set_faults(&self, plan: FaultPlan) {
        self.card.set_faults(plan);
    }

    /// Calls that are blocked.
    pub fn waiters(&self) -> usize {
        self.card.lock().waiters
    }

    /// Waits until so many calls are blocked; whether they are.
    ///
    /// Blocking: `limit` of real time at most.
    pub fn await_waiters(&self, count: usize, limit: Duration) -> bool {
        let state = self.card.lock();
        let wait = self.card.changed.wait_timeout_while(state, limit, |state| state.waiters < count);
        wait.unwrap_or_else(PoisonError::into_inner).0.waiters >= count
    }

    /// How often a system call was made, by its request code.
    pub fn calls(&self, request: u32) -> u64 {
        self.card.lock().calls.get(&request).copied().unwrap_or(0)
    }

    /// Elements that completed with another status than 0. The driver reports them nowhere.
    pub fn dma_errors(&self) -> u64 {
        self.card.lock().dma_errors
    }

    /// What the firmware has given out.
    pub fn resource_usage(&self) -> ResourceUsage {
        self.card.firmware.resource_usage()
    }

    /// What differs from an unused card; empty when nothing does.
    pub fn invariants(&self) -> Vec<String> {
        let mut found = Vec::new();
        let state = self.card.settled();
        let mut expect = |is_so: bool, what: &dyn Fn() -> String| {
            if !is_so {
                found.push(format!("{}: {}", self.card.node, what()));
            }
        };
        expect(state.users.is_empty(), &|| format!("{} open files", state.users.len()));
        let handles: usize = state.users.values().map(|user| user.handles.len()).sum();
        expect(handles == 0, &|| format!("{handles} handles"));
        expect(state.bos.is_empty(), &|| format!("{} buffer objects", state.bos.len()));
        expect(state.waiters == 0, &|| format!("{} blocked calls", state.waiters));
        expect(state.busy == 0, &|| format!("{} control messages under way", state.busy));
        for (dbc_id, dbc) in (0..DBC_COUNT).zip(&state.dbcs) {
            expect(dbc.owner.is_none() && dbc.former_owner.is_none(), &|| {
                format!("channel {dbc_id} is owned")
            });
            expect(dbc.channel.is_none(), &|| format!("channel {dbc_id} is active"));
            expect(dbc.attached.is_empty(), &|| format!("channel {dbc_id} has buffer objects"));
            expect(dbc.queued.is_empty(), &|| format!("channel {dbc_id} has {} elements", dbc.queued.len()));
            expect(dbc.worker.is_none(), &|| format!("channel {dbc_id} has a thread"));
        }
        drop(state);
        // Cores without power are the card's condition, and no resource in use.
        let usage = ResourceUsage { restarting: None, ..self.resource_usage() };
        expect(usage == self.fresh, &|| {
            format!("the firmware's resource tables say {usage:?}, not {:?}", self.fresh)
        });
        found
    }
}
