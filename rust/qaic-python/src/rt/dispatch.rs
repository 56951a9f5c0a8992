//! Callbacks of a context: queued by any thread, run in order by one Python thread (architecture-anchors §3.6).
//!
//! Who has something to tell puts a letter into the [`Mailbox`] and goes on. `python/qaicrt/dispatch.py` has the thread
//! that takes letters out and calls. It ends when nobody is left who could post.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use qaic_runtime::context::Context;
use qaic_runtime::process::fork;
use qaic_runtime::process::log::{ErrorType, Level, Sink};

use crate::gil::Door;

/// Lines that wait at most. A callback slower than the log must not fill the memory.
const LINES: usize = 10_000;

/// Processes in a line of forks that have a queue of their own; see [`fork`].
const LINE_OF_FORKS: usize = 32;

/// A callback, shared by the letters to it.
type Target = Arc<Py<PyAny>>;

enum Letter {
    Line { target: Target, level: Level, text: String },
    Failure { target: Target, context: u32, kind: ErrorType, text: String },
    Call { target: Py<PyAny>, arguments: Py<PyTuple> },
}

#[derive(Default)]
struct Queue {
    letters: VecDeque<Letter>,
    lines: usize,
    // Lines there was no room for, and whom they were for.
    dropped: Option<(Target, u64)>,
}

#[derive(Default)]
struct Slot {
    queue: Mutex<Queue>,
    arrival: Condvar,
}

/// Letters to one dispatcher thread. A forked child finds it empty and unlocked.
#[derive(Default)]
pub(crate) struct Mailbox {
    slots: [OnceLock<Slot>; LINE_OF_FORKS],
    keepers: AtomicUsize,
    closed: AtomicBool,
    claimed: AtomicBool,
    context: Weak<Context>,
}

impl Mailbox {
    fn slot(&self) -> &Slot {
        self.slots[fork::generation() as usize % LINE_OF_FORKS].get_or_init(Slot::default)
    }

    /// Whether it was still open.
    fn post(&self, letter: Letter) -> bool {
        let slot = self.slot();
        let mut queue = lock(&slot.queue);
        // Looked at with the lock held: the thread that takes the last letter looks at it with the lock held too.
        if self.closed.load(Ordering::Acquire) {
            // Dropped after the lock: a callback may own anything.
            drop(queue);
            drop(letter);
            return false;
        }
        if let Letter::Line { target, .. } = &letter
            && queue.lines >= LINES
        {
            queue.dropped.get_or_insert_with(|| (Arc::clone(target), 0)).1 += 1;
            return true;
        }
        // What was dropped is said where it is missing.
        if let Some(dropped) = queue.dropped.take() {
            queue.lines += 1;
            queue.letters.push_back(notice(dropped));
        }
        if matches!(letter, Letter::Line { .. }) {
            queue.lines += 1;
        }
        queue.letters.push_back(letter);
        drop(queue);
        slot.arrival.notify_one();
        true
    }

    /// The next letter; `None` when it is closed and empty. Blocking.
    fn take(&self) -> Option<Letter> {
        let slot = self.slot();
        let mut queue = lock(&slot.queue);
        loop {
            let letter = queue.letters.pop_front();
            if matches!(letter, Some(Letter::Line { .. })) {
                queue.lines -= 1;
            }
            if letter.is_some() {
                return letter;
            }
            if let Some(dropped) = queue.dropped.take() {
                return Some(notice(dropped));
            }
            if self.closed.load(Ordering::Acquire) {
                return None;
            }
            queue = slot.arrival.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes no more letters; those that are there are still delivered.
    fn close(&self) {
        let slot = self.slot();
        let queue = lock(&slot.queue);
        self.closed.store(true, Ordering::Release);
        drop(queue);
        slot.arrival.notify_all();
    }
}

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

fn notice((target, count): (Target, u64)) -> Letter {
    let text = format!("{count} log lines were dropped: the log callback is slower than the log");
    Letter::Line { target, level: Level::Warn, text }
}

/// Somebody who may post. The mailbox closes with the last one.
struct Keeper(Arc<Mailbox>);

impl Keeper {
    fn new(mailbox: &Arc<Mailbox>) -> Self {
        mailbox.keepers.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(mailbox))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if self.0.keepers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.close();
        }
    }
}

