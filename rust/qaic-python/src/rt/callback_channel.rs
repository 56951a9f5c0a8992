//! Callbacks of a context: queued by any thread, run in order by one Python thread.
//!
//! A thread with something to report puts a message into the [`Channel`] and goes on. `python/qaic/rt/dispatch.py` has the
//! thread that takes messages out and calls. It ends when no sender is left.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use qaic_runtime::context::Context;
use qaic_runtime::process::fork;
use qaic_runtime::process::log::{ErrorType, Level, Sink};

use crate::gil::Detach;

/// Lines that wait at most. A callback slower than the log must not fill the memory.
const LINES: usize = 10_000;

/// Processes in a line of forks that have a queue of their own; see [`fork`].
const LINE_OF_FORKS: usize = 32;

/// A callback, shared by the messages to it.
type Target = Arc<Py<PyAny>>;

enum Message {
    Line { target: Target, level: Level, text: String },
    Failure { target: Target, context: u32, kind: ErrorType, text: String },
    Call { target: Py<PyAny>, arguments: Py<PyTuple> },
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Message>,
    lines: usize,
    // Lines there was no room for, and the callback they were for.
    dropped: Option<(Target, u64)>,
}

#[derive(Default)]
struct Slot {
    queue: Mutex<Queue>,
    arrival: Condvar,
}

/// Messages to one dispatcher thread. A forked child finds it empty and unlocked.
#[derive(Default)]
pub(crate) struct Channel {
    slots: [OnceLock<Slot>; LINE_OF_FORKS],
    senders: AtomicUsize,
    closed: AtomicBool,
    claimed: AtomicBool,
    context: Weak<Context>,
}

impl Channel {
    fn slot(&self) -> &Slot {
        self.slots[fork::generation() as usize % LINE_OF_FORKS].get_or_init(Slot::default)
    }

    /// Whether it was still open.
    fn post(&self, message: Message) -> bool {
        let slot = self.slot();
        let mut queue = lock(&slot.queue);
        // Looked at with the lock held: the thread that takes the last message looks at it with the lock held too.
        if self.closed.load(Ordering::Acquire) {
            // Dropped after the lock: a callback may own anything.
            drop(queue);
            drop(message);
            return false;
        }
        if let Message::Line { target, .. } = &message
            && queue.lines >= LINES
        {
            queue.dropped.get_or_insert_with(|| (Arc::clone(target), 0)).1 += 1;
            return true;
        }
        // What was dropped is said where it is missing.
        if let Some(dropped) = queue.dropped.take() {
            queue.lines += 1;
            queue.messages.push_back(notice(dropped));
        }
        if matches!(message, Message::Line { .. }) {
            queue.lines += 1;
        }
        queue.messages.push_back(message);
        drop(queue);
        slot.arrival.notify_one();
        true
    }

    /// The next message; `None` when it is closed and empty. Blocking.
    fn take(&self) -> Option<Message> {
        let slot = self.slot();
        let mut queue = lock(&slot.queue);
        loop {
            let message = queue.messages.pop_front();
            if matches!(message, Some(Message::Line { .. })) {
                queue.lines -= 1;
            }
            if message.is_some() {
                return message;
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

    /// Takes no more messages; those that are there are still delivered.
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

fn notice((target, count): (Target, u64)) -> Message {
    let text = format!("{count} log lines were dropped: the log callback is slower than the log");
    Message::Line { target, level: Level::Warn, text }
}

/// May post. The channel closes with the last sender.
struct Sender(Arc<Channel>);

impl Sender {
    fn new(channel: &Arc<Channel>) -> Self {
        channel.senders.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(channel))
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.close();
        }
    }
}

/// Sends what a logger says to Python callbacks.
pub(crate) struct CallbackSink {
    channel: Sender,
    context: u32,
    log: Option<Target>,
    error: Option<Target>,
}

impl CallbackSink {
    pub(crate) fn new(
        channel: &RtChannel,
        context: u32,
        log: Option<Py<PyAny>>,
        error: Option<Py<PyAny>>,
    ) -> Self {
        let channel = Sender::new(&channel.sender.0);
        Self { channel, context, log: log.map(Arc::new), error: error.map(Arc::new) }
    }
}

impl Sink for CallbackSink {
    fn line(&self, level: Level, text: &str) -> bool {
        self.log.as_ref().is_some_and(|target| {
            let target = Arc::clone(target);
            self.channel.0.post(Message::Line { target, level, text: text.to_owned() })
        })
    }

    fn failure(&self, kind: ErrorType, text: &str) {
        if let Some(target) = &self.error {
            let target = Arc::clone(target);
            let text = text.to_owned();
            self.channel.0.post(Message::Failure { target, context: self.context, kind, text });
        }
    }
}

/// The end of a channel where messages are put in.
#[pyclass(frozen, name = "Channel", module = "qaic._core")]
pub(crate) struct RtChannel {
    sender: Sender,
}

impl RtChannel {
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        let channel = Channel { context: Arc::downgrade(context), ..Channel::default() };
        Self { sender: Sender::new(&Arc::new(channel)) }
    }
}

#[pymethods]
impl RtChannel {
    /// Asks for `callback(*arguments)`; whether the channel was open.
    fn post(&self, callback: Py<PyAny>, arguments: Py<PyTuple>) -> bool {
        self.sender.0.post(Message::Call { target: callback, arguments })
    }

    /// The other end, for the first caller that asks.
    fn claim(&self) -> Option<RtReceiver> {
        let first = !self.sender.0.claimed.swap(true, Ordering::AcqRel);
        first.then(|| RtReceiver { channel: Arc::clone(&self.sender.0) })
    }
}

/// The end of a channel where messages come out.
#[pyclass(frozen, name = "Receiver", module = "qaic._core")]
pub(crate) struct RtReceiver {
    channel: Arc<Channel>,
}

#[pymethods]
impl RtReceiver {
    /// (callback, arguments, whether it is a log line) of the next message; `None` when there will be no more.
    ///
    /// Blocking, without the interpreter lock. For threads that get no signals.
    #[allow(clippy::type_complexity)] // one tuple, described above
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Option<(Py<PyAny>, Bound<'py, PyTuple>, bool)>> {
        let Some(message) = py.detached(|| Ok(self.channel.take()))? else { return Ok(None) };
        let enums = || py.import("qaic.rt.enums");
        Ok(Some(match message {
            Message::Line { target, level, text } => {
                let level = enums()?.getattr("QLogLevel")?.call1((level as u8,))?;
                (target.clone_ref(py), (level, text).into_pyobject(py)?, true)
            }
            Message::Failure { target, context, kind, text } => {
                let kind = enums()?.getattr("QAicErrorType")?.call1((kind.0,))?;
                let arguments = (context, text, kind, PyBytes::new(py, b"")).into_pyobject(py)?;
                (target.clone_ref(py), arguments, false)
            }
            Message::Call { target, arguments } => (target, arguments.into_bound(py), false),
        }))
    }

    /// Says at error level what went wrong in a callback; on the console when it was the log's own.
    fn complain(&self, text: &str, console: bool) {
        if let Some(context) = self.channel.context.upgrade() {
            if console {
                context.logger().console(Level::Error, text);
            } else {
                context.logger().error(|| text.to_owned());
            }
        }
    }

    /// Lets no more messages in.
    fn close(&self) {
        self.channel.close();
    }
}
