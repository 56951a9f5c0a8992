//! Reports of failed calls: a log line, and a call of the error handler unless the caller caused the error.

use super::log::Logger;
use crate::error::{QStatus, RuntimeError};

/// The call that failed. It determines the object's name in log lines and the error type for the error handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // variants are objects and operations
pub enum FailureSource {
    Context,
    Program,
    ProgramLoad,
    ProgramActivation,
    Queue,
    ExecObj,
    InferenceSet,
}

impl FailureSource {
    /// The object's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Context => "Context",
            Self::Program | Self::ProgramLoad | Self::ProgramActivation => "Program",
            Self::Queue => "Queue",
            Self::ExecObj => "ExecObj",
            Self::InferenceSet => "InferenceSet",
        }
    }

    /// The error type of a call that failed.
    const fn call(self) -> u32 {
        match self {
            Self::Context => 0x101,
            Self::Program | Self::ProgramLoad => 0x201,
            Self::ProgramActivation => 0x202,
            Self::Queue => 0x401,
            Self::ExecObj | Self::InferenceSet => 0x501,
        }
    }

    /// Error type of a failed constructor. A set fails with its program's type.
    const fn construction(self) -> u32 {
        match self {
            Self::Context => 0x100,
            Self::Program | Self::ProgramLoad | Self::ProgramActivation | Self::InferenceSet => 0x200,
            Self::Queue => 0x400,
            Self::ExecObj => 0x500,
        }
    }
}

impl Logger {
    /// Reports the reason why a call failed with `status`. Mistakes of the caller are only logged; other failures
    /// also reach the error handler.
    pub fn call_failed(&self, source: FailureSource, status: QStatus, error: &RuntimeError) {
        let text = || format!("{}: {error}", source.name());
        match status {
            QStatus::Inval | QStatus::Busy | QStatus::Unsupported => self.error(text),
            _ => self.failure(source.call(), &text()),
        }
    }

    /// Reports the reason why a constructor failed, unless the caller stopped it.
    pub fn construction_failed(&self, source: FailureSource, error: &RuntimeError) {
        if !error.is_interrupted() {
            self.failure(source.construction(), &format!("{} was not created: {error}", source.name()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::super::log::{Level, Sink};
    use super::*;
    use crate::error::{DeviceError, ErrorDetail};

    #[derive(Default)]
    struct Heard {
        lines: Mutex<Vec<String>>,
        failures: Mutex<Vec<(u32, String)>>,
    }

    impl Sink for Heard {
        fn line(&self, _level: Level, text: &str) -> bool {
            self.lines.lock().unwrap().push(text.to_owned());
            true
        }

        fn failure(&self, kind: u32, text: &str) {
            self.failures.lock().unwrap().push((kind, text.to_owned()));
        }
    }

    fn heard(say: impl FnOnce(&Logger)) -> (Vec<String>, Vec<(u32, String)>) {
        let (logger, sink) = (Logger::new(0), Arc::new(Heard::default()));
        let shared: Arc<dyn Sink> = Arc::<Heard>::clone(&sink);
        logger.set_sink(Some(shared));
        say(&logger);
        let (lines, failures) = (sink.lines.lock().unwrap().clone(), sink.failures.lock().unwrap().clone());
        (lines, failures)
    }

    #[test]
    fn a_mistake_of_the_caller_reaches_no_error_handler() {
        let error = RuntimeError::from(DeviceError::Lost { id: 0, reason: "x".to_owned() });
        for status in [QStatus::Inval, QStatus::Busy, QStatus::Unsupported] {
            let (lines, failures) = heard(|logger| logger.call_failed(FailureSource::Queue, status, &error));
            assert_eq!((lines, failures), (vec!["Queue: device 0 is lost: x".to_owned()], Vec::new()));
        }
        let (lines, failures) =
            heard(|logger| logger.call_failed(FailureSource::Queue, QStatus::DevError, &error));
        assert_eq!(failures, [(0x401, lines[0].clone())]);
    }

    #[test]
    fn what_the_caller_stopped_is_not_said() {
        let stopped = RuntimeError::from(ErrorDetail::Interrupted);
        let cancelled = RuntimeError::from(ErrorDetail::Cancelled);
        let said = heard(|logger| logger.construction_failed(FailureSource::ExecObj, &stopped));
        assert_eq!(said, (Vec::new(), Vec::new()));
        let (_, failures) = heard(|logger| logger.construction_failed(FailureSource::ExecObj, &cancelled));
        assert_eq!(failures, [(0x500, "ExecObj was not created: the inference was cancelled".to_owned())]);
    }
}
