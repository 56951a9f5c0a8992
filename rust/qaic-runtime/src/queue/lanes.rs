//! Work in lanes: each first in, first out; in serial lanes one after the other.

use super::Ring;
use crate::sync::{AtomicBool, Ordering, yield_now};

/// Numbers that wait in lanes, and the order in which lanes are served.
///
/// A number is in one lane at most, and below the capacity, so that no list is ever full.
#[derive(Debug)]
pub struct Lanes {
    all: Box<[Lane]>,
    // Lanes that have something to run. A serial lane is in it at most once, others once per number.
    ready: Ring,
    serial: bool,
}

#[derive(Debug)]
struct Lane {
    pending: Ring,
    // Of serial lanes: whether the lane is in the ready list or one of its numbers is being run.
    scheduled: AtomicBool,
}

impl Lanes {
    /// Empty lanes for numbers below `capacity`.
    pub fn new(count: u32, capacity: u32, serial: bool) -> Self {
        // Twice the room: a consumer that is slow to free a slot is a whole lap away.
        let ring = || Ring::new(capacity.max(count).saturating_mul(2));
        let lane = |_| Lane { pending: ring(), scheduled: AtomicBool::new(false) };
        Self { all: (0..count).map(lane).collect(), ready: ring(), serial }
    }

    /// Whether the numbers of a lane are run one after the other.
    pub fn is_serial(&self) -> bool {
        self.serial
    }

    /// Whether there is nothing to run now.
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// Numbers that wait in a lane; only a guess while others enter and are run.
    pub fn waiting(&self, lane: u32) -> usize {
        self.all.get(lane as usize).map_or(0, |lane| lane.pending.len())
    }

    /// Puts a number at the end of a lane; false when there is no such lane.
    pub fn enter(&self, lane: u32, number: u32) -> bool {
        let Some(queue) = self.all.get(lane as usize) else { return false };
        push(&queue.pending, number);
        // AcqRel: whoever finds the lane scheduled leaves the number to the thread that works on it, which must see the
        // number when it has put the flag down.
        if !self.serial || !queue.scheduled.swap(true, Ordering::AcqRel) {
            push(&self.ready, lane);
        }
        true
    }

    /// Gives the next number to `run`; false when there was none.
    pub fn run_next(&self, run: impl FnOnce(u32)) -> bool {
        let Some(number) = self.ready.pop() else { return false };
        let Some(lane) = self.all.get(number as usize) else { return false };
        if !self.serial {
            // There is a number for every entry of the ready list; one may still be on its way.
            loop {
                if let Some(taken) = lane.pending.pop() {
                    run(taken);
                    return true;
                }
                yield_now();
            }
        }
        let taken = lane.pending.pop();
        if let Some(taken) = taken {
            run(taken);
        }
        if !lane.pending.is_empty() {
            push(&self.ready, number);
            return taken.is_some();
        }
        // A swap, not a store: it comes before or after that of whoever enters now. Before it, the number is seen below;
        // after it, the lane is found not scheduled.
        lane.scheduled.swap(false, Ordering::AcqRel);
        if !lane.pending.is_empty() && !lane.scheduled.swap(true, Ordering::AcqRel) {
            push(&self.ready, number);
        }
        taken.is_some()
    }
}

/// There is room; a ring that is full nevertheless waits for a consumer between claiming a number and freeing its slot.
fn push(ring: &Ring, number: u32) {
    while ring.push(number).is_err() {
        yield_now();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed assumption fails the test

    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU32};
    use std::thread;

    use super::*;

    #[test]
    fn serves_each_lane_in_order() {
        for serial in [false, true] {
            let lanes = Lanes::new(2, 8, serial);
            for number in 0..8 {
                assert!(lanes.enter(number % 2, number));
            }
            let mut seen = Vec::new();
            while lanes.run_next(|number| seen.push(number)) {}
            assert!(lanes.is_empty());
            for lane in 0..2 {
                let own: Vec<_> = seen.iter().copied().filter(|number| number % 2 == lane).collect();
                assert!(own.is_sorted() && own.len() == 4, "{seen:?}");
            }
        }
        assert!(!Lanes::new(1, 1, true).enter(1, 0));
    }

    #[test]
    fn a_serial_lane_is_served_by_one_thread_at_a_time_and_loses_nothing() {
        const NUMBERS: u32 = 64;
        let lanes = Lanes::new(1, NUMBERS, true);
        let inside = AtomicBool::new(false);
        let done = AtomicU32::new(0);
        let order = Mutex::new(Vec::new());
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while done.load(Ordering::Acquire) < NUMBERS {
                        lanes.run_next(|number| {
                            assert!(!inside.swap(true, Ordering::AcqRel));
                            order.lock().unwrap().push(number);
                            inside.store(false, Ordering::Release);
                            done.fetch_add(1, Ordering::AcqRel);
                        });
                    }
                });
            }
            for number in 0..NUMBERS {
                lanes.enter(0, number);
            }
        });
        assert!(order.into_inner().unwrap().into_iter().eq(0..NUMBERS));
    }
}
