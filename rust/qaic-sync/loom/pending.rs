//! Steps of an inference in the background on several threads: start, complete, withdraw, cancel, expire, drop. Its
//! memory is a [`Slot`], in which loom reports concurrent accesses. The request carries another inference afterwards.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use crate::{
    Event, Expired, FOREVER, PendingState, Phase, Reason, RequestKey, RequestState, Settled, Slot, TakeBack,
    with_preemptions,
};

/// A pending inference, the request that may carry it, and the ways in which its end became known.
struct World {
    state: PendingState,
    memory: Slot<u32>,
    request: RequestState,
    body: Slot<u32>,
    // Number of reported ends, the count of the queue, and the number of ends.
    reported: AtomicU32,
    counted: AtomicU32,
    ends: AtomicU32,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            state: PendingState::prepared(),
            memory: Slot::new(Box::new(0)),
            request: RequestState::idle(),
            body: Slot::new(Box::new(0)),
            reported: AtomicU32::new(0),
            counted: AtomicU32::new(0),
            ends: AtomicU32::new(0),
        })
    }

    fn with(slot: &Slot<u32>) {
        let mut value = slot.take().expect("the owner finds it");
        *value += 1;
        slot.put(value);
    }

    fn report(&self, is_counted: bool) {
        self.reported.fetch_add(1, Ordering::AcqRel);
        self.uncount(is_counted);
    }

    fn uncount(&self, is_counted: bool) {
        if is_counted {
            let before = self.counted.fetch_sub(1, Ordering::AcqRel);
            assert_ne!(before, 0, "an inference left that was not counted");
        }
    }

    /// Does the same as `PendingInference::start_on` with a queue that reports, for a request that a worker
    /// runs or that runs immediately.
    fn start(&self, runs_here: bool) {
        if !self.state.hold() {
            return;
        }
        Self::with(&self.memory);
        let generation = self.request.begin(false).unwrap().generation;
        Self::with(&self.body);
        let published = self.state.publish(RequestKey { number: 0, generation });
        if published.is_err() || runs_here || self.request.enqueue(true).is_err() {
            self.complete_request();
        }
        if self.state.has_ended() {
            self.state.leave_start(false);
            return;
        }
        self.counted.fetch_add(1, Ordering::AcqRel);
        if !self.state.leave_start(true) {
            self.uncount(true);
        }
    }

    /// Does the same as `Request::complete` and `PendingInference::completed`, on the thread that owns the
    /// request.
    fn complete_request(&self) {
        Self::with(&self.body);
        self.request.complete(false);
        Self::with(&self.memory);
        self.end();
    }

    fn end(&self) {
        self.ends.fetch_add(1, Ordering::Relaxed);
        let end = self.state.end(false);
        if end.needs_report {
            self.report(end.is_counted);
        } else {
            self.uncount(end.is_counted);
        }
    }

    /// Does the same as a worker.
    fn work(&self) {
        if self.request.claim_entry() {
            self.complete_request();
        }
    }

    /// Does the same as `PendingInference::revoke`.
    fn take_back(&self) -> bool {
        match self.state.take_back() {
            TakeBack::Held => {
                Self::with(&self.memory);
                self.end();
                true
            }
            TakeBack::Started(key) if self.request.claim(key.generation) => {
                let is_mine = self.state.set_taken_back();
                self.complete_request();
                is_mine
            }
            _ => false,
        }
    }

    /// Does the same as `PendingInference::cancel`.
    fn cancel(&self) -> bool {
        let is_taken_back = self.take_back();
        if !is_taken_back && let Some(key) = self.state.ask_to_end() {
            self.end_request(key);
        }
        is_taken_back
    }

    /// Does the same as `ExecObj::cancel` for one inference.
    fn end_request(&self, key: RequestKey) {
        if self.request.claim(key.generation) {
            self.complete_request();
        } else {
            self.request.ask_to_end(key.generation, Reason::Cancelled);
        }
    }

    /// Does the same as `PendingInference::check` at its deadline.
    fn expire(&self) {
        match self.state.expire() {
            Expired::Held => {
                Self::with(&self.memory);
                let end = self.state.end(true);
                self.ends.fetch_add(1, Ordering::Relaxed);
                self.report(end.is_counted);
            }
            Expired::Settled => {
                self.report(false);
                if let Some(key) = self.state.ask_to_end() {
                    self.end_request(key);
                }
            }
            Expired::Known => {}
        }
    }

    /// Ends the inferences left in the queue, and checks that the end is reported in exactly one way.
    fn settle(&self, is_taken_back: bool) {
        self.work();
        assert!(self.state.has_ended());
        assert_eq!(self.ends.load(Ordering::Relaxed), 1);
        let reported = self.reported.load(Ordering::Relaxed);
        let ways = reported + u32::from(self.state.has_ended_in_start()) + u32::from(is_taken_back);
        assert_eq!(ways, 1, "reported {reported} times, taken back: {is_taken_back}");
        assert_eq!(self.counted.load(Ordering::Relaxed), 0);
        assert_eq!(self.request.phase(), Phase::Idle);
        Self::with(&self.memory);
    }
}

