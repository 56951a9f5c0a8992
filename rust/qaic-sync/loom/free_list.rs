//! A number has one owner, regardless of concurrent changes to its neighbors.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::FreeList;
use crate::with_preemptions;

/// Numbers 0..count in this order, the last one on top. Each guards a cell that only its owner may access.
struct Owned {
    stack: FreeList,
    cells: Vec<UnsafeCell<u32>>,
}

impl Owned {
    fn new(count: u32) -> Arc<Self> {
        let stack = FreeList::empty(count);
        (0..count).for_each(|number| assert!(!stack.push(number)));
        Arc::new(Self { stack, cells: (0..count).map(|_| UnsafeCell::new(0)).collect() })
    }

    fn pop(&self) -> Option<u32> {
        let number = self.stack.pop()?;
        self.cells[number as usize].with_mut(|cell| unsafe { *cell += 1 });
        Some(number)
    }

    fn drain(&self) -> Vec<u32> {
        let mut left: Vec<_> = std::iter::from_fn(|| self.pop()).collect();
        left.sort_unstable();
        left
    }
}

/// One thread is between its read of the top and its exchange; another one takes two numbers and returns the first.
#[test]
fn free_list_whose_top_returned_is_not_confused() {
    loom::model(|| {
        let owned = Owned::new(3);
        let other = {
            let owned = Arc::clone(&owned);
            thread::spawn(move || {
                let (first, second) = (owned.pop(), owned.pop());
                first.into_iter().for_each(|number| assert!(!owned.stack.push(number)));
                second
            })
        };
        let mine = owned.pop();
        let theirs = other.join().unwrap();
        let mut all: Vec<_> = mine.into_iter().chain(theirs).chain(owned.drain()).collect();
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2]);
    });
}

#[test]
fn free_list_among_three_threads_gives_each_number_one_owner() {
    with_preemptions(2, || {
        let owned = Owned::new(2);
        let others = [(); 2].map(|()| {
            let owned = Arc::clone(&owned);
            thread::spawn(move || {
                if let Some(number) = owned.pop() {
                    owned.stack.push(number);
                }
            })
        });
        if let Some(number) = owned.pop() {
            owned.stack.push(number);
        }
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_eq!(owned.drain(), [0, 1]);
    });
}

#[test]
fn free_list_with_a_number_left_never_pops_none() {
    loom::model(|| {
        // Two numbers, and two threads that hold at most one each: there is always one left for each thread.
        let owned = Owned::new(2);
        let other = {
            let owned = Arc::clone(&owned);
            thread::spawn(move || {
                let number = owned.pop().expect("one of two");
                owned.stack.push(number);
                owned.pop().expect("one of two")
            })
        };
        let number = owned.pop().expect("one of two");
        owned.stack.push(number);
        other.join().unwrap();
        assert_eq!(owned.drain().len(), 1);
    });
}
