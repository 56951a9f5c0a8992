//! Bodies of requests of the Open Inference Protocol: decoding of tensors from JSON and protobuf.
//!
//! A body is divided into an envelope of bounded size, which a general parser reads, and the positions of the
//! tensors' numbers. Numbers are counted before they are decoded, so that a body never makes this crate allocate more
//! than the tensor it describes. The crate does no I/O and does not depend on Python.

#![forbid(unsafe_code)]

pub mod json;
pub mod message;

use std::ops::Range;

use thiserror::Error;

/// Maximum number of tensors of a request.
pub(crate) const MOST_TENSORS: usize = 4096;
/// Maximum number of JSON values, or of protobuf fields, of a request and its tensors, without the numbers.
pub(crate) const MOST_FIELDS: usize = 8 * MOST_TENSORS;

/// Reason why a body is refused. The message continues a sentence about the body or the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The envelope is longer than allowed.
    #[error("it has more than {0} bytes, not counting the numbers of tensors")]
    EnvelopeTooLong(usize),
    /// There are more tensors or fields than allowed.
    #[error("it has more than {0} tensors or fields")]
    TooMany(usize),
    /// The protobuf message cannot be parsed.
    #[error("it is not a message of the protocol")]
    NotAMessage,
    /// The JSON cannot be parsed.
    #[error("it is not JSON")]
    NotJson,
    /// A name contains escape sequences, which are not allowed there.
    #[error("a key of a tensor has escape sequences")]
    EscapedKey,
    /// The lists of numbers do not form an array.
    #[error("it is not an array of numbers: its lists differ in length")]
    Ragged,
    /// Some elements are not numbers.
    #[error("it is not an array of numbers")]
    NotNumbers,
    /// The number of elements does not match the shape.
    #[error("has {found} numbers")]
    Count {
        /// Number of elements found.
        found: usize,
    },
}

/// A body without the numbers of its tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The body, in which short placeholders or empty strings replace the numbers.
    pub envelope: Vec<u8>,
    /// Positions of the numbers in the body.
    pub places: Vec<Range<usize>>,
    /// Positions of raw tensors in the body; only for protobuf.
    pub raw: Vec<Range<usize>>,
}

/// Appends to an envelope, unless it would be longer than `most`.
fn append(envelope: &mut Vec<u8>, bytes: &[u8], most: usize) -> Result<(), RequestError> {
    if envelope.len() + bytes.len() > most {
        return Err(RequestError::EnvelopeTooLong(most));
    }
    envelope.extend_from_slice(bytes);
    Ok(())
}
