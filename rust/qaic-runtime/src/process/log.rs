//! The log of a context: lines with a level, written to standard error or to a sink.
//!
//! A text is formatted only if its level is enabled. No lock is held while a line is delivered, and a child process
//! does not wait for a lock of its parent.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU8, Ordering};
// Held only during a clone, so there is no protocol to model-check.
use std::sync::{Arc, Mutex, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::process::ForkGuard;

/// Severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Information for debugging the runtime.
    Debug = 0,
    /// Normal events.
    Info = 1,
    /// Unexpected events.
    Warn = 2,
    /// Failures.
    Error = 3,
}

impl Level {
    /// Returns the level with this code.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Debug),
            1 => Some(Self::Info),
            2 => Some(Self::Warn),
            3 => Some(Self::Error),
            _ => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Debug => "DEBUG",
            Self::Info => "INFO",
            Self::Warn => "WARN",
            Self::Error => "ERROR",
        }
    }
}

/// Destination of lines and failures of a context. Called from any thread, without a lock; must not block.
pub trait Sink: Send + Sync {
    /// Takes a line. Returning false sends the line to standard error instead.
    fn line(&self, level: Level, text: &str) -> bool;

    /// Takes the report of a failure of the error type `kind`. Its line was already written.
    fn failure(&self, kind: u32, text: &str);
}

/// The logger of one context.
pub struct Logger {
    name: String,
    level: AtomicU8,
    sink: Mutex<Option<Arc<dyn Sink>>>,
    fork_guard: ForkGuard,
}

qaic_sync::debug_fields!(Logger, |logger| name: logger.name, level: logger.level());

/// Returns the logger of code without a context.
pub fn global() -> &'static Logger {
    static GLOBAL: OnceLock<Logger> = OnceLock::new();
    GLOBAL.get_or_init(|| Logger { name: "Aic".to_owned(), ..Logger::new(0) })
}

/// Number of attempts of a child to acquire the lock, in case a thread of its parent held it during the fork.
const CHILD_ATTEMPTS: u32 = 100;

impl Logger {
    /// Creates the logger of context `id`; logs only errors.
    pub(crate) fn new(id: u32) -> Self {
        Self {
            name: format!("Aic-{id}"),
            level: AtomicU8::new(Level::Error as u8),
            sink: Mutex::new(None),
            fork_guard: ForkGuard::new(),
        }
    }

    /// The lowest level that is logged.
    pub fn level(&self) -> Level {
        Level::from_code(self.level.load(Ordering::Relaxed)).unwrap_or(Level::Error)
    }

    /// Enables lines of `level` and above.
    pub fn set_level(&self, level: Level) {
        self.level.store(level as u8, Ordering::Relaxed);
    }

    pub(crate) fn is_enabled(&self, level: Level) -> bool {
        level as u8 >= self.level.load(Ordering::Relaxed)
    }

    /// Sends all lines to `sink`, or to standard error.
    pub fn set_sink(&self, sink: Option<Arc<dyn Sink>>) {
        // The old sink is dropped after the lock is released, because its drop runs foreign code.
        let old = self.with_sink(|slot| std::mem::replace(slot, sink));
        drop(old);
    }

    /// Logs an error.
    pub fn error(&self, text: impl FnOnce() -> String) {
        self.log(Level::Error, text);
    }

    /// Logs a warning.
    pub fn warn(&self, text: impl FnOnce() -> String) {
        self.log(Level::Warn, text);
    }

    /// Logs a line of `level`.
    pub(crate) fn log(&self, level: Level, text: impl FnOnce() -> String) {
        if self.is_enabled(level) {
            self.deliver(level, &text());
        }
    }

    /// Logs a failure, and calls the error handler if there is one.
    pub(crate) fn failure(&self, kind: u32, text: &str) {
        if self.is_enabled(Level::Error) {
            self.deliver(Level::Error, text);
        }
        if let Some(sink) = self.sink() {
            sink.failure(kind, text);
        }
    }

    fn deliver(&self, level: Level, text: &str) {
        if !self.sink().is_some_and(|sink| sink.line(level, text)) {
            self.console(level, text);
        }
    }

