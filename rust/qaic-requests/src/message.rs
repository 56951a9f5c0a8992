//! Numbers in protobuf messages: `inference.ModelInferRequest` of the Open Inference Protocol.

use std::ops::Range;

use crate::{MOST_FIELDS, MOST_TENSORS, RequestError, Split, append};

// Fields of the request, and of an input.
const INPUTS: u64 = 5;
const OUTPUTS: u64 = 6;
const RAW_CONTENTS: u64 = 7;
const CONTENTS: u64 = 5;

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const BYTES: u64 = 2;
const FIXED32: u64 = 5;

/// One field: its number, its wire type, its position with the tag, and the position of its value.
struct Field {
    number: u64,
    wire: u64,
    whole: Range<usize>,
    value: Range<usize>,
}

/// Yields the fields of the message in `range` of `body`.
fn fields(body: &[u8], range: Range<usize>) -> impl Iterator<Item = Result<Field, RequestError>> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        (at < range.end).then(|| {
            let field = field_at(body, at, range.end).ok_or(RequestError::NotAMessage);
            at = field.as_ref().map_or(range.end, |field| field.whole.end);
            field
        })
    })
}

fn field_at(body: &[u8], begin: usize, end: usize) -> Option<Field> {
    let (tag, mut at) = varint(body, begin, end)?;
    let wire = tag & 7;
    let length = match wire {
        VARINT => varint(body, at, end)?.1 - at,
        FIXED64 => 8,
        FIXED32 => 4,
        BYTES => {
            let (length, after) = varint(body, at, end)?;
            at = after;
            usize::try_from(length).ok()?
        }
        // Groups, which the protocol does not use.
        _ => return None,
    };
    let after = at.checked_add(length).filter(|after| *after <= end)?;
    Some(Field { number: tag >> 3, wire, whole: begin..after, value: at..after })
}

fn varint(body: &[u8], begin: usize, end: usize) -> Option<(u64, usize)> {
    let mut value = 0_u64;
    for (index, byte) in body.get(begin..end)?.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((value, begin + index + 1));
        }
    }
    None
}

fn encoded(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    loop {
        #[allow(clippy::cast_possible_truncation)] // the lowest seven bits
        let low = (value & 0x7f) as u8;
        value >>= 7;
        bytes.push(if value == 0 { low } else { low | 0x80 });
        if value == 0 {
            return bytes;
        }
    }
}

/// Splits a message into its envelope, the places of the contents of its inputs, and those of its raw tensors.
///
/// The places of inputs without contents are empty.
///
/// # Errors
///
/// The envelope has more than `most` bytes, there are more tensors or fields than a request may have, or the bytes
/// are not a valid message.
pub fn split(body: &[u8], most: usize) -> Result<Split, RequestError> {
    let mut split = Split { envelope: Vec::new(), places: Vec::new(), raw: Vec::new() };
    let mut count = 0;
    for field in fields(body, 0..body.len()) {
        let field = field?;
        count_up(&mut count, MOST_FIELDS)?;
        match (field.number, field.wire) {
            (RAW_CONTENTS, BYTES) => {
                if split.raw.len() == MOST_TENSORS {
                    return Err(RequestError::TooMany(MOST_TENSORS));
                }
                split.raw.push(field.value);
            }
            (INPUTS, BYTES) => {
                if split.places.len() == MOST_TENSORS {
                    return Err(RequestError::TooMany(MOST_TENSORS));
                }
                let mut input = Vec::new();
                let mut contents = None;
                for inner in fields(body, field.value) {
                    let inner = inner?;
                    count_up(&mut count, MOST_FIELDS)?;
                    if (inner.number, inner.wire) != (CONTENTS, BYTES) {
                        append(&mut input, &body[inner.whole], most)?;
                    } else if contents.replace(inner.value).is_some() {
                        return Err(RequestError::TooMany(1));
                    }
                }
                split.places.push(contents.unwrap_or(0..0));
                append(
                    &mut split.envelope,
                    &encoded(usize::try_from(INPUTS << 3 | BYTES).unwrap_or(0)),
                    most,
                )?;
                append(&mut split.envelope, &encoded(input.len()), most)?;
                append(&mut split.envelope, &input, most)?;
            }
            (number, wire) => {
                if (number, wire) == (OUTPUTS, BYTES) {
                    for inner in fields(body, field.value) {
                        inner?;
                        count_up(&mut count, MOST_FIELDS)?;
                    }
                }
                append(&mut split.envelope, &body[field.whole], most)?;
            }
        }
    }
    Ok(split)
}

