//! Passes the events of a card to its [`DeviceState`]: on its own thread while programs use the card, and immediately
//! after a failed call whose errno does not identify the cause.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use qaic_kmd::{Clock, Errno, EventSource, Readiness};

use super::device_state::DeviceState;
use super::errno;
use crate::process::log;
use crate::sync::{AtomicBool, Mutex, Ordering};

/// Maximum number of events that are processed at a time, so that many events do not delay a caller.
const MOST_EVENTS: u32 = 10_000;

/// The events of one card.
#[derive(Debug)]
pub(super) struct EventPump {
    // `None` after a failure of the source.
    source: Mutex<Option<Box<dyn EventSource>>>,
    readiness: Option<Arc<dyn Readiness>>,
    has_thread: AtomicBool,
    state: Arc<DeviceState>,
    clock: Arc<dyn Clock>,
    // Name of the node, which can change when the card returns.
    node: Mutex<String>,
}

impl EventPump {
    /// Creates a pump for the events of the node with this name. Without a source of events, only errors of calls
    /// reveal the state of the card.
    pub(super) fn new(
        source: Result<Box<dyn EventSource>, Errno>,
        clock: Arc<dyn Clock>,
        state: &Arc<DeviceState>,
        node: String,
    ) -> Self {
        let warn = |error: &Errno| {
            log::global().warn(|| format!("{node}: cannot receive events of the card: {error}"));
        };
        let source = source.inspect_err(warn).ok();
        Self {
            readiness: source.as_ref().map(|source| source.readiness()),
            source: Mutex::new(source),
            has_thread: AtomicBool::new(false),
            state: Arc::clone(state),
            clock,
            node: Mutex::new(node),
        }
    }

    /// Changes the name of the card's node.
    pub(super) fn rename(&self, node: &str) {
        node.clone_into(&mut self.node.lock());
    }

    fn is_of_card(&self, node: &str) -> bool {
        *self.node.lock() == node
    }

    /// Starts the thread, unless it runs. The thread ends when the pump is dropped.
    pub(super) fn start(self: &Arc<Self>) {
        let Some(readiness) = self.readiness.clone() else { return };
        if self.has_thread.swap(true, Ordering::AcqRel) {
            return;
        }
        let pump = Arc::downgrade(self);
        let spawned = thread::Builder::new()
            .name(format!("qaic-events-{}", self.node.lock()))
            .spawn(move || Self::run(&pump, &*readiness));
        if let Err(error) = spawned {
            self.has_thread.store(false, Ordering::Release);
            log::global().warn(|| format!("{}: no thread for its events: {error}", self.node.lock()));
        }
    }

    /// Processes events. Sleeps until an event arrives, or until the time limit for restarting cores has passed.
    fn run(pump: &Weak<Self>, readiness: &dyn Readiness) {
        while let Some(limit) = pump.upgrade().map(|pump| pump.next_limit()) {
            readiness.wait(limit);
            if pump.upgrade().is_none_or(|pump| !pump.drain()) {
                return;
            }
        }
    }

    /// Time until the next action without an event.
    fn next_limit(&self) -> Option<Duration> {
        self.state.next_restart_limit().map(|limit| limit.saturating_sub(self.clock.now()))
    }

