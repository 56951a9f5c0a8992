//! Callbacks of a client: posted by any thread, run in order by one thread.
//!
//! A thread with a report posts a [`Message`] and continues. The queue closes with its last sender; messages posted
//! before are still delivered. A forked child finds the queue empty and unlocked.

use std::array;
use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};

use qaic_sched::{ForkGuard, UNTIL_WOKEN};

use super::log::{Level, Sink};
use crate::sync::{AtomicBool, AtomicU32, Condvar, Mutex, Ordering};

/// Maximum number of waiting lines, which limits the memory if a callback is slower than the log.
const LINES: usize = 10_000;

/// Maximum number of forks in a chain for which each process has its own messages; see [`super::fork`].
const GENERATIONS: usize = 32;

/// A message for a callback `C`; `R` is a call with the client's own arguments.
#[derive(Debug)]
pub enum Message<C, R> {
    /// A line of the log.
    Line {
        /// The callback.
        callback: Arc<C>,
        /// Severity of the line.
        level: Level,
        /// Text of the message.
        text: String,
    },
    /// A failure.
    Failure {
        /// The callback.
        callback: Arc<C>,
        /// The context that reports it.
        context: u32,
        /// Error type of the failure, as error handlers receive it.
        kind: u32,
        /// Description of the failure.
        text: String,
    },
    /// A call that the client requested.
    Call(R),
}

#[derive(Debug)]
struct Messages<C, R> {
    waiting: VecDeque<Message<C, R>>,
    lines: usize,
    // Number of lines that were dropped for lack of room, and their callback.
    dropped: Option<(Arc<C>, u64)>,
}

impl<C, R> Messages<C, R> {
    fn post(&mut self, message: Message<C, R>) {
        if let Message::Line { callback, .. } = &message {
            if self.lines >= LINES {
                self.dropped.get_or_insert_with(|| (Arc::clone(callback), 0)).1 += 1;
                return;
            }
            self.lines += 1;
        }
        // A message reports the number of dropped lines in their place.
        if let Some(notice) = self.notice() {
            self.lines += 1;
            self.waiting.push_back(notice);
        }
        self.waiting.push_back(message);
    }

    fn take(&mut self) -> Option<Message<C, R>> {
        let Some(message) = self.waiting.pop_front() else { return self.notice() };
        if matches!(message, Message::Line { .. }) {
            self.lines -= 1;
        }
        Some(message)
    }

    fn notice(&mut self) -> Option<Message<C, R>> {
        let (callback, count) = self.dropped.take()?;
        let text = format!("dropped log lines: {count}, because the log callback is slower than the log");
        Some(Message::Line { callback, level: Level::Warn, text })
    }
}

/// The messages of one process.
#[derive(Debug)]
struct Slot<C, R> {
    messages: Mutex<Messages<C, R>>,
    arrival: Condvar,
}

#[derive(Debug)]
struct Queue<C, R> {
    slots: [OnceLock<Slot<C, R>>; GENERATIONS],
    senders: AtomicU32,
    is_closed: AtomicBool,
    is_claimed: AtomicBool,
}

impl<C, R> Queue<C, R> {
    fn slot(&self) -> &Slot<C, R> {
        self.slots[ForkGuard::new().0 as usize % GENERATIONS].get_or_init(|| Slot {
            messages: Mutex::new(Messages { waiting: VecDeque::new(), lines: 0, dropped: None }),
            arrival: Condvar::default(),
        })
    }

    fn close(&self) {
        let slot = self.slot();
        let messages = slot.messages.lock();
        self.is_closed.store(true, Ordering::Release);
        drop(messages);
        slot.arrival.notify_all();
    }
}

/// Sending end of a queue. The queue closes with its last sender.
#[derive(Debug)]
pub struct CallbackSender<C, R>(Arc<Queue<C, R>>);

impl<C, R> CallbackSender<C, R> {
    /// Creates the first sender of a new queue.
    pub fn new() -> Self {
        Self(Arc::new(Queue {
            slots: array::from_fn(|_| OnceLock::new()),
            senders: AtomicU32::new(1),
            is_closed: AtomicBool::new(false),
            is_claimed: AtomicBool::new(false),
        }))
    }

    /// Posts a message; returns true if the queue was open. Lines beyond the limit of 10,000 are only counted. Never
    /// blocks for long.
    pub fn post(&self, message: Message<C, R>) -> bool {
        let slot = self.0.slot();
        let mut messages = slot.messages.lock();
        // Read under the lock, as the thread that takes the last message does.
        if self.0.is_closed.load(Ordering::Acquire) {
            // Unlocked before `message` is dropped, which may own any object.
            drop(messages);
            return false;
        }
        messages.post(message);
        drop(messages);
        slot.arrival.notify_one();
        true
    }

    /// Returns the receiving end to the first caller.
    pub fn claim(&self) -> Option<CallbackReceiver<C, R>> {
        let is_first = !self.0.is_claimed.swap(true, Ordering::AcqRel);
        is_first.then(|| CallbackReceiver(Arc::clone(&self.0)))
    }
}

impl<C, R> Default for CallbackSender<C, R> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C, R> Clone for CallbackSender<C, R> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&self.0))
    }
}

impl<C, R> Drop for CallbackSender<C, R> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.close();
        }
    }
}

/// Receiving end of a queue.
#[derive(Debug)]
pub struct CallbackReceiver<C, R>(Arc<Queue<C, R>>);

impl<C, R> CallbackReceiver<C, R> {
    /// Returns the next message; `None` if the queue is closed and empty.
    ///
    /// Blocking: until there is a message, or the queue is closed.
    pub fn take(&self) -> Option<Message<C, R>> {
        let slot = self.0.slot();
        let mut messages = slot.messages.lock();
        loop {
            let message = messages.take();
            if message.is_some() || self.0.is_closed.load(Ordering::Acquire) {
                return message;
            }
            messages = slot.arrival.wait_at_most(messages, UNTIL_WOKEN);
        }
    }

