//! The life of a request among threads: submit, help, cancel, drop. Its body is a [`Slot`], in which loom reports two
//! threads that meet.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use crate::{
    AskedToEnd, Event, FOREVER, Generation, Phase, Reason, RequestState, Ring, RunQueues, Slot,
    with_preemptions,
};

/// One request, and what a scheduler has for it.
struct World {
    state: RequestState,
    body: Slot<u32>,
    queues: RunQueues,
    on_device: Ring,
    // Inferences that ended, and those that ran.
    ends: AtomicU32,
    runs: AtomicU32,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            state: RequestState::idle(),
            body: Slot::new(Box::new(0)),
            queues: RunQueues::new(1, 2, false),
            on_device: Ring::new(2),
            ends: AtomicU32::new(0),
            runs: AtomicU32::new(0),
        })
    }

    fn with_body(&self) {
        let mut body = self.body.take().expect("the owner finds the body");
        *body += 1;
        self.body.put(body);
    }

    /// As `Scheduler::submit` into a queue; false where the request was in flight.
    fn submit(&self) -> bool {
        if self.state.begin(false).is_err() {
            return false;
        }
        self.with_body();
        match self.state.enqueue(true) {
            Ok(true) => self.queues.push(0, 0).unwrap(),
            Ok(false) => {}
            Err(AskedToEnd) => self.complete(),
        }
        true
    }

    fn complete(&self) {
        self.with_body();
        self.ends.fetch_add(1, Ordering::Relaxed);
        self.state.complete(false);
    }

    /// As a worker, or a caller that helps.
    fn help(&self) {
        if self.queues.take().is_some() && self.state.claim_entry() {
            self.runs.fetch_add(1, Ordering::Relaxed);
            self.complete();
        }
    }

    /// As `ExecObj::cancel` of a queued or running inference.
    fn cancel(&self) {
        let Some(generation) = self.state.under_way() else { return };
        if self.state.claim(generation) {
            self.complete();
        } else {
            self.state.ask_to_end(generation, Reason::Cancelled);
            if self.state.take_from_device(generation) {
                self.complete();
            }
        }
    }

    fn wait(&self) {
        while self.state.is_in_flight() {
            let _ = self.state.wait(FOREVER, || (!self.state.is_in_flight()).then_some(()));
        }
    }

    /// As a running inference that is left to a device, by the thread that owns it.
    fn leave(&self) {
        self.with_body();
        match self.state.leave_to_device() {
            Ok(true) => assert_eq!(self.on_device.push(0), Ok(false)),
            Ok(false) => {}
            Err(AskedToEnd) => self.complete(),
        }
    }

    /// As a thread that waits for the oldest on the device.
    fn finish_oldest(&self) {
        if self.on_device.pop().is_some() && self.state.claim_device_entry() {
            self.complete();
        }
    }
}

#[test]
fn inference_that_is_submitted_helped_with_and_cancelled_ends_once() {
    with_preemptions(3, || {
        let world = World::new();
        let helper = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.help())
        };
        let canceller = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.cancel())
        };
        assert!(world.submit());
        canceller.join().unwrap();
        helper.join().unwrap();
        world.help();
        world.wait();
        assert_eq!(world.ends.load(Ordering::Relaxed), 1);
        assert_eq!(world.state.phase(), Phase::Idle);
    });
}

/// One thread cancels the queued inference and submits the next, whose entry is the one that is there, while a worker takes
/// that entry: an inference that was accepted runs.
#[test]
fn inference_accepted_after_a_cancelled_one_runs() {
    with_preemptions(3, || {
        let world = World::new();
        assert!(world.submit());
        let worker = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.help())
        };
        world.cancel();
        world.wait();
        let before = world.ends.load(Ordering::Relaxed);
        assert_eq!(before, 1);
        assert!(world.submit());
        worker.join().unwrap();
        while !world.queues.is_empty() {
            world.help();
        }
        world.wait();
        assert_eq!(world.ends.load(Ordering::Relaxed), 2);
    });
}

