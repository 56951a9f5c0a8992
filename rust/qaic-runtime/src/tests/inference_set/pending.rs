//! Inferences that a caller starts and collects later, and the queue that reports their ends.

use std::collections::HashSet;
use std::time::Instant;

use crate::tests::prelude::*;
use qaic_runtime::inference_set::CompletionQueue;

/// Longer than any test takes.
const LONG: Duration = Duration::from_mins(1);

/// Shorter than the wait of any test, and usually long enough for a start before it ends.
const LIMIT: Duration = Duration::from_millis(300);

/// No tokens.
const NONE: [u64; 0] = [];

struct Rig<D> {
    queue: Arc<CompletionQueue>,
    set: Arc<InferenceSet>,
    device: D,
}

impl<D: HeldDevice + Default> Rig<D> {
    /// A set with one thread.
    fn new(set_size: u32) -> Self {
        let device = D::default();
        let image = image(ElementType::Float32);
        let set = try_set(device.context(), &image, set_size, 1, device.options(1)).unwrap();
        Self { queue: Arc::default(), set, device }
    }

    fn prepare_until(&self, value: f32, deadline: Option<Deadline>) -> Arc<PendingInference> {
        let input = Storage::of(&[value; ELEMENTS as usize]).unwrap();
        let output = Storage::new(4 * ELEMENTS as usize).unwrap();
        let bytes = input.memory().len();
        PendingInference::new(&self.set, 0, vec![Some((input, bytes))], vec![Some(output)], deadline)
    }

    fn prepare(&self, value: f32) -> Arc<PendingInference> {
        self.prepare_until(value, None)
    }

    /// Starts an inference whose end the queue reports.
    fn start(&self, value: f32, token: u64) -> Arc<PendingInference> {
        let inference = self.prepare(value);
        assert!(inference.try_start(&self.set, Some((&self.queue, token)), Detached::assume()).unwrap());
        inference
    }

    /// Waits until the queue monitors no inference; returns its reports.
    fn reported_until_settled(&self) -> Vec<u64> {
        let until = Instant::now() + LONG;
        let mut reported = Vec::new();
        while self.queue.awaited() > 0 {
            assert!(Instant::now() < until, "{} inferences are still awaited", self.queue.awaited());
            reported.extend(self.queue.wait(Duration::from_millis(1)).unwrap());
        }
        reported.extend(self.queue.wait(Duration::ZERO).unwrap());
        reported
    }

    fn free_handles(&self) -> usize {
        let leases: Vec<_> = std::iter::from_fn(|| self.set.try_lease()).collect();
        leases.len()
    }
}

fn code(inference: &PendingInference) -> &'static str {
    inference.outcome().unwrap().map_or_else(|error| error.code(), |()| "")
}

fn gives(inference: &PendingInference, value: f32) -> bool {
    let outputs = inference.take_outputs();
    outputs[0].as_ref().unwrap().memory().to_vec() == f32_bytes(&[value; ELEMENTS as usize])
}

#[test]
fn pending_that_ended_has_its_outputs_once_and_keeps_no_exec_object() {
    let rig = Rig::<HeldNoop>::new(1);
    for round in 0..3_u8 {
        let value = f32::from(round);
        let inference = rig.prepare(value);
        assert!(!inference.has_ended() && !inference.is_running() && inference.outcome().is_none());
        assert!(inference.try_start(&rig.set, None, Detached::assume()).unwrap());
        inference.wait(&mut WaitScope::default()).unwrap();
        assert!(inference.has_ended() && inference.set().is_none() && code(&inference).is_empty());
        assert_eq!(rig.free_handles(), 1);
        assert!(gives(&inference, value));
        assert!(inference.take_outputs().is_empty());
        assert!(!inference.revoke());
    }
}

#[test]
fn pending_without_a_free_exec_object_starts_when_one_is_given_back() {
    let rig = Rig::<EchoCard>::new(1);
    rig.device.hold();
    let first = rig.start(1.0, 1);
    rig.device.await_executing(1);
    assert!(first.is_running());
    let second = rig.prepare(2.0);
    assert!(!second.try_start(&rig.set, None, Detached::assume()).unwrap());
    assert_interrupted(|scope| second.start(&rig.set, None, scope));
    let late = rig.prepare_until(3.0, Deadline::after(LIMIT));
    let error = late.start(&rig.set, None, &mut WaitScope::default()).unwrap_err();
    assert_eq!(error.to_string(), "timed out after 300 ms waiting for a free exec object");
    thread::scope(|scope| {
        let starter = scope.spawn(|| second.start(&rig.set, None, &mut WaitScope::default()));
        rig.device.release();
        starter.join().unwrap().unwrap();
    });
    // The exec object is returned before the first caller has its outputs.
    first.wait(&mut WaitScope::default()).unwrap();
    second.wait(&mut WaitScope::default()).unwrap();
    assert!(gives(&first, 1.0) && gives(&second, 2.0));
}