    /// Writes a line to standard error, regardless of the sink and the level.
    pub fn console(&self, level: Level, text: &str) {
        let time = time_of_day(SystemTime::now());
        let line = format!("[{time}][{}][{}]{text}\n", level.name(), self.name);
        // The line is lost if standard error is closed.
        let _ = io::stderr().write_all(line.as_bytes());
    }

    fn sink(&self) -> Option<Arc<dyn Sink>> {
        self.with_sink(|slot| slot.clone()).flatten()
    }

    /// Calls `work` with the sink; `None` in a child whose parent held the lock during the fork.
    fn with_sink<T>(&self, work: impl FnOnce(&mut Option<Arc<dyn Sink>>) -> T) -> Option<T> {
        if self.fork_guard.is_current() {
            return Some(work(&mut self.sink.lock().unwrap_or_else(PoisonError::into_inner)));
        }
        for _ in 0..CHILD_ATTEMPTS {
            match self.sink.try_lock() {
                Ok(mut slot) => return Some(work(&mut slot)),
                Err(TryLockError::Poisoned(slot)) => return Some(work(&mut slot.into_inner())),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
        None
    }
}

/// Returns `HH:MM:SS.mmm` in UTC, because the standard library supports no other time zone.
fn time_of_day(now: SystemTime) -> String {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let seconds = since.as_secs();
    format!(
        "{:02}:{:02}:{:02}.{:03}",
        seconds / 3600 % 24,
        seconds / 60 % 60,
        seconds % 60,
        since.subsec_millis()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct RecordingSink {
        lines: Mutex<Vec<(Level, String)>>,
        failures: Mutex<Vec<(u32, String)>>,
    }

    impl Sink for RecordingSink {
        fn line(&self, level: Level, text: &str) -> bool {
            self.lines.lock().unwrap().push((level, text.to_owned()));
            true
        }

        fn failure(&self, kind: u32, text: &str) {
            self.failures.lock().unwrap().push((kind, text.to_owned()));
        }
    }

    #[test]
    fn logger_with_a_level_formats_lines_of_that_level_and_above() {
        let logger = Logger::new(0);
        let recording = Arc::new(RecordingSink::default());
        logger.set_sink(Some(Arc::clone(&recording) as Arc<dyn Sink>));
        logger.warn(|| unreachable!("a warning is below the default level"));
        logger.error(|| "first".to_owned());
        logger.set_level(Level::Warn);
        logger.warn(|| "second".to_owned());
        logger.log(Level::Info, || unreachable!("below warnings"));
        logger.failure(0x501, "third");
        let lines = recording.lines.lock().unwrap();
        assert_eq!(
            *lines,
            [
                (Level::Error, "first".to_owned()),
                (Level::Warn, "second".to_owned()),
                (Level::Error, "third".to_owned())
            ]
        );
        assert_eq!(*recording.failures.lock().unwrap(), [(0x501, "third".to_owned())]);
    }

    #[test]
    fn sink_that_logs_and_replaces_itself_does_not_deadlock() {
        struct ReentrantSink(std::sync::Weak<Logger>);
        impl Sink for ReentrantSink {
            fn line(&self, _: Level, text: &str) -> bool {
                if let Some(logger) = self.0.upgrade().filter(|_| text == "outer") {
                    logger.set_sink(None);
                    logger.log(Level::Debug, || "inner".to_owned());
                }
                true
            }
            fn failure(&self, _: u32, _: &str) {}
        }
        let logger = Arc::new(Logger::new(0));
        logger.set_sink(Some(Arc::new(ReentrantSink(Arc::downgrade(&logger)))));
        logger.error(|| "outer".to_owned());
        assert!(logger.sink().is_none());
    }

    #[test]
    fn time_of_day_of_any_moment_has_milliseconds() {
        let moment = UNIX_EPOCH + Duration::from_millis(((26 * 60 + 3) * 60 + 4) * 1000 + 56);
        assert_eq!(time_of_day(moment), "02:03:04.056");
    }
}
