//! Reasons for which the scheduler refuses an inference, or ends it.

/// Reason for which an inference was refused, or ended before its job did.
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
    #[error("the object was made before the process was forked")]
    Forked,

    /// More inferences were submitted than there is room for.
    #[error("all {capacity} places for inferences are in use")]
    QueueFull {
        /// Room.
        capacity: u32,
    },

    /// More requests were asked for than have numbers.
    #[error("{most} requests exist, and there are no more")]
    TooManyRequests {
        /// Number of requests at most.
        most: u32,
    },

    /// The job of a request is not in its place: a bug.
    #[error("request {number} has no job")]
    NoJob {
        /// Number of the request.
        number: u32,
    },
}

impl Error {
    /// Returns whether the time limit of the call passed.
    pub fn is_timeout(self) -> bool {
        matches!(self, Self::Timeout { .. })
    }
}