#[test]
fn pending_revoked_before_its_start_gives_the_handle_back() {
    let rig = Rig::<HeldNoop>::new(1);
    let inference = rig.prepare(1.0);
    inference.report_to(&rig.queue, 7);
    assert_eq!(rig.queue.awaited(), 1);
    assert!(inference.revoke() && !inference.revoke());
    assert_eq!(code(&inference), "inference.cancelled");
    assert_eq!((rig.queue.awaited(), rig.free_handles()), (0, 1));
    assert!(inference.try_start(&rig.set, None, Detached::assume()).unwrap());
    assert_eq!(rig.free_handles(), 1);
    assert_eq!(inference.wait(&mut WaitScope::default()).unwrap_err().code(), "inference.cancelled");
    assert_eq!(rig.queue.wait(Duration::ZERO).unwrap(), NONE);
}

#[test]
fn pending_whose_submission_fails_gives_the_handle_back_and_is_not_awaited() {
    let rig = Rig::<HeldNoop>::new(1);
    // The device retains no value for the input.
    let inference = PendingInference::new(&rig.set, 0, vec![None], vec![None], None);
    for _ in 0..2 {
        let error = inference.try_start(&rig.set, Some((&rig.queue, 1)), Detached::assume()).unwrap_err();
        assert_eq!(error.code(), "input.state_required");
        assert_eq!((rig.queue.awaited(), rig.free_handles()), (0, 1));
        assert!(inference.outcome().is_none());
    }
    assert_eq!(rig.queue.wait(Duration::ZERO).unwrap(), NONE);
}

#[test]
fn queue_reports_each_end_once_in_the_order_of_the_ends() {
    let rig = Rig::<EchoCard>::new(8);
    rig.device.hold();
    let inferences: Vec<_> = (0..8_u8).map(|number| rig.start(f32::from(number), number.into())).collect();
    rig.device.await_executing(8);
    assert_eq!((rig.queue.wait(Duration::ZERO).unwrap(), rig.queue.awaited()), (NONE.to_vec(), 8));
    for token in 0..8 {
        rig.device.let_through(1);
        assert_eq!(rig.queue.wait(LONG).unwrap(), [token]);
    }
    assert_eq!((rig.queue.awaited(), rig.queue.wait(Duration::ZERO).unwrap()), (0, NONE.to_vec()));
    assert!((0..8_u8).zip(&inferences).all(|(number, inference)| gives(inference, f32::from(number))));
}

#[test]
fn queue_woken_ends_one_wait() {
    let rig = Rig::<HeldNoop>::new(1);
    rig.queue.wake();
    assert_eq!(rig.queue.wait(LONG).unwrap(), NONE);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| rig.queue.wait(LONG).unwrap());
        rig.queue.wake();
        assert_eq!(waiter.join().unwrap(), NONE);
    });
}

#[test]
fn queue_expecting_an_ended_inference_awaits_nothing() {
    let rig = Rig::<HeldNoop>::new(1);
    let inference = rig.prepare(1.0);
    assert!(inference.try_start(&rig.set, None, Detached::assume()).unwrap());
    inference.wait(&mut WaitScope::default()).unwrap();
    inference.report_to(&rig.queue, 1);
    assert_eq!(rig.queue.awaited(), 0);
}

/// The thread that ends the inference destroys the set before it publishes the end. A wait that begins in
/// between has no set to help.
#[test]
fn pending_waited_for_while_the_last_of_its_set_goes_has_its_outputs() {
    for _ in 0..200 {
        let rig = Rig::<EchoCard>::new(1);
        rig.device.hold();
        let inference = rig.start(5.0, 1);
        rig.device.await_executing(1);
        let Rig { queue, set, device } = rig;
        drop(set);
        thread::scope(|threads| {
            threads.spawn(|| device.release());
            while inference.set().is_some() {
                std::hint::spin_loop();
            }
            inference.wait(&mut WaitScope::default()).unwrap();
            assert!(gives(&inference, 5.0));
        });
        assert_eq!(queue.wait(LONG).unwrap(), [1]);
    }
}

