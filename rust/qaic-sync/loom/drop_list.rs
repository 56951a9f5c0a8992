//! A value that any thread drops is released once, unchanged.

use loom::cell::UnsafeCell;
use loom::thread;

use crate::{Deferred, DropList};

/// A value that only its owner may access.
type Value = UnsafeCell<u32>;

fn released(list: &DropList<Value>) -> Vec<u32> {
    let mut found = Vec::new();
    list.release(|value| found.push(value.with_mut(|value| unsafe { *value })));
    found
}

#[test]
fn values_dropped_during_a_release_are_released_once_as_they_were_left() {
    loom::model(|| {
        let list: &'static DropList<Value> = Box::leak(Box::default());
        let droppers = [1, 2].map(|number| {
            thread::spawn(move || {
                let value = Deferred::new(list, Value::new(0));
                value.with_mut(|value| unsafe { *value = number });
            })
        });
        let mut found = released(list);
        droppers.into_iter().for_each(|dropper| dropper.join().unwrap());
        found.extend(released(list));
        found.sort_unstable();
        assert_eq!(found, [1, 2]);
    });
}

#[test]
fn values_released_by_two_threads_have_one_owner() {
    loom::model(|| {
        let list: &'static DropList<Value> = Box::leak(Box::default());
        drop([1, 2].map(|number| Deferred::new(list, Value::new(number))));
        let other = thread::spawn(move || released(list));
        let mut found = released(list);
        drop(Deferred::new(list, Value::new(3)));
        found.extend(other.join().unwrap());
        found.extend(released(list));
        found.sort_unstable();
        assert_eq!(found, [1, 2, 3]);
    });
}
