//! The handle through which tests control an emulated card.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::card::Card;
use super::fault::{Action, FaultPlan};
use super::firmware::ResourceUsage;
use qaic_kmd::abi::{DBC_COUNT, request};

/// Between two looks at what may end a wait.
const LOOK: Duration = Duration::from_millis(50);

/// Names of the system calls, as fault plans have them where they can go wrong, and their request codes.
const CALLS: [(&str, u32); 13] = [
    ("manage", request::MANAGE),
    ("create_bo", request::CREATE_BO),
    ("mmap_bo", request::MMAP_BO),
    ("attach", request::ATTACH_SLICE_BO),
    ("execute", request::EXECUTE_BO),
    ("partial_execute", request::PARTIAL_EXECUTE_BO),
    ("wait", request::WAIT_BO),
    ("perf_stats", request::PERF_STATS_BO),
    ("detach", request::DETACH_SLICE_BO),
    ("close", request::GEM_CLOSE),
    ("version", request::VERSION),
    ("export", request::PRIME_HANDLE_TO_FD),
    ("import", request::PRIME_FD_TO_HANDLE),
];

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

    /// Has the calls that are under way do what they do when `SIGSTOP` stops the process and `SIGCONT` lets it go on: the
    /// kernel makes a control message that waits again, while the firmware does what it was sent.
    pub fn stop_and_continue(&self) {
        self.card.stop_and_continue();
    }

    /// Lets everything happen at once that would happen later.
    pub fn hurry(&self) {
        self.card.hurry();
    }

    /// Replaces the plan of what goes wrong; its numbers and times begin again.
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

    /// [`Control::await_waiters`] that ends when `should_stop` returns true, which is called now and then; `None` then.
    pub fn await_waiters_unless(
        &self,
        count: usize,
        limit: Duration,
        mut should_stop: impl FnMut() -> bool,
    ) -> Option<bool> {
        let mut left = limit;
        loop {
            let slice = left.min(LOOK);
            if self.await_waiters(count, slice) {
                return Some(true);
            }
            left -= slice;
            if left.is_zero() {
                return Some(false);
            }
            if should_stop() {
                return None;
            }
        }
    }

    /// How often each system call was made, by its name.
    pub fn calls_by_name(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        CALLS.iter().map(|(name, request)| (*name, self.calls(*request)))
    }

    /// How often the system call of this name was made; why not, where there is none.
    pub fn calls_named(&self, name: &str) -> Result<u64, String> {
        self.calls_by_name().find(|(call, _)| *call == name).map(|(_, count)| count).ok_or_else(|| {
            let names = CALLS.map(|(call, _)| call).join(", ");
            format!("no system call is called {name:?}; there are {names}")
        })
    }

    /// How often a system call was made, by its request code.
    pub fn calls(&self, request: u32) -> u64 {
        self.card.lock().calls.get(&request).copied().unwrap_or(0)
    }

    /// Elements that completed with another status than 0. The driver reports them nowhere.
    pub fn dma_errors(&self) -> u64 {
        self.card.lock().dma_errors
    }

    /// Returns the resources that the firmware has given out.
    pub fn resource_usage(&self) -> ResourceUsage {
        self.card.firmware.resource_usage()
    }

    /// Returns the differences from an unused card; empty if there are none.
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
            expect(dbc.owner.is_none(), &|| format!("channel {dbc_id} is owned"));
            expect(dbc.channel.is_none() || dbc.owner.is_none(), &|| format!("channel {dbc_id} is active"));
            expect(dbc.channel.is_none() || dbc.owner.is_some(), &|| {
                format!("channel {dbc_id} is in use and has no owner")
            });
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
