//! Protobuf's wire format, decoded and encoded without generated code and with a budget.
//!
//! The decoder behaves like other protobuf readers: unknown fields are skipped, a known field with another wire type
//! counts as unknown, repeated scalars are accepted packed and unpacked, and a repeated singular message is merged.
//! Absent and zero are equal for scalars.

pub(crate) mod field;
pub(crate) mod open_enum;

use crate::bytes::to_u64;
use crate::error::{QpcError, WireDefect};
use crate::limits::{Budget, Limits};

const MAX_FIELD_NUMBER: u64 = (1 << 29) - 1;

/// A message type, declared by [`field::messages`].
pub(crate) trait Message: Default {
    /// Name for errors.
    const NAME: &'static str;

    /// Merges one field of the input; unknown fields are ignored.
    fn merge_field(&mut self, field: &Field<'_>, budget: &mut Budget) -> Result<(), QpcError>;

    /// Appends all fields without default values, in order of their numbers.
    fn encode_fields(&self, out: &mut Vec<u8>);
}

/// Decodes a root message.
pub(crate) fn decode<M: Message>(bytes: &[u8], limits: &Limits) -> Result<M, QpcError> {
    let mut message = M::default();
    let mut budget = Budget::new(limits);
    merge(&mut message, &Span { bytes, end: to_u64(bytes.len()) }, &mut budget)?;
    Ok(message)
}

/// Encodes a root message.
pub(crate) fn encode<M: Message>(message: &M) -> Vec<u8> {
    let mut out = Vec::new();
    message.encode_fields(&mut out);
    out
}

fn merge<M: Message>(message: &mut M, span: &Span<'_>, budget: &mut Budget) -> Result<(), QpcError> {
    budget.enter()?;
    let mut reader = Reader { rest: span.bytes, end: span.end, message: M::NAME };
    while let Some(field) = reader.next_field(budget)? {
        message.merge_field(&field, budget)?;
    }
    budget.leave();
    Ok(())
}

/// Bytes with the position of their end in the root message, so that errors can contain positions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span<'a> {
    bytes: &'a [u8],
    end: u64,
}

/// A value with its wire type.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Value<'a> {
    Varint(u64),
    Fixed32(u32),
    /// 64-bit value. No supported message has such a field; the decoder skips it as a wrong type.
    Fixed64,
    Bytes(Span<'a>),
    Group,
}

/// One field of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Field<'a> {
    pub(crate) number: u32,
    pub(crate) value: Value<'a>,
    message: &'static str,
    offset: u64,
}

impl Field<'_> {
    fn error(&self, defect: WireDefect) -> QpcError {
        QpcError::Wire { message: self.message, offset: self.offset, defect }
    }
}

/// Reads fields from the start of a message.
struct Reader<'a> {
    rest: &'a [u8],
    end: u64,
    message: &'static str,
}

impl<'a> Reader<'a> {
    fn position(&self) -> u64 {
        self.end.saturating_sub(to_u64(self.rest.len()))
    }

    fn error(&self, defect: WireDefect) -> QpcError {
        QpcError::Wire { message: self.message, offset: self.position(), defect }
    }

