//! Where the inferences of a program meet those who want to know about them.

use std::sync::Arc;

use qaic_stats::sample::HostSample;

use super::recorder::{Claim, Enrolment, Recorder};
use super::stages::{Identity, Watch};
use crate::image::Image;
use crate::process::ForkGuard;
use crate::process::clock;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering};

/// One per program; the programs of an inference set, which are activations of the same container, share one.
#[derive(Debug)]
pub struct Hub {
    image: Arc<Image>,
    set_size: Option<u32>,
    // Whether any recorder is enrolled. Relaxed: an inference that begins while somebody subscribes may be missed.
    is_on: AtomicBool,
    // Number of the next inference that is looked at.
    next: AtomicU64,
    // Inferences that ended well, per activation.
    completed: Box<[Arc<AtomicU64>]>,
    enrolled: Mutex<Vec<Arc<Enrolment>>>,
    fork_guard: ForkGuard,
}

/// When an inference was put into the queue, and what was there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Arrival {
    /// 0 where nobody wanted to know at that time.
    pub(crate) enqueued_ns: u64,
    pub(crate) queue_depth: u32,
    /// Whether it begins at the same time, on the thread of its caller.
    pub(crate) is_begin: bool,
}

impl Arrival {
    /// Now, behind `queue_depth` others.
    pub(crate) fn now(queue_depth: usize) -> Self {
        let queue_depth = u32::try_from(queue_depth).unwrap_or(u32::MAX);
        Self { enqueued_ns: clock::now_ns(), queue_depth, is_begin: false }
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
    /// Of a program with `completed.len()` activations, each with `set_size` exec objects where it is of an inference set.
    pub(crate) fn new(
        image: &Arc<Image>,
        set_size: Option<u32>,
        completed: Box<[Arc<AtomicU64>]>,
    ) -> Arc<Self> {
        Arc::new(Self {
            image: Arc::clone(image),
            set_size,
            is_on: AtomicBool::new(false),
            next: AtomicU64::new(0),
            completed,
            enrolled: Mutex::default(),
            fork_guard: ForkGuard::new(),
        })
    }

    /// The container.
    pub fn image(&self) -> &Arc<Image> {
        &self.image
    }

    /// Name of the network.
    pub fn name(&self) -> &str {
        &self.image.network().network_name
    }

    /// Whether the program has device statistics.
    pub fn has_stats(&self) -> bool {
        self.image.network().stats.is_some()
    }

    /// Exec objects of an activation of an inference set; `None` of other programs.
    pub fn set_size(&self) -> Option<u32> {
        self.set_size
    }

    /// Activations.
    pub fn activations(&self) -> u32 {
        u32::try_from(self.completed.len()).unwrap_or(u32::MAX)
    }

    /// Whether anybody wants to know.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Has a recorder take samples from now on, under its number of the program.
    pub(crate) fn subscribe(&self, recorder: &Arc<Recorder>, program: u32) {
        let mut enrolled = self.enrolled.lock();
        if enrolled.is_empty() {
            self.catch_up();
        }
        let stats = (self.has_stats(), self.image.network().stats_output().is_some());
        let begin = self.next.load(Ordering::Relaxed);
        enrolled.push(recorder.enrol(program, begin, self.activations(), stats));
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Ends [`Self::subscribe`].
    pub(crate) fn unsubscribe(&self, recorder: &Arc<Recorder>) {
        let mut enrolled = self.enrolled.lock();
        enrolled.extract_if(.., |enrolment| enrolment.is_of(recorder)).for_each(|enrolment| enrolment.end());
        self.is_on.store(!enrolled.is_empty(), Ordering::Relaxed);
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
            for enrolment in self.enrolled.lock().iter() {
                let Some(claim) = enrolment.claim(lane, number) else { continue };
                is_wanted = true;
                watched.watch.wants_device |= claim.wants_device();
                match watched.claims.iter_mut().find(|slot| slot.is_none()) {
                    Some(slot) => *slot = Some(claim),
                    None => watched.more.push(claim),
                }
            }
        }
        is_wanted.then(|| {
            watched.watch.stages.enqueued_ns = arrival.enqueued_ns;
            watched.watch.stages.begun_ns = if arrival.is_begin { arrival.enqueued_ns } else { 0 };
            watched.watch.identity = Identity { program, activation: lane, inference: number };
            watched.queue_depth = arrival.queue_depth;
            watched
        })
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        // A lock of a forked process's parent may be held for good.
        if self.fork_guard.is_current() {
            self.enrolled.lock().drain(..).for_each(|enrolment| enrolment.end());
        }
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