/// Sends what a logger says to Python callbacks.
pub(crate) struct Voice {
    mailbox: Keeper,
    context: u32,
    log: Option<Target>,
    error: Option<Target>,
}

impl Voice {
    pub(crate) fn new(
        mailbox: &RtMailbox,
        context: u32,
        log: Option<Py<PyAny>>,
        error: Option<Py<PyAny>>,
    ) -> Self {
        let mailbox = Keeper::new(&mailbox.keeper.0);
        Self { mailbox, context, log: log.map(Arc::new), error: error.map(Arc::new) }
    }
}

impl Sink for Voice {
    fn line(&self, level: Level, text: &str) -> bool {
        self.log.as_ref().is_some_and(|target| {
            let target = Arc::clone(target);
            self.mailbox.0.post(Letter::Line { target, level, text: text.to_owned() })
        })
    }

    fn failure(&self, kind: ErrorType, text: &str) {
        if let Some(target) = &self.error {
            let target = Arc::clone(target);
            let text = text.to_owned();
            self.mailbox.0.post(Letter::Failure { target, context: self.context, kind, text });
        }
    }
}

/// The end of a mailbox where letters are put in.
#[pyclass(frozen, name = "Mailbox", module = "qaic._core")]
pub(crate) struct RtMailbox {
    keeper: Keeper,
}

impl RtMailbox {
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        let mailbox = Mailbox { context: Arc::downgrade(context), ..Mailbox::default() };
        Self { keeper: Keeper::new(&Arc::new(mailbox)) }
    }
}

#[pymethods]
impl RtMailbox {
    /// Asks for `callback(*arguments)`; whether the mailbox was open.
    fn post(&self, callback: Py<PyAny>, arguments: Py<PyTuple>) -> bool {
        self.keeper.0.post(Letter::Call { target: callback, arguments })
    }

    /// The other end, for the caller who is the first to ask.
    fn claim(&self) -> Option<RtReceiver> {
        let first = !self.keeper.0.claimed.swap(true, Ordering::AcqRel);
        first.then(|| RtReceiver { mailbox: Arc::clone(&self.keeper.0) })
    }
}

/// The end of a mailbox where letters come out.
#[pyclass(frozen, name = "Receiver", module = "qaic._core")]
pub(crate) struct RtReceiver {
    mailbox: Arc<Mailbox>,
}

#[pymethods]
impl RtReceiver {
    /// (callback, arguments, whether it is a log line) of the next letter; `None` when there will be no more.
    ///
    /// Blocking, without the interpreter lock. For threads that get no signals.
    #[allow(clippy::type_complexity)] // one tuple, described above
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Option<(Py<PyAny>, Bound<'py, PyTuple>, bool)>> {
        let Some(letter) = py.detached(|| Ok(self.mailbox.take()))? else { return Ok(None) };
        let enums = || py.import("qaicrt.enums");
        Ok(Some(match letter {
            Letter::Line { target, level, text } => {
                let level = enums()?.getattr("QLogLevel")?.call1((level as u8,))?;
                (target.clone_ref(py), (level, text).into_pyobject(py)?, true)
            }
            Letter::Failure { target, context, kind, text } => {
                let kind = enums()?.getattr("QAicErrorType")?.call1((kind.0,))?;
                let arguments = (context, text, kind, PyBytes::new(py, b"")).into_pyobject(py)?;
                (target.clone_ref(py), arguments, false)
            }
            Letter::Call { target, arguments } => (target, arguments.into_bound(py), false),
        }))
    }

    /// Says at error level what went wrong in a callback; on the console when it was the log's own.
    fn complain(&self, text: &str, console: bool) {
        if let Some(context) = self.mailbox.context.upgrade() {
            if console {
                context.logger().console(Level::Error, text);
            } else {
                context.logger().error(|| text.to_owned());
            }
        }
    }

    /// Lets no more letters in.
    fn close(&self) {
        self.mailbox.close();
    }
}
