//! How much a hostile container may cost.

use crate::error::QpcError;

/// Bounds on what decoding may allocate and how deep it may go.
///
/// Every allocation whose size comes from the input is charged before it is made, so a few bytes can never become
/// gigabytes (an empty protobuf message costs two bytes on the wire and hundreds in memory).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries of the segment table.
    pub max_segments: u64,
    /// Bytes of a segment name without its NUL.
    pub max_name_bytes: usize,
    /// Nesting of messages and of unknown groups.
    pub max_depth: usize,
    /// Bytes of memory one decoded descriptor or metadata may take. Vectors grow by doubling, so the true peak may be
    /// twice that.
    pub max_decoded_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_segments: 4096, max_name_bytes: 255, max_depth: 32, max_decoded_bytes: 256 << 20 }
    }
}

/// The rest of a caller's limits during one decode.
#[derive(Debug)]
pub(crate) struct Budget {
    left: u64,
    max: u64,
    depth: usize,
    max_depth: usize,
}

impl Budget {
    pub(crate) const fn new(limits: &Limits) -> Self {
        Self {
            left: limits.max_decoded_bytes,
            max: limits.max_decoded_bytes,
            depth: 0,
            max_depth: limits.max_depth,
        }
    }

    /// Charges one value of `T` that is about to be stored.
    pub(crate) fn charge_value<T>(&mut self) -> Result<(), QpcError> {
        self.charge(size_of::<T>())
    }

    /// Charges `bytes` that are about to be allocated.
    pub(crate) fn charge(&mut self, bytes: usize) -> Result<(), QpcError> {
        match self.left.checked_sub(crate::bytes::to_u64(bytes)) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(QpcError::LimitExceeded { what: "decoded bytes", max: self.max }),
        }
    }

    /// Enters a nested message; pair with [`Budget::leave`].
    pub(crate) fn enter(&mut self) -> Result<(), QpcError> {
        if self.depth >= self.max_depth {
            let max = crate::bytes::to_u64(self.max_depth);
            return Err(QpcError::LimitExceeded { what: "nesting", max });
        }
        self.depth = self.depth.saturating_add(1);
        Ok(())
    }

    pub(crate) const fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }
}
