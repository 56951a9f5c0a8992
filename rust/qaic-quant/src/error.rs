//! Errors about numbers given to this crate.

use thiserror::Error;

/// A refusal. Names of tensors are added by the caller.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum QuantError {
    /// A range that no tensor can have.
    #[error("the range is {minimum} to {maximum}; two finite numbers in order are expected")]
    Range {
        /// Lower end as given.
        minimum: f64,
        /// Upper end as given.
        maximum: f64,
    },
    /// Values without a place in a range or in a block with a common exponent.
    #[error("{nan} NaN and {infinite} infinite values among {count}; finite numbers are expected")]
    NotFinite {
        /// Number of NaN.
        nan: u64,
        /// Number of infinities.
        infinite: u64,
        /// Number of values looked at.
        count: u64,
    },
    /// Parameters that fit no tensor.
    #[error("{what}")]
    Parameters {
        /// Description of the defect.
        what: String,
    },
}
