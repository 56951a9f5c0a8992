//! Limits on the cost of a hostile container.

use crate::error::QpcError;

/// Limits on allocations and nesting during decoding.
///
/// Every allocation whose size comes from the input is charged before it is made. A few bytes therefore cannot cause
/// gigabytes of allocations. (An empty protobuf message takes two bytes in the input and hundreds in memory.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of entries of the segment table.
    pub max_segments: u64,
    /// Maximum length of a segment name in bytes, without its NUL.
    pub max_name_bytes: usize,
    /// Maximum nesting of messages and of unknown groups.
    pub max_depth: usize,
    /// Maximum memory of one decoded descriptor or metadata, in bytes. Vectors grow by doubling, so the actual peak
    /// may be twice that.
    pub max_decoded_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_segments: 4096, max_name_bytes: 255, max_depth: 32, max_decoded_bytes: 256 << 20 }
    }
}

/// Remaining part of a caller's limits during one decode.
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

    /// Charges one value of `T` before it is stored.
    pub(crate) fn charge_value<T>(&mut self) -> Result<(), QpcError> {
        self.charge(size_of::<T>())
    }

    /// Charges `bytes` before they are allocated.
    pub(crate) fn charge(&mut self, bytes: usize) -> Result<(), QpcError> {
        match self.left.checked_sub(crate::bytes::to_u64(bytes)) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(QpcError::LimitExceeded { what: "decoded bytes", max: self.max }),
        }
    }

    /// Enters a nested message. Each call needs a matching [`Budget::leave`].
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
