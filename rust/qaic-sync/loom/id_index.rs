//! Threads add, find and remove ids: an added request is found, regardless of concurrent changes.

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

/// A lookup during the addition of a request must not lose its ticket.
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

/// Two threads change the list of one id at both ends, while a third one searches for a request that was
/// there before. Each change is made once, regardless of the thread, and the remaining requests are in order.
#[test]
fn changes_of_one_list_are_made_once_each() {
    with_preemptions(2, || {
        let index = Arc::new(IdIndex::new(4));
        index.insert(7, 0);
        index.insert(7, 1);
        let removing = {
            let index = Arc::clone(&index);
            thread::spawn(move || index.remove(0))
        };
        let adding = {
            let index = Arc::clone(&index);
            thread::spawn(move || index.insert(7, 2))
        };
        assert_eq!(index.oldest(7, |number| number == 1), Some(1));
        removing.join().unwrap();
        adding.join().unwrap();
        assert_eq!(index.oldest(7, |_| true), Some(1));
        index.remove(1);
        assert_eq!(index.oldest(7, |_| true), Some(2));
        index.remove(2);
        assert_eq!(index.oldest(7, |_| true), None);
    });
}

/// A request moves from the list of one id to the list of another, while a second request joins the first
/// list. A thread that helps with an earlier change writes nothing into the later lists.
#[test]
fn request_that_moves_to_another_list_takes_nothing_along() {
    with_preemptions(2, || {
        let index = Arc::new(IdIndex::new(2));
        index.insert(7, 0);
        let moving = {
            let index = Arc::clone(&index);
            thread::spawn(move || {
                index.remove(0);
                index.insert(8, 0);
            })
        };
        index.insert(7, 1);
        assert_eq!(index.oldest(7, |number| number == 1), Some(1));
        moving.join().unwrap();
        assert_eq!((index.oldest(7, |_| true), index.oldest(8, |_| true)), (Some(1), Some(0)));
        index.remove(1);
        assert_eq!((index.oldest(7, |_| true), index.oldest(8, |_| true)), (None, Some(0)));
    });
}
