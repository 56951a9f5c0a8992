//! The available and the completed requests of a set.
//!
//! The lists contain only numbers, no jobs, so that a thread which ends an inference keeps no cores.

use qaic_sync::{EventCount, FreeList, ReadyList, Ring};

use crate::id_index::IdIndex;
use crate::request_state::{Collected, Generation, PutBackError, RequestState};

/// Lists of the requests of a set, by their numbers in it.
#[derive(Debug)]
pub struct RequestLists {
    // Last in, first out: recently used memory is still in the cache.
    available: ReadyList<FreeList>,
    // In the order in which the inferences ended.
    completed: ReadyList<Ring>,
    // Ids of submitted requests that were not collected.
    ids: IdIndex,
}

impl RequestLists {
    /// Creates the lists of `count` requests, none of them available yet.
    pub fn new(count: u32) -> Self {
        Self {
            available: ReadyList::lifo(count),
            completed: ReadyList::fifo(count),
            ids: IdIndex::new(count),
        }
    }

    /// Records that the owner of a request submitted it under an id.
    pub(crate) fn submitted(&self, number: u32, id: u64) {
        self.ids.insert(id, number);
    }

    /// Records that the submission of a request was withdrawn.
    pub(crate) fn withdrawn(&self, number: u32) {
        self.ids.remove(number);
    }

    /// Adds an entry for a request that has completed.
    pub(crate) fn completed(&self, number: u32) {
        self.completed.push(number);
    }

    /// Adds an entry for a request that is available again.
    pub(crate) fn available(&self, number: u32) {
        self.available.push(number);
    }

    /// Wakes the threads that wait for a completed request, because none may be left.
    pub(crate) fn settled(&self) {
        self.completed.waiters.notify_all();
    }

    /// Acquires the next available request. `state` returns the state of a request of the set, here and below.
    pub fn acquire<'a>(&self, state: impl Fn(u32) -> &'a RequestState) -> Option<u32> {
        self.available.take(|number| state(number).claim_available_entry())
    }

    /// Makes a request of the calling thread available again, and collects its completed inference.
    pub fn put_back<'a>(
        &self,
        number: u32,
        state: impl Fn(u32) -> &'a RequestState,
    ) -> Result<(), PutBackError> {
        loop {
            match state(number).put_back() {
                Ok(needs_entry) => {
                    if needs_entry {
                        self.available(number);
                    }
                    return Ok(());
                }
                // The thread that waits for all inferences collects this one.
                Err(PutBackError::Completed(generation)) => _ = self.collect_one(number, generation, &state),
                Err(refused) => return Err(refused),
            }
        }
    }

    /// Collects the next completed request.
    pub fn collect<'a>(&self, state: impl Fn(u32) -> &'a RequestState) -> Option<u32> {
        let mut collected = None;
        let number = self.completed.take(|number| {
            collected = state(number).claim_completed_entry();
            collected.is_some()
        })?;
        self.collected(number, collected?, state);
        Some(number)
    }

    /// Collects a completed inference of a request. Returns false if the request is not completed with this
    /// inference, or if another thread has collected it.
    pub fn collect_one<'a>(
        &self,
        number: u32,
        generation: Generation,
        state: impl Fn(u32) -> &'a RequestState,
    ) -> bool {
        let collected = state(number).collect(generation);
        collected.map(|collected| self.collected(number, collected, state)).is_some()
    }

    /// Removes a collected request from the index. If a thread may wait until no request is outstanding, marks another
    /// outstanding request, so that its collection wakes that thread.
    fn collected<'a>(&self, number: u32, collected: Collected, state: impl Fn(u32) -> &'a RequestState) {
        self.ids.remove(number);
        // A thread that still waits has marked this inference and therefore sees it; a stale mark is removed.
        let is_awaited = collected.was_awaited && self.is_awaited();
        if is_awaited && self.ids.find(|number| state(number).await_collection()).is_none() {
            self.settled();
        }
    }

    /// Id with which a request was last submitted; 0 by default.
    pub fn id_of(&self, number: u32) -> Option<u64> {
        self.ids.id_of(number)
    }

    /// Returns the oldest outstanding request of an id. Other threads submit and collect requests concurrently: a
    /// caller checks the request's state and [`RequestLists::id_of`] again before it collects the request.
    pub fn oldest<'a>(&self, id: u64, state: impl Fn(u32) -> &'a RequestState) -> Option<u32> {
        self.ids.oldest(id, |number| state(number).is_outstanding())
    }

    /// Event for threads that wait for an available request.
    pub fn for_available(&self) -> &EventCount {
        &self.available.waiters
    }

    /// Event for threads that wait for a completed request, or for the absence of outstanding requests.
    pub fn for_completed(&self) -> &EventCount {
        &self.completed.waiters
    }

    /// Returns true if no inference is in flight or completed, so that there is nothing to wait for. If this returns
    /// false while the calling thread listens for completions, the thread is notified once there is nothing to wait
    /// for.
    pub fn is_settled<'a>(&self, state: impl Fn(u32) -> &'a RequestState) -> bool {
        // A thread that does not listen need not be notified: it checks again before it sleeps.
        let is_awaited = self.is_awaited();
        let is_outstanding = |number| {
            let state = state(number);
            if is_awaited { state.await_collection() } else { state.is_outstanding() }
        };
        self.ids.find(is_outstanding).is_none()
    }

    fn is_awaited(&self) -> bool {
        self.completed.waiters.waiting() > 0
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)] // a failed assumption fails the test
mod tests {
    use std::cell::Cell;
    use std::time::{Duration, Instant};

    use proptest::prelude::*;
    use qaic_sync::Event;

    use super::*;
    use crate::request_state::PriorPhase;

    /// Longer than any test takes.
    const LONG: Duration = Duration::from_mins(1);

