//! The fields of an ONNX file, which is a protobuf message.

/// Value of a field.
#[derive(Clone, Copy, Debug)]
pub(in crate::device::cpu) enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// Four or eight bytes.
    Fixed,
}

/// Iterates over the fields of a message: their numbers and values. Ends after an error. The parser is stricter than
/// necessary: it refuses input that two readers might interpret differently.
#[derive(Clone, Debug)]
pub(in crate::device::cpu) struct Fields<'a>(pub(in crate::device::cpu) &'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn bytes(&mut self, count: u64) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(usize::try_from(count).ok()?)?;
        self.0 = rest;
        Some(bytes)
    }

    fn field(&mut self) -> Option<(u32, Value<'a>)> {
        let tag = u32::try_from(self.varint()?).ok()?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => self.bytes(8).map(|_| Value::Fixed)?,
            2 => {
                let count = self.varint()?;
                Value::Bytes(self.bytes(count)?)
            }
            5 => self.bytes(4).map(|_| Value::Fixed)?,
            // Groups, which ONNX does not use.
            _ => return None,
        };
        (tag >> 3 != 0).then_some((tag >> 3, value))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u32, Value<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or_else(|| "the graph is not an ONNX model: a field that cannot be read".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use qaic_qpc::wire::put_bytes;

    use super::*;

    proptest! {
        #[test]
        fn appended_field_is_read_back(number in 1..1u32 << 29, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut message = vec![7 << 3, 1];
            put_bytes(&mut message, number, &bytes);
            let fields: Vec<_> = Fields(&message).map(Result::unwrap).collect();
            prop_assert!(matches!(fields[0], (7, Value::Varint(1))));
            prop_assert!(matches!(fields[1], (found, Value::Bytes(read)) if found == number && read == bytes));
            prop_assert_eq!(fields.len(), 2);
        }
    }
}
