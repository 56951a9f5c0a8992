//! Which requests of an inference set are available, and which have completed.
//!
//! Nothing here knows exec objects, so that a thread which ends an inference keeps no cores.

use qaic_sync::{EventCount, FreeList, IdIndex, ReadyList, Ring};

use crate::sync::{AtomicU32, Ordering};

/// A thread may sleep until a request completes, or until there is none to wait for.
const AWAITED: u32 = 1 << 31;

/// Lists of the requests of a set, by their numbers in it.
#[derive(Debug)]
pub(crate) struct Lists {
    // The latest first: its memory is still in the cache.
    available: ReadyList<FreeList>,
    // In the order in which they ended.
    completed: ReadyList<Ring>,
    ids: IdIndex,
    // Requests that were submitted and not collected, and whether a thread waits for the completed ones.
    outstanding: AtomicU32,
}

impl Lists {
    /// Of `count` requests, none of them available yet.
    pub(super) fn new(count: u32) -> Self {
        Self {
            available: ReadyList::lifo(count),
            completed: ReadyList::fifo(count),
            ids: IdIndex::new(count),
            outstanding: AtomicU32::new(0),
        }
    }

    /// A request was submitted under an id, by its owner.
    pub(crate) fn submitted(&self, number: u32, id: u64) {
        self.outstanding.fetch_add(1, Ordering::AcqRel);
        self.ids.insert(id, number);
    }

    /// Its submission was taken back.
    pub(crate) fn withdrawn(&self, number: u32) {
        self.collected(number);
    }

    /// A request has completed, and needs an entry.
    pub(crate) fn completed(&self, number: u32) {
        self.completed.push(number);
    }

    /// A completed request was collected, by the calling thread.
    pub(super) fn collected(&self, number: u32) {
        self.ids.remove(number);
        // AcqRel: a thread that sees zero sees what the ended inferences wrote.
        if self.outstanding.fetch_sub(1, Ordering::AcqRel) == AWAITED | 1 {
            // There is nothing to wait for any more.
            self.outstanding.fetch_and(!AWAITED, Ordering::AcqRel);
            self.completed.waiters().notify_all();
        }
    }

    /// A request is available, and needs an entry.
    pub(crate) fn put_back(&self, number: u32) {
        self.available.push(number);
    }

    /// The next available request that can be claimed.
    pub(super) fn acquire(&self, claim: impl Fn(u32) -> bool) -> Option<u32> {
        self.available.take(claim)
    }

    /// The next completed request that can be claimed.
    pub(super) fn collect(&self, claim: impl Fn(u32) -> bool) -> Option<u32> {
        let number = self.completed.take(claim)?;
        self.collected(number);
        Some(number)
    }

    /// Where threads wait for an available request.
    pub(super) fn for_available(&self) -> &EventCount {
        self.available.waiters()
    }

    /// Where threads wait for a completed request, or for there being none to wait for.
    pub(super) fn for_completed(&self) -> &EventCount {
        self.completed.waiters()
    }

    /// Whether no inference is under way or waits to be collected, so that waiting for one is in vain. Where there is one,
    /// a thread that waits for completed ones and asked this while it was listening is notified when there is none.
    pub(super) fn is_settled(&self) -> bool {
        // A thread that is not listening need not be notified: it asks again before it sleeps.
        let is_awaited = self.completed.waiters().waiting() > 0;
        self.outstanding.load(Ordering::Acquire) & !AWAITED == 0
            || is_awaited && self.outstanding.fetch_or(AWAITED, Ordering::AcqRel) & !AWAITED == 0
    }

    /// Which requests carry the inferences of an id.
    pub(super) fn ids(&self) -> &IdIndex {
        &self.ids
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use qaic_sync::Event;

    use super::*;

    /// Longer than any test takes.
    const LONG: Duration = Duration::from_mins(1);

    #[test]
    fn settled_is_where_nothing_is_outstanding() {
        let lists = Lists::new(2);
        assert!(lists.is_settled());
        for number in 0..2 {
            lists.submitted(number, 40);
            assert!(!lists.is_settled());
        }
        lists.completed(1);
        assert_eq!((lists.collect(|_| true), lists.collect(|_| true)), (Some(1), None));
        assert!(!lists.is_settled());
        lists.withdrawn(0);
        assert!(lists.is_settled());
        assert_eq!(lists.ids().oldest(40, |_| true), None);
    }

    /// The last request is collected between the look of a thread and its sleep.
    #[test]
    fn thread_that_is_about_to_sleep_hears_that_nothing_is_outstanding() {
        let lists = Lists::new(1);
        let began = Instant::now();
        for _ in 0..3 {
            lists.submitted(0, 7);
            let mut looks = 0;
            let settled = lists.for_completed().wait(LONG, || {
                looks += 1;
                if looks == 1 {
                    assert!(!lists.is_settled());
                    lists.collected(0);
                    return None;
                }
                lists.is_settled().then_some(())
            });
            assert_eq!((settled, looks), (Some(()), 2));
            // No later submission pays for that thread.
            assert_eq!(lists.outstanding.load(Ordering::Acquire), 0);
        }
        assert!(began.elapsed() < LONG);
    }
}