/// Runs `first` and `second` on their own threads concurrently with the start, and settles.
fn beside_a_start(
    runs_here: bool,
    first: impl Fn(&World) -> bool + Copy + Send + Sync + 'static,
    second: impl Fn(&World) -> bool + Copy + Send + Sync + 'static,
) {
    with_preemptions(3, move || {
        let world = World::new();
        let one = {
            let world = Arc::clone(&world);
            thread::spawn(move || first(&world))
        };
        let other = {
            let world = Arc::clone(&world);
            thread::spawn(move || second(&world))
        };
        world.start(runs_here);
        let is_taken_back = [one.join().unwrap(), other.join().unwrap()];
        assert_ne!(is_taken_back, [true; 2], "taken back twice");
        world.settle(is_taken_back.contains(&true));
    });
}

fn works(world: &World) -> bool {
    world.work();
    false
}

fn expires(world: &World) -> bool {
    world.expire();
    false
}

#[test]
fn pending_started_completed_and_taken_back_ends_once() {
    beside_a_start(false, works, World::take_back);
}

#[test]
fn pending_started_completed_and_cancelled_ends_once() {
    beside_a_start(false, works, World::cancel);
}

#[test]
fn pending_started_completed_and_expired_ends_once() {
    beside_a_start(false, works, expires);
}

#[test]
fn pending_taken_back_twice_ends_once() {
    beside_a_start(false, World::take_back, World::take_back);
}

#[test]
fn pending_expired_and_cancelled_while_it_runs_in_its_start_ends_once() {
    beside_a_start(true, expires, World::cancel);
}

/// A thread that requests the end late never affects the next inference of the request.
#[test]
fn cancel_that_comes_late_leaves_the_next_inference_alone() {
    with_preemptions(3, || {
        let world = World::new();
        let canceller = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.cancel())
        };
        world.start(true);
        let next = world.request.begin(false).unwrap().generation;
        assert!(world.request.enqueue(true).unwrap());
        let is_taken_back = canceller.join().unwrap();
        assert_eq!(world.request.under_way(), Some(next));
        assert_eq!(world.request.reason(), None);
        assert!(world.request.claim(next));
        world.request.complete(false);
        world.settle(is_taken_back);
    });
}

/// A thread waits until the outcome is known, then until the device has released the inference, as
/// `PendingInference::wait` does.
#[test]
fn thread_that_waits_hears_of_the_deadline_and_of_the_end() {
    with_preemptions(3, || {
        let world = World::new();
        let expiring = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.expire())
        };
        let working = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                world.start(false);
                world.work();
            })
        };
        while world.state.wait(FOREVER, || world.state.settled()).is_none() {}
        while world.state.wait(FOREVER, || world.state.has_ended().then_some(())).is_none() {}
        expiring.join().unwrap();
        working.join().unwrap();
        world.settle(false);
        assert_ne!(world.state.settled(), Some(Settled::TakenBack));
    });
}
