//! Threads that their owner joins.

use std::io;

#[cfg(loom)]
use loom::thread;
#[cfg(not(loom))]
use std::thread;

/// A thread that was spawned by this process.
///
/// ```
/// let thread = qaic_sync::Thread::spawn("worker".to_owned(), || ()).unwrap();
/// assert!(!thread.is_current());
/// thread.join();
/// ```
#[derive(Debug)]
pub struct Thread(thread::JoinHandle<()>);

impl Thread {
    /// Spawns a thread that runs `life`. Fails if the system provides no threads.
    pub fn spawn(name: String, life: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        thread::Builder::new().name(name).spawn(life).map(Self)
    }

    /// Returns true if the calling thread is this one.
    pub fn is_current(&self) -> bool {
        self.0.thread().id() == thread::current().id()
    }

    /// Returns true if the thread has ended. Not available in models.
    pub fn has_ended(&self) -> bool {
        #[cfg(loom)]
        return false;
        #[cfg(not(loom))]
        self.0.is_finished()
    }

    /// Waits for the end of the thread, and ignores a panic of the thread.
    ///
    /// Blocking: until the thread has ended.
    pub fn join(self) {
        let _ = self.0.join();
    }
}
