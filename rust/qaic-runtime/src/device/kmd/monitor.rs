//! Listens to the events of a card: on a thread of its own while programs use the card, and at once wherever a call has
//! failed and its errno alone does not say why.

use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use qaic_kmd::clock::Clock;
use qaic_kmd::kmd::{EventSource, Kmd};

use super::health::Health;
use super::status;
use crate::log;
use crate::sync::{AtomicBool, AtomicU32, Mutex, Ordering};

/// How long the thread listens at a time; it ends this much after the card at most.
const PERIOD: Duration = Duration::from_millis(50);
/// Events taken at a time, so that a flood of them holds nobody up.
const MOST_EVENTS: u32 = 10_000;

/// The ear of one card.
#[derive(Debug)]
pub(super) struct Monitor {
    // Also held while the thread listens.
    source: Mutex<Option<Box<dyn EventSource>>>,
    // Callers who want the source; the thread lets them through.
    callers: AtomicU32,
    has_thread: AtomicBool,
    health: Arc<Health>,
    clock: Arc<dyn Clock>,
    // Name of the node; another one when the card has come back.
    node: Mutex<String>,
}

impl Monitor {
    /// Listens from now on to what happens to the node of this name. Without events, errors of calls are all that tells.
    pub(super) fn new(kmd: &dyn Kmd, health: &Arc<Health>, node: String) -> Arc<Self> {
        let source = match kmd.events() {
            Ok(source) => Some(source),
            Err(error) => {
                log::global().warn(|| format!("{node}: no events of the card can be had: {error}"));
                None
            }
        };
        Arc::new(Self {
            source: Mutex::new(source),
            callers: AtomicU32::new(0),
            has_thread: AtomicBool::new(false),
            health: Arc::clone(health),
            clock: kmd.clock(),
            node: Mutex::new(node),
        })
    }

    /// Takes note of everything that has happened.
    ///
    /// Blocking: where events can only be waited for by fetching them, while the thread does that, for 50 ms at most.
    pub(super) fn settle(&self) {
        self.callers.fetch_add(1, Ordering::AcqRel);
        self.listen(Duration::ZERO);
        self.callers.fetch_sub(1, Ordering::AcqRel);
    }

    /// The card has a node of this name now.
    pub(super) fn renamed(&self, node: &str) {
        node.clone_into(&mut self.node.lock());
    }

    fn is_of_card(&self, node: &str) -> bool {
        *self.node.lock() == node
    }

    /// Starts the thread, unless it runs. It ends when the monitor is dropped.
    pub(super) fn start(self: &Arc<Self>) {
        if self.source.lock().is_none() || self.has_thread.swap(true, Ordering::AcqRel) {
            return;
        }
        let monitor = Arc::downgrade(self);
        let spawned = thread::Builder::new()
            .name(format!("qaic-events-{}", self.node.lock()))
            .spawn(move || Self::work(&monitor));
        if let Err(error) = spawned {
            self.has_thread.store(false, Ordering::Release);
            log::global().warn(|| format!("{}: nobody listens to its events: {error}", self.node.lock()));
        }
    }

    fn work(monitor: &Weak<Self>) {
        let bell = monitor.upgrade().and_then(|monitor| monitor.source.lock().as_ref()?.bell());
        while let Some(monitor) = monitor.upgrade() {
            if let Some(bell) = &bell {
                // Whoever wants to know meanwhile fetches the events.
                bell.wait(PERIOD);
                if !monitor.listen(Duration::ZERO) {
                    return;
                }
            } else if monitor.callers.load(Ordering::Acquire) > 0 {
                thread::yield_now();
            } else if !monitor.listen(PERIOD) {
                return;
            }
        }
    }

    /// Takes the next event that comes within `limit`, and those behind it; false when there will be none any more.
    fn listen(&self, limit: Duration) -> bool {
        let mut slot = self.source.lock();
        let Some(source) = slot.as_mut() else { return false };
        let mut limit = limit;
        let mut failure = None;
        for _ in 0..MOST_EVENTS {
            match source.next(limit) {
                Ok(Some(event)) if self.is_of_card(&event.node) => {
                    self.health.event(event.kind, self.clock.now())
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) if status::are_events_lost(error) => self.health.missed_events(),
                Err(error) => {
                    failure = Some(error);
                    break;
                }
            }
            limit = Duration::ZERO;
        }
        if failure.is_some() {
            *slot = None;
        }
        drop(slot);
        self.health.look_at_clock(self.clock.now());
        if let Some(error) = failure {
            log::global()
                .warn(|| format!("{}: its events are not heard any more: {error}", self.node.lock()));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use qaic_kmd::Errno;
    use qaic_kmd::clock::VirtualClock;
    use qaic_kmd::kmd::{AccelFile, Event, EventKind, NodeInfo, Telemetry};

    use super::*;

    type Outcome = Result<Option<Event>, Errno>;

    /// A kernel that says what a test wants; it has nothing else.
    #[derive(Debug)]
    struct Telling(Mutex<VecDeque<Outcome>>);

    #[derive(Debug)]
    struct Told(VecDeque<Outcome>);

    impl EventSource for Told {
        fn next(&mut self, _: Duration) -> Outcome {
            self.0.pop_front().unwrap_or(Ok(None))
        }
    }

    impl Kmd for Telling {
        fn name(&self) -> &'static str {
            "telling"
        }

        fn enumerate(&self) -> Result<Vec<NodeInfo>, Errno> {
            Ok(Vec::new())
        }

        fn open(&self, _: &NodeInfo) -> Result<Arc<dyn AccelFile>, Errno> {
            Err(Errno::NOENT)
        }

        fn events(&self) -> Result<Box<dyn EventSource>, Errno> {
            Ok(Box::new(Told(std::mem::take(&mut *self.0.lock()))))
        }

        fn telemetry(&self, _: &NodeInfo) -> Telemetry {
            Telemetry::default()
        }

        fn reset(&self, _: &NodeInfo) -> Result<(), Errno> {
            Err(Errno::OPNOTSUPP)
        }

        fn clock(&self) -> Arc<dyn Clock> {
            Arc::new(VirtualClock::default())
        }
    }

    fn about(node: &str, kind: EventKind) -> Event {
        Event { node: node.to_owned(), kind }
    }

    /// Why the card `accel0` counts as down after these outcomes.
    fn down_after(outcomes: impl Into<VecDeque<Outcome>>) -> Option<String> {
        let health = Arc::new(Health::new(0));
        let monitor = Monitor::new(&Telling(Mutex::new(outcomes.into())), &health, "accel0".to_owned());
        monitor.settle();
        health.down()
    }

    #[test]
    fn events_of_other_nodes_are_not_its_own() {
        assert_eq!(down_after([Ok(Some(about("accel1", EventKind::Offline)))]), None);
        let both =
            [Ok(Some(about("accel1", EventKind::Online))), Ok(Some(about("accel0", EventKind::Offline)))];
        assert!(down_after(both).is_some());
    }

    #[test]
    fn lost_events_do_not_end_the_listening() {
        assert!(down_after([Err(Errno::NOBUFS), Ok(Some(about("accel0", EventKind::Offline)))]).is_some());
        assert_eq!(down_after([Err(Errno::BADF), Ok(Some(about("accel0", EventKind::Offline)))]), None);
    }
}
