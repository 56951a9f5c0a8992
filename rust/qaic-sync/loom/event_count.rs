//! No wakeup is lost: a thread never sleeps while an item exists that no other thread is about to take.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::thread;

use crate::FOREVER;
use crate::{Event, EventCount};

fn wait_for<T>(waiters: &EventCount, mut try_take: impl FnMut() -> Option<T>) -> T {
    loop {
        if let Some(taken) = waiters.wait(FOREVER, &mut try_take) {
            return taken;
        }
    }
}

/// An item to take, counted in an atomic whose accesses are no stronger than [`EventCount`] requires.
#[derive(Default)]
struct Counted {
    items: AtomicU32,
    waiters: EventCount,
}

impl Counted {
    fn add(&self) {
        self.items.fetch_add(1, Ordering::Release);
        self.waiters.notify_one();
    }

    fn try_take(&self) -> Option<()> {
        // Loads the count: unlike an exchange, a load may return a stale value.
        let count = self.items.load(Ordering::Acquire);
        let less = count.checked_sub(1)?;
        self.items.compare_exchange(count, less, Ordering::Acquire, Ordering::Relaxed).ok().map(|_| ())
    }

    /// Does the same as `try_take`, but repeats an exchange that another thread made fail, instead of
    /// sleeping.
    fn take_or_sleep(&self) {
        wait_for(&self.waiters, || {
            while self.items.load(Ordering::Acquire) > 0 {
                if let Some(taken) = self.try_take() {
                    return Some(taken);
                }
            }
            None
        });
    }
}

#[test]
fn one_consumer_is_woken() {
    loom::model(|| {
        let counted = Arc::new(Counted::default());
        let producer = {
            let counted = Arc::clone(&counted);
            thread::spawn(move || counted.add())
        };
        counted.take_or_sleep();
        producer.join().unwrap();
        assert_eq!(counted.waiters.waiting(), 0);
    });
}

#[test]
fn one_consumer_is_woken_for_each_of_two() {
    loom::model(|| {
        let counted = Arc::new(Counted::default());
        let producers = [(); 2].map(|()| {
            let counted = Arc::clone(&counted);
            thread::spawn(move || counted.add())
        });
        counted.take_or_sleep();
        counted.take_or_sleep();
        producers.into_iter().for_each(|producer| producer.join().unwrap());
    });
}

#[test]
fn two_consumers_are_woken_one_each() {
    loom::model(|| {
        let counted = Arc::new(Counted::default());
        let consumers = [(); 2].map(|()| {
            let counted = Arc::clone(&counted);
            thread::spawn(move || counted.take_or_sleep())
        });
        counted.add();
        counted.add();
        consumers.into_iter().for_each(|consumer| consumer.join().unwrap());
    });
}

#[test]
fn a_change_for_all_wakes_all() {
    loom::model(|| {
        let shared = Arc::new((AtomicBool::new(false), EventCount::default()));
        let waiting = [(); 2].map(|()| {
            let shared = Arc::clone(&shared);
            thread::spawn(move || wait_for(&shared.1, || shared.0.load(Ordering::Acquire).then_some(())))
        });
        shared.0.store(true, Ordering::Release);
        shared.1.notify_all();
        waiting.into_iter().for_each(|thread| thread.join().unwrap());
    });
}
