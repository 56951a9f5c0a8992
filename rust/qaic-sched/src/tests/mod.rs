//! Decisions of a scheduler that the results of inferences do not reveal.
#![allow(clippy::unwrap_used)] // a failed assumption fails the test

mod counted;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use qaic_sync::atomic::{AtomicU32, Ordering};
use qaic_sync::{Event, EventCount};

pub(crate) use counted::{Counted, Device};

use crate::request_state::Submitted;
use crate::requests::NUMBER_BITS;
use crate::scheduler::{CalledAway, GENERATION_MASK, SHORT_NS, STATE_ACCESS};
use crate::state_access::TICKETS;
use crate::{Deadline, Error, Phase, Reason, Request, Scheduler, SchedulerOptions, Task, WaitScope, clock};

/// Longer than any test takes.
const LONG: Duration = Duration::from_mins(1);

fn device() -> Arc<Device> {
    Arc::default()
}

fn scheduler(device: &Arc<Device>) -> Arc<Scheduler<Counted>> {
    Scheduler::new(device.options())
}

fn request(scheduler: &Scheduler<Counted>, device: &Arc<Device>) -> Arc<Request<Counted>> {
    let request = scheduler.take_request(0).unwrap();
    request.attach(Counted::new(device));
    request
}

fn begin(request: &Request<Counted>) -> (Box<Task<Counted>>, Submitted) {
    let begun = request.state.begin(false).unwrap();
    (request.take_task().unwrap(), begun)
}

fn submit(
    scheduler: &Scheduler<Counted>,
    request: &Request<Counted>,
    limit: Option<Duration>,
) -> Result<(), Error> {
    let (task, begun) = begin(request);
    scheduler.submit(request, task, begun.generation, limit.and_then(Deadline::after))
}

/// Pushes an inference into its run queue directly, and calls no worker.
fn queue_up(scheduler: &Scheduler<Counted>, request: &Request<Counted>) {
    let (task, begun) = begin(request);
    request.put_task(task);
    let queues = &scheduler.shared.queues;
    assert_eq!(request.state.enqueue(!queues.is_ordered), Ok(true));
    queues.push(0, request.number | (begun.generation.low_bits() << NUMBER_BITS)).unwrap();
}

fn queue_all(scheduler: &Scheduler<Counted>, requests: &[Arc<Request<Counted>>]) {
    for request in requests {
        queue_up(scheduler, request);
    }
}

/// Returns true if an inference ends without further calls.
fn ends(request: &Request<Counted>) -> bool {
    let state = &request.state;
    let began = Instant::now();
    while state.is_in_flight() && began.elapsed() < LONG {
        let _ = state.wait(LONG, || (!state.is_in_flight()).then_some(()));
    }
    !state.is_in_flight()
}

/// Waits until a condition is true.
fn until(is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LONG);
        thread::yield_now();
    }
}

fn executing(device: &Device, count: u32) {
    until(|| device.executing.load(Ordering::Acquire) == count);
}

fn hold(device: &Device, is_held: bool) {
    device.is_held.store(is_held, Ordering::Release);
}

#[test]
fn parts_of_a_queue_entry_share_no_bit_and_leave_none_out() {
    let parts = [(1 << NUMBER_BITS) - 1, GENERATION_MASK << NUMBER_BITS, STATE_ACCESS];
    assert_eq!(parts.iter().fold(0, |all, part| all | part), u32::MAX);
    assert_eq!(parts.map(u32::count_ones).iter().sum::<u32>(), u32::BITS);
}

#[test]
fn workers_are_no_more_than_can_be_of_use() {
    let workers = |queues, threads, capacity| {
        SchedulerOptions { queues, capacity, ..device().options() }.most_workers(threads)
    };
    for (queues, threads, capacity, expected) in [
        (1, 1, 1000, 1),
        (1, 500, 1000, 500),
        (3, 5, 1000, 15),
        (3, 5, 14, 14),
        (0, 0, 1000, 1),
        (2, 0, 1000, 2),
        (0, 2, 1000, 2),
        (1, 1, 0, 1),
        (u32::MAX, u32::MAX, u32::MAX, u32::MAX),
    ] {
        assert_eq!(workers(queues, threads, capacity), expected, "{queues} {threads} {capacity}");
    }
    let cpus = u32::try_from(thread::available_parallelism().unwrap().get()).unwrap();
    let host = Arc::new(Device { is_host: true, ..Device::default() });
    let workers = |queues, threads| {
        SchedulerOptions { queues, capacity: u32::MAX, ..host.options() }.most_workers(threads)
    };
    assert_eq!((workers(1, 1), workers(1, cpus), workers(1, cpus + 5)), (1, cpus, cpus));
    assert_eq!((workers(cpus + 3, 1), workers(cpus + 3, 2)), (cpus + 3, cpus + 3));
}

