//! The handle through which tests control an emulated card.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::card::Card;
use super::fault::{Action, FaultPlan};
use super::firmware::ResourceUsage;
use qaic_kmd::abi::{DBC_COUNT, Request};

/// Interval between two checks for the end of a wait.
const LOOK: Duration = Duration::from_millis(50);

/// Names of the system calls, as in fault plans if faults exist for them, and their requests.
const CALLS: [(&str, Request); 13] = [
    ("manage", Request::Manage),
    ("create_bo", Request::CreateBo),
    ("mmap_bo", Request::MmapBo),
    ("attach", Request::AttachSliceBo),
    ("execute", Request::ExecuteBo),
    ("partial_execute", Request::PartialExecuteBo),
    ("wait", Request::WaitBo),
    ("perf_stats", Request::PerfStatsBo),
    ("detach", Request::DetachSliceBo),
    ("close", Request::GemClose),
    ("version", Request::Version),
    ("export", Request::PrimeHandleToFd),
    ("import", Request::PrimeFdToHandle),
];

/// Test control of an emulated card.
#[derive(Clone, Debug)]
pub struct Control {
    card: Arc<Card>,
    fresh: ResourceUsage,
}

impl Control {
    pub(crate) fn new(card: Arc<Card>, fresh: ResourceUsage) -> Self {
        Self { card, fresh }
    }

    /// Resets the card for all its users. The card is online again some time later, or after [`Self::hurry`].
    pub fn reset(&self) {
        self.card.perform(Action::Reset, None);
    }

    /// Makes the cores of a channel fail. They restart some time later, or after [`Self::hurry`]; without power, they
    /// never restart. Does nothing for a free channel.
    pub fn restart_cores(&self, dbc_id: u32, with_power_up: bool) {
        self.card.perform(Action::Restart { dbc_id: Some(dbc_id), powers_up: with_power_up }, None);
    }

    /// Simulates `SIGSTOP` and `SIGCONT` of the process for the calls in progress: the kernel repeats a waiting
    /// control message, while the firmware executes the first one.
    pub fn stop_and_continue(&self) {
        self.card.stop_and_continue();
    }

    /// Applies all later changes at once.
    pub fn hurry(&self) {
        self.card.hurry();
    }

    /// Replaces the fault plan, and resets its counts and times.
    pub fn set_faults(&self, plan: FaultPlan) {
        self.card.set_faults(plan);
    }

    /// Number of blocked calls.
    pub fn waiters(&self) -> usize {
        self.card.lock().waiters
    }

    /// Waits until `count` calls are blocked; returns true if they are.
    ///
    /// Blocking: at most `limit` of real time.
    pub fn await_waiters(&self, count: usize, limit: Duration) -> bool {
        let state = self.card.lock();
        let wait = self.card.changed.wait_timeout_while(state, limit, |state| state.waiters < count);
        wait.unwrap_or_else(PoisonError::into_inner).0.waiters >= count
    }

    /// Waits as [`Control::await_waiters`] does, but returns `None` if `should_stop`, which is called periodically,
    /// returns true.
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

    /// Number of calls of each system call, by name.
    pub fn calls_by_name(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        CALLS.iter().map(|(name, request)| (*name, self.calls(*request)))
    }

    /// Number of calls of a system call.
    pub fn calls(&self, request: Request) -> u64 {
        self.card.lock().calls.get(&request).copied().unwrap_or(0)
    }

    /// Number of elements that completed with a status other than 0, which the driver does not report.
    pub fn dma_errors(&self) -> u64 {
        self.card.lock().dma_errors
    }

    /// Returns the resources that the firmware has assigned.
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
        expect(state.users.is_empty(), &|| format!("open files: {}", state.users.len()));
        let handles: usize = state.users.values().map(|user| user.handles.len()).sum();
        expect(handles == 0, &|| format!("handles: {handles}"));
        expect(state.bos.is_empty(), &|| format!("buffer objects: {}", state.bos.len()));
        expect(state.waiters == 0, &|| format!("blocked calls: {}", state.waiters));
        expect(state.busy == 0, &|| format!("control messages in progress: {}", state.busy));
        for (dbc_id, dbc) in (0..DBC_COUNT).zip(&state.dbcs) {
            expect(dbc.owner.is_none(), &|| format!("channel {dbc_id} is owned"));
            expect(dbc.channel.is_none() || dbc.owner.is_none(), &|| format!("channel {dbc_id} is active"));
            expect(dbc.channel.is_none() || dbc.owner.is_some(), &|| {
                format!("channel {dbc_id} is in use and has no owner")
            });
            expect(dbc.attached.is_empty(), &|| format!("channel {dbc_id} has buffer objects"));
            expect(dbc.queued.is_empty(), &|| {
                format!("queued elements of channel {dbc_id}: {}", dbc.queued.len())
            });
            expect(dbc.worker.is_none(), &|| format!("channel {dbc_id} has a thread"));
        }
        drop(state);
        // Cores without power are a condition of the card and not a resource in use.
        let usage = ResourceUsage { restarting: None, ..self.resource_usage() };
        expect(usage == self.fresh, &|| {
            format!("the firmware's resource tables contain {usage:?}, not {:?}", self.fresh)
        });
        found
    }
}
