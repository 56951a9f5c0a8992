//! The released scheduler: its workers, its watchdog, callers that help or sleep, turns and permits.

use std::sync::Arc;
use std::time::Duration;

use loom::sync::atomic::Ordering;
use loom::thread;
use qaic_sched::{Deadline, Error, Reason, Request, Scheduler, SchedulerOptions, WaitScope};
use qaic_sync::Event;

use crate::counted::{Counted, Device};
use crate::{FOREVER, with_preemptions};

struct World {
    device: Arc<Device>,
    scheduler: Arc<Scheduler<Counted>>,
    requests: Vec<Arc<Request<Counted>>>,
}

impl World {
    fn new(count: usize, device: Device, change: impl FnOnce(&mut SchedulerOptions)) -> Arc<Self> {
        let device = Arc::new(device);
        let mut options = SchedulerOptions { capacity: 2, ..device.options() };
        change(&mut options);
        let scheduler = Scheduler::new(options);
        let requests = (0..count).map(|_| {
            let request = scheduler.take_request(0).unwrap();
            request.attach(Counted::new(&device));
            request
        });
        let requests = requests.collect();
        Arc::new(Self { device, scheduler, requests })
    }

    fn submit(&self, number: usize, deadline: Option<Deadline>) {
        let request = &self.requests[number];
        let begun = request.state.begin(false).unwrap();
        let task = request.take_task().unwrap();
        self.scheduler.submit(request, task, begun.generation, deadline).unwrap();
    }

    /// Waits for an inference that other threads run.
    fn wait(&self, number: usize) -> Result<(), Error> {
        let state = &self.requests[number].state;
        while state.is_in_flight() {
            let _ = state.wait(FOREVER, || (!state.is_in_flight()).then_some(()));
        }
        self.requests[number].outcome()
    }

    /// Waits for any inference until that of a request has ended.
    fn wait_for_any(&self, number: usize) {
        let state = &self.requests[number].state;
        while state.is_in_flight() {
            if !self.scheduler.help(&mut || false) {
                let ended = || (!state.is_in_flight()).then_some(());
                let _ = self.scheduler.sleep(state, FOREVER, ended);
            }
        }
    }

    fn began(&self) -> u32 {
        self.device.began.load(Ordering::Acquire)
    }
}

fn on(world: &Arc<World>, work: impl FnOnce(&World) + Send + 'static) -> thread::JoinHandle<()> {
    let world = Arc::clone(world);
    thread::spawn(move || work(&world))
}

/// Two workers have run. Then only one may work, and the call for the next inference reaches a worker within
/// the limit.
#[test]
fn inference_runs_after_the_number_of_workers_was_lowered() {
    with_preemptions(0, || {
        let world = World::new(2, Device::default(), |options| options.threads = 2);
        world.submit(0, None);
        world.submit(1, None);
        assert_eq!((world.wait(0), world.wait(1)), (Ok(()), Ok(())));
        world.scheduler.allow(1);
        world.submit(0, None);
        assert_eq!((world.wait(0), world.began()), (Ok(()), 3));
    });
}

/// The limit of workers is lowered while an inference is submitted, and the woken worker may be the one that ends.
#[test]
fn inference_submitted_while_the_number_of_workers_is_lowered_runs() {
    with_preemptions(1, || {
        let world = World::new(1, Device::default(), |options| options.threads = 2);
        let other = on(&world, |world| world.scheduler.allow(1));
        world.submit(0, None);
        other.join().unwrap();
        assert_eq!((world.wait(0), world.began()), (Ok(()), 1));
    });
}

/// A caller is about to sleep while a thread submits an inference to the device. One of the two works on the
/// inference.
#[test]
fn inference_handed_to_the_device_beside_a_sleeping_caller_ends() {
    with_preemptions(2, || {
        let world = World::new(1, Device { is_queue: true, ..Device::default() }, |_| ());
        world.requests[0].state.begin(false).unwrap();
        let caller = on(&world, |world| world.wait_for_any(0));
        let request = &world.requests[0];
        let task = request.take_task().unwrap();
        world.scheduler.submit(request, task, request.state.generation(), None).unwrap();
        caller.join().unwrap();
        assert_eq!((request.outcome(), world.began()), (Ok(()), 1));
    });
}

/// The watchdog requests the end of an inference before or while a worker runs it. The inference ends once,
/// with the earlier result.
#[test]
fn inference_at_its_deadline_ends_once() {
    for stuck in [0, 1] {
        with_preemptions(1, move || {
            let world = World::new(1, Device::default(), |_| ());
            world.device.stuck.store(stuck, Ordering::Release);
            world.submit(0, Deadline::after(Duration::ZERO));
            let outcome = world.wait(0);
            assert!(outcome.is_err() || stuck == 0, "nothing else ends it");
            assert!(matches!(outcome, Ok(()) | Err(Error::Timeout { timeout_ms: 0, .. })), "{outcome:?}");
            assert!(world.began() <= 1);
        });
    }
}