    #[inline]
    fn next_field(&mut self, budget: &mut Budget) -> Result<Option<Field<'a>>, QpcError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let offset = self.position();
        let (number, wire_type) = self.tag()?;
        let value = self.value(number, wire_type, budget)?;
        Ok(Some(Field { number, value, message: self.message, offset }))
    }

    #[inline]
    fn tag(&mut self) -> Result<(u32, u8), QpcError> {
        let tag = self.varint()?;
        let number = tag >> 3;
        if number == 0 || number > MAX_FIELD_NUMBER {
            return Err(self.error(WireDefect::FieldNumber));
        }
        let wire_type = u8::try_from(tag & 7).unwrap_or_default();
        Ok((low_u32(number), wire_type))
    }

    #[inline]
    fn value(&mut self, number: u32, wire_type: u8, budget: &mut Budget) -> Result<Value<'a>, QpcError> {
        match wire_type {
            0 => self.varint().map(Value::Varint),
            1 => self.fixed::<8>().map(|_| Value::Fixed64),
            2 => {
                let len = self.varint()?;
                let taken = usize::try_from(len).ok().and_then(|len| self.rest.split_at_checked(len));
                let (bytes, rest) = taken.ok_or_else(|| self.error(WireDefect::LengthPastEnd))?;
                self.rest = rest;
                Ok(Value::Bytes(Span { bytes, end: self.position() }))
            }
            3 => self.skip_group(number, budget).map(|()| Value::Group),
            4 => Err(self.error(WireDefect::Group)),
            5 => self.fixed::<4>().map(|bytes| Value::Fixed32(u32::from_le_bytes(bytes))),
            other => Err(self.error(WireDefect::WireType(other))),
        }
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, QpcError> {
        match self.rest.split_first() {
            Some((&byte, rest)) if byte < 0x80 => {
                self.rest = rest;
                Ok(byte.into())
            }
            _ => self.long_varint(),
        }
    }

    #[inline(never)]
    fn long_varint(&mut self) -> Result<u64, QpcError> {
        let mut value = 0_u64;
        let mut rest = self.rest;
        for shift in (0..70_u32).step_by(7) {
            let Some((&byte, tail)) = rest.split_first() else {
                return Err(self.error(WireDefect::VarintTruncated));
            };
            rest = tail;
            let bits = u64::from(byte & 0x7f);
            // Only one bit of the tenth byte is used.
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits.wrapping_shl(shift);
            if byte & 0x80 == 0 {
                self.rest = rest;
                return Ok(value);
            }
        }
        Err(self.error(WireDefect::VarintOverflow))
    }

    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], QpcError> {
        let Some((bytes, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(self.error(WireDefect::FixedTruncated));
        };
        self.rest = rest;
        Ok(*bytes)
    }

    fn skip_group(&mut self, number: u32, budget: &mut Budget) -> Result<(), QpcError> {
        budget.enter()?;
        loop {
            if self.rest.is_empty() {
                return Err(self.error(WireDefect::Group));
            }
            let (inner, wire_type) = self.tag()?;
            if wire_type == 4 {
                if inner != number {
                    return Err(self.error(WireDefect::Group));
                }
                budget.leave();
                return Ok(());
            }
            self.value(inner, wire_type, budget)?;
        }
    }
}

/// Returns the low 32 bits, because protobuf truncates larger values.
fn low_u32(value: u64) -> u32 {
    u32::try_from(value & 0xffff_ffff).unwrap_or_default()
}

/// Appends a number, seven bits a byte, the lowest first.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).unwrap_or_default() | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap_or_default());
}

/// Appends the tag of a field.
#[inline]
pub fn put_tag(out: &mut Vec<u8>, number: u32, wire_type: u8) {
    put_varint(out, (u64::from(number) << 3) | u64::from(wire_type));
}

/// Appends a field of bytes.
#[inline]
pub fn put_bytes(out: &mut Vec<u8>, number: u32, bytes: &[u8]) {
    put_tag(out, number, 2);
    put_varint(out, to_u64(bytes.len()));
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<u64, QpcError> {
        Reader { rest: bytes, end: to_u64(bytes.len()), message: "test" }.varint()
    }

    #[test]
    fn varints_round_trip_at_every_length() {
        for shift in 0..64 {
            for value in [1_u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let mut out = Vec::new();
                put_varint(&mut out, value);
                assert_eq!(read(&out), Ok(value));
            }
        }
    }

    #[test]
    fn varints_of_more_than_64_bits_are_refused() {
        let overlong = |last| [[0xff; 9].as_slice(), &[last]].concat();
        assert_eq!(read(&overlong(1)), Ok(u64::MAX));
        for last in [2, 0x81] {
            let error = read(&overlong(last)).unwrap_err();
            assert!(matches!(error, QpcError::Wire { defect: WireDefect::VarintOverflow, .. }), "{error}");
        }
        let error = read(&[0x80]).unwrap_err();
        assert!(matches!(error, QpcError::Wire { defect: WireDefect::VarintTruncated, .. }), "{error}");
    }
}
