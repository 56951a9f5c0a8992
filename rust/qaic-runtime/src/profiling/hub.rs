//! Where the inferences of a program meet those who want to know about them.

use std::sync::Arc;

use qaic_stats::host::HostSample;

use super::recorder::{Claim, Recorder};
use super::stages::{Identity, Watch};
use crate::clock;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering};

/// One per program; the programs of an inference set, which are activations of the same container, share one.
#[derive(Debug)]
pub struct Hub {
    name: String,
    has_stats: bool,
    // Whether there are subscribers. Relaxed: an inference that begins while somebody subscribes may be missed.
    is_on: AtomicBool,
    // Number of the next inference that is looked at.
    next: AtomicU64,
    // Inferences that ended well, per activation.
    completed: Box<[Arc<AtomicU64>]>,
    subscribers: Mutex<Vec<Subscriber>>,
}

#[derive(Debug)]
struct Subscriber {
    recorder: Arc<Recorder>,
    // Number of the program among the recorder's.
    program: u32,
}

/// When an inference was put into the queue, and what was there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrival {
    /// 0 where nobody wanted to know at that time.
    pub(crate) enqueued_ns: u64,
    pub(crate) queue_depth: u32,
}

impl Arrival {
    /// Now, behind `queue_depth` others.
    pub(crate) fn now(queue_depth: usize) -> Self {
        let queue_depth = u32::try_from(queue_depth).unwrap_or(u32::MAX);
        Self { enqueued_ns: clock::now_ns(), queue_depth }
    }
}

/// An inference that somebody wants to know about.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    pub(crate) watch: Watch,
    queue_depth: u32,
    // The first ones apart, so that one or two recorders need no allocation.
    claims: [Option<Claim>; 2],
    more: Vec<Claim>,
}

impl Hub {
    /// Of `completed.len()` activations.
    pub(crate) fn new(name: String, has_stats: bool, completed: Box<[Arc<AtomicU64>]>) -> Arc<Self> {
        Arc::new(Self {
            name,
            has_stats,
            is_on: AtomicBool::new(false),
            next: AtomicU64::new(0),
            completed,
            subscribers: Mutex::default(),
        })
    }

    /// Name of the network.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the program has device statistics.
    pub fn has_stats(&self) -> bool {
        self.has_stats
    }

    /// Activations.
    pub fn activations(&self) -> u32 {
        u32::try_from(self.completed.len()).unwrap_or(u32::MAX)
    }

    /// Whether anybody wants to know.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Has a recorder told of the inferences from now on, under its number of the program.
    pub(crate) fn subscribe(&self, recorder: &Arc<Recorder>, program: u32) {
        let mut subscribers = self.subscribers.lock();
        if subscribers.is_empty() {
            self.catch_up();
        }
        recorder.open(program, self.next.load(Ordering::Relaxed), self.activations());
        subscribers.push(Subscriber { recorder: Arc::clone(recorder), program });
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Ends [`Self::subscribe`].
    pub(crate) fn unsubscribe(&self, recorder: &Arc<Recorder>) {
        let mut subscribers = self.subscribers.lock();
        subscribers.retain(|subscriber| !Arc::ptr_eq(&subscriber.recorder, recorder));
        self.is_on.store(!subscribers.is_empty(), Ordering::Relaxed);
    }

    /// Counts what ended while nobody numbered it.
    fn catch_up(&self) {
        let ended = self.completed.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        self.next.fetch_max(ended, Ordering::Relaxed);
    }

    /// Asks who wants to know about an inference that begins. `is_asked`: whether the user wants the stats buffer in memory
    /// of his own.
    pub(crate) fn watch(&self, program: u32, lane: u32, arrival: Arrival, is_asked: bool) -> Option<Watched> {
        if !self.is_on() {
            self.catch_up();
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut watched = Watched::default();
        let mut is_wanted = is_asked;
        // What was put into the queue before anybody asked has no begin.
        if arrival.enqueued_ns != 0 {
            for subscriber in self.subscribers.lock().iter() {
                let Some(claim) = subscriber.recorder.claim(subscriber.program, lane, number) else {
                    continue;
                };
                is_wanted = true;
                watched.watch.wants_device |= self.has_stats && claim.wants_device();
                match watched.claims.iter_mut().find(|slot| slot.is_none()) {
                    Some(slot) => *slot = Some(claim),
                    None => watched.more.push(claim),
                }
            }
        }
        is_wanted.then(|| {
            watched.watch.stages.enqueued_ns = arrival.enqueued_ns;
            watched.watch.identity = Identity { program, activation: lane, inference: number };
            watched.queue_depth = arrival.queue_depth;
            watched
        })
    }
}

impl Watched {
    /// The inference has ended well. Said before anybody else knows, so that who waited for it finds its sample.
    pub(crate) fn record(self) {
        let Self { watch: Watch { stages, identity, stats, .. }, queue_depth, claims, more } = self;
        let sample = HostSample {
            inference: identity.inference,
            enqueued_ns: stages.enqueued_ns,
            begun_ns: stages.begun_ns,
            inputs_ready_ns: stages.inputs_ready_ns,
            executed_ns: stages.executed_ns,
            outputs_ready_ns: stages.outputs_ready_ns,
            completed_ns: stages.completed_ns,
            program: identity.program,
            activation: identity.activation,
            queue_depth,
            // An inference is one element of this queue.
            in_queue: queue_depth.saturating_add(1),
        };
        let stats: Option<Arc<[u8]>> = stats.map(Into::into);
        for claim in claims.into_iter().flatten().chain(more) {
            claim.record(sample, stats.as_ref());
        }
    }
}
