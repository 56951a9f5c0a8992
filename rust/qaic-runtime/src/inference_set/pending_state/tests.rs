#![allow(clippy::unwrap_used)] // a failed assumption fails the test

use std::thread;

use proptest::prelude::*;

use super::*;

/// State of an inference, as plain values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Prepared,
    Held,
    Started,
    Ended,
}

#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools)] // one per bit of the word
struct Model {
    phase: Phase,
    settled: Option<Settled>,
    is_asked: bool,
    is_starting: bool,
    has_ended_in_start: bool,
    is_counted: bool,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Hold,
    Release,
    Publish,
    LeaveStart(bool),
    Count,
    TakeBack,
    SetTakenBack,
    Ask,
    Expire,
    End(bool),
    /// A thread waits and stops waiting immediately.
    Await,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        Just(Step::Hold),
        Just(Step::Release),
        Just(Step::Publish),
        any::<bool>().prop_map(Step::LeaveStart),
        Just(Step::Count),
        Just(Step::TakeBack),
        Just(Step::SetTakenBack),
        Just(Step::Ask),
        Just(Step::Expire),
        any::<bool>().prop_map(Step::End),
        Just(Step::Await),
    ]
}

fn key() -> RequestKey {
    RequestKey { number: 7, generation: Generation(1 << 14) }
}

/// Does one step of both. Steps of the thread that holds or started the inference are skipped if there is no
/// such thread.
fn apply(state: &PendingState, model: &mut Model, step: Step) -> Result<(), TestCaseError> {
    use Phase::{Ended, Held, Prepared, Started};
    let asked = model.is_asked || model.settled.is_some();
    let is_open = model.phase != Ended;
    match step {
        Step::Hold => {
            prop_assert_eq!(state.hold(), model.phase == Prepared);
            if model.phase == Prepared {
                (model.phase, model.is_starting) = (Held, true);
            }
        }
        Step::Release if model.phase == Held && model.is_starting => {
            prop_assert_eq!(state.release().is_err(), asked);
            if !asked {
                (model.phase, model.is_starting) = (Prepared, false);
            }
        }
        Step::Publish if model.phase == Held && model.is_starting => {
            prop_assert_eq!(state.publish(key()).is_err(), asked);
            model.phase = Started;
        }
        Step::LeaveStart(is_counted) if model.is_starting && model.phase != Held => {
            prop_assert_eq!(state.leave_start(is_counted), is_open);
            model.is_starting = false;
            model.is_counted |= is_counted && is_open;
        }
        Step::Count => {
            prop_assert_eq!(state.count(), is_open && !model.is_counted);
            model.is_counted |= is_open;
        }
        Step::TakeBack => {
            let expected = match model.phase {
                _ if model.settled.is_some() => TakeBack::TooLate,
                Prepared => TakeBack::Held,
                Started => TakeBack::Started(key()),
                Held | Ended => TakeBack::TooLate,
            };
            prop_assert_eq!(state.take_back(), expected);
            if expected == TakeBack::Held {
                (model.phase, model.settled) = (Held, Some(Settled::TakenBack));
            }
        }
        Step::SetTakenBack if model.phase == Started => {
            prop_assert_eq!(state.set_taken_back(), model.settled.is_none());
            model.settled = model.settled.or(Some(Settled::TakenBack));
        }
        Step::Ask => {
            let expected = (model.phase == Started).then(key);
            prop_assert_eq!(state.ask_to_end(), expected);
            model.is_asked |= is_open;
        }
        Step::Expire => {
            let expected = match model.settled {
                Some(_) => Expired::Known,
                None if model.phase == Prepared => Expired::Held,
                None => Expired::Settled,
            };
            prop_assert_eq!(state.expire(), expected);
            if expected == Expired::Held {
                model.phase = Held;
            }
            model.settled = model.settled.or(Some(Settled::Late));
        }
        Step::End(has_failed) if matches!(model.phase, Held | Started) => {
            let was_settled = model.settled.is_some();
            let expected =
                End { needs_report: !was_settled && !model.is_starting, is_counted: model.is_counted };
            prop_assert_eq!(state.end(has_failed), expected);
            model.phase = Ended;
            model.is_counted = false;
            model.has_ended_in_start = !was_settled && model.is_starting;
            let outcome = if has_failed { Settled::Failed } else { Settled::Succeeded };
            model.settled = model.settled.or(Some(outcome));
        }
        Step::Await => prop_assert_eq!(state.wait(Duration::ZERO, || None::<()>), None),
        _ => {}
    }
    Ok(())
}

proptest! {
    /// Compares the result and the next state of every step with the sequential model.
    #[test]
    fn pending_word_behaves_like_its_model(steps in prop::collection::vec(step(), 0..40)) {
        let state = PendingState::prepared();
        let mut model = Model {
            phase: Phase::Prepared,
            settled: None,
            is_asked: false,
            is_starting: false,
            has_ended_in_start: false,
            is_counted: false,
        };
        for step in steps {
            apply(&state, &mut model, step)?;
            prop_assert_eq!(state.settled(), model.settled);
            prop_assert_eq!(state.has_ended(), model.phase == Phase::Ended);
            prop_assert_eq!(state.has_ended_in_start(), model.has_ended_in_start);
            prop_assert_eq!(state.is_asked_to_end(), model.is_asked && model.phase != Phase::Ended);
            prop_assert_eq!(state.is_counted(), model.is_counted);
            prop_assert_eq!(state.request_key(), (model.phase == Phase::Started).then(key));
        }
    }
}

/// The step that settles and the step that ends the inference each wake a waiting thread.
#[test]
fn pending_that_is_settled_and_then_ends_wakes_its_waiter_twice() {
    const LONG: Duration = Duration::from_mins(1);
    let state = PendingState::prepared();
    assert!(state.hold());
    state.publish(key()).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let settled = || state.settled();
            let ended = || state.has_ended().then_some(());
            let first = std::iter::from_fn(|| Some(state.wait(LONG, settled))).flatten().next();
            let _ = std::iter::from_fn(|| Some(state.wait(LONG, ended))).flatten().next();
            first
        });
        while state.changed.waiting() == 0 {
            thread::yield_now();
        }
        assert_eq!(state.expire(), Expired::Settled);
        assert_eq!(state.end(true), End { needs_report: false, is_counted: false });
        assert_eq!(waiter.join().unwrap(), Some(Settled::Late));
    });
}

#[test]
fn pending_that_no_thread_waits_for_ends_with_one_exchange() {
    let updates = |is_awaited: bool| {
        let state = PendingState::prepared();
        assert!(state.hold());
        if is_awaited {
            assert_eq!(state.wait(Duration::ZERO, || None::<()>), None);
        }
        qaic_sync::atomic::Operations::during(|| _ = state.end(false)).updates
    };
    // An exchange may fail spuriously.
    assert_eq!((0..100).map(|_| updates(false)).min(), Some(1));
    assert!(updates(true) > 1, "the event of a thread that waits is looked at");
}
