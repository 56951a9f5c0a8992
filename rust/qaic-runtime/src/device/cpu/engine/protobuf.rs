//! The fields of an ONNX file, which is a protobuf message.

/// What a field holds.
#[derive(Clone, Copy, Debug)]
pub(in crate::device::cpu) enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// Four or eight bytes.
    Fixed,
}

/// The fields of a message, numbers first; ends after an error. Stricter than readers need to be: what two of them might
/// read in two ways is refused.
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
            // Groups, which ONNX has none of.
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
