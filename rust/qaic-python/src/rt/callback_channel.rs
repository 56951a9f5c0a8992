//! Callbacks of a context: any thread queues them, one Python thread runs them in order.
//!
//! The runtime implements the queue. The thread in `python/qaic/rt/dispatch.py` takes the messages and calls the
//! callbacks.

use std::sync::{Arc, Weak};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use qaic_runtime::Context;
use qaic_runtime::process::log::Level;
use qaic_runtime::process::{CallbackReceiver, CallbackSender, CallbackSink, Message};

use crate::gil::Detach;

type Callback = Py<PyAny>;
/// A callback and its arguments.
type Call = (Py<PyAny>, Py<PyTuple>);

/// The sender of a channel.
#[pyclass(frozen, name = "Channel", module = "qaic._core")]
pub(crate) struct RtChannel {
    sender: CallbackSender<Callback, Call>,
    context: Weak<Context>,
}

impl RtChannel {
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        Self { sender: CallbackSender::new(), context: Arc::downgrade(context) }
    }

    /// Sends log lines to Python callbacks.
    pub(crate) fn sink(
        &self,
        context: u32,
        log: Option<Callback>,
        error: Option<Callback>,
    ) -> CallbackSink<Callback, Call> {
        let sender = self.sender.clone();
        CallbackSink { sender, context, log: log.map(Arc::new), error: error.map(Arc::new) }
    }
}

#[pymethods]
impl RtChannel {
    /// Queues `callback(*arguments)`; returns false if the channel is closed.
    fn post(&self, callback: Py<PyAny>, arguments: Py<PyTuple>) -> bool {
        self.sender.post(Message::Call((callback, arguments)))
    }

    /// Returns the receiver to the first caller, and `None` to others.
    fn claim(&self) -> Option<RtReceiver> {
        self.sender.claim().map(|receiver| RtReceiver { receiver, context: Weak::clone(&self.context) })
    }
}

/// The receiver of a channel.
#[pyclass(frozen, name = "Receiver", module = "qaic._core")]
pub(crate) struct RtReceiver {
    receiver: CallbackReceiver<Callback, Call>,
    context: Weak<Context>,
}

#[pymethods]
impl RtReceiver {
    /// Returns (callback, arguments, whether it is a log line) of the next message; `None` after the last one.
    ///
    /// Blocking, without the interpreter lock. Only for threads that receive no signals.
    #[allow(clippy::type_complexity)] // one tuple, described above
    fn take<'py>(&self, py: Python<'py>) -> PyResult<Option<(Py<PyAny>, Bound<'py, PyTuple>, bool)>> {
        let Some(message) = py.detached(|_| Ok(self.receiver.take()))? else { return Ok(None) };
        let enums = || py.import("qaic.rt.enums");
        Ok(Some(match message {
            Message::Line { callback, level, text } => {
                let level = enums()?.getattr("QLogLevel")?.call1((level as u8,))?;
                (callback.clone_ref(py), (level, text).into_pyobject(py)?, true)
            }
            Message::Failure { callback, context, kind, text } => {
                let kind = enums()?.getattr("QAicErrorType")?.call1((kind,))?;
                let arguments = (context, text, kind, PyBytes::new(py, b"")).into_pyobject(py)?;
                (callback.clone_ref(py), arguments, false)
            }
            Message::Call((callback, arguments)) => (callback, arguments.into_bound(py), false),
        }))
    }

    /// Logs an error of a callback; with `console`, prints it on the console because the log itself failed.
    fn complain(&self, text: &str, console: bool) {
        if let Some(context) = self.context.upgrade() {
            if console {
                context.logger.console(Level::Error, text);
            } else {
                context.logger.error(|| text.to_owned());
            }
        }
    }

    /// Closes the channel for new messages.
    fn close(&self) {
        self.receiver.close();
    }
}
