//! What threads do with ids: a request that was added is found, whatever others add and remove.

use loom::sync::Arc;
use loom::thread;

use crate::{IdIndex, with_preemptions};

#[test]
fn request_that_was_added_is_found_while_another_comes_and_goes() {
    with_preemptions(2, || {
        let index = Arc::new(IdIndex::new(2));
        let other = {
            let index = Arc::clone(&index);
            thread::spawn(move || {
                index.insert(7, 1);
                index.remove(1);
            })
        };
        index.insert(7, 0);
        assert_eq!(index.oldest(7, |number| number == 0), Some(0));
        other.join().unwrap();
        assert_eq!(index.oldest(7, |number| number == 0), Some(0));
    });
}

/// A lookup that comes while a request is added must not pass its ticket over for good.
#[test]
fn lookup_during_an_insertion_loses_nothing() {
    with_preemptions(2, || {
        let index = Arc::new(IdIndex::new(2));
        let looking = {
            let index = Arc::clone(&index);
            thread::spawn(move || {
                let _ = index.oldest(7, |_| true);
            })
        };
        index.insert(7, 0);
        looking.join().unwrap();
        assert_eq!(index.oldest(7, |_| true), Some(0));
    });
}