#[test]
fn pending_past_its_deadline_is_reported_and_the_device_lets_go_of_it() {
    let rig = Rig::<EchoCard>::new(1);
    rig.device.hold();
    let start = |limit: Duration| {
        let inference = rig.prepare_until(1.0, Deadline::after(limit));
        assert!(inference.try_start(&rig.set, Some((&rig.queue, 5)), Detached::assume()).unwrap());
        (!inference.has_ended_in_start()).then_some(inference)
    };
    // On a busy machine, a short limit may end before the start.
    let inference = start(LIMIT).or_else(|| start(100 * LIMIT)).unwrap();
    assert_eq!(rig.queue.wait(LONG).unwrap(), [5]);
    assert_eq!(code(&inference), "device.timeout");
    assert_eq!(rig.reported_until_settled(), NONE);
    assert!(inference.set().is_none());
    assert_eq!(rig.free_handles(), 1);
    assert_eq!(inference.wait(&mut WaitScope::default()).unwrap_err().code(), "device.timeout");
}

#[test]
fn pending_past_its_deadline_that_never_started_is_reported() {
    let rig = Rig::<HeldNoop>::new(1);
    let inference = rig.prepare_until(1.0, Deadline::after(LIMIT));
    inference.report_to(&rig.queue, 6);
    assert_eq!(rig.queue.wait(LONG).unwrap(), [6]);
    assert_eq!((code(&inference), rig.queue.awaited()), ("device.timeout", 0));
    assert!(inference.try_start(&rig.set, None, Detached::assume()).unwrap());
    assert_eq!(rig.free_handles(), 1);
}

#[test]
fn pending_waited_for_past_its_deadline_has_left_the_device() {
    let rig = Rig::<EchoCard>::new(1);
    rig.device.hold();
    let inference = rig.prepare_until(1.0, Deadline::after(LIMIT));
    assert!(inference.try_start(&rig.set, None, Detached::assume()).unwrap());
    let error = inference.wait(&mut WaitScope::default()).unwrap_err();
    assert_eq!(error.to_string(), "timed out after 300 ms waiting for an inference");
    assert!(inference.set().is_none());
    assert_eq!(rig.free_handles(), 1);
}

#[test]
fn pending_whose_wait_is_interrupted_goes_on() {
    let rig = Rig::<EchoCard>::new(1);
    rig.device.hold();
    let inference = rig.start(4.0, 1);
    rig.device.await_executing(1);
    assert_interrupted(|scope| inference.wait(scope));
    assert!(inference.is_running() && !inference.has_ended());
    rig.device.release();
    inference.wait(&mut WaitScope::default()).unwrap();
    assert!(gives(&inference, 4.0));
    assert_eq!(rig.reported_until_settled(), [1]);
}

#[test]
fn pending_on_the_device_can_be_cancelled_but_not_revoked() {
    let rig = Rig::<EchoCard>::new(2);
    rig.device.hold();
    let inferences = [rig.start(1.0, 1), rig.start(2.0, 2)];
    rig.device.await_executing(2);
    assert!(!inferences[0].revoke());
    inferences[1].cancel();
    assert_eq!(rig.queue.wait(LONG).unwrap(), [2]);
    assert_eq!(code(&inferences[1]), "inference.cancelled");
    assert!(inferences[0].is_running());
    rig.device.release();
    assert_eq!(rig.queue.wait(LONG).unwrap(), [1]);
    assert!(gives(&inferences[0], 1.0));
    assert_eq!(rig.free_handles(), 2);
}

#[test]
fn pending_behind_another_can_be_revoked_and_is_not_reported() {
    let rig = Rig::<HeldNoop>::new(2);
    rig.device.hold();
    let first = rig.start(1.0, 1);
    rig.device.await_executing(1);
    let second = rig.start(2.0, 2);
    assert!(second.revoke() && !second.revoke());
    assert_eq!(code(&second), "inference.cancelled");
    assert!(second.set().is_none());
    assert_eq!(rig.free_handles(), 1);
    rig.device.release();
    assert_eq!(rig.reported_until_settled(), [1]);
    assert!(gives(&first, 1.0));
}

