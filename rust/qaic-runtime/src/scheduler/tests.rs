//! Decisions of a scheduler that its inferences do not show, on the `noop` device.
#![allow(clippy::unwrap_used)] // a failed assumption fails the test

use qaic_qpc::dtype::ElementType;
use qaic_sync::Phase;

use super::*;
use crate::binding::{InputBinding, Shapes};
use crate::context::Context;
use crate::device::noop::Control;
use crate::device::{DeviceId, Placement, RegistryOptions};
use crate::echo;
use crate::image::Image;
use crate::program::{Program, ProgramOptions};
use crate::request::ExecObj;

/// Longer than any test takes.
pub(super) const LONG: Duration = Duration::from_mins(1);

/// A device that no other test uses.
pub(super) fn context(kind: &str, marker: &str) -> Arc<Context> {
    let options = RegistryOptions {
        kind: Some(kind.to_owned()),
        engine_candidates: vec![format!("scheduler-{marker}").into()],
        ..RegistryOptions::default()
    };
    Context::new(&options).unwrap()
}

pub(super) fn options(context: &Context) -> SchedulerOptions {
    SchedulerOptions {
        queues: 1,
        is_ordered: false,
        capacity: 1000,
        threads: 1,
        variants: 1,
        limit: None,
        device: Arc::clone(context.device(DeviceId(0)).unwrap()),
    }
}

fn program(context: &Arc<Context>, image: &Arc<Image>) -> Arc<Program> {
    Program::new(context, image, &Placement::one(DeviceId(0)), &ProgramOptions::default()).unwrap()
}

/// An exec object that needs no memory of a caller but its input.
fn exec_obj(program: &Arc<Program>) -> Arc<ExecObj> {
    let exec = ExecObj::new(program, true).unwrap();
    let input = qaic_mem::Storage::new(4 * echo::ELEMENTS as usize).unwrap();
    exec.bind(|bindings| bindings.inputs[0] = InputBinding::Memory(input.into())).unwrap();
    exec
}

/// Puts the inference of an exec object into its run queue, whatever a submission would have done, and calls no worker.
fn queue_up(exec: &ExecObj) {
    let request = exec.request();
    let (body, begun) = exec.begin(None, None).unwrap();
    request.put_body(body);
    let queues = &exec.program().scheduler().shared.queues;
    assert_eq!(request.state().enqueue(!queues.is_ordered()), Ok(true));
    queues.push(0, request.number() | (begun.generation.low_bits() << NUMBER_BITS)).unwrap();
}

fn queue_all(execs: &[Arc<ExecObj>]) {
    for exec in execs {
        queue_up(exec);
    }
}

/// Returns whether the inference of an exec object ends by itself: nothing here works on behalf of it.
fn ends(exec: &ExecObj) -> bool {
    let state = exec.request().state();
    let began = std::time::Instant::now();
    while state.is_in_flight() && began.elapsed() < LONG {
        let _ = state.wait(LONG, || (!state.is_in_flight()).then_some(()));
    }
    !state.is_in_flight()
}

#[test]
fn parts_of_a_queue_entry_share_no_bit_and_leave_none_out() {
    let parts = [(1 << NUMBER_BITS) - 1, GENERATION_MASK << NUMBER_BITS, STATE_ACCESS];
    assert_eq!(parts.iter().fold(0, |all, part| all | part), u32::MAX);
    assert_eq!(parts.map(u32::count_ones).iter().sum::<u32>(), u32::BITS);
}

