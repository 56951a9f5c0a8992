//! Errors of the scheduler.

/// Reason why the scheduler refused an inference, or ended it before its job did.
///
/// ```
/// let error = qaic_sched::Error::Timeout { what: "an inference", timeout_ms: 20 };
/// assert_eq!(error.to_string(), "timed out after 20 ms waiting for an inference");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The caller interrupted the call.
    #[error("interrupted")]
    Interrupted,

    /// The inference was cancelled.
    #[error("the inference was cancelled")]
    Cancelled,

    /// A wait ended without its event.
    #[error("timed out after {timeout_ms} ms waiting for {what}")]
    Timeout {
        /// The awaited event.
        what: &'static str,
        /// The limit.
        timeout_ms: u64,
    },

    /// An inference of the request has not ended.
    #[error("an inference of the request is in flight")]
    InFlight,

    /// The object belongs to the process that this one was forked from.
    #[error("the object was created before the process was forked")]
    Forked,

    /// More inferences were submitted than the queue has room for.
    #[error("the queue is full ({capacity} in flight or completed)")]
    QueueFull {
        /// Number of places in the queue.
        capacity: u32,
    },

    /// No request number is free.
    #[error("{most} requests exist, the maximum")]
    TooManyRequests {
        /// Maximum number of requests.
        most: u32,
    },

    /// The job of a request is missing, which is a bug.
    #[error("request {number} has no job")]
    NoJob {
        /// Number of the request.
        number: u32,
    },
}
