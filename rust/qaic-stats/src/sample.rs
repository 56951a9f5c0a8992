//! Measurements of one inference on the host.

use crate::decode::record::{Field, FieldType};

macro_rules! sample {
    ($($(#[$doc:meta])* $field:ident: $type:ty,)*) => {
        /// Times of one inference, in nanoseconds of the process's clock, and its position in the queue.
        ///
        /// The times ascend. Measurements that only a kernel can take are not included.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct HostSample {
            $($(#[$doc])* pub $field: $type,)*
        }

        impl HostSample {
            /// Fields in order, described as in numpy; a record has no gaps.
            pub const FIELDS: &'static [FieldType] = &[$(FieldType {
                name: stringify!($field),
                code: <$type as Field>::CODE,
                count: 1,
            }),*];

            /// Bytes of a record.
            pub const SIZE: usize = 0_usize $(.saturating_add(size_of::<$type>()))*;

            /// Appends the record, little-endian.
            pub fn encode(&self, into: &mut Vec<u8>) {
                $(into.extend_from_slice(&self.$field.to_le_bytes());)*
            }
        }
    };
}

sample! {
    /// Number of the inference in its program, over all activations.
    inference: u64,
    /// Time of the call that started the inference.
    enqueued_ns: u64,
    /// Time at which a thread began the inference.
    begun_ns: u64,
    /// Time at which the device's inputs were complete.
    inputs_ready_ns: u64,
    /// Time at which the device had finished.
    executed_ns: u64,
    /// Time at which the caller's outputs were complete.
    outputs_ready_ns: u64,
    /// Time at which the completion was published.
    completed_ns: u64,
    /// Number of the program among those that were profiled together.
    program: u32,
    /// Number of the activation in its program.
    activation: u32,
    /// Number of elements in the queue before the inference was added.
    queue_depth: u32,
    /// Number of inferences in the queue, including this one.
    in_queue: u32,
}

impl HostSample {
    /// Time until a thread began the inference.
    pub(crate) fn enqueue_ns(&self) -> u64 {
        self.begun_ns.saturating_sub(self.enqueued_ns)
    }

    /// Time to transfer the inputs to the device.
    pub(crate) fn pre_process_ns(&self) -> u64 {
        self.inputs_ready_ns.saturating_sub(self.begun_ns)
    }

    /// Time from the submission to the device until its completion was noticed.
    pub(crate) fn execute_ns(&self) -> u64 {
        self.executed_ns.saturating_sub(self.inputs_ready_ns)
    }

    /// Time to transfer the outputs from the device.
    pub(crate) fn post_process_ns(&self) -> u64 {
        self.outputs_ready_ns.saturating_sub(self.executed_ns)
    }

    /// Time from the start of the inference until its outputs were complete.
    pub(crate) fn total_ns(&self) -> u64 {
        self.completed_ns.saturating_sub(self.enqueued_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_its_fields_one_after_the_other() {
        let sample =
            HostSample { inference: 1, completed_ns: 2, program: 3, in_queue: 4, ..HostSample::default() };
        let mut bytes = Vec::new();
        sample.encode(&mut bytes);
        assert_eq!((bytes.len(), HostSample::SIZE), (72, 72));
        let at = |offset: usize| bytes[offset];
        assert_eq!((at(0), at(48), at(56), at(68)), (1, 2, 3, 4));
        assert_eq!(HostSample::FIELDS.len(), 11);
    }
}
