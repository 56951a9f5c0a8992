//! Decoding and encoding of each field type, and the macro that declares messages.

/// Declares messages: name, name for errors, and for each field its number and its type. The JSON form of the
/// structures omits zero values, as protobuf does.
macro_rules! messages {
    ($(
        $(#[$of_message:meta])*
        $name:ident $label:literal {
            $($(#[$of_field:meta])* $number:literal => $field:ident: $type:ty,)*
        }
    )*) => {$(
        $(#[$of_message])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $(
                #[allow(missing_docs)] // of fields whose names say what they are
                $(#[$of_field])*
                #[serde(skip_serializing_if = "crate::wire::field::is_default")]
                pub $field: $type,
            )*
        }

        impl $crate::wire::Message for $name {
            const NAME: &'static str = $label;

            fn merge_field(
                &mut self,
                field: &$crate::wire::Field<'_>,
                budget: &mut $crate::limits::Budget,
            ) -> Result<(), $crate::QpcError> {
                match field.number {
                    $($number => $crate::wire::field::WireField::merge(&mut self.$field, field, budget),)*
                    _ => Ok(()),
                }
            }

            fn encode_fields(&self, out: &mut Vec<u8>) {
                $($crate::wire::field::WireField::encode(&self.$field, $number, out);)*
            }
        }
    )*};
}
pub(crate) use messages;

use super::{Field, Message, Reader, Span, Value, low_u32, put_bytes, put_tag, put_varint};
use crate::bytes::to_u64;
use crate::dtype::ElementType;
use crate::error::{QpcError, WireDefect};
use crate::limits::Budget;
use crate::network_desc::{Direction, TransformKind};

type Done = Result<(), QpcError>;

pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// A field type.
pub(crate) trait WireField {
    /// Merges a field of the input; a field with another wire type changes nothing.
    fn merge(&mut self, field: &Field<'_>, budget: &mut Budget) -> Done;

    /// Appends the field, unless it has its default value.
    fn encode(&self, number: u32, out: &mut Vec<u8>);
}

/// Scalars that are encoded as varints.
macro_rules! varints {
    ($($type:ty: $from:path, $into:path;)*) => {
        $(impl WireField for $type {
            fn merge(&mut self, field: &Field<'_>, _: &mut Budget) -> Done {
                if let Value::Varint(value) = field.value {
                    *self = $from(value);
                }
                Ok(())
            }

            fn encode(&self, number: u32, out: &mut Vec<u8>) {
                let value = $into(*self);
                if value != 0 {
                    put_tag(out, number, 0);
                    put_varint(out, value);
                }
            }
        })*
    };
}

fn int32_from(value: u64) -> i32 {
    low_u32(value).cast_signed()
}

/// Converts a number to its varint. Negative numbers take ten bytes, because protobuf sign-extends them to 64 bits.
fn int32_into(value: i32) -> u64 {
    i64::from(value).cast_unsigned()
}

const fn boolean_from(value: u64) -> bool {
    value != 0
}

fn code_from<E: From<i32>>(value: u64) -> E {
    int32_from(value).into()
}

fn code_into(code: impl Into<i32>) -> u64 {
    int32_into(code.into())
}

varints! {
    u32: low_u32, u64::from;
    u64: u64::from, u64::from;
    i32: int32_from, int32_into;
    bool: boolean_from, u64::from;
    ElementType: code_from, code_into;
    Direction: code_from, code_into;
    TransformKind: code_from, code_into;
}

impl WireField for f32 {
    fn merge(&mut self, field: &Field<'_>, _: &mut Budget) -> Done {
        if let Value::Fixed32(bits) = field.value {
            *self = f32::from_bits(bits);
        }
        Ok(())
    }

    /// Encodes the number. Only the bits of +0.0 are omitted.
    fn encode(&self, number: u32, out: &mut Vec<u8>) {
        if self.to_bits() != 0 {
            put_tag(out, number, 5);
            out.extend_from_slice(&self.to_bits().to_le_bytes());
        }
    }
}

fn text<'a>(span: &Span<'a>, field: &Field<'_>) -> Result<&'a str, QpcError> {
    std::str::from_utf8(span.bytes).map_err(|_| field.error(WireDefect::NotUtf8(field.number)))
}

impl WireField for String {
    fn merge(&mut self, field: &Field<'_>, budget: &mut Budget) -> Done {
        if let Value::Bytes(span) = field.value {
            budget.charge(span.bytes.len())?;
            text(&span, field)?.clone_into(self);
        }
        Ok(())
    }

    fn encode(&self, number: u32, out: &mut Vec<u8>) {
        if !self.is_empty() {
            put_bytes(out, number, self.as_bytes());
        }
    }
}

impl WireField for Vec<String> {
    fn merge(&mut self, field: &Field<'_>, budget: &mut Budget) -> Done {
        if let Value::Bytes(span) = field.value {
            budget.charge_value::<String>()?;
            budget.charge(span.bytes.len())?;
            self.push(text(&span, field)?.to_owned());
        }
        Ok(())
    }

    fn encode(&self, number: u32, out: &mut Vec<u8>) {
        for item in self {
            put_bytes(out, number, item.as_bytes());
        }
    }
}

/// Repeated scalars: written packed, read in either form.
macro_rules! repeated_varints {
    ($($type:ty: $from:path, $into:path;)*) => {
        $(impl WireField for Vec<$type> {
            fn merge(&mut self, field: &Field<'_>, budget: &mut Budget) -> Done {
                match field.value {
                    Value::Varint(value) => {
                        budget.charge_value::<$type>()?;
                        self.push($from(value));
                    }
                    Value::Bytes(span) => {
                        let mut packed = Reader { rest: span.bytes, end: span.end, message: field.message };
                        // Every varint ends with a byte below 0x80.
                        let count = span.bytes.iter().filter(|&&byte| byte < 0x80).count();
                        budget.charge(count.saturating_mul(size_of::<$type>()))?;
                        self.reserve(count);
                        while !packed.rest.is_empty() {
                            self.push($from(packed.varint()?));
                        }
                    }
                    _ => {}
                }
                Ok(())
            }

            fn encode(&self, number: u32, out: &mut Vec<u8>) {
                if self.is_empty() {
                    return;
                }
                let mut packed = Vec::with_capacity(self.len());
                for &item in self {
                    put_varint(&mut packed, $into(item));
                }
                put_bytes(out, number, &packed);
            }
        })*
    };
}

repeated_varints! {
    u32: low_u32, u64::from;
    i32: int32_from, int32_into;
}

/// Messages as fields. A message is always written, even if it is empty, because readers test its presence.
impl<M: Message> WireField for M {
    fn merge(&mut self, field: &Field<'_>, budget: &mut Budget) -> Done {
        match &field.value {
            Value::Bytes(span) => super::merge(self, span, budget),
            _ => Ok(()),
        }
    }

    fn encode(&self, number: u32, out: &mut Vec<u8>) {
        let mut body = Vec::new();
        self.encode_fields(&mut body);
        put_tag(out, number, 2);
        put_varint(out, to_u64(body.len()));
        out.append(&mut body);
    }
}

impl<M: Message> WireField for Option<M> {
    fn merge(&mut self, field: &Field<'_>, budget: &mut Budget) -> Done {
        match &field.value {
            Value::Bytes(span) => super::merge(self.get_or_insert_default(), span, budget),
            _ => Ok(()),
        }
    }

    fn encode(&self, number: u32, out: &mut Vec<u8>) {
        if let Some(message) = self {
            message.encode(number, out);
        }
    }
}

impl<M: Message> WireField for Vec<M> {
    fn merge(&mut self, field: &Field<'_>, budget: &mut Budget) -> Done {
        if let Value::Bytes(span) = &field.value {
            budget.charge_value::<M>()?;
            if self.is_empty() {
                // Most lists have one element; the usual first step of four would cost most of the decoding time.
                self.reserve_exact(1);
            }
            self.push(M::default());
            if let Some(message) = self.last_mut() {
                super::merge(message, span, budget)?;
            }
        }
        Ok(())
    }

    fn encode(&self, number: u32, out: &mut Vec<u8>) {
        for item in self {
            item.encode(number, out);
        }
    }
}
