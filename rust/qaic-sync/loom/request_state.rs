//! Steps of a request on several threads: its owner, waiting threads, and an editing thread. Its task is a [`Slot`],
//! in which loom reports concurrent accesses.

use loom::sync::Arc;
use loom::thread;

use crate::{Event, FOREVER, RequestState, Slot, with_preemptions};

struct World {
    state: RequestState,
    task: Slot<u32>,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self { state: RequestState::idle(), task: Slot::new(Box::new(0)) })
    }

    fn with_task(&self) {
        let mut task = self.task.take().expect("the owner finds the task");
        *task += 1;
        self.task.put(task);
    }

    fn wait(&self) {
        while self.state.is_in_flight() {
            let _ = self.state.wait(FOREVER, || (!self.state.is_in_flight()).then_some(()));
        }
    }
}

/// Two threads wait for the end of an inference that a third one runs or withdraws. Both wake, although the
/// step that ends the inference finds them only through the state word.
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
                        world.state.complete(false);
                    }
                })
            };
            world.wait();
            owner.join().unwrap();
            waiter.join().unwrap();
        });
    }
}

/// A thread binds memory to the idle request, and another one submits it: never concurrently.
#[test]
fn request_is_edited_or_submitted() {
    with_preemptions(3, || {
        let world = World::new();
        let editor = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                if world.state.edit().is_ok() {
                    world.with_task();
                    world.state.edited();
                }
            })
        };
        if world.state.begin(false).is_ok() {
            world.with_task();
            world.state.complete(false);
        }
        editor.join().unwrap();
        assert!(!world.state.is_in_flight());
    });
}