#[test]
fn device_that_works_by_itself_is_given_several_inferences_unless_state_is_retained() {
    for (is_queue, is_ordered) in [(false, false), (false, true), (true, false), (true, true)] {
        let device = Arc::new(Device { is_queue, ..Device::default() });
        let options = SchedulerOptions { is_ordered, ..device.options() };
        assert_eq!(options.is_pipelined(), is_queue && !is_ordered);
    }
}

#[test]
fn threads_are_gone_with_their_scheduler() {
    // A thread is often finished before a wait for it begins.
    for _ in 0..50 {
        let scheduler = scheduler(&device());
        let shared = &scheduler.shared;
        assert!(shared.workers.are_missing());
        shared.call_worker();
        shared.watchdog.watch(shared, clock::after(LONG));
        assert!(!shared.workers.are_missing());
        let remaining = Arc::downgrade(shared);
        assert_eq!(remaining.strong_count(), 3);
        drop(scheduler);
        assert_eq!(remaining.strong_count(), 0);
    }
}

#[test]
fn there_is_one_watchdog_and_none_for_a_scheduler_that_stops() {
    let scheduler = scheduler(&device());
    for _ in 0..2 {
        scheduler.shared.watchdog.start(&scheduler.shared);
        assert_eq!(Arc::strong_count(&scheduler.shared), 2, "the thread has one");
    }
    let stopping = self::scheduler(&device());
    stopping.shared.stop();
    stopping.shared.watchdog.watch(&stopping.shared, clock::after(LONG));
    stopping.shared.call_worker();
    assert_eq!(Arc::strong_count(&stopping.shared), 1);
}

/// Checks repeatedly that one thread sleeps, because a polling thread could be between two polls at a single
/// check.
fn sleeps(sleeping: impl Fn() -> u32) {
    until(|| sleeping() == 1);
    for look in 0..2_000 {
        assert_eq!(sleeping(), 1, "it woke without a reason before look {look}");
        thread::yield_now();
    }
}

#[test]
fn threads_sleep_where_nothing_is_queued_and_nothing_is_due() {
    for is_queue in [false, true] {
        let scheduler = scheduler(&Arc::new(Device { is_queue, ..Device::default() }));
        let shared = &scheduler.shared;
        shared.call_worker();
        sleeps(|| shared.workers.sleeping());
        shared.watchdog.watch(shared, clock::after(LONG));
        sleeps(|| shared.watchdog.sleeping());
    }
}

/// A worker that came during the turn found nothing, so the end of the turn calls one.
#[test]
fn inference_that_came_during_a_turn_begins_after_it() {
    let device = device();
    let scheduler = Scheduler::new(SchedulerOptions { is_ordered: true, ..device.options() });
    let request = request(&scheduler, &device);
    scheduler.with_turn(0, &mut WaitScope::default(), || queue_up(&scheduler, &request)).unwrap();
    assert!(ends(&request));
    request.outcome().unwrap();
    // No inference waits, so the end of a turn calls no further worker.
    assert!(scheduler.shared.queues.is_empty());
}

/// Another thread cancels an inference whose entry finds no room, and submits the next one, which relies on
/// that entry. The next inference was accepted, so it ends.
#[test]
fn inference_accepted_on_the_entry_of_a_refused_one_ends() {
    let device = device();
    let scheduler = scheduler(&device);
    let request = request(&scheduler, &device);
    let begin = || {
        let (task, begun) = begin(&request);
        request.put_task(task);
        begun.generation
    };
    let refused = begin();
    assert_eq!(request.state.enqueue(true), Ok(true));
    assert!(request.revoke(refused));
    assert_eq!(request.outcome(), Err(Error::Cancelled));
    let accepted = begin();
    assert_eq!(request.state.enqueue(true), Ok(false));
    assert_eq!(scheduler.shared.refuse(&request, refused), Ok(()));
    assert!(!request.revoke(accepted), "it has ended");
    assert_eq!(request.outcome(), Err(Error::QueueFull { capacity: 1000 }));
    submit(&scheduler, &request, None).unwrap();
    assert!(ends(&request));
    assert_eq!(request.outcome(), Ok(()));
}

