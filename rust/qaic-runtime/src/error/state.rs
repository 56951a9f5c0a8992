//! Errors about the current state of an object.

use qaic_qpc::counted;

qaic_qpc::errors! {
    /// The state of an object does not permit the call.
    #[derive(Clone, Debug, thiserror::Error)]
    pub enum StateError: "StateError" {
        /// The object belongs to the process that this one was forked from.
        #[error(
            "this object was created before the process was forked; its threads and cores belong to the parent. Create \
             it again in the child"
        )]
        Forked => "call.forked"
            hint "create sessions and programs after the fork, or use the start method spawn or forkserver",
        /// The exec object or handle carries an inference that has not ended.
        #[error("its inference is in flight; wait until it ends")]
        InFlight => "inference.in_flight",
        /// More inferences were submitted than the queue has room for.
        #[error("the queue is full ({capacity} in flight or completed); wait for one inference")]
        QueueFull { capacity: u32 = 512 } => "queue.full",
        /// The program must keep its cores, because exec objects exist.
        #[error("the program still has {}; delete all first", counted(count, "exec object"))]
        LiveExecObjs { count: u32 = 2 } => "program.live_exec_objs",
        /// No inference with this id is in flight or can be collected.
        #[error("no inference with id {id} is in flight or completed")]
        UnknownInference { id: u64 = 7 } => "inference.unknown",
        /// There is no inference to wait for.
        #[error("no inference is in flight or completed")]
        NothingSubmitted => "inference.none",
        /// The call is invalid in the object's current state.
        #[error("{what}")]
        Invalid { what: String = "the program is not activated".into() } => "call.state",
    }
}
