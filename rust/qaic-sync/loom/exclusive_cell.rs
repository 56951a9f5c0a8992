//! One thread at a time uses a value, and each thread observes the writes of the previous one.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::ExclusiveCell;

/// Writes to the value; returns true if no other thread used it.
fn write(cell: &ExclusiveCell<UnsafeCell<u32>>) -> bool {
    cell.try_with(|value| value.with_mut(|value| unsafe { *value += 1 })).is_some()
}

#[test]
fn exclusive_cell_gives_each_thread_the_value_or_refuses() {
    loom::model(|| {
        let cell = Arc::new(ExclusiveCell::new(UnsafeCell::new(0)));
        let others: Vec<_> = (0..2)
            .map(|_| {
                let cell = Arc::clone(&cell);
                thread::spawn(move || write(&cell))
            })
            .collect();
        let here = write(&cell);
        let uses = others.into_iter().map(|other| other.join().unwrap()).chain([here]).filter(|&used| used);
        let uses = u32::try_from(uses.count()).unwrap();
        // The first thread always gets the value, and so does any thread that finds it free.
        assert!(uses >= 1);
        assert_eq!(cell.try_with(|value| value.with(|value| unsafe { *value })), Some(uses));
    });
}
