//! How each kind of field is merged and encoded, and the macro that makes a message of a table of them.
//!
//! Every module has `merge(slot, field, budget)` and `encode(number, slot, out)`.
// All kinds take their slot by reference, because the macro does not know which of them are small.
#![allow(clippy::ref_option, clippy::trivially_copy_pass_by_ref)]
// The kinds of one table share their imports.
#![allow(clippy::wildcard_imports)]

/// Implements [`crate::wire::Message`] from a table `number => field: kind`, in order of the numbers.
macro_rules! wire_message {
    ($type:ty, $name:literal, { $($number:literal => $slot:ident: $kind:ident,)* }) => {
        impl $crate::wire::Message for $type {
            const NAME: &'static str = $name;

            fn merge_field(
                &mut self,
                field: &$crate::wire::Field<'_>,
                budget: &mut $crate::limits::Budget,
            ) -> Result<(), $crate::error::QpcError> {
                match field.number {
                    $($number => $crate::wire::field::$kind::merge(&mut self.$slot, field, budget),)*
                    _ => Ok(()),
                }
            }

            fn encode_fields(&self, out: &mut Vec<u8>) {
                $($crate::wire::field::$kind::encode($number, &self.$slot, out);)*
            }
        }
    };
}
pub(crate) use wire_message;

use super::{Field, Message, Reader, Span, Value, low_u32, put_bytes, put_tag, put_varint};
use crate::bytes::to_u64;
use crate::error::{QpcError, WireDefect};
use crate::limits::Budget;

type Done = Result<(), QpcError>;

/// A scalar that the wire stores as a varint.
macro_rules! varint_field {
    ($module:ident, $type:ty, $from:expr, $into:expr) => {
        pub(crate) mod $module {
            use super::*;

            #[allow(clippy::unnecessary_wraps)] // Same shape as the fields that can fail.
            pub(crate) fn merge(slot: &mut $type, field: &Field<'_>, _: &mut Budget) -> Done {
                if let Value::Varint(value) = field.value {
                    let from: fn(u64) -> $type = $from;
                    *slot = from(value);
                }
                Ok(())
            }

            pub(crate) fn encode(number: u32, slot: &$type, out: &mut Vec<u8>) {
                let into: fn($type) -> u64 = $into;
                let value = into(*slot);
                if value != 0 {
                    put_tag(out, number, 0);
                    put_varint(out, value);
                }
            }
        }
    };
}

fn int32_from(value: u64) -> i32 {
    low_u32(value).cast_signed()
}

/// Negative numbers take ten bytes, as protobuf sign-extends them to 64 bits.
fn int32_into(value: i32) -> u64 {
    i64::from(value).cast_unsigned()
}

const fn boolean_from(value: u64) -> bool {
    value != 0
}

varint_field!(uint32, u32, low_u32, u64::from);
varint_field!(uint64, u64, u64::from, u64::from);
varint_field!(int32, i32, int32_from, int32_into);
varint_field!(boolean, bool, boolean_from, u64::from);

pub(crate) mod enumeration {
    use super::*;

    #[allow(clippy::unnecessary_wraps)] // Same shape as the fields that can fail.
    pub(crate) fn merge<E: From<i32>>(slot: &mut E, field: &Field<'_>, _: &mut Budget) -> Done {
        if let Value::Varint(value) = field.value {
            *slot = E::from(int32_from(value));
        }
        Ok(())
    }

    pub(crate) fn encode<E: Copy + Into<i32>>(number: u32, slot: &E, out: &mut Vec<u8>) {
        int32::encode(number, &(*slot).into(), out);
    }
}

pub(crate) mod float {
    use super::*;

    #[allow(clippy::unnecessary_wraps)] // Same shape as the fields that can fail.
    pub(crate) fn merge(slot: &mut f32, field: &Field<'_>, _: &mut Budget) -> Done {
        if let Value::Fixed32(bits) = field.value {
            *slot = f32::from_bits(bits);
        }
        Ok(())
    }

    /// Only the bits of +0.0 are left out.
    pub(crate) fn encode(number: u32, slot: &f32, out: &mut Vec<u8>) {
        if slot.to_bits() != 0 {
            put_tag(out, number, 5);
            out.extend_from_slice(&slot.to_bits().to_le_bytes());
        }
    }
}

fn text<'a>(span: &Span<'a>, field: &Field<'_>) -> Result<&'a str, QpcError> {
    std::str::from_utf8(span.bytes).map_err(|_| field.error(WireDefect::NotUtf8(field.number)))
}

pub(crate) mod string {
    use super::*;