    /// Closes the queue to new messages; existing messages are still delivered.
    pub fn close(&self) {
        self.0.close();
    }
}

/// Forwards the output of a logger to callbacks.
#[derive(Debug)]
pub struct CallbackSink<C, R> {
    /// Channel for the messages.
    pub sender: CallbackSender<C, R>,
    /// The context of the logger.
    pub context: u32,
    /// Callback for lines; without one, lines go to standard error.
    pub log: Option<Arc<C>>,
    /// Callback for failures.
    pub error: Option<Arc<C>>,
}

impl<C: Send + Sync, R: Send> Sink for CallbackSink<C, R> {
    fn line(&self, level: Level, text: &str) -> bool {
        self.log.as_ref().is_some_and(|callback| {
            let callback = Arc::clone(callback);
            self.sender.post(Message::Line { callback, level, text: text.to_owned() })
        })
    }

    fn failure(&self, kind: u32, text: &str) {
        if let Some(callback) = &self.error {
            let (callback, text) = (Arc::clone(callback), text.to_owned());
            self.sender.post(Message::Failure { callback, context: self.context, kind, text });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    type Sender = CallbackSender<&'static str, u32>;

    fn line(text: &str) -> Message<&'static str, u32> {
        Message::Line { callback: Arc::new("log"), level: Level::Info, text: text.to_owned() }
    }

    fn shown(message: Option<Message<&'static str, u32>>) -> String {
        match message {
            None => "end".to_owned(),
            Some(Message::Line { callback, level, text }) => format!("{callback} {level:?}: {text}"),
            Some(Message::Failure { callback, context, kind, text }) => {
                format!("{callback} {context} {kind:#x}: {text}")
            }
            Some(Message::Call(call)) => format!("call {call}"),
        }
    }

    #[test]
    fn messages_of_a_sink_come_out_in_order() {
        let sender = Sender::new();
        let receiver = sender.claim().unwrap();
        assert!(sender.claim().is_none(), "one thread takes the messages");
        let sink = CallbackSink {
            sender: sender.clone(),
            context: 7,
            log: Some(Arc::new("log")),
            error: Some(Arc::new("error")),
        };
        assert!(sink.line(Level::Error, "one"));
        sink.failure(0x201, "two");
        assert!(sender.post(Message::Call(3)));
        let taken: Vec<_> = (0..3).map(|_| shown(receiver.take())).collect();
        assert_eq!(taken, ["log Error: one", "error 7 0x201: two", "call 3"]);
    }

    #[test]
    fn sink_without_callbacks_posts_nothing() {
        let sender = Sender::new();
        let receiver = sender.claim().unwrap();
        let sink = CallbackSink { sender, context: 1, log: None, error: None };
        assert!(!sink.line(Level::Error, "to standard error"));
        sink.failure(1, "said in the log only");
        drop(sink);
        assert_eq!(shown(receiver.take()), "end");
    }

    #[test]
    fn queue_whose_last_sender_is_gone_delivers_the_rest_and_ends() {
        let sender = Sender::new();
        let receiver = sender.claim().unwrap();
        let other = sender.clone();
        drop(sender);
        assert!(other.post(Message::Call(1)));
        drop(other);
        assert_eq!([shown(receiver.take()), shown(receiver.take())], ["call 1", "end"]);
    }

    #[test]
    fn closed_queue_takes_no_more_and_delivers_the_rest() {
        let sender = Sender::new();
        let receiver = sender.claim().unwrap();
        assert!(sender.post(line("before")));
        receiver.close();
        assert!(!sender.post(line("after")));
        assert_eq!([shown(receiver.take()), shown(receiver.take())], ["log Info: before", "end"]);
    }

    #[test]
    fn lines_beyond_the_limit_are_counted_where_they_are_missing() {
        let sender = Sender::new();
        let receiver = sender.claim().unwrap();
        for _ in 0..LINES + 3 {
            assert!(sender.post(line("kept")));
        }
        // Calls have no limit and are never dropped.
        assert!(sender.post(Message::Call(1)));
        for _ in 0..LINES {
            assert_eq!(shown(receiver.take()), "log Info: kept");
        }
        let notice = "log Warn: dropped log lines: 3, because the log callback is slower than the log";
        assert_eq!(shown(receiver.take()), notice);
        assert_eq!(shown(receiver.take()), "call 1");
        // There is room for as many messages as before.
        for _ in 0..=LINES {
            assert!(sender.post(line("again")));
        }
        for _ in 0..LINES {
            assert_eq!(shown(receiver.take()), "log Info: again");
        }
        drop(sender);
        assert_eq!(shown(receiver.take()), notice.replace('3', "1"));
        assert_eq!(shown(receiver.take()), "end");
    }

    #[test]
    fn receiver_that_waits_hears_of_messages_and_of_the_end() {
        let sender = Sender::new();
        let receiver = sender.claim().unwrap();
        let (output, texts) = mpsc::channel();
        let taker = thread::spawn(move || {
            loop {
                let text = shown(receiver.take());
                output.send(text.clone()).unwrap();
                if text == "end" {
                    return;
                }
            }
        });
        // Each message is awaited before the next one is posted, so the receiver is asleep or about to sleep.
        for call in 0..100 {
            sender.post(Message::Call(call));
            assert_eq!(texts.recv().unwrap(), format!("call {call}"));
        }
        drop(sender);
        assert_eq!(texts.recv().unwrap(), "end");
        taker.join().unwrap();
    }
}
