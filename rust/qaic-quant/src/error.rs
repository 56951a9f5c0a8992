//! Errors about numbers given to this crate.

use thiserror::Error;

/// Error about a tensor. Callers add the name of the tensor.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum QuantError {
    /// A range that no tensor can have.
    #[error("the range is {minimum} to {maximum}; two finite numbers in order are expected")]
    Range {
        /// Given lower end.
        minimum: f64,
        /// Given upper end.
        maximum: f64,
    },
    /// Values that are not finite, which no range and no block with a common exponent can represent.
    #[error("{nan} NaN and {infinite} infinite values among {count}; finite numbers are expected")]
    NotFinite {
        /// Number of NaN.
        nan: u64,
        /// Number of infinities.
        infinite: u64,
        /// Number of examined values.
        count: u64,
    },
    /// Invalid parameters.
    #[error("{what}")]
    Parameters {
        /// Description of the defect.
        what: String,
    },
}