/// The caller must withdraw an inference without room that no other thread has changed.
#[test]
fn inference_without_room_is_refused_and_not_accepted() {
    let device = device();
    let scheduler = scheduler(&device);
    let request = request(&scheduler, &device);
    let (task, begun) = begin(&request);
    request.put_task(task);
    assert_eq!(request.state.enqueue(true), Ok(true));
    let refused = scheduler.shared.refuse(&request, begun.generation);
    assert_eq!(refused, Err(Error::QueueFull { capacity: 1000 }));
    assert!(request.state.is_in_flight());
    request.withdraw(begun.prior_phase);
    submit(&scheduler, &request, None).unwrap();
    assert!(ends(&request));
}

/// A thread that stops waiting for the turn leaves its ticket in the queue, and not the turn of another
/// thread.
#[test]
fn wait_for_a_turn_that_is_given_up_takes_none() {
    let scheduler = Scheduler::<Counted>::new(SchedulerOptions { is_ordered: true, ..device().options() });
    let access = &scheduler.shared.state_access;
    let until = |limit| WaitScope::until(Deadline::after(limit));
    scheduler
        .with_turn(0, &mut WaitScope::default(), || {
            let given_up = scheduler.with_turn(0, &mut until(Duration::ZERO), || ());
            assert!(matches!(given_up, Err(Error::Timeout { .. })));
            assert!(scheduler.shared.queues.try_turn(0).is_none());
            // The ticket is in the queue.
            let ticket = access.take().unwrap();
            assert_eq!(ticket, 1);
            access.give_back(ticket);
        })
        .unwrap();
    // This entry follows the abandoned ticket, so it runs after the release of the turn.
    scheduler.with_turn(0, &mut until(LONG), || ()).unwrap();
    let free = std::iter::from_fn(|| access.take()).count();
    assert_eq!(free, TICKETS as usize);
}

/// A hint decides on the host; a guarantee of the device decides elsewhere.
#[test]
fn inference_suits_its_caller_where_it_was_short_or_the_device_promises_a_bound() {
    for (is_host, is_bounded, is_queue) in (0..8).map(|bits| (bits & 1 != 0, bits & 2 != 0, bits & 4 != 0)) {
        let device = Arc::new(Device { is_bounded, is_host, is_queue, ..Device::default() });
        let scheduler = Scheduler::<Counted>::new(SchedulerOptions { variants: 2, ..device.options() });
        let shared = &scheduler.shared;
        let suits = |variant| shared.suits_caller(variant, SHORT_NS);
        assert_eq!(suits(0), is_bounded && !is_queue, "one that never ran");
        shared.durations.note(0, SHORT_NS);
        assert_eq!(suits(0), is_bounded && !is_queue);
        shared.durations.note(0, SHORT_NS - 1);
        assert_eq!(suits(0), !is_queue && (is_bounded || is_host));
        assert_eq!(suits(1), is_bounded && !is_queue, "of other shapes");
        shared.durations.note_called_away(0);
        assert_eq!(suits(0), is_bounded && !is_queue);
    }
}

#[test]
fn time_of_an_inference_is_noted_for_its_shapes() {
    let device = device();
    for variant in [0, 1] {
        let scheduler = Scheduler::new(SchedulerOptions { variants: 2, ..device.options() });
        let request = scheduler.take_request(0).unwrap();
        request.attach(Counted { variant, ..Counted::new(&device) });
        submit(&scheduler, &request, None).unwrap();
        assert!(ends(&request));
        let durations = &scheduler.shared.durations;
        assert_eq!([0, 1].map(|other| durations.is_unknown(other)), [variant != 0, variant != 1]);
    }
}

