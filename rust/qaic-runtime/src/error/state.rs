//! Errors about the present state of an object.

/// The call comes at the wrong time.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// The object belongs to the process that this one was forked from.
    #[error(
        "this object was made before the process was forked; its threads and cores are the parent's. Make it again \
         in the child"
    )]
    Forked,

    /// The exec object or handle carries an inference that has not ended.
    #[error("its inference is in flight; wait until it ends")]
    InFlight,

    /// More inferences were submitted than there is room for.
    #[error("all {capacity} places for inferences are in use; wait for one inference")]
    QueueFull {
        /// Room.
        capacity: u32,
    },

    /// The program holds its cores for exec objects.
    #[error("{count} exec objects of the program still exist; drop them first")]
    LiveExecObjs {
        /// How many.
        count: u32,
    },

    /// No inference with this id is under way or waits to be collected.
    #[error("no inference with id {id} is in flight or completed")]
    UnknownInference {
        /// Id asked for.
        id: u64,
    },

    /// There is no inference to wait for.
    #[error("no inference is in flight or completed")]
    NothingSubmitted,

    /// The call is not valid in the object's present state.
    #[error("{what}")]
    Invalid {
        /// The invalid object.
        what: String,
    },
}

impl StateError {
    /// Stable slug of the variant.
    pub(crate) const fn code(&self) -> &'static str {
        match self {
            Self::Forked => "call.forked",
            Self::InFlight => "inference.in_flight",
            Self::QueueFull { .. } => "queue.full",
            Self::LiveExecObjs { .. } => "program.live_exec_objs",
            Self::UnknownInference { .. } => "inference.unknown",
            Self::NothingSubmitted => "inference.none",
            Self::Invalid { .. } => "call.state",
        }
    }
}
