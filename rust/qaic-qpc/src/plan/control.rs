//! The control buffer of a program, through which the host describes an inference to a card.
//!
//! Little-endian: 0 magic, 4 number of the set of shapes, 8 flags, 12 program, 16 activation (u32 each), 24 inference
//! (u64). A buffer of zeros contains no settings.

use crate::bytes::{u32_at, u64_at};

/// Number of bytes that are read from a control buffer.
pub const CONTROL_BYTES: usize = 64;

const MAGIC: u32 = 0x5143_4F43;
const MEASURE: u32 = 1;

/// The host's settings of an inference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// Index of the set of shapes in `allowed_shapes`.
    pub variant: u32,
    /// True if the inference is measured.
    pub is_measured: bool,
    /// Number of the inference's program.
    pub program: u32,
    /// Number of the activation in the program.
    pub activation: u32,
    /// Number of the inference in the program.
    pub inference: u64,
}

impl Control {
    /// Returns the contents of a control buffer.
    pub fn encode(&self) -> [u8; CONTROL_BYTES] {
        let flags = if self.is_measured { MEASURE } else { 0 };
        let words = [MAGIC, self.variant, flags, self.program, self.activation, 0];
        let bytes = words.into_iter().flat_map(u32::to_le_bytes).chain(self.inference.to_le_bytes());
        let mut encoded = [0; CONTROL_BYTES];
        for (to, from) in encoded.iter_mut().zip(bytes) {
            *to = from;
        }
        encoded
    }

    /// Decodes a control buffer; `None` if the bytes have another format. Bytes after the end of a short buffer count
    /// as zero.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut padded = [0; CONTROL_BYTES];
        padded.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        let word = |at| u32_at(&padded, at).unwrap_or_default();
        match word(0) {
            0 => Some(Self::default()),
            MAGIC => Some(Self {
                variant: word(4),
                is_measured: word(8) & MEASURE != 0,
                program: word(12),
                activation: word(16),
                inference: u64_at(&padded, 24).unwrap_or_default(),
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_fields_are_where_they_are_said_to_be() {
        let mut bytes = [0; CONTROL_BYTES];
        assert_eq!(Control::decode(&bytes), Some(Control::default()));
        bytes[..17].copy_from_slice(&[0x43, 0x4F, 0x43, 0x51, 3, 1, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 5]);
        bytes[24..32].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let inference = 0x0807_0605_0403_0201;
        let control = Control { variant: 259, is_measured: true, program: 4, activation: 5, inference };
        assert_eq!(Control::decode(&bytes), Some(control));
        assert_eq!(control.encode(), bytes);
        bytes[8] = 2;
        assert!(!Control::decode(&bytes).unwrap().is_measured);
        bytes[0] = 0x44;
        assert_eq!(Control::decode(&bytes), None);
    }

    #[test]
    fn control_of_a_short_buffer_is_read_as_if_zeros_followed() {
        let control = Control { variant: 2, is_measured: true, program: 9, ..Control::default() };
        assert_eq!(Control::decode(&control.encode()[..16]), Some(control));
        assert_eq!(Control::decode(&[]), Some(Control::default()));
        assert_eq!(Control::decode(b"sp_"), None);
    }
}