#[test]
fn pending_known_to_be_short_ends_in_its_start_and_is_not_reported() {
    let rig = Rig::<HeldNoop>::new(1);
    let mut in_start = 0;
    // The number depends on the machine and on its load.
    for round in 0..20_000_u64 {
        let value = f32::from(u8::try_from(round % 200).unwrap());
        let inference = rig.start(value, round);
        let is_in_start = inference.has_ended_in_start();
        in_start += u32::from(is_in_start);
        inference.wait(&mut WaitScope::default()).unwrap();
        assert!(gives(&inference, value));
        let expected = if is_in_start { NONE.to_vec() } else { vec![round] };
        assert_eq!(rig.reported_until_settled(), expected);
        if round >= 200 && in_start > 0 {
            return;
        }
    }
    panic!("none of 20,000 ended in its start");
}

#[test]
fn pending_that_fails_says_so() {
    let rig = Rig::<EchoCard>::new(4);
    rig.device.plan("execute@2=EFAULT");
    let inferences: Vec<_> = (0..4_u8).map(|number| rig.start(f32::from(number), number.into())).collect();
    let mut reported = rig.reported_until_settled();
    reported.sort_unstable();
    let codes: Vec<_> = inferences.iter().map(|inference| code(inference)).collect();
    assert_eq!(codes.iter().filter(|&&code| code == "device.driver").count(), 1, "{codes:?}");
    assert_eq!(codes.iter().filter(|code| code.is_empty()).count(), 3, "{codes:?}");
    let in_start = |token: &u64| inferences[usize::try_from(*token).unwrap()].has_ended_in_start();
    assert_eq!(reported, (0..4).filter(|token| !in_start(token)).collect::<Vec<_>>());
}

/// The end becomes known in exactly one way in every interleaving: by the report, by the start, or by the
/// withdrawal.
#[test]
fn pending_started_cancelled_and_revoked_by_many_threads_ends_exactly_once() {
    pending_on_many_threads_ends_exactly_once::<HeldNoop>();
    pending_on_many_threads_ends_exactly_once::<EchoCard>();
}

fn pending_on_many_threads_ends_exactly_once<D: HeldDevice + Default>() {
    const THREADS: u64 = 3;
    const EACH: u64 = 400;
    let rig = Rig::<D>::new(2);
    let is_over = AtomicBool::new(false);
    let (known, reported) = thread::scope(|scope| {
        let collector = scope.spawn(|| {
            let mut reported = Vec::new();
            while !is_over.load(Ordering::Acquire) || rig.queue.awaited() > 0 {
                reported.extend(rig.queue.wait(LONG).unwrap());
            }
            reported.extend(rig.queue.wait(Duration::ZERO).unwrap());
            reported
        });
        let callers: Vec<_> = (0..THREADS)
            .map(|caller| {
                let rig = &rig;
                scope.spawn(move || {
                    let mut known = Vec::new();
                    for number in 0..EACH {
                        let token = caller * EACH + number;
                        let inference = rig.prepare(f32::from(u16::try_from(token).unwrap()));
                        let other = Arc::clone(&inference);
                        let is_revoked = thread::scope(|scope| {
                            let second = scope.spawn(move || match number % 3 {
                                0 => other.revoke(),
                                1 => {
                                    other.cancel();
                                    false
                                }
                                _ => other.has_ended() && other.revoke(),
                            });
                            inference
                                .start(&rig.set, Some((&rig.queue, token)), &mut WaitScope::default())
                                .unwrap();
                            second.join().unwrap()
                        });
                        let outcome = inference.wait(&mut WaitScope::default());
                        let is_silent = inference.has_ended_in_start() || is_revoked;
                        match outcome {
                            Ok(()) => {
                                assert!(gives(&inference, f32::from(u16::try_from(token).unwrap())));
                            }
                            Err(error) => assert_eq!(error.code(), "inference.cancelled"),
                        }
                        // An inference that was cancelled before its start ends without a report, because
                        // none was requested.
                        known.push((token, is_silent, number % 3 == 1));
                    }
                    known
                })
            })
            .collect();
        let known: Vec<_> = callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect();
        is_over.store(true, Ordering::Release);
        rig.queue.wake();
        (known, collector.join().unwrap())
    });
    let distinct: HashSet<_> = reported.iter().copied().collect();
    assert_eq!(distinct.len(), reported.len(), "an end was reported twice");
    for (token, is_silent, may_end_before_its_start) in known {
        if is_silent {
            assert!(!distinct.contains(&token), "{token} is known to its caller, and reported");
        } else if !may_end_before_its_start {
            assert!(distinct.contains(&token), "{token} was not reported");
        }
    }
    assert_eq!(rig.free_handles(), 2);
}
