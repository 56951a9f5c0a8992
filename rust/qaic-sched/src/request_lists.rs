//! The available and the completed requests of a set.
//!
//! The lists contain only numbers, no jobs, so that a thread which ends an inference keeps no cores.

use qaic_sync::{Collected, EventCount, FreeList, IdIndex, ReadyList, Ring};

/// Lists of the requests of a set, by their numbers in it.
///
/// ```
/// use qaic_sync::RequestState;
///
/// let (lists, state) = (qaic_sched::RequestLists::new(1), RequestState::idle());
/// state.begin(true).unwrap();
/// lists.submitted(0, 7);
/// if state.complete(false) {
///     lists.completed(0);
/// }
/// let (number, collected) = lists.collect(|_| state.claim_completed_entry()).unwrap();
/// lists.collected(number, collected, |_| false);
/// assert_eq!((number, lists.is_settled(|_| state.is_outstanding(), |_| false)), (0, true));
/// ```
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
    /// Makes the lists of `count` requests, none of them available yet.
    pub fn new(count: u32) -> Self {
        Self {
            available: ReadyList::lifo(count),
            completed: ReadyList::fifo(count),
            ids: IdIndex::new(count),
        }
    }

    /// Records that the owner of a request submitted it under an id.
    pub fn submitted(&self, number: u32, id: u64) {
        self.ids.insert(id, number);
    }

    /// Records that the submission of a request was withdrawn.
    pub(crate) fn withdrawn(&self, number: u32) {
        self.ids.remove(number);
    }

    /// Adds an entry for a request that has completed.
    pub fn completed(&self, number: u32) {
        self.completed.push(number);
    }

    /// Records that the calling thread collected a completed request. `await_another` marks another outstanding
    /// request, by its number, so that its collection wakes the threads that wait until no request is outstanding.
    pub fn collected(&self, number: u32, collected: Collected, await_another: impl Fn(u32) -> bool) {
        self.ids.remove(number);
        // A thread that still waits has marked this inference and therefore sees it; a stale mark is removed.
        if collected.was_awaited && self.is_awaited() && self.ids.find(await_another).is_none() {
            self.settled();
        }
    }

    /// Wakes the threads that wait for a completed request, because none may be left.
    pub(crate) fn settled(&self) {
        self.completed.waiters().notify_all();
    }

    /// Adds an entry for a request that is available again.
    pub fn put_back(&self, number: u32) {
        self.available.push(number);
    }

    /// Claims the next available request.
    pub fn acquire(&self, claim: impl Fn(u32) -> bool) -> Option<u32> {
        self.available.take(claim)
    }

    /// Claims the next completed request.
    pub fn collect(&self, claim: impl Fn(u32) -> Option<Collected>) -> Option<(u32, Collected)> {
        let mut collected = None;
        let number = self.completed.take(|number| {
            collected = claim(number);
            collected.is_some()
        })?;
        Some((number, collected?))
    }

    /// Event for threads that wait for an available request.
    pub fn for_available(&self) -> &EventCount {
        self.available.waiters()
    }

    /// Event for threads that wait for a completed request, or for the absence of outstanding requests.
    pub fn for_completed(&self) -> &EventCount {
        self.completed.waiters()
    }

    /// Returns true if no inference is in flight or completed, so that there is nothing to wait for. If this returns
    /// false while the calling thread listens for completions, the thread is notified once there is nothing to wait
    /// for. `await_one` requests that notification from the inference with a number.
    pub fn is_settled(&self, is_outstanding: impl Fn(u32) -> bool, await_one: impl Fn(u32) -> bool) -> bool {
        // A thread that does not listen need not be notified: it checks again before it sleeps.
        let found = if self.is_awaited() { self.ids.find(await_one) } else { self.ids.find(is_outstanding) };
        found.is_none()
    }

    fn is_awaited(&self) -> bool {
        self.completed.waiters().waiting() > 0
    }

    /// Index of the requests by the id of their inference.
    pub fn ids(&self) -> &IdIndex {
        &self.ids
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::{Duration, Instant};

    use proptest::prelude::*;
    use qaic_sync::{Event, RequestState};

    use super::*;

    /// Longer than any test takes.
    const LONG: Duration = Duration::from_mins(1);

    /// The operations of an inference set on its lists.
    struct Set {
        lists: RequestLists,
        states: Vec<RequestState>,
        marks: Cell<u32>,
    }

    impl Set {
        fn new(count: u32) -> Self {
            let states = (0..count).map(|_| RequestState::idle()).collect();
            Self { lists: RequestLists::new(count), states, marks: Cell::new(0) }
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

        fn await_one(&self, number: u32) -> bool {
            self.marks.set(self.marks.get() + 1);
            self.state(number).await_collection()
        }

        fn collected(&self, number: u32, collected: Collected) -> u32 {
            self.lists.collected(number, collected, |number| self.await_one(number));
            number
        }

        fn collect_next(&self) -> Option<u32> {
            let (number, collected) =
                self.lists.collect(|number| self.state(number).claim_completed_entry())?;
            Some(self.collected(number, collected))
        }

        fn collect(&self, number: u32) {
            let collected = self.state(number).collect(self.state(number).generation()).unwrap();
            self.collected(number, collected);
        }

        fn is_settled(&self) -> bool {
            let is_outstanding = |number| self.state(number).is_outstanding();
            self.lists.is_settled(is_outstanding, |number| self.await_one(number))
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
                        *is_done = Some(false);
                    }
                    (1, Some(false)) => {
                        set.complete(number);
                        *is_done = Some(true);
                    }
                    (2, Some(true)) => {
                        set.collect(number);
                        *is_done = None;
                    }
                    (3, Some(false)) => {
                        set.lists.withdrawn(number);
                        prop_assert!(!set.state(number).withdraw(qaic_sync::PriorPhase::Idle).was_awaited);
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
            // No thread listens, so no marks are needed.
            prop_assert_eq!(set.marks.get(), 0);
        }
    }

    /// The last request is collected, or taken back, between the look of a thread and its sleep.
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
                    assert!(set.state(0).withdraw(qaic_sync::PriorPhase::Idle).was_awaited);
                    set.lists.settled();
                } else {
                    set.state(0).complete(false);
                    set.collect(0);
                }
                None
            });
            assert_eq!((settled, looks), (Some(()), 2));
            // A later collection has no cost for that thread.
            let marks = set.marks.get();
            set.submit(0, 8);
            set.complete(0);
            set.collect(0);
            assert_eq!(set.marks.get(), marks);
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
        let marks = set.marks.get();
        assert!(marks > 0);
        for number in [2, 1, 0] {
            set.state(number).complete(false);
            set.collect(number);
        }
        assert_eq!(set.marks.get(), marks);
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
