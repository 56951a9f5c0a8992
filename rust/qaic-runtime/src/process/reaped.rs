//! A reference to an object that a reaper thread destroys after its last reference is dropped.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;

use super::ForkGuard;
use super::reaper::{self, Teardown};

/// Method by which a drop waits briefly for the teardown.
pub trait DropWait {
    /// Calls [`Teardown::wait_briefly`] without holding locks that other threads need meanwhile.
    fn wait(teardown: &Teardown);
}

/// A value that may take long to tear down, such as the cores of a card. The last reference goes to a reaper
/// thread; a drop waits briefly for the teardown.
pub struct Reaped<T: Send + Sync + 'static, W: DropWait> {
    // Empty only during the drop.
    object: Option<Arc<T>>,
    teardown: Option<Arc<Teardown>>,
    fork_guard: ForkGuard,
    wait: PhantomData<fn() -> W>,
}

impl<T: Send + Sync + 'static, W: DropWait> Reaped<T, W> {
    /// Creates a reference to an object whose teardown is not monitored.
    pub fn new(object: Arc<T>) -> Self {
        Self { object: Some(object), teardown: None, fork_guard: ForkGuard::new(), wait: PhantomData }
    }

    /// Creates a reference to an object whose progress `teardown` shows.
    pub fn watched(object: Arc<T>, teardown: &Arc<Teardown>) -> Self {
        let mut this = Self::new(object);
        this.teardown = Some(Arc::clone(teardown));
        this
    }
}

impl<T: Send + Sync + 'static, W: DropWait> Deref for Reaped<T, W> {
    type Target = Arc<T>;

    fn deref(&self) -> &Arc<T> {
        match &self.object {
            Some(object) => object,
            None => unreachable!("taken only by drop"),
        }
    }
}

impl<T: Send + Sync + fmt::Debug + 'static, W: DropWait> fmt::Debug for Reaped<T, W> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Reaped").field(&self.object).finish()
    }
}

impl<T: Send + Sync + 'static, W: DropWait> Drop for Reaped<T, W> {
    fn drop(&mut self) {
        let Some(object) = self.object.take() else { return };
        if !self.fork_guard.is_current() {
            // Objects of the parent of a forked process are only forgotten, which never blocks.
            return;
        }
        let begun = match self.teardown.take() {
            Some(teardown) => reaper::release_as(&teardown, object).then_some(teardown),
            None => reaper::release(object),
        };
        if let Some(teardown) = begun {
            W::wait(&teardown);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread::{self, ThreadId};

    use super::*;
    use crate::process::WaitScope;
    use crate::sync::Mutex;

    static WAITS: AtomicUsize = AtomicUsize::new(0);

    struct Counted;

    impl DropWait for Counted {
        fn wait(teardown: &Teardown) {
            WAITS.fetch_add(1, Ordering::Relaxed);
            // Waits without a limit, so that the test observes the end.
            let _ = teardown.wait(&mut WaitScope::until(None));
        }
    }

    struct Object(Arc<Mutex<Option<ThreadId>>>);

    impl Drop for Object {
        fn drop(&mut self) {
            *self.0.lock() = Some(thread::current().id());
        }
    }

    #[test]
    fn only_the_last_reference_is_torn_down_on_another_thread_and_waited_for() {
        let dropped_on = Arc::new(Mutex::new(None));
        let object = Arc::new(Object(Arc::clone(&dropped_on)));
        let (first, last) =
            (Reaped::<_, Counted>::new(Arc::clone(&object)), Reaped::<_, Counted>::new(object));
        let waits = WAITS.load(Ordering::Relaxed);
        drop(first);
        assert_eq!((*dropped_on.lock(), WAITS.load(Ordering::Relaxed)), (None, waits));
        drop(last);
        let ended_on = *dropped_on.lock();
        assert!(ended_on.is_some_and(|thread| thread != thread::current().id()));
        assert_eq!(WAITS.load(Ordering::Relaxed), waits + 1);
    }
}