/// A caller cancels an inference while a worker takes it, and submits the next one. The next inference runs.
#[test]
fn inference_submitted_after_a_cancelled_one_runs() {
    with_preemptions(2, || {
        let world = World::new(1, Device::default(), |_| ());
        world.submit(0, None);
        let request = &world.requests[0];
        if let Some(generation) = request.state.under_way()
            && !request.revoke(generation)
        {
            request.ask_to_end(generation, Reason::Cancelled);
        }
        let outcome = world.wait(0);
        assert!(matches!(outcome, Ok(()) | Err(Error::Cancelled)), "{outcome:?}");
        world.submit(0, None);
        assert_eq!(world.wait(0), Ok(()));
    });
}

/// A caller works with the turn of a queue, or stops waiting for it, concurrently with an inference that needs the
/// turn.
#[test]
fn turn_that_is_granted_or_given_up_leaves_no_inference_behind() {
    for deadline in [None, Some(Duration::ZERO)] {
        with_preemptions(1, move || {
            let world = World::new(1, Device::default(), |options| options.is_ordered = true);
            world.submit(0, None);
            let mut scope = WaitScope::until(deadline.and_then(Deadline::after));
            let granted =
                world.scheduler.with_turn(0, &mut scope, || world.device.executing.load(Ordering::Acquire));
            match granted {
                Ok(executing) => assert_eq!(executing, 0, "the turn is of one thread"),
                Err(error) => assert!(deadline.is_some(), "{error}"),
            }
            assert_eq!((world.wait(0), world.began()), (Ok(()), 1));
            // A thread that stopped waiting does not keep the turn.
            assert!(world.scheduler.with_turn(0, &mut WaitScope::default(), || ()).is_ok());
        });
    }
}

/// Two inferences use a device with one place. The second one gets the place after the end of the first.
#[test]
fn inference_without_a_place_on_the_device_gets_the_next() {
    with_preemptions(1, || {
        let world =
            World::new(2, Device { is_queue: true, ..Device::default() }, |options| options.capacity = 1);
        let other = on(&world, |world| {
            world.submit(1, None);
            world.wait_for_any(1);
        });
        world.submit(0, None);
        world.wait_for_any(0);
        other.join().unwrap();
        assert_eq!(world.began(), 2);
    });
}

/// A thread requests the end of an inference while another one submits it to the device. One of the two ends
/// the inference.
#[test]
fn inference_asked_to_end_while_it_is_handed_to_the_device_ends_once() {
    with_preemptions(2, || {
        let world = World::new(1, Device { is_queue: true, ..Device::default() }, |_| ());
        let request = &world.requests[0];
        let generation = request.state.begin(false).unwrap().generation;
        let canceller = on(&world, move |world| {
            world.requests[0].ask_to_end(generation, Reason::Cancelled);
            world.scheduler.finish(&world.requests[0], generation, None);
        });
        world.scheduler.submit(request, request.take_task().unwrap(), generation, None).unwrap();
        canceller.join().unwrap();
        world.wait_for_any(0);
        assert_eq!(request.outcome(), Err(Error::Cancelled));
    });
}

/// A thread takes the oldest inference from the device, while its caller ends the inference and submits the next one,
/// which relies on the existing entry.
#[test]
fn inference_on_the_device_always_has_an_entry_or_an_owner() {
    with_preemptions(2, || {
        let world = World::new(1, Device { is_queue: true, ..Device::default() }, |_| ());
        world.submit(0, None);
        let helper = on(&world, |world| {
            world.scheduler.help(&mut || false);
        });
        let request = &world.requests[0];
        world.scheduler.finish(request, request.state.generation(), None);
        assert_eq!(world.wait(0), Ok(()));
        world.submit(0, None);
        helper.join().unwrap();
        world.wait_for_any(0);
        assert_eq!(world.began(), 2);
    });
}

/// A submission finds no room, while another thread cancels it and submits the next one, which relies on its
/// entry. Each accepted inference ends.
#[test]
fn inference_without_room_leaves_no_accepted_one_behind() {
    with_preemptions(1, || {
        let world = World::new(4, Device::default(), |options| options.capacity = 1);
        // The worker has one inference, and two fill the queue.
        world.device.is_held.store(true, Ordering::Release);
        world.submit(0, None);
        while world.began() == 0 {
            thread::yield_now();
        }
        (1..3).for_each(|number| world.submit(number, None));
        let other = on(&world, |world| {
            let request = &world.requests[3];
            if let Some(generation) = request.state.under_way()
                && request.revoke(generation)
                && let Ok(begun) = request.state.begin(false)
            {
                let task = request.take_task().unwrap();
                if world.scheduler.submit(request, task, begun.generation, None).is_err() {
                    request.withdraw(begun.prior_phase);
                }
            }
        });
        let request = &world.requests[3];
        if let Ok(begun) = request.state.begin(false) {
            let task = request.take_task().unwrap();
            if world.scheduler.submit(request, task, begun.generation, None).is_err() {
                request.withdraw(begun.prior_phase);
            }
        }
        other.join().unwrap();
        world.device.is_held.store(false, Ordering::Release);
        (0..3).for_each(|number| assert_eq!(world.wait(number), Ok(())));
        let _ = world.wait(3);
    });
}