    pub(crate) fn merge(slot: &mut String, field: &Field<'_>, budget: &mut Budget) -> Done {
        if let Value::Bytes(span) = field.value {
            budget.charge(span.bytes.len())?;
            text(&span, field)?.clone_into(slot);
        }
        Ok(())
    }

    pub(crate) fn encode(number: u32, slot: &str, out: &mut Vec<u8>) {
        if !slot.is_empty() {
            put_bytes(out, number, slot.as_bytes());
        }
    }
}

pub(crate) mod repeated_string {
    use super::*;

    pub(crate) fn merge(slot: &mut Vec<String>, field: &Field<'_>, budget: &mut Budget) -> Done {
        if let Value::Bytes(span) = field.value {
            budget.charge_value::<String>()?;
            budget.charge(span.bytes.len())?;
            slot.push(text(&span, field)?.to_owned());
        }
        Ok(())
    }

    pub(crate) fn encode(number: u32, slot: &[String], out: &mut Vec<u8>) {
        for item in slot {
            put_bytes(out, number, item.as_bytes());
        }
    }
}

/// A repeated scalar: packed when written, either form when read.
macro_rules! repeated_varint {
    ($module:ident, $type:ty, $from:expr, $into:expr) => {
        pub(crate) mod $module {
            use super::*;

            pub(crate) fn merge(slot: &mut Vec<$type>, field: &Field<'_>, budget: &mut Budget) -> Done {
                let from: fn(u64) -> $type = $from;
                match field.value {
                    Value::Varint(value) => {
                        budget.charge_value::<$type>()?;
                        slot.push(from(value));
                    }
                    Value::Bytes(span) => {
                        let mut packed = Reader { rest: span.bytes, end: span.end, message: field.message };
                        // Every varint ends with a byte below 0x80.
                        let count = span.bytes.iter().filter(|&&byte| byte < 0x80).count();
                        budget.charge(count.saturating_mul(size_of::<$type>()))?;
                        slot.reserve(count);
                        while !packed.rest.is_empty() {
                            slot.push(from(packed.varint()?));
                        }
                    }
                    _ => {}
                }
                Ok(())
            }

            pub(crate) fn encode(number: u32, slot: &[$type], out: &mut Vec<u8>) {
                if slot.is_empty() {
                    return;
                }
                let into: fn($type) -> u64 = $into;
                let mut packed = Vec::with_capacity(slot.len());
                for &item in slot {
                    put_varint(&mut packed, into(item));
                }
                put_bytes(out, number, &packed);
            }
        }
    };
}

repeated_varint!(repeated_uint32, u32, low_u32, u64::from);
repeated_varint!(repeated_int32, i32, int32_from, int32_into);

fn put_message<M: Message>(out: &mut Vec<u8>, number: u32, message: &M) {
    let mut body = Vec::new();
    message.encode_fields(&mut body);
    put_tag(out, number, 2);
    put_varint(out, to_u64(body.len()));
    out.append(&mut body);
}

/// A message that is always written, even if empty: its presence is what readers test.
pub(crate) mod message {
    use super::*;

    pub(crate) fn merge<M: Message>(slot: &mut M, field: &Field<'_>, budget: &mut Budget) -> Done {
        match &field.value {
            Value::Bytes(span) => crate::wire::merge(slot, span, budget),
            _ => Ok(()),
        }
    }

    pub(crate) fn encode<M: Message>(number: u32, slot: &M, out: &mut Vec<u8>) {
        put_message(out, number, slot);
    }
}

pub(crate) mod optional_message {
    use super::*;

    pub(crate) fn merge<M: Message>(slot: &mut Option<M>, field: &Field<'_>, budget: &mut Budget) -> Done {
        match &field.value {
            Value::Bytes(span) => crate::wire::merge(slot.get_or_insert_default(), span, budget),
            _ => Ok(()),
        }
    }

    pub(crate) fn encode<M: Message>(number: u32, slot: &Option<M>, out: &mut Vec<u8>) {
        if let Some(message) = slot {
            put_message(out, number, message);
        }
    }
}

pub(crate) mod repeated_message {
    use super::*;

    pub(crate) fn merge<M: Message>(slot: &mut Vec<M>, field: &Field<'_>, budget: &mut Budget) -> Done {
        if let Value::Bytes(span) = &field.value {
            budget.charge_value::<M>()?;
            if slot.is_empty() {
                // Most lists have one element; the usual first step of four would cost most of the decoding time.
                slot.reserve_exact(1);
            }
            slot.push(M::default());
            if let Some(message) = slot.last_mut() {
                crate::wire::merge(message, span, budget)?;
            }
        }
        Ok(())
    }

    pub(crate) fn encode<M: Message>(number: u32, slot: &[M], out: &mut Vec<u8>) {
        for item in slot {
            put_message(out, number, item);
        }
    }
}