/// If the system provides no threads, waiting callers do the work of workers, in the order of the queue.
#[test]
fn caller_that_waits_works_on_the_queue_where_there_is_no_worker() {
    let device = device();
    let scheduler = scheduler(&device);
    let requests = [(); 2].map(|()| request(&scheduler, &device));
    queue_all(&scheduler, &requests);
    let shared = &scheduler.shared;
    assert!(shared.workers.are_missing());
    assert!(scheduler.help(&mut || false));
    assert!(!requests[0].state.is_in_flight());
    // The first inference left another one in the queue, and called a worker for it.
    assert!(ends(&requests[1]));
    // If there is a worker, it runs the inference.
    queue_up(&scheduler, &requests[0]);
    assert!(!scheduler.help(&mut || false));
    shared.call_worker();
    assert!(ends(&requests[0]));
}

/// A caller's thread handles no signals while it runs an inference, so an inference that has become long
/// continues on another thread.
#[test]
fn inference_that_keeps_its_caller_is_called_away_and_runs_on_a_worker() {
    let device = device();
    let scheduler = scheduler(&device);
    let (request, shared) = (request(&scheduler, &device), &scheduler.shared);
    // The first execution does not end by itself.
    device.stuck.store(1, Ordering::Release);
    let (task, begun) = begin(&request);
    let Err(CalledAway(task)) = shared.run_for_caller(&request, task, None, None) else {
        panic!("nothing called the inference away");
    };
    assert!(request.guard_ns().is_none() && !request.is_asked_to_end() && request.state.is_in_flight());
    assert_eq!(shared.durations.of(0), u64::MAX - 1);
    request.put_task(task);
    shared.enqueue(&request, begun.generation).unwrap();
    assert!(ends(&request));
    request.outcome().unwrap();
}

#[test]
fn inference_may_run_on_its_caller_s_thread_if_it_is_bounded_or_on_an_asynchronous_device() {
    for (is_queue, is_bounded) in [(false, false), (false, true), (true, false), (true, true)] {
        let device = Arc::new(Device { is_bounded, is_queue, ..Device::default() });
        let scheduler = scheduler(&device);
        let (task, _) = begin(&request(&scheduler, &device));
        assert_eq!(scheduler.may_run_here(&task), is_queue || is_bounded);
    }
}

#[test]
fn sleep_ends_with_what_its_caller_finds() {
    for is_queue in [false, true] {
        let scheduler = scheduler(&Arc::new(Device { is_queue, ..Device::default() }));
        let mut looks = 0..1;
        let found =
            scheduler.sleep(&EventCount::default(), Duration::ZERO, || looks.next().is_none().then_some(7));
        assert_eq!(found, Some(7));
        assert_eq!(scheduler.sleep(&EventCount::default(), Duration::ZERO, || None::<u32>), None);
    }
}

/// The time limit of one inference's guard does not apply to the next inference.
#[test]
fn guard_that_is_over_calls_away_the_inference_it_was_of() {
    let device = device();
    let request = request(&scheduler(&device), &device);
    request.guard(7);
    assert!(!request.call_away(7, 6) && !request.is_called_away());
    let seen = request.guard_ns().unwrap();
    assert!(!request.end_guard());
    request.guard(9);
    assert!(request.call_away(seen, 8) && !request.is_called_away());
    assert!(request.call_away(9, 9) && request.is_called_away());
    assert!(request.end_guard() && request.guard_ns().is_none());
}

/// An inference in the queue, on a device, or while it runs.
#[test]
fn inference_that_was_submitted_with_a_limit_ends_at_it_without_a_caller() {
    for is_queue in [false, true] {
        let device = Arc::new(Device { is_queue, ..Device::default() });
        let scheduler = scheduler(&device);
        let requests = [(); 2].map(|()| request(&scheduler, &device));
        hold(&device, true);
        for request in &requests {
            submit(&scheduler, request, Some(Duration::from_millis(20))).unwrap();
        }
        for request in &requests {
            assert!(ends(request));
            let error = request.outcome().unwrap_err();
            assert_eq!(error.to_string(), "timed out after 20 ms waiting for an inference");
        }
    }
}

