//! Bodies of requests of the Open Inference Protocol: the numbers of tensors, out of JSON and out of protobuf.
//!
//! A body is split into an envelope of bounded size, which a general parser reads, and the places of the tensors' numbers.
//! Numbers are counted before they are decoded, so that a body never makes this crate allocate more than the tensor that it
//! describes. The crate does no I/O and knows no Python.

#![forbid(unsafe_code)]

pub mod json;
pub mod message;

use std::ops::Range;

use thiserror::Error;

/// Number of tensors that a request may have.
pub(crate) const MOST_TENSORS: usize = 4096;
/// Number of values in JSON, or of fields in protobuf, that a request and its tensors may have besides numbers.
pub(crate) const MOST_FIELDS: usize = 8 * MOST_TENSORS;

/// Reason for which a body is refused. The message continues a sentence about the body or the tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The envelope is longer than allowed.
    #[error("it has more than {0} bytes besides the numbers of tensors")]
    EnvelopeTooLong(usize),
    /// There are more tensors or fields than allowed.
    #[error("it has more than {0} tensors or fields")]
    TooMany(usize),
    /// Protobuf that does not parse.
    #[error("it is not a message of the protocol")]
    NotAMessage,
    /// JSON that does not parse.
    #[error("it is not JSON")]
    NotJson,
    /// A name that only an unescaped spelling may have.
    #[error("a key of a tensor has escape sequences")]
    EscapedKey,
    /// Lists of numbers that form no array.
    #[error("is no array of numbers: its lists differ in length")]
    Ragged,
    /// Elements that are no numbers.
    #[error("is no array of numbers")]
    NotNumbers,
    /// Another number of elements than the shape has.
    #[error("has {found} numbers")]
    Count {
        /// Number of elements found.
        found: usize,
    },
}

/// A body without the numbers of its tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The body, with short marks or nothing in the place of numbers.
    pub envelope: Vec<u8>,
    /// Places of the numbers in the body.
    pub places: Vec<Range<usize>>,
    /// Places of raw tensors in the body; protobuf only.
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