fn count_up(count: &mut usize, most: usize) -> Result<(), RequestError> {
    *count += 1;
    if *count > most { Err(RequestError::TooMany(most)) } else { Ok(()) }
}

/// Element type of a field of `inference.InferTensorContents`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// Truth values, which become bytes.
    Bool,
    /// Integers, which become 8 bytes.
    Whole,
    /// Floats of 4 bytes.
    Single,
    /// Floats of 8 bytes.
    Double,
}

/// Decodes the field `number` of contents into the bytes of its numbers in the order of this machine.
///
/// # Errors
///
/// The field does not have `expected` numbers, or the bytes are not such a message. Nothing is allocated in
/// these cases.
pub fn numbers(
    contents: &[u8],
    number: u64,
    element: Element,
    expected: usize,
) -> Result<Vec<u8>, RequestError> {
    let mut found = 0;
    for field in fields(contents, 0..contents.len()) {
        let field = field?;
        if field.number == number {
            found += elements_in(&contents[field.value], field.wire, element)?;
        }
    }
    if found != expected {
        return Err(RequestError::Count { found });
    }
    let size = match element {
        Element::Bool => 1,
        Element::Single => 4,
        Element::Whole | Element::Double => 8,
    };
    let mut bytes = Vec::with_capacity(found * size);
    for field in fields(contents, 0..contents.len()) {
        let field = field?;
        if field.number != number {
            continue;
        }
        let values = &contents[field.value];
        match element {
            Element::Single | Element::Double if cfg!(target_endian = "little") => {
                bytes.extend_from_slice(values);
            }
            Element::Single => {
                bytes.extend(
                    values.as_chunks::<4>().0.iter().flat_map(|b| u32::from_le_bytes(*b).to_ne_bytes()),
                );
            }
            Element::Double => {
                bytes.extend(
                    values.as_chunks::<8>().0.iter().flat_map(|b| u64::from_le_bytes(*b).to_ne_bytes()),
                );
            }
            Element::Bool | Element::Whole => {
                let mut at = 0;
                while at < values.len() {
                    let (value, after) = varint(values, at, values.len()).ok_or(RequestError::NotAMessage)?;
                    at = after;
                    if element == Element::Bool {
                        bytes.push(u8::from(value != 0));
                    } else {
                        bytes.extend_from_slice(&value.to_ne_bytes());
                    }
                }
            }
        }
    }
    Ok(bytes)
}

/// Counts the numbers of a field, which has one or is packed.
fn elements_in(values: &[u8], wire: u64, element: Element) -> Result<usize, RequestError> {
    let (alone, size) = match element {
        Element::Bool | Element::Whole => (VARINT, 0),
        Element::Single => (FIXED32, 4),
        Element::Double => (FIXED64, 8),
    };
    if wire == alone {
        return Ok(1);
    }
    let is_whole = match size {
        // The last byte of a number has no mark.
        0 => values.last().is_none_or(|byte| byte & 0x80 == 0),
        _ => values.len().is_multiple_of(size),
    };
    if wire != BYTES || !is_whole {
        return Err(RequestError::NotAMessage);
    }
    Ok(values
        .len()
        .checked_div(size)
        .unwrap_or_else(|| values.iter().filter(|byte| **byte & 0x80 == 0).count()))
}

#[cfg(test)]
mod tests {
    use super::{Element, encoded, numbers, split};
    use crate::RequestError;
    use proptest::prelude::*;

    fn field(number: usize, value: &[u8]) -> Vec<u8> {
        [&encoded(number << 3 | 2)[..], &encoded(value.len()), value].concat()
    }