    /// The operations of an inference set on its lists.
    struct Set {
        lists: RequestLists,
        states: Vec<RequestState>,
        // Number of requests that were visited to pass on the mark of a collected one.
        looks: Cell<u32>,
    }

    impl Set {
        fn new(count: u32) -> Self {
            let states = (0..count).map(|_| RequestState::idle()).collect();
            Self { lists: RequestLists::new(count), states, looks: Cell::new(0) }
        }

        fn state(&self, number: u32) -> &RequestState {
            &self.states[number as usize]
        }

        fn submit(&self, number: u32, id: u64) {
            self.state(number).begin(true).unwrap();
            self.lists.submitted(number, id);
        }

        fn complete(&self, number: u32) {
            if self.state(number).complete(false) {
                self.lists.completed(number);
            }
        }

        /// Collects an inference. Returns true if it was marked.
        fn collect(&self, number: u32) -> bool {
            let collected = self.state(number).collect(self.state(number).generation()).unwrap();
            self.lists.collected(number, collected, |number| {
                self.looks.set(self.looks.get() + 1);
                self.state(number)
            });
            collected.was_awaited
        }

        fn collect_next(&self) -> Option<u32> {
            self.lists.collect(|number| self.state(number))
        }

        fn is_settled(&self) -> bool {
            self.lists.is_settled(|number| self.state(number))
        }
    }

    proptest! {
        /// Submits, completes and collects requests in random order, by every way, with shared ids.
        #[test]
        fn settled_is_where_nothing_is_outstanding(
            steps in prop::collection::vec((0_u32..6, 0_u32..4, 0_u64..3), 1..80),
        ) {
            let set = Set::new(6);
            let mut outstanding = [None; 6];
            for (number, step, id) in steps {
                let is_done = &mut outstanding[number as usize];
                match (step, *is_done) {
                    (0 | 1, None) => {
                        set.submit(number, id);
                        prop_assert_eq!(set.lists.id_of(number), Some(id));
                        *is_done = Some(false);
                    }
                    (1, Some(false)) => {
                        set.complete(number);
                        *is_done = Some(true);
                    }
                    (2, Some(true)) => {
                        // No thread listens, so no marks are needed.
                        prop_assert!(!set.collect(number));
                        *is_done = None;
                    }
                    (3, Some(false)) => {
                        set.lists.withdrawn(number);
                        prop_assert!(!set.state(number).withdraw(PriorPhase::Idle).was_awaited);
                        *is_done = None;
                    }
                    (3, _) => {
                        if let Some(number) = set.collect_next() {
                            prop_assert_eq!(outstanding[number as usize].take(), Some(true));
                        }
                    }
                    _ => {}
                }
                prop_assert_eq!(set.is_settled(), outstanding.iter().all(Option::is_none));
            }
        }
    }

    /// The last request is collected, or taken back, between the check of a thread and its sleep.
    #[test]
    fn thread_that_is_about_to_sleep_hears_that_nothing_is_outstanding() {
        let began = Instant::now();
        let set = Set::new(3);
        for is_withdrawn in [false, true] {
            for number in 0..3 {
                set.submit(number, 7);
            }
            set.complete(1);
            set.complete(2);
            let mut looks = 0;
            let settled = set.lists.for_completed().wait(LONG, || {
                looks += 1;
                if looks > 1 {
                    return set.is_settled().then_some(());
                }
                assert_eq!(
                    [set.collect_next(), set.collect_next(), set.collect_next()],
                    [Some(1), Some(2), None]
                );
                assert!(!set.is_settled());
                if is_withdrawn {
                    set.lists.withdrawn(0);
                    assert!(set.state(0).withdraw(PriorPhase::Idle).was_awaited);
                    set.lists.settled();
                } else {
                    set.state(0).complete(false);
                    set.collect(0);
                }
                None
            });
            assert_eq!((settled, looks), (Some(()), 2));
            // A later collection has no cost for that thread.
            let looks = set.looks.get();
            set.submit(0, 8);
            set.complete(0);
            set.collect(0);
            assert_eq!(set.looks.get(), looks);
            while set.collect_next().is_some() {}
        }
        assert!(began.elapsed() < LONG);
    }

    #[test]
    fn mark_of_a_thread_that_waits_no_longer_is_not_passed_on() {
        let set = Set::new(3);
        for number in 0..3 {
            set.submit(number, 7);
        }
        assert_eq!(set.lists.for_completed().wait(Duration::ZERO, || set.is_settled().then_some(())), None);
        let marked = [2, 1, 0].map(|number| {
            set.state(number).complete(false);
            set.collect(number)
        });
        assert!(marked.contains(&true));
        assert_eq!(set.looks.get(), 0);
    }

    /// Another thread collects the inferences that a thread waits for, while there is one more.
    #[test]
    fn thread_that_sleeps_hears_of_the_last_and_not_of_each_that_is_collected() {
        let set = Set::new(4);
        let began = Instant::now();
        for number in 0..4 {
            set.submit(number, 7);
        }
        let mut looks = 0;
        let settled = set.lists.for_completed().wait(LONG, || {
            looks += 1;
            if looks == 1 {
                assert!(!set.is_settled());
                for number in [3, 0, 2, 1] {
                    // The debug output shows the number of notifications.
                    let events = format!("{:?}", set.lists.for_completed());
                    assert!(set.state(number).is_outstanding());
                    set.state(number).complete(false);
                    set.collect(number);
                    let is_notified = events != format!("{:?}", set.lists.for_completed());
                    assert_eq!(is_notified, number == 1);
                }
                return None;
            }
            set.is_settled().then_some(())
        });
        assert_eq!((settled, looks), (Some(()), 2));
        assert!(began.elapsed() < LONG);
    }
}