#[test]
fn workers_are_no_more_than_can_be_of_use() {
    let context = context("noop", "workers");
    let workers = |queues, threads, capacity| {
        SchedulerOptions { queues, capacity, ..options(&context) }.most_workers(threads)
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
}

#[cfg(feature = "cpu")]
#[test]
fn workers_on_the_host_are_no_more_than_its_cpus_or_the_queues() {
    let cpus = u32::try_from(thread::available_parallelism().unwrap().get()).unwrap();
    let context = context("cpu", "host-workers");
    let workers = |queues, threads| {
        SchedulerOptions { queues, capacity: u32::MAX, ..options(&context) }.most_workers(threads)
    };
    assert_eq!((workers(1, 1), workers(1, cpus), workers(1, cpus + 5)), (1, cpus, cpus));
    assert_eq!((workers(cpus + 3, 1), workers(cpus + 3, 2)), (cpus + 3, cpus + 3));
}

#[test]
fn device_that_works_by_itself_is_given_several_inferences_unless_state_is_retained() {
    let context = context("noop", "pipelined");
    let is_pipelined = |is_ordered| SchedulerOptions { is_ordered, ..options(&context) }.is_pipelined();
    assert!(!is_pipelined(false) && !is_pipelined(true));
    context.noop_control(DeviceId(0)).unwrap().queue();
    assert!(is_pipelined(false) && !is_pipelined(true));
}

#[test]
fn threads_are_gone_with_their_scheduler() {
    let context = context("noop", "threads");
    // A thread that nothing waits for is often gone in time.
    for _ in 0..50 {
        let scheduler = Scheduler::new(options(&context));
        let shared = &scheduler.shared;
        assert!(shared.workers.are_missing());
        shared.call_worker();
        shared.watchdog.watch(shared, clock_after(LONG));
        assert!(!shared.workers.are_missing());
        let remaining = Arc::downgrade(shared);
        assert_eq!(remaining.strong_count(), 3);
        drop(scheduler);
        assert_eq!(remaining.strong_count(), 0);
    }
}

/// A worker that came during the turn found nothing, so the end of the turn calls one.
#[test]
fn inference_that_came_during_a_turn_begins_after_it() {
    let context = context("noop", "turn");
    let program = program(&context, &echo::retaining());
    let exec = exec_obj(&program);
    let scheduler = program.scheduler();
    scheduler.with_turn(0, &mut WaitScope::default(), || queue_up(&exec)).unwrap();
    assert!(ends(&exec));
    exec.outcome().unwrap();
    // Nothing waits, so no further worker is called for a turn that ends.
    assert!(scheduler.shared.queues.is_empty());
}

/// Another thread cancels an inference whose entry finds no room, and submits the next one, which relies on that entry: it was
/// accepted, so it ends.
#[test]
fn inference_accepted_on_the_entry_of_a_refused_one_ends() {
    let context = context("noop", "refused");
    let program = program(&context, &echo::image(ElementType::Float32));
    let exec = exec_obj(&program);
    let request = exec.request();
    let begin = || {
        let (body, begun) = exec.begin(None, None).unwrap();
        request.put_body(body);
        begun
    };
    let shared = &program.scheduler().shared;
    let refused = begin();
    assert_eq!(request.state().enqueue(true), Ok(true));
    assert!(exec.revoke());
    begin();
    assert_eq!(request.state().enqueue(true), Ok(false));
    shared.refuse(request, refused.generation).unwrap();
    assert!(!exec.revoke(), "it has ended");
    assert_eq!(exec.outcome().unwrap_err().code(), "queue.full");
    exec.run(&mut WaitScope::until(Deadline::after(LONG))).unwrap();
}

/// An inference without room that no other thread touched is the caller's to withdraw.
#[test]
fn inference_without_room_is_refused_and_not_accepted() {
    let context = context("noop", "no-room");
    let program = program(&context, &echo::image(ElementType::Float32));
    let exec = exec_obj(&program);
    let request = exec.request();
    let (body, begun) = exec.begin(None, None).unwrap();
    request.put_body(body);
    assert_eq!(request.state().enqueue(true), Ok(true));
    let refused = program.scheduler().shared.refuse(request, begun.generation);
    assert_eq!(refused.unwrap_err().code(), "queue.full");
    assert!(request.state().is_in_flight());
    request.withdraw(begun.prior_phase);
    exec.run(&mut WaitScope::until(Deadline::after(LONG))).unwrap();
}

/// A thread that waited for the turn in vain leaves its place in the queue behind, not the turn of another.
#[test]
fn wait_for_a_turn_that_is_given_up_takes_none() {
    let context = context("noop", "given-up");
    let program = program(&context, &echo::retaining());
    program.activate().unwrap();
    let scheduler = program.scheduler();
    let access = &scheduler.shared.state_access;
    scheduler
        .with_turn(0, &mut WaitScope::default(), || {
            let now = Deadline::after(Duration::ZERO);
            let given_up = scheduler.with_turn(0, &mut WaitScope::until(now), || ());
            assert_eq!(given_up.unwrap_err().code(), "device.timeout");
            assert!(scheduler.shared.queues.try_turn(0).is_none());
            // Its ticket is in the queue.
            let ticket = access.take().unwrap();
            assert_eq!(ticket, 1);
            access.give_back(ticket);
        })
        .unwrap();
    // Behind it in the queue, so after it was let go of.
    let deadline = Deadline::after(LONG);
    scheduler.with_turn(0, &mut WaitScope::until(deadline), || ()).unwrap();
    let free = std::iter::from_fn(|| access.take()).count();
    assert_eq!(free, state_access::TICKETS as usize);
}

/// On the host a hint decides, elsewhere a promise of the device.
#[test]
fn inference_suits_its_caller_where_it_was_short_or_the_device_promises_a_bound() {
    let context = context("noop", "short");
    let scheduler = Scheduler::new(options(&context));
    assert!(scheduler.shared.suits_caller(0, 0));
    let control = context.noop_control(DeviceId(0)).unwrap();
    control.plan("execute@9=stuck").unwrap();
    scheduler.shared.durations.note(0, Duration::ZERO);
    assert!(!scheduler.shared.suits_caller(0, u64::MAX), "on a device that may stall");
    control.queue();
    assert!(
        !Scheduler::new(options(&context)).shared.suits_caller(0, u64::MAX),
        "the device queues by itself"
    );
}

#[cfg(feature = "cpu")]
#[test]
fn inference_on_the_host_suits_its_caller_where_it_was_short_with_these_shapes() {
    let context = context("cpu", "short-on-host");
    let scheduler = Scheduler::new(options(&context));
    let suits = |variant| scheduler.shared.suits_caller(variant, SHORT_NS);
    assert!(!suits(0), "one that never ran");
    scheduler.shared.durations.note(0, Duration::from_nanos(SHORT_NS));
    assert!(!suits(0));
    scheduler.shared.durations.note(0, Duration::from_nanos(SHORT_NS - 1));
    assert!(suits(0) && !suits(1), "of other shapes");
    scheduler.shared.durations.note_called_away(0);
    assert!(!suits(0));
}

#[test]
fn time_of_an_inference_is_noted_for_its_shapes() {
    let context = context("noop", "noted");
    for (variant, elements) in [(0, echo::ELEMENTS), (1, echo::ELEMENTS / 2)] {
        let program = program(&context, &echo::resizable());
        let exec = exec_obj(&program);
        let input = qaic_mem::Storage::new(4 * elements as usize).unwrap();
        exec.bind(|bindings| {
            bindings.shapes = Shapes::Variant(variant);
            bindings.inputs[0] = InputBinding::Memory(input.into());
        })
        .unwrap();
        exec.run(&mut WaitScope::default()).unwrap();
        let durations = &program.scheduler().shared.durations;
        assert_eq!([0, 1].map(|other| durations.is_unknown(other)), [variant != 0, variant != 1]);
    }
}

/// The system may give no threads: then callers that wait do what workers would.
#[test]
fn caller_that_waits_works_on_the_queue_where_there_is_no_worker() {
    let context = context("noop", "no-workers");
    let program = program(&context, &echo::resizable());
    let execs = [(); 2].map(|()| exec_obj(&program));
    let shared = &program.scheduler().shared;
    context.noop_control(DeviceId(0)).unwrap().plan("execute@99=stuck").unwrap();
    queue_all(&execs);
    assert!(shared.workers.are_missing());
    execs[1].wait(&mut WaitScope::until(Deadline::after(LONG))).unwrap();
    // In their order.
    assert!(!execs[0].is_in_flight());
    // With a worker, it is for that one.
    shared.call_worker();
    queue_up(&execs[0]);
    assert!(!program.scheduler().help(&mut || false));
    shared.call_worker();
    assert!(ends(&execs[0]));
}

/// The thread of a caller answers no signals while it runs an inference, so an inference that became long goes on elsewhere.
#[test]
fn inference_that_keeps_its_caller_is_called_away_and_runs_on_a_worker() {
    let context = context("noop", "called-away");
    let control = context.noop_control(DeviceId(0)).unwrap();
    let program = program(&context, &echo::resizable());
    let exec = exec_obj(&program);
    let (request, shared) = (exec.request(), &program.scheduler().shared);
    // The first execution does not end by itself.
    control.plan("execute@1=stuck").unwrap();
    let (body, begun) = exec.begin(None, None).unwrap();
    let Err(CalledAway(body)) = shared.run_for_caller(request, body, None, None) else {
        panic!("nothing called the inference away");
    };
    assert!(request.guard_ns().is_none() && !request.is_asked_to_end() && request.state().is_in_flight());
    assert_eq!(shared.durations.of(0), u64::MAX - 1);
    request.put_body(body);
    shared.enqueue(request, begun.generation).unwrap();
    assert!(ends(&exec));
    exec.outcome().unwrap();
}

/// The time of the guard of one inference says nothing to the next one.
#[test]
fn guard_that_is_over_calls_away_the_inference_it_was_of() {
    let context = context("noop", "guards");
    let exec = exec_obj(&program(&context, &echo::resizable()));
    let request = exec.request();
    request.guard(7);
    assert!(!request.call_away(7, 6) && !request.is_called_away());
    let seen = request.guard_ns().unwrap();
    assert!(!request.end_guard());
    request.guard(9);
    assert!(request.call_away(seen, 8) && !request.is_called_away());
    assert!(request.call_away(9, 9) && request.is_called_away());
    assert!(request.end_guard() && request.guard_ns().is_none());
}

/// Wherever it is: before it is queued, in the queue, and while it runs.
#[test]
fn inference_that_was_submitted_with_a_limit_ends_at_it_without_a_caller() {
    let context = context("noop", "submitted-limit");
    let control = context.noop_control(DeviceId(0)).unwrap();
    let program = program(&context, &echo::resizable());
    program.allow_threads(1);
    let execs = [(); 2].map(|()| exec_obj(&program));
    control.plan("execute@*=stuck").unwrap();
    for exec in &execs {
        let (body, begun) = exec.begin(None, None).unwrap();
        exec.submit_begun(body, begun, Deadline::after(Duration::from_millis(20))).unwrap();
    }
    for exec in &execs {
        assert!(ends(exec));
        let error = exec.outcome().unwrap_err();
        assert_eq!(error.to_string(), "timed out after 20 ms waiting for an inference");
    }
}

/// One call may be for several inferences that came at once: the worker that takes the first gets another for the next.
#[test]
fn worker_that_leaves_more_in_the_queue_calls_another() {
    let context = context("noop", "several");
    let control = context.noop_control(DeviceId(0)).unwrap();
    let options = ProgramOptions { threads_per_queue: 2, ..ProgramOptions::default() };
    let place = Placement::one(DeviceId(0));
    let program = Program::new(&context, &echo::resizable(), &place, &options).unwrap();
    let shared = &program.scheduler().shared;
    let execs = [(); 2].map(|()| exec_obj(&program));
    control.hold().unwrap();
    queue_all(&execs);
    shared.call_worker();
    let within = Deadline::after(LONG);
    let are_both_running = control.wait_executing(2, &mut WaitScope::until(within));
    control.release().unwrap();
    assert!(are_both_running.unwrap());
    assert!(execs.iter().all(|exec| ends(exec)));
}

/// Has as many workers as inferences of the exec objects run at a time, and then sleep.
fn wake_workers(program: &Arc<Program>, execs: &[Arc<ExecObj>], control: &Control) {
    let shared = &program.scheduler().shared;
    control.hold().unwrap();
    for exec in execs {
        queue_up(exec);
        shared.call_worker();
    }
    let count = u32::try_from(execs.len()).unwrap();
    let are_running = control.wait_executing(count, &mut WaitScope::until(Deadline::after(LONG)));
    control.release().unwrap();
    assert!(are_running.unwrap());
    assert!(execs.iter().all(|exec| ends(exec)));
    let began = std::time::Instant::now();
    while shared.workers.sleeping() < count {
        assert!(began.elapsed() < LONG);
        thread::yield_now();
    }
}

/// A worker that may no longer work sleeps beside those that may: each call reaches one that does.
#[test]
fn inferences_are_run_whatever_the_numbers_of_workers_were() {
    let context = context("noop", "lowered");
    let control = context.noop_control(DeviceId(0)).unwrap();
    let program = program(&context, &echo::resizable());
    let execs = [(); 4].map(|()| exec_obj(&program));
    for (threads, fewer) in [(4, 1), (2, 1), (4, 3), (3, 2), (4, 2), (1, 1)] {
        program.allow_threads(threads);
        wake_workers(&program, &execs[..threads as usize], control);
        program.allow_threads(fewer);
        for round in 0..8 {
            queue_up(&execs[0]);
            program.scheduler().shared.call_worker();
            assert!(ends(&execs[0]), "inference {round} with {fewer} of {threads} workers");
            execs[0].outcome().unwrap();
        }
        // No more than may run at a time do.
        control.hold().unwrap();
        queue_all(&execs);
        program.scheduler().shared.call_worker();
        let within = Deadline::after(LONG);
        let are_running = control.wait_executing(fewer, &mut WaitScope::until(within)).unwrap();
        let running = execs.iter().filter(|exec| exec.request().state().phase() == Phase::Running).count();
        control.release().unwrap();
        assert!(are_running && running == fewer as usize, "{running} of {fewer}");
        assert!(execs.iter().all(|exec| ends(exec)));
    }
}

/// Additional workers work on inferences that are already queued.
#[test]
fn worker_begins_what_is_queued_when_more_may_work() {
    let context = context("noop", "raised");
    let control = context.noop_control(DeviceId(0)).unwrap();
    let program = program(&context, &echo::resizable());
    let execs = [(); 3].map(|()| exec_obj(&program));
    program.allow_threads(1);
    control.hold().unwrap();
    queue_all(&execs);
    program.scheduler().shared.call_worker();
    let wait = |count| control.wait_executing(count, &mut WaitScope::until(Deadline::after(LONG)));
    let is_one = wait(1);
    program.allow_threads(3);
    let are_all = wait(3);
    control.release().unwrap();
    assert!(is_one.unwrap() && are_all.unwrap());
    assert!(execs.iter().all(|exec| ends(exec)));
}
