//! The thread of a channel, used if calls do not drive the data path.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::card::Card;
use crate::data_path::ring::DriveOutcome;
use crate::options::EmuClock;

/// Time limit of the wait for the end of a thread. Cores stop soon after a request; a thread that does not is
/// abandoned.
const END_LIMIT: Duration = Duration::from_secs(5);

/// A thread that drives a channel during an activation.
#[derive(Debug)]
pub(crate) struct Worker {
    signal: Arc<Signal>,
    thread: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Signal {
    status: Mutex<Status>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Status {
    calls: u64,
    is_idle: bool,
    has_ended: bool,
}

impl Signal {
    fn lock(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker {
    /// Starts to drive an activation of a channel; `None` if the system cannot create a thread.
    pub(crate) fn start(card: &Arc<Card>, dbc_id: u32, activation: u64) -> Option<Self> {
        let signal = Arc::new(Signal::default());
        let (card, mine) = (Arc::clone(card), Arc::clone(&signal));
        let builder = thread::Builder::new().name(format!("emu-{}-{dbc_id}", card.node));
        let thread = builder.spawn(move || {
            let _end = End(&mine);
            drive(&card, dbc_id, activation, &mine);
        });
        Some(Self { signal, thread: thread.ok()? })
    }

    /// Makes the thread check for work. Never blocks.
    pub(crate) fn wake(&self) {
        let mut status = self.signal.lock();
        status.calls += 1;
        status.is_idle = false;
        drop(status);
        self.signal.changed.notify_all();
    }

    /// Returns true if the thread has found nothing to do since it was last woken.
    pub(crate) fn is_idle(&self) -> bool {
        self.signal.lock().is_idle
    }

    /// Waits for the end of the thread, which ends with its activation.
    ///
    /// Blocking: at most a few seconds.
    pub(crate) fn end(self) {
        if self.thread.thread().id() == thread::current().id() {
            return;
        }
        self.wake();
        let status = self.signal.lock();
        let wait = self.signal.changed.wait_timeout_while(status, END_LIMIT, |status| !status.has_ended);
        let has_ended = wait.unwrap_or_else(PoisonError::into_inner).0.has_ended;
        if has_ended {
            // The hook has reported a panic of a workload; the panic only ends the thread.
            let _ = self.thread.join();
        }
    }
}

fn drive(card: &Card, dbc_id: u32, activation: u64, signal: &Signal) {
    loop {
        let calls = signal.lock().calls;
        match card.drive(dbc_id, Some(activation)) {
            DriveOutcome::Progressed => continue,
            DriveOutcome::Deactivated => return,
            DriveOutcome::Blocked => {}
        }
        let mut status = signal.lock();
        if status.calls != calls {
            continue;
        }
        status.is_idle = true;
        drop(status);
        if matches!(card.options.clock, EmuClock::Virtual(_)) {
            // Time may continue now; waiting threads read the status under the card's lock.
            drop(card.lock());
            card.changed.notify_all();
        }
        let status = signal.lock();
        let waited = signal.changed.wait_while(status, |status| status.calls == calls);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Signals the end of the thread on drop, also after a panic of a workload.
struct End<'a>(&'a Signal);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut status = self.0.lock();
        status.has_ended = true;
        status.is_idle = true;
        drop(status);
        self.0.changed.notify_all();
    }
}
