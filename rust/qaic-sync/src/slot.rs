//! A slot for one value that threads take and put back.

#[cfg(not(loom))]
use std::sync::Arc;

#[cfg(not(loom))]
use crossbeam_utils::atomic::AtomicCell;

/// A pointer that any number of threads exchange.
pub(crate) struct Exchanged<P> {
    #[cfg(not(loom))]
    pointer: AtomicCell<P>,
    #[cfg(loom)]
    pointer: loom::sync::Mutex<P>,
}

// Pointers must be exchanged in one instruction, because this crate guarantees lock-free operations.
#[cfg(not(loom))]
const _: () = {
    assert!(AtomicCell::<Option<Box<u64>>>::is_lock_free());
    assert!(AtomicCell::<Arc<u64>>::is_lock_free());
    assert!(AtomicCell::<Option<Arc<u64>>>::is_lock_free());
};

#[cfg(not(loom))]
impl<P> Exchanged<P> {
    pub(crate) fn new(pointer: P) -> Self {
        Self { pointer: AtomicCell::new(pointer) }
    }

    /// Exchanges the stored pointer, with acquire and release.
    pub(crate) fn exchange(&self, pointer: P) -> P {
        #[cfg(feature = "count")]
        crate::count::update();
        self.pointer.swap(pointer)
    }
}

#[cfg(loom)]
impl<P> Exchanged<P> {
    pub(crate) fn new(pointer: P) -> Self {
        Self { pointer: loom::sync::Mutex::new(pointer) }
    }

    /// Exchanges the stored pointer, with acquire and release.
    pub(crate) fn exchange(&self, pointer: P) -> P {
        std::mem::replace(&mut *self.pointer.lock().expect("no thread panics"), pointer)
    }

    // No thread waits for this lock: loom reports two threads that use it concurrently.
    fn exchange_alone(&self, pointer: P) -> P {
        let mut held = self.pointer.try_lock().expect("two threads have one slot");
        std::mem::replace(&mut *held, pointer)
    }
}

/// Holds one value, or nothing while a thread has the value. The thread that owns the running phase of a
/// `qaic_sched::RequestState` takes the value, so no second thread finds an empty slot. A thread that does so anyway
/// gets `None` and causes no damage.
///
/// ```
/// let slot = qaic_sync::Slot::new(Box::new(7));
/// assert_eq!((slot.take(), slot.take()), (Some(Box::new(7)), None));
/// slot.put(Box::new(8));
/// ```
pub struct Slot<T> {
    value: Exchanged<Option<Box<T>>>,
}

impl<T> Slot<T> {
    /// Creates an empty slot.
    pub fn empty() -> Self {
        Self { value: Exchanged::new(None) }
    }

    /// Creates a slot that holds `value`.
    pub fn new(value: Box<T>) -> Self {
        let slot = Self::empty();
        slot.put(value);
        slot
    }

    /// Takes the value; `None` while another thread has it.
    pub fn take(&self) -> Option<Box<T>> {
        self.exchange(None)
    }

    /// Puts a value into the slot. Any previous value is dropped.
    pub fn put(&self, value: Box<T>) {
        drop(self.exchange(Some(value)));
    }

    /// Exchanges the value; other threads may do the same at the same time.
    pub(crate) fn exchange_shared(&self, value: Option<Box<T>>) -> Option<Box<T>> {
        self.value.exchange(value)
    }

    #[cfg(not(loom))]
    fn exchange(&self, value: Option<Box<T>>) -> Option<Box<T>> {
        self.value.exchange(value)
    }

    #[cfg(loom)]
    fn exchange(&self, value: Option<Box<T>>) -> Option<Box<T>> {
        self.value.exchange_alone(value)
    }
}

crate::debug_fields!(Slot<T>);

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn slot_taken_twice_is_empty_the_second_time() {
        let slot = Slot::new(Box::new(7));
        assert_eq!((slot.take(), slot.take()), (Some(Box::new(7)), None));
        slot.put(Box::new(8));
        slot.put(Box::new(9));
        assert_eq!(slot.take(), Some(Box::new(9)));
    }
}