    #[test]
    fn numbers_and_raw_tensors_leave_the_envelope() {
        let contents = field(6, &1_f32.to_le_bytes());
        let plain = [field(1, b"x"), field(2, b"FP32"), field(3, &[1, 1])].concat();
        let input = [plain.clone(), field(5, &contents)].concat();
        let body = [field(1, b"model"), field(5, &input), field(5, &plain), field(7, b"raw")].concat();
        let found = split(&body, 1000).unwrap();
        assert_eq!(found.envelope, [field(1, b"model"), field(5, &plain), field(5, &plain)].concat());
        assert_eq!(body[found.places[0].clone()], contents);
        assert!(found.places[1].is_empty());
        assert_eq!(&body[found.raw[0].clone()], b"raw");
    }

    #[test]
    fn envelopes_and_tensors_are_bounded() {
        let many = |number| field(number, b"").repeat(4097);
        assert_eq!(split(&many(5), 1 << 20).unwrap_err(), RequestError::TooMany(4096));
        assert_eq!(split(&many(7), 1 << 20).unwrap_err(), RequestError::TooMany(4096));
        assert_eq!(split(&field(6, b"").repeat(40_000), 1 << 20).unwrap_err(), RequestError::TooMany(32_768));
        assert_eq!(split(&field(1, &[0; 200]), 100).unwrap_err(), RequestError::EnvelopeTooLong(100));
        let input = field(5, &field(4, b"").repeat(40_000));
        assert_eq!(split(&input, 1 << 20).unwrap_err(), RequestError::TooMany(32_768));
    }

    #[test]
    fn fields_may_be_packed_or_not() {
        let single = 2.5_f32.to_le_bytes();
        let both = [&field(6, &[single, single].concat())[..], &[6 << 3 | 5], &single].concat();
        assert_eq!(numbers(&both, 6, Element::Single, 3).unwrap(), [2.5_f32.to_ne_bytes(); 3].concat());
        let minus = [&[3 << 3_u8][..], &[0xff; 9], &[1]].concat();
        assert_eq!(numbers(&minus, 3, Element::Whole, 1).unwrap(), (-1_i64).to_ne_bytes());
        assert_eq!(numbers(&field(1, &[0, 1, 2]), 1, Element::Bool, 3).unwrap(), [0, 1, 1]);
    }

    #[test]
    fn counts_are_compared_before_anything_is_decoded() {
        let contents = field(3, &[1; 1000]);
        assert_eq!(
            numbers(&contents, 3, Element::Whole, 1).unwrap_err(),
            RequestError::Count { found: 1000 }
        );
        assert_eq!(numbers(&contents, 6, Element::Single, 1).unwrap_err(), RequestError::Count { found: 0 });
        assert_eq!(numbers(&field(6, &[0; 7]), 6, Element::Single, 1), Err(RequestError::NotAMessage));
        assert_eq!(numbers(&field(3, &[0x80]), 3, Element::Whole, 0), Err(RequestError::NotAMessage));
    }

    proptest! {
        #[test]
        fn any_bytes_are_split_or_refused(body in prop::collection::vec(any::<u8>(), 0..200)) {
            drop(split(&body, 1000));
            for element in [Element::Bool, Element::Whole, Element::Single, Element::Double] {
                drop(numbers(&body, u64::from(body.first().copied().unwrap_or(0) >> 3), element, 1));
            }
        }

        #[test]
        fn whole_numbers_survive(values in prop::collection::vec(any::<u64>(), 0..20)) {
            let packed: Vec<u8> = values.iter().flat_map(|value| {
                let mut value = *value;
                let mut bytes = Vec::new();
                while value >= 0x80 {
                    bytes.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
                    value >>= 7;
                }
                bytes.push(u8::try_from(value).unwrap());
                bytes
            }).collect();
            let expected: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
            prop_assert_eq!(numbers(&field(5, &packed), 5, Element::Whole, values.len()).unwrap(), expected);
        }
    }
}