/// A submission that finds no room, while another thread cancels it and submits the next in reliance on its entry: none of
/// them is lost, whichever thread has to end them.
#[test]
fn inference_without_room_leaves_no_accepted_one_behind() {
    with_preemptions(3, || {
        let world = World::new();
        let other = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                world.cancel();
                u32::from(world.submit())
            })
        };
        // As `Scheduler::enqueue` and `refuse`, with a queue that is full.
        let generation = world.state.begin(false).map(|begun| begun.generation);
        let mut accepted = 0;
        if let Ok(generation) = generation {
            world.with_body();
            match world.state.enqueue(true) {
                Err(AskedToEnd) => {
                    accepted += 1;
                    world.complete();
                }
                Ok(false) => accepted += 1,
                Ok(true) => {
                    if world.state.claim_entry() {
                        if world.state.generation() == generation {
                            world.state.withdraw(crate::PriorPhase::Idle);
                        } else {
                            // The other thread's; ours ended when that one cancelled it.
                            accepted += 1;
                            world.complete();
                        }
                    } else {
                        accepted += 1;
                    }
                }
            }
        }
        accepted += other.join().unwrap();
        while !world.queues.is_empty() {
            world.help();
        }
        world.wait();
        assert_eq!(world.ends.load(Ordering::Relaxed), accepted);
        assert_eq!(world.state.phase(), Phase::Idle);
    });
}

/// The thread that leaves an inference to the device meets one that asks for its end: one of them ends it.
#[test]
fn inference_asked_to_end_while_it_is_left_to_the_device_ends_once() {
    with_preemptions(3, || {
        let world = World::new();
        let generation: Generation = world.state.begin(false).unwrap().generation;
        let canceller = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                world.state.ask_to_end(generation, Reason::Cancelled);
                if world.state.take_from_device(generation) {
                    world.complete();
                }
            })
        };
        world.leave();
        canceller.join().unwrap();
        assert_eq!(world.ends.load(Ordering::Relaxed), 1);
        assert_eq!(world.state.phase(), Phase::Idle);
    });
}

/// A worker takes the oldest from the device while the thread that handed it over ends it by itself and begins the next,
/// which relies on the entry that is there.
#[test]
fn inference_on_the_device_always_has_an_entry_or_an_owner() {
    with_preemptions(3, || {
        let world = World::new();
        world.state.begin(false).unwrap();
        world.leave();
        let worker = {
            let world = Arc::clone(&world);
            thread::spawn(move || world.finish_oldest())
        };
        if let Some(generation) = world.state.under_way()
            && world.state.take_from_device(generation)
        {
            world.complete();
        }
        world.wait();
        world.state.begin(false).unwrap();
        world.leave();
        worker.join().unwrap();
        while world.state.is_in_flight() {
            world.finish_oldest();
        }
        assert_eq!(world.ends.load(Ordering::Relaxed), 2);
    });
}

/// Two threads wait for the end of an inference that a third one runs, or withdraws: both wake, though the end looks for
/// them in the state word only.
#[test]
fn end_of_an_inference_wakes_all_that_wait_for_it() {
    for is_withdrawn in [false, true] {
        with_preemptions(3, move || {
            let world = World::new();
            world.state.begin(false).unwrap();
            let waiter = {
                let world = Arc::clone(&world);
                thread::spawn(move || world.wait())
            };
            let owner = {
                let world = Arc::clone(&world);
                thread::spawn(move || {
                    if is_withdrawn {
                        world.state.withdraw(crate::PriorPhase::Idle);
                    } else {
                        world.complete();
                    }
                })
            };
            world.wait();
            owner.join().unwrap();
            waiter.join().unwrap();
        });
    }
}

/// A thread that binds memory to the idle request, and one that submits it: never both at once.
#[test]
fn request_is_edited_or_submitted() {
    with_preemptions(3, || {
        let world = World::new();
        let editor = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                if world.state.edit().is_ok() {
                    world.with_body();
                    world.state.edited();
                }
            })
        };
        let is_submitted = world.submit();
        editor.join().unwrap();
        world.help();
        assert_eq!(world.ends.load(Ordering::Relaxed), u32::from(is_submitted));
    });
}
