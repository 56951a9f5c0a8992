//! Nothing is lost, nothing comes twice, and what a producer did before is visible.

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

/// All that is left, when no other thread uses the ring.
fn drain(ring: &Ring) -> impl Iterator<Item = u32> {
    std::iter::from_fn(|| ring.pop())
}

#[test]
fn two_producers_and_two_consumers_on_two_slots() {
    loom::model(|| {
        let ring = Arc::new(Ring::new(2));
        let producers = [10, 20].map(|value| {
            let ring = Arc::clone(&ring);
            thread::spawn(move || ring.push(value).expect("there are two slots"))
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

/// Two laps of a full ring: what is accepted comes out once, and in order for each producer.
#[test]
fn two_producers_fill_the_ring_while_it_empties() {
    loom::model(|| {
        let ring = Arc::new(Ring::new(2));
        let producers = [10, 20].map(|first| {
            let ring = Arc::clone(&ring);
            thread::spawn(move || {
                let pushed = [first, first + 1].map(|value| ring.push(value).map(|()| value).ok());
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
        // A lap later; the others may still be between claiming a number and freeing its slot.
        let mine = ring.pop();
        while ring.push(3).is_err() {
            yield_now();
        }
        let theirs = consumers.into_iter().flat_map(|consumer| consumer.join().unwrap()).flatten();
        let mut taken: Vec<_> = mine.into_iter().chain(theirs).collect();
        taken.extend(drain(&ring));
        taken.sort_unstable();
        assert_eq!(taken, [1, 2, 3]);
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