    /// Processes all pending events without waiting. Returns false if no further events can arrive.
    pub(super) fn drain(&self) -> bool {
        let mut slot = self.source.lock();
        let Some(source) = slot.as_mut() else { return false };
        let limit_before = self.state.next_restart_limit();
        let mut failure = None;
        for _ in 0..MOST_EVENTS {
            match source.next(Duration::ZERO) {
                Ok(Some(event)) if self.is_of_card(&event.node) => {
                    self.state.event(event.kind, self.clock.now());
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) if errno::are_events_lost(error) => self.state.missed_events(),
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
        }
        if failure.is_some() {
            *slot = None;
        }
        drop(slot);
        self.state.check_restart_limits(self.clock.now());
        if self.state.next_restart_limit() != limit_before
            && let Some(readiness) = &self.readiness
        {
            // The thread sleeps until the earlier limit.
            readiness.wake();
        }
        if let Some(error) = failure {
            log::global().warn(|| format!("{}: no further events of the card: {error}", self.node.lock()));
        }
        true
    }
}

impl Drop for EventPump {
    fn drop(&mut self) {
        // The thread keeps only the readiness alive, and ends when the pump no longer exists.
        if let Some(readiness) = &self.readiness {
            readiness.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::mpsc;

    use qaic_kmd::{DbcState, Event, EventKind, VirtualClock};

    use super::*;

    type Outcome = Result<Option<Event>, Errno>;

    /// The events of a test.
    #[derive(Debug)]
    struct ScriptedEvents(VecDeque<Outcome>);

    #[derive(Debug)]
    struct AlwaysReady;

    impl EventSource for ScriptedEvents {
        fn next(&mut self, _: Duration) -> Outcome {
            self.0.pop_front().unwrap_or(Ok(None))
        }

        fn readiness(&self) -> Arc<dyn Readiness> {
            Arc::new(AlwaysReady)
        }
    }

    impl Readiness for AlwaysReady {
        fn wait(&self, _: Option<Duration>) {}

        fn wake(&self) {}
    }

    /// A pump of the card `accel0`.
    fn pump(state: &Arc<DeviceState>, outcomes: impl Into<VecDeque<Outcome>>) -> EventPump {
        let clock = Arc::new(VirtualClock::default());
        EventPump::new(Ok(Box::new(ScriptedEvents(outcomes.into()))), clock, state, "accel0".to_owned())
    }

    /// Records the start of a wait, and waits until it is woken.
    #[derive(Debug)]
    struct Recorded {
        limits: mpsc::Sender<Option<Duration>>,
        woken: Mutex<mpsc::Receiver<()>>,
        wakes: mpsc::Sender<()>,
    }

    impl Readiness for Recorded {
        fn wait(&self, limit: Option<Duration>) {
            self.limits.send(limit).unwrap();
            let _ = self.woken.lock().recv();
        }

        fn wake(&self) {
            let _ = self.wakes.send(());
        }
    }

    #[test]
    fn thread_without_events_sleeps_until_it_is_woken() {
        let state = Arc::new(DeviceState::new(0));
        let mut pump = pump(&state, []);
        let ((limits, waits), (wakes, woken)) = (mpsc::channel(), mpsc::channel());
        pump.readiness = Some(Arc::new(Recorded { limits, woken: Mutex::new(woken), wakes }));
        let pump = Arc::new(pump);
        pump.start();
        assert_eq!(waits.recv(), Ok(None));
        // The cores restart, as another thread has detected.
        let failed = EventKind::Channel { dbc_id: 3, state: DbcState::BeforeShutdown };
        let events = VecDeque::from([Ok(Some(about("accel0", failed)))]);
        *pump.source.lock() = Some(Box::new(ScriptedEvents(events)));
        assert!(pump.drain());
        assert_eq!(waits.recv(), Ok(Some(Duration::from_secs(15))));
        drop(pump);
        // The thread has ended, which dropped the readiness.
        assert!(waits.recv().is_err());
    }

    fn about(node: &str, kind: EventKind) -> Event {
        Event { node: node.to_owned(), kind }
    }

    /// Returns the reason why the card `accel0` counts as down after these outcomes.
    fn down_after(outcomes: impl Into<VecDeque<Outcome>>) -> Option<String> {
        let state = Arc::new(DeviceState::new(0));
        assert!(pump(&state, outcomes).drain());
        state.down()
    }

    #[test]
    fn event_of_another_node_changes_nothing() {
        assert_eq!(down_after([Ok(Some(about("accel1", EventKind::Offline)))]), None);
        let both =
            [Ok(Some(about("accel1", EventKind::Online))), Ok(Some(about("accel0", EventKind::Offline)))];
        assert!(down_after(both).is_some());
    }

    #[test]
    fn loss_of_events_does_not_end_the_pump() {
        assert!(down_after([Err(Errno::NOBUFS), Ok(Some(about("accel0", EventKind::Offline)))]).is_some());
        assert_eq!(down_after([Err(Errno::BADF), Ok(Some(about("accel0", EventKind::Offline)))]), None);
    }
}
