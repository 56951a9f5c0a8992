//! What an inference set does with its handles: every completion is collected once, whoever gets there first.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use crate::queue::{IndexStack, Numbers, Ring, Roster};
use crate::{FOREVER, with_preemptions};

const IDLE: u32 = 0;
const LISTED: u32 = 1;
const CLAIMED: u32 = 2;

/// Handles with a state, a roster of those that are `LISTED`, and a result that only the claimer may touch.
struct Handles<L> {
    states: Vec<AtomicU32>,
    results: Vec<UnsafeCell<u32>>,
    roster: Roster<L>,
}

impl<L: Numbers> Handles<L> {
    fn new(roster: Roster<L>, count: u32) -> Arc<Self> {
        Arc::new(Self {
            states: (0..count).map(|_| AtomicU32::new(IDLE)).collect(),
            results: (0..count).map(|_| UnsafeCell::new(0)).collect(),
            roster,
        })
    }

    /// Whoever owns an idle handle brings it into the state.
    fn list(&self, number: u32) {
        self.results[number as usize].with_mut(|result| unsafe { *result += 1 });
        self.states[number as usize].store(LISTED, Ordering::Release);
        self.roster.enter(number);
    }

    fn claim(&self, number: u32) -> bool {
        let state = &self.states[number as usize];
        // A plain look first: it may be stale, which an exchange under loom never is.
        let claimed = state.load(Ordering::Relaxed) == LISTED
            && state.compare_exchange(LISTED, CLAIMED, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if claimed {
            self.results[number as usize].with_mut(|result| unsafe { *result += 100 });
        }
        claimed
    }

    fn take(&self) -> Option<u32> {
        self.roster.take(|number| self.claim(number))
    }

    fn wait(&self) -> u32 {
        loop {
            if let Some(number) = self.roster.wait(FOREVER, |number| self.claim(number)) {
                return number;
            }
        }
    }

    fn result(&self, number: u32) -> u32 {
        self.results[number as usize].with(|result| unsafe { *result })
    }
}

fn in_order(count: u32) -> Arc<Handles<Ring>> {
    Handles::new(Roster::in_order(count), count)
}

fn latest_first(count: u32) -> Arc<Handles<IndexStack>> {
    Handles::new(Roster::latest_first(count), count)
}

/// One thread brings a handle into the state, claims it by number if it can, and brings it there again; another takes
/// from the roster. Of two entrances, two claims.
fn claimed_by_number_and_from_the_roster<L: Numbers + 'static>(handles: &Arc<Handles<L>>) {
    let other = {
        let handles = Arc::clone(handles);
        thread::spawn(move || {
            handles.list(0);
            let by_number = handles.claim(0);
            if by_number {
                handles.list(0);
            }
            by_number
        })
    };
    let mut from_roster = u32::from(handles.take().is_some());
    let by_number = other.join().unwrap();
    from_roster += u32::from(handles.take().is_some());
    assert_eq!(from_roster, 1, "claimed by number first: {by_number}");
    assert_eq!(handles.result(0), if by_number { 202 } else { 101 });
    assert_eq!(handles.take(), None);
}

#[test]
fn an_old_entry_stands_for_a_new_entrance_in_order() {
    loom::model(|| claimed_by_number_and_from_the_roster(&in_order(1)));
}

#[test]
fn an_old_entry_stands_for_a_new_entrance_latest_first() {
    loom::model(|| claimed_by_number_and_from_the_roster(&latest_first(1)));
}

/// The one who waits is woken although what woke it may be claimed by number meanwhile and come back.
fn wakes_the_one_who_waits<L: Numbers + 'static>(handles: &Arc<Handles<L>>) {
    let other = {
        let handles = Arc::clone(handles);
        thread::spawn(move || {
            handles.list(0);
            if handles.claim(0) {
                handles.list(0);
            }
        })
    };
    assert_eq!(handles.wait(), 0);
    other.join().unwrap();
    assert_eq!(handles.take(), None);
}

#[test]
fn a_handle_that_comes_back_wakes_in_order() {
    loom::model(|| wakes_the_one_who_waits(&in_order(1)));
}

#[test]
fn a_handle_that_comes_back_wakes_latest_first() {
    loom::model(|| wakes_the_one_who_waits(&latest_first(1)));
}

/// Two poppers and one who claims by number: one of them gets it, and its next entrance is not missed.
fn two_poppers_and_a_claim_by_number<L: Numbers + 'static>(handles: &Arc<Handles<L>>) {
    handles.list(0);
    let poppers = [(); 2].map(|()| {
        let handles = Arc::clone(handles);
        thread::spawn(move || {
            let taken = handles.take();
            // Whoever has it brings it back.
            taken.into_iter().for_each(|number| handles.list(number));
            taken.is_some()
        })
    });
    let by_number = handles.claim(0);
    if by_number {
        handles.list(0);
    }
    let taken = poppers.map(|popper| u32::from(popper.join().unwrap()));
    let claims = taken.iter().sum::<u32>() + u32::from(by_number);
    assert_eq!(handles.take(), Some(0), "the last entrance of {claims} and one");
    assert_eq!(handles.result(0), 101 * (claims + 1));
    assert_eq!(handles.take(), None);
}

#[test]
fn three_threads_claim_one_handle_in_order() {
    loom::model(|| two_poppers_and_a_claim_by_number(&in_order(1)));
}

#[test]
fn three_threads_claim_one_handle_latest_first() {
    loom::model(|| two_poppers_and_a_claim_by_number(&latest_first(1)));
}

/// Two producers, two that wait. In the ring, the first producer's slot may hide the second's number from whom the second
/// wakes; the one who gets the first must then wake the other.
fn two_producers_and_two_that_wait<L: Numbers + 'static>(handles: &Arc<Handles<L>>) {
    let producers = [0, 1].map(|number| {
        let handles = Arc::clone(handles);
        thread::spawn(move || handles.list(number))
    });
    let other = {
        let handles = Arc::clone(handles);
        thread::spawn(move || handles.wait())
    };
    let mine = handles.wait();
    let mut taken = [mine, other.join().unwrap()];
    producers.into_iter().for_each(|producer| producer.join().unwrap());
    taken.sort_unstable();
    assert_eq!(taken, [0, 1]);
}

// One preemption is enough to sleep over the hidden entry when nobody passes the wake-up on.

#[test]
fn a_hidden_entry_is_not_slept_over_in_order() {
    with_preemptions(1, || two_producers_and_two_that_wait(&in_order(2)));
}

#[test]
fn two_wait_for_two_latest_first() {
    with_preemptions(1, || two_producers_and_two_that_wait(&latest_first(2)));
}
