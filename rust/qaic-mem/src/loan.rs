//! Borrowed memory in a value without a lifetime, for the duration of a call.
//!
//! Several threads may work on an inference, so an inference cannot borrow from the call that waits for it. Instead,
//! such a call lends the memory. A [`ForeignMemory`] made by a [`Loan`] sets a mark when it is dropped, and the call
//! does not return before all marks are set. A loan costs one store per piece of memory; an owner would cost
//! reference counting.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::{ForeignMemory, ForeignMemoryMut, HostSlice, HostSliceMut};

/// Marks of the lent memory; the allocation is reused by later calls.
#[derive(Debug, Default)]
pub struct Lender {
    // One flag for each lent piece of memory: true if it was returned.
    #[allow(clippy::vec_box)] // other threads write to the marks, so they must not move
    marks: Vec<Box<AtomicBool>>,
}

/// Lends memory that lives for `'env`, until the call that created the loan returns.
#[derive(Debug)]
pub struct Loan<'scope, 'env> {
    lender: &'scope mut Lender,
    lent: usize,
    // Invariant in `'env`: the lifetime must not shrink to one that ends within the call.
    env: PhantomData<&'env mut &'env ()>,
}

/// Marks a piece of memory as returned on drop.
#[derive(Debug)]
pub(crate) struct LoanGuard {
    // Invariant: points to the mark of a lender whose loan waits for it.
    mark: NonNull<AtomicBool>,
}

// SAFETY: the mark is atomic, and stays where it is until it is set.
unsafe impl Send for LoanGuard {}
// SAFETY: as for `Send`.
unsafe impl Sync for LoanGuard {}

impl Drop for LoanGuard {
    fn drop(&mut self) {
        // SAFETY: the loan waits for this mark before it ends, and it is set only here.
        let mark = unsafe { self.mark.as_ref() };
        // Release: all accesses to the memory happened before it is returned.
        mark.store(true, Ordering::Release);
    }
}

impl Lender {
    /// Creates a lender with room for `count` pieces of memory without further allocation.
    pub fn with_capacity(count: usize) -> Self {
        Self { marks: (0..count).map(|_| Box::new(AtomicBool::new(true))).collect() }
    }

    /// Calls `work`, which may lend memory that lives as long as this call.
    ///
    /// Blocking: until all lent memory is dropped, possibly by other threads.
    pub fn scope<'env, R>(&mut self, work: impl FnOnce(&mut Loan<'_, 'env>) -> R) -> R {
        // Its drop waits, even after a panic in `work`.
        let mut loan = Loan { lender: self, lent: 0, env: PhantomData };
        work(&mut loan)
    }
}

impl<'env> Loan<'_, 'env> {
    /// Lends memory for reading.
    pub fn lend(&mut self, memory: HostSlice<'env>) -> ForeignMemory {
        ForeignMemory::lent(memory, self.mark())
    }

    /// Lends memory for writing.
    #[allow(clippy::needless_pass_by_value)] // the call consumes the value
    pub fn lend_mut(&mut self, memory: HostSliceMut<'env>) -> ForeignMemoryMut {
        ForeignMemoryMut::lent(&memory, self.mark())
    }

    fn mark(&mut self) -> LoanGuard {
        let marks = &mut self.lender.marks;
        if self.lent == marks.len() {
            marks.push(Box::new(AtomicBool::new(true)));
        }
        let mark = &marks[self.lent];
        mark.store(false, Ordering::Relaxed);
        self.lent += 1;
        LoanGuard { mark: NonNull::from(&**mark) }
    }
}

impl Drop for Loan<'_, '_> {
    fn drop(&mut self) {
        for mark in &self.lender.marks[..self.lent] {
            // Acquire: see `LoanGuard`.
            while !mark.load(Ordering::Acquire) {
                thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::mpsc;

    use super::*;
    use crate::Storage;

    #[test]
    fn scope_whose_memory_is_in_use_elsewhere_waits_for_it() {
        let mut lender = Lender::with_capacity(1);
        let input = [3_u8; 8];
        let mut output = Storage::new(8).unwrap();
        thread::scope(|threads| {
            let (send, receive) = mpsc::channel::<(ForeignMemory, ForeignMemoryMut)>();
            threads.spawn(move || {
                let (from, mut to) = receive.recv().unwrap();
                for _ in 0..100 {
                    thread::yield_now();
                }
                to.as_mut().copy_from(from.as_slice());
            });
            lender.scope(|loan| {
                send.send((loan.lend(HostSlice::of(&input)), loan.lend_mut(output.memory_mut()))).unwrap();
            });
        });
        assert_eq!(output.memory().to_vec(), input);
        assert_eq!(lender.marks.len(), 2);
    }

    #[test]
    fn scope_that_panics_ends_when_its_memory_is_given_back() {
        let mut lender = Lender::default();
        let input = [1_u8];
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            lender.scope(|loan| {
                let _lent = loan.lend(HostSlice::of(&input));
                panic!("as expected");
            })
        }));
        assert!(outcome.is_err());
        assert!(lender.marks[0].load(Ordering::Relaxed));
    }

    #[test]
    fn scope_after_another_reuses_its_marks() {
        let mut lender = Lender::with_capacity(2);
        for _ in 0..3 {
            let values = vec![9_u8; 4];
            let sum = lender.scope(|loan| {
                let both = [loan.lend(HostSlice::of(&values)), loan.lend(HostSlice::of(&values))];
                both.iter().map(|memory| memory.as_slice().to_vec().len()).sum::<usize>()
            });
            assert_eq!(sum, 8);
        }
        assert_eq!(lender.marks.len(), 2);
    }
}
