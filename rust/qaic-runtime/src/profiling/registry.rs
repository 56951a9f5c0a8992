//! The subscriptions of profilers to the inferences of a program.

use std::sync::Arc;

use qaic_stats::HostSample;
use qaic_sync::OwnerCounts;

use super::recorder::{Recorder, SampleSlot, Subscription};
use super::stages::{Identity, Watch};
use crate::image::Image;
use crate::process::ForkGuard;
use crate::process::clock;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering};

/// The profilers that sample a program. The programs of an inference set, which are activations of one container, share one
/// registry.
#[derive(Debug)]
pub struct SubscriptionRegistry {
    /// The container.
    pub(crate) image: Arc<Image>,
    /// Number of exec objects of each activation; `None` outside of an inference set.
    pub(crate) set_size: Option<u32>,
    // True if there is a subscription. Relaxed: an inference that begins during a `subscribe` may be missed.
    is_on: AtomicBool,
    // Number of the next inference that requests a sample.
    next: AtomicU64,
    // Number of successful inferences per activation.
    completed: Box<[Arc<OwnerCounts>]>,
    subscriptions: Mutex<Vec<Arc<Subscription>>>,
    fork_guard: ForkGuard,
}

/// Submission time of an inference, and the length of the queue at that time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrival {
    /// Submission time; 0 if there was no subscription at that time.
    pub(crate) enqueued_ns: u64,
    pub(crate) queue_depth: u32,
    /// True if the inference begins at the same time, on the calling thread.
    pub(crate) is_begin: bool,
}

impl Arrival {
    /// Returns the current time as submission time, with `queue_depth` other inferences in the queue.
    pub(crate) fn now(queue_depth: usize) -> Self {
        let queue_depth = u32::try_from(queue_depth).unwrap_or(u32::MAX);
        Self { enqueued_ns: clock::now_ns(), queue_depth, is_begin: false }
    }
}

/// Measurements of a running inference, and its reserved samples.
#[derive(Debug, Default)]
pub(crate) struct ActiveSample {
    pub(crate) watch: Watch,
    queue_depth: u32,
    // Up to two subscriptions need no allocation.
    slots: [Option<SampleSlot>; 2],
    more: Vec<SampleSlot>,
}

impl SubscriptionRegistry {
    /// Creates the registry of a program with `completed.len()` activations, each with `set_size` exec objects if an
    /// inference set owns it.
    pub(crate) fn new(
        image: &Arc<Image>,
        set_size: Option<u32>,
        completed: Box<[Arc<OwnerCounts>]>,
    ) -> Arc<Self> {
        Arc::new(Self {
            image: Arc::clone(image),
            set_size,
            is_on: AtomicBool::new(false),
            next: AtomicU64::new(0),
            completed,
            subscriptions: Mutex::default(),
            fork_guard: ForkGuard::new(),
        })
    }

    /// Name of the network.
    pub(crate) fn name(&self) -> &str {
        &self.image.network.network_name
    }

    pub(crate) fn has_stats(&self) -> bool {
        self.image.network.stats.is_some()
    }

    pub(crate) fn activations(&self) -> u32 {
        u32::try_from(self.completed.len()).unwrap_or(u32::MAX)
    }

    /// Returns true if there is a subscription.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Subscribes a recorder, which refers to the program by the number `program`.
    pub(crate) fn subscribe(&self, recorder: &Arc<Recorder>, program: u32) {
        let mut subscriptions = self.subscriptions.lock();
        if subscriptions.is_empty() {
            self.catch_up();
        }
        let stats = (self.has_stats(), self.image.network.stats_output().is_some());
        let begin = self.next.load(Ordering::Relaxed);
        subscriptions.push(recorder.subscribe(program, begin, self.activations(), stats));
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Removes a subscription of [`Self::subscribe`].
    pub(crate) fn unsubscribe(&self, recorder: &Arc<Recorder>) {
        let mut subscriptions = self.subscriptions.lock();
        subscriptions
            .extract_if(.., |subscription| subscription.is_of(recorder))
            .for_each(|subscription| subscription.end());
        self.is_on.store(!subscriptions.is_empty(), Ordering::Relaxed);
    }

    /// Adds the inferences that ended without a subscription, so that later ones get the right numbers.
    fn catch_up(&self) {
        let ended = self.completed.iter().map(|counts| counts.total()).sum();
        self.next.fetch_max(ended, Ordering::Relaxed);
    }

    /// Numbers an inference that begins, and reserves a sample with each subscription whose rule selects it.
    /// `is_asked` is true if the caller binds memory to the stats buffer.
    pub(crate) fn begin_sample(
        &self,
        program: u32,
        activation: u32,
        arrival: Arrival,
        is_asked: bool,
    ) -> Option<ActiveSample> {
        if !self.is_on() {
            self.catch_up();
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut sample = ActiveSample::default();
        let mut is_wanted = is_asked;
        // An inference that was submitted before the first subscription has no submission time.
        if arrival.enqueued_ns != 0 {
            for subscription in self.subscriptions.lock().iter() {
                let Some(slot) = subscription.reserve(activation, number) else { continue };
                is_wanted = true;
                sample.watch.wants_device |= slot.wants_device();
                match sample.slots.iter_mut().find(|place| place.is_none()) {
                    Some(place) => *place = Some(slot),
                    None => sample.more.push(slot),
                }
            }
        }
        is_wanted.then(|| {
            sample.watch.stages.enqueued_ns = arrival.enqueued_ns;
            sample.watch.stages.begun_ns = if arrival.is_begin { arrival.enqueued_ns } else { 0 };
            sample.watch.identity = Identity { program, activation, inference: number };
            sample.queue_depth = arrival.queue_depth;
            sample
        })
    }
}

impl Drop for SubscriptionRegistry {
    fn drop(&mut self) {
        // A lock of a forked process's parent may be held forever.
        if self.fork_guard.is_current() {
            self.subscriptions.lock().drain(..).for_each(|subscription| subscription.end());
        }
    }
}

impl ActiveSample {
    /// Records the sample of an inference that succeeded. Called before the completion of the inference, so that a
    /// thread that waits for the inference finds its sample.
    pub(crate) fn record(self) {
        let Self { watch: Watch { stages, identity, stats, .. }, queue_depth, slots, more } = self;
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
            // This inference is an element of the queue.
            in_queue: queue_depth.saturating_add(1),
        };
        let stats: Option<Arc<[u8]>> = stats.map(Into::into);
        for slot in slots.into_iter().flatten().chain(more) {
            slot.record(sample, stats.as_ref());
        }
    }
}