/// A place on the device is free again, regardless of how the inference ends.
#[test]
fn inference_that_left_the_device_leaves_its_place_to_the_next() {
    let device = Arc::new(Device { is_queue: true, ..Device::default() });
    let scheduler = Scheduler::new(SchedulerOptions { capacity: 1, ..device.options() });
    let requests = [(); 2].map(|()| request(&scheduler, &device));
    let completions = Arc::new(AtomicU32::new(0));
    for round in 1..=4 {
        let is_cancelled = round % 2 == 0;
        hold(&device, is_cancelled);
        for request in &requests {
            let (mut task, begun) = begin(request);
            task.completion = Some(Arc::clone(&completions));
            scheduler.submit(request, task, begun.generation, None).unwrap();
        }
        if is_cancelled {
            until(|| requests.iter().all(|request| request.state.phase() != Phase::OnDevice));
            for request in &requests {
                let generation = request.state.generation();
                if !request.revoke(generation) {
                    request.ask_to_end(generation, Reason::Cancelled);
                }
            }
        }
        assert!(requests.iter().all(|request| ends(request)));
        let expected = if is_cancelled { Err(Error::Cancelled) } else { Ok(()) };
        assert!(requests.iter().all(|request| request.outcome() == expected));
    }
}

/// A thread that ends an inference gives the place on the device to the next inference in the queue, whose
/// caller may sleep.
#[test]
fn inference_handed_over_by_another_thread_ends_without_that_thread() {
    let device = Arc::new(Device { is_queue: true, ..Device::default() });
    let scheduler = Scheduler::new(SchedulerOptions { capacity: 1, ..device.options() });
    let requests = [(); 2].map(|()| request(&scheduler, &device));
    submit(&scheduler, &requests[0], None).unwrap();
    queue_up(&scheduler, &requests[1]);
    assert!(scheduler.finish(&requests[0], requests[0].state.generation(), None));
    assert!(ends(&requests[1]));
    assert_eq!(requests[1].outcome(), Ok(()));
}

/// One call may be for several inferences that arrived together: the worker that takes the first one calls another
/// for the next.
#[test]
fn worker_that_leaves_more_in_the_queue_calls_another() {
    let device = device();
    let scheduler = Scheduler::new(SchedulerOptions { threads: 2, ..device.options() });
    let requests = [(); 2].map(|()| request(&scheduler, &device));
    hold(&device, true);
    queue_all(&scheduler, &requests);
    scheduler.shared.call_worker();
    executing(&device, 2);
    hold(&device, false);
    assert!(requests.iter().all(|request| ends(request)));
}

/// A worker over the limit sleeps together with the others: each call reaches a worker within the limit.
#[test]
fn inferences_are_run_whatever_the_numbers_of_workers_were() {
    let device = device();
    let scheduler = scheduler(&device);
    let shared = &scheduler.shared;
    let requests = [(); 4].map(|()| request(&scheduler, &device));
    for (threads, fewer) in [(4, 1), (2, 1), (4, 3), (3, 2), (4, 2), (1, 1)] {
        scheduler.allow(threads);
        hold(&device, true);
        for request in &requests[..threads as usize] {
            queue_up(&scheduler, request);
            shared.call_worker();
        }
        executing(&device, threads);
        hold(&device, false);
        assert!(requests.iter().all(|request| ends(request)));
        until(|| shared.workers.sleeping() >= threads);
        scheduler.allow(fewer);
        for round in 0..8 {
            queue_up(&scheduler, &requests[0]);
            shared.call_worker();
            assert!(ends(&requests[0]), "inference {round} with {fewer} of {threads} workers");
        }
        // Only as many run as the limit allows.
        hold(&device, true);
        queue_all(&scheduler, &requests);
        shared.call_worker();
        executing(&device, fewer);
        let running = requests.iter().filter(|request| request.state.phase() == Phase::Running).count();
        hold(&device, false);
        assert_eq!(running, fewer as usize);
        assert!(requests.iter().all(|request| ends(request)));
    }
}

/// Additional workers work on inferences that are already queued.
#[test]
fn worker_begins_what_is_queued_when_more_may_work() {
    let device = device();
    let scheduler = scheduler(&device);
    let requests = [(); 3].map(|()| request(&scheduler, &device));
    hold(&device, true);
    queue_all(&scheduler, &requests);
    scheduler.shared.call_worker();
    executing(&device, 1);
    scheduler.allow(3);
    executing(&device, 3);
    hold(&device, false);
    assert!(requests.iter().all(|request| ends(request)));
}
