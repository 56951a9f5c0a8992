#![allow(clippy::unwrap_used)] // a failed assumption fails the test

use std::thread;

use proptest::prelude::*;

use super::*;

/// A request as a record of plain values.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools)] // one per bit of the word
struct Model {
    phase: Phase,
    generation: u64,
    is_collectable: bool,
    reason: Option<Reason>,
    has_failed: bool,
    is_edited: bool,
    queue_entry: bool,
    available_entry: bool,
    completed_entry: bool,
    device_entry: bool,
    is_awaited: bool,
    prior_phase: Option<PriorPhase>,
}

impl Model {
    fn is_in_flight(&self) -> bool {
        matches!(self.phase, Phase::Queued | Phase::Running | Phase::OnDevice)
    }

    fn is_outstanding(&self) -> bool {
        self.is_in_flight() && self.is_collectable || self.phase == Phase::Completed
    }

    /// Collects the inference, and records whether a thread awaited the collection.
    fn collect(&mut self) -> Collected {
        self.phase = Phase::Idle;
        Collected { was_awaited: std::mem::take(&mut self.is_awaited) }
    }

    fn owns(&self) -> bool {
        self.phase == Phase::Running
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Begin(bool),
    Withdraw,
    Enqueue(bool),
    ClaimEntry,
    Claim(u64),
    ClaimNumbered(u64),
    Leave,
    TakeFromDevice(u64),
    ClaimDeviceEntry,
    Complete(bool),
    Collect(u64),
    ClaimCompletedEntry,
    ClaimAvailableEntry,
    AwaitCollection,
    PutBack,
    Edit,
    Edited,
    Ask(u64, bool),
    /// A thread waits and stops waiting immediately.
    Await,
}

fn step() -> impl Strategy<Value = Step> {
    // Age in number of inferences.
    let age = || 0_u64..3;
    prop_oneof![
        any::<bool>().prop_map(Step::Begin),
        Just(Step::Withdraw),
        any::<bool>().prop_map(Step::Enqueue),
        Just(Step::ClaimEntry),
        age().prop_map(Step::Claim),
        age().prop_map(Step::ClaimNumbered),
        Just(Step::Leave),
        age().prop_map(Step::TakeFromDevice),
        Just(Step::ClaimDeviceEntry),
        any::<bool>().prop_map(Step::Complete),
        age().prop_map(Step::Collect),
        Just(Step::ClaimCompletedEntry),
        Just(Step::ClaimAvailableEntry),
        Just(Step::AwaitCollection),
        Just(Step::PutBack),
        Just(Step::Edit),
        Just(Step::Edited),
        (age(), any::<bool>()).prop_map(|(age, is_cancel)| Step::Ask(age, is_cancel)),
        Just(Step::Await),
    ]
}

fn generation(number: u64) -> Generation {
    Generation(number * NEXT_GENERATION)
}

proptest! {
    /// Compares the result and the next state of every step with the sequential model.
    #[test]
    fn state_word_behaves_like_its_model(starts_available: bool, steps in prop::collection::vec(step(), 0..120)) {
        let state = if starts_available { RequestState::of(AVAILABLE | AVAILABLE_ENTRY) } else { RequestState::idle() };
        let mut model = Model {
            phase: if starts_available { Phase::Available } else { Phase::Idle },
            generation: 0,
            is_collectable: false,
            reason: None,
            has_failed: false,
            is_edited: false,
            queue_entry: false,
            available_entry: starts_available,
            completed_entry: false,
            device_entry: false,
            is_awaited: false,
            prior_phase: None,
        };
        for step in steps {
            apply(&state, &mut model, step)?;
            prop_assert_eq!(state.phase(), model.phase);
            prop_assert_eq!(state.generation(), generation(model.generation));
            prop_assert_eq!(state.under_way(), model.is_in_flight().then_some(generation(model.generation)));
            prop_assert_eq!(state.is_in_flight(), model.is_in_flight());
            prop_assert_eq!(state.reason(), model.reason);
            prop_assert_eq!(state.has_failed(), model.has_failed);
            prop_assert_eq!(state.is_outstanding(), model.is_outstanding());
        }
    }
}

/// Does one step of both. Steps of an owner are skipped if there is no owner.
#[allow(clippy::too_many_lines)] // one arm per step
fn apply(state: &RequestState, model: &mut Model, step: Step) -> Result<(), TestCaseError> {
    let aged = |age: u64| model.generation.saturating_sub(age);
    match step {
        Step::Begin(is_collectable) => {
            let may = matches!(model.phase, Phase::Available | Phase::Idle) && !model.is_edited;
            let begun = state.begin(is_collectable);
            prop_assert_eq!(begun.is_ok(), may);
            if let Ok(Submitted { generation: begun, prior_phase }) = begun {
                prop_assert_eq!(prior_phase == PriorPhase::Available, model.phase == Phase::Available);
                model.generation += 1;
                prop_assert_eq!(begun, generation(model.generation));
                (model.phase, model.reason, model.has_failed) = (Phase::Running, None, false);
                (model.is_collectable, model.prior_phase) = (is_collectable, Some(prior_phase));
            }
        }
        // This step is possible only before other threads can own the request.
        Step::Withdraw if model.owns() && model.prior_phase.is_some() => {
            let prior_phase = model.prior_phase.take().unwrap();
            let needs_entry = prior_phase == PriorPhase::Available && !model.available_entry;
            let was_awaited = std::mem::take(&mut model.is_awaited);
            prop_assert_eq!(state.withdraw(prior_phase), Withdrawn { needs_entry, was_awaited });
            (model.reason, model.is_collectable) = (None, false);
            if prior_phase == PriorPhase::Available {
                (model.phase, model.available_entry) = (Phase::Available, true);
            } else {
                model.phase = Phase::Idle;
            }
        }
        Step::Enqueue(is_single) if model.owns() => {
            let enqueued = state.enqueue(is_single);
            if model.reason.is_some() {
                prop_assert_eq!(enqueued, Err(AskedToEnd));
            } else {
                prop_assert_eq!(enqueued, Ok(!is_single || !model.queue_entry));
                (model.queue_entry, model.prior_phase) = (model.queue_entry | is_single, None);
                model.phase = Phase::Queued;
            }
        }
        Step::ClaimEntry if model.queue_entry => {
            prop_assert_eq!(state.claim_entry(), model.phase == Phase::Queued);
            model.queue_entry = false;
            if model.phase == Phase::Queued {
                model.phase = Phase::Running;
            }
        }
        Step::Claim(age) => {
            let may = aged(age) == model.generation && model.phase == Phase::Queued;
            prop_assert_eq!(state.claim(generation(aged(age))), may);
            if may {
                model.phase = Phase::Running;
            }
        }
        Step::ClaimNumbered(age) => {
            const MASK: u32 = 0x7FFF;
            let may = aged(age) == model.generation && model.phase == Phase::Queued;
            prop_assert_eq!(state.claim_numbered(generation(aged(age)).low_bits(), MASK), may);
            if may {
                model.phase = Phase::Running;
            }
        }
        Step::Leave if model.owns() => {
            let left = state.leave_to_device();
            if model.reason.is_some() {
                prop_assert_eq!(left, Err(AskedToEnd));
            } else {
                prop_assert_eq!(left, Ok(!model.device_entry));
                (model.phase, model.device_entry, model.prior_phase) = (Phase::OnDevice, true, None);
            }
        }
        Step::TakeFromDevice(age) => {
            let may = aged(age) == model.generation && model.phase == Phase::OnDevice;
            prop_assert_eq!(state.take_from_device(generation(aged(age))), may);
            if may {
                model.phase = Phase::Running;
            }
        }
        Step::ClaimDeviceEntry if model.device_entry => {
            prop_assert_eq!(state.claim_device_entry(), model.phase == Phase::OnDevice);
            model.device_entry = false;
            if model.phase == Phase::OnDevice {
                model.phase = Phase::Running;
            }
        }
        Step::Complete(has_failed) if model.owns() => {
            prop_assert_eq!(state.complete(has_failed), model.is_collectable && !model.completed_entry);
            model.has_failed = has_failed;
            if model.is_collectable {
                (model.phase, model.completed_entry) = (Phase::Completed, true);
            } else {
                model.phase = Phase::Idle;
            }
        }
        Step::Collect(age) => {
            let may = aged(age) == model.generation && model.phase == Phase::Completed;
            let asked = generation(aged(age));
            prop_assert_eq!(state.collect(asked), may.then(|| model.collect()));
        }
        Step::ClaimCompletedEntry if model.completed_entry => {
            let collected = (model.phase == Phase::Completed).then(|| model.collect());
            prop_assert_eq!(state.claim_completed_entry(), collected);
            model.completed_entry = false;
        }
        Step::ClaimAvailableEntry if model.available_entry => {
            prop_assert_eq!(state.claim_available_entry(), model.phase == Phase::Available);
            model.available_entry = false;
            if model.phase == Phase::Available {
                model.phase = Phase::Idle;
            }
        }
        Step::AwaitCollection => {
            prop_assert_eq!(state.await_collection(), model.is_outstanding());
            model.is_awaited |= model.is_outstanding();
        }
        Step::PutBack => {
            let put = state.put_back();
            match model.phase {
                Phase::Idle => {
                    prop_assert_eq!(put, Ok(!model.available_entry));
                    (model.phase, model.available_entry) = (Phase::Available, true);
                }
                Phase::Completed => {
                    prop_assert_eq!(put, Err(PutBackError::Completed(generation(model.generation))));
                }
                Phase::Available => prop_assert_eq!(put, Err(PutBackError::Available)),
                _ => prop_assert_eq!(put, Err(PutBackError::InFlight)),
            }
        }
        Step::Edit => {
            let may = !model.is_in_flight() && !model.is_edited;
            prop_assert_eq!(state.edit().is_ok(), may);
            model.is_edited |= may;
        }
        Step::Edited if model.is_edited => {
            state.edited();
            model.is_edited = false;
        }
        Step::Ask(age, is_cancel) => {
            let reason = if is_cancel { Reason::Cancelled } else { Reason::TimedOut };
            let may = aged(age) == model.generation && model.is_in_flight();
            prop_assert_eq!(state.ask_to_end(generation(aged(age)), reason), may);
            if may && model.reason.is_none() {
                model.reason = Some(reason);
            }
        }
        Step::Await => prop_assert_eq!(state.wait(Duration::ZERO, || None::<()>), None),
        _ => {}
    }
    Ok(())
}

#[test]
fn generations_wrap_without_touching_the_other_bits() {
    let state = RequestState::of(GENERATION | IDLE | QUEUE_ENTRY);
    let begun = state.begin(true).unwrap();
    assert_eq!((begun.generation, state.phase()), (Generation(0), Phase::Running));
    assert_eq!(state.enqueue(true), Ok(false), "the bit of its entry is there still");
}

#[test]
fn wait_during_which_the_inference_ends_does_not_sleep() {
    let ways: [fn(&RequestState) -> bool; 2] =
        [|state| state.complete(false), |state| state.withdraw(PriorPhase::Idle).needs_entry];
    for ends in ways {
        let state = RequestState::idle();
        state.begin(true).unwrap();
        let mut looks = 0;
        let ended = state.wait(Duration::MAX, || {
            looks += 1;
            // The second check follows the setting of the bit.
            if looks == 2 {
                ends(&state);
                return None;
            }
            (!state.is_in_flight()).then_some(looks)
        });
        assert_eq!(ended, Some(3));
        assert_eq!(state.word() & AWAITED, 0, "the end takes the bit");
    }
}

#[test]
fn wait_of_threads_for_one_end_wakes_them_all() {
    let state = RequestState::idle();
    for _ in 0..200 {
        let generation = state.begin(false).unwrap().generation;
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let ended = || (state.under_way() != Some(generation)).then_some(());
                    while state.wait(Duration::MAX, ended).is_none() {}
                });
            }
            state.complete(false);
        });
    }
}

#[test]
fn inference_that_no_thread_waits_for_ends_with_one_exchange() {
    let ways: [fn(&RequestState) -> bool; 2] =
        [|state| state.complete(false), |state| state.withdraw(PriorPhase::Idle).needs_entry];
    for ends in ways {
        let updates = |is_awaited: bool| {
            let state = RequestState::idle();
            state.begin(true).unwrap();
            if is_awaited {
                assert_eq!(state.wait(Duration::ZERO, || None::<()>), None);
            }
            qaic_sync::atomic::Operations::during(|| _ = ends(&state)).updates
        };
        // An exchange may fail spuriously.
        assert_eq!((0..100).map(|_| updates(false)).min(), Some(1));
        assert!(updates(true) > 1, "the event of a thread that waits is looked at");
    }
}
