//! Each number is taken exactly once, and the producer's earlier writes are visible.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::Ring;
use crate::atomic::yield_now;
use crate::with_preemptions;

fn push(ring: &Ring, value: u32) {
    while ring.push(value).is_err() {
        yield_now();
    }
}

/// Returns the remaining numbers while no other thread uses the ring.
fn drain(ring: &Ring) -> impl Iterator<Item = u32> {
    std::iter::from_fn(|| ring.pop())
}

#[test]
fn two_producers_and_two_consumers_on_two_slots() {
    loom::model(|| {
        let ring = Arc::new(Ring::new(2));
        let producers = [10, 20].map(|value| {
            let ring = Arc::clone(&ring);
            thread::spawn(move || assert_eq!(ring.push(value), Ok(false)))
        });
        let other = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.pop())
        };
        let mut taken: Vec<_> = ring.pop().into_iter().chain(other.join().unwrap()).collect();
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        taken.extend(drain(&ring));
        taken.sort_unstable();
        assert_eq!(taken, [10, 20]);
        assert!(ring.is_empty());
    });
}

/// Two laps of a full ring: each accepted number is taken once, in order for each producer.
#[test]
fn two_producers_fill_the_ring_while_it_empties() {
    loom::model(|| {
        let ring = Arc::new(Ring::new(2));
        let producers = [10, 20].map(|first| {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                let pushed = [first, first + 1].map(|value| ring.push(value).map(|_| value).ok());
                pushed.into_iter().flatten().collect::<Vec<_>>()
            })
        });
        let mut taken: Vec<_> = [ring.pop(), ring.pop()].into_iter().flatten().collect();
        let pushed = producers.map(|producer| producer.join().unwrap());
        taken.extend(drain(&ring));
        for mine in &pushed {
            let came: Vec<_> = taken.iter().filter(|value| mine.contains(value)).collect();
            assert!(came.iter().copied().eq(mine), "{mine:?} of {taken:?}");
        }
        assert_eq!(taken.len(), pushed.iter().map(Vec::len).sum::<usize>());
        assert!(taken.len() >= 2, "there are two slots: {taken:?}");
    });
}

#[test]
fn three_consumers_never_take_the_same_number() {
    with_preemptions(2, || {
        let ring = Arc::new(Ring::new(2));
        [1, 2].into_iter().for_each(|value| push(&ring, value));
        let consumers = [(); 2].map(|()| {
            let ring = Arc::clone(&ring);
            thread::spawn(move || [ring.pop(), ring.pop()])
        });
        // One lap later, the slot of the taken number is free.
        let mine = ring.pop();
        assert_eq!(ring.push(3), Ok(false));
        let theirs = consumers.into_iter().flat_map(|consumer| consumer.join().unwrap()).flatten();
        let mut taken: Vec<_> = mine.into_iter().chain(theirs).collect();
        taken.extend(drain(&ring));
        taken.sort_unstable();
        assert_eq!(taken, [1, 2, 3]);
    });
}

/// A thread that has pushed a number finds the ring not empty until all numbers are taken, regardless of other
/// producers.
#[test]
fn pushed_number_is_found_beside_another_producer() {
    loom::model(|| {
        let ring = Arc::new(Ring::new(2));
        let other = {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.push(10).expect("there are two slots"))
        };
        ring.push(20).expect("there are two slots");
        let first = ring.pop().expect("one was pushed before");
        other.join().unwrap();
        let second = ring.pop().expect("the other was pushed before");
        assert_eq!(first + second, 30);
        assert_eq!((ring.pop(), ring.is_empty()), (None, true));
    });
}

/// Either the push reports that it was awaited, and the thread's earlier writes are visible, or the thread finds the
/// number.
#[test]
fn push_beside_a_thread_about_to_sleep_says_so_or_is_seen() {
    let mut every_interleaving = loom::model::Builder::new();
    every_interleaving.preemption_bound = None;
    every_interleaving.check(|| {
        let shared = Arc::new((Ring::new(2), UnsafeCell::new(0)));
        let sleeper = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.1.with_mut(|cell| unsafe { *cell = 7 });
                shared.0.await_next()
            })
        };
        // A previous number, which was taken.
        shared.0.push(1).expect("there is room");
        let passed = shared.0.pop();
        let is_awaited = shared.0.push(2).expect("there is room");
        if is_awaited {
            assert_eq!(shared.1.with(|cell| unsafe { *cell }), 7);
        }
        let is_marked = sleeper.join().unwrap();
        assert!(passed.is_some());
        assert!(is_marked || !is_awaited);
        assert_eq!(shared.0.pop(), Some(2));
    });
}

#[test]
fn what_the_producer_did_before_is_visible() {
    loom::model(|| {
        let shared = Arc::new((Ring::new(2), UnsafeCell::new(0)));
        let producer = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.1.with_mut(|cell| unsafe { *cell = 7 });
                push(&shared.0, 1);
            })
        };
        while shared.0.pop().is_none() {
            yield_now();
        }
        assert_eq!(shared.1.with(|cell| unsafe { *cell }), 7);
        producer.join().unwrap();
    });
}
