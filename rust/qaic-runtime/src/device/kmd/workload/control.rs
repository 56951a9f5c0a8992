//! What the host tells about an inference, in the control buffer of a program.
//!
//! Little-endian: 0 magic, 4 number of the set of shapes, 8 flags, 12 program, 16 activation (u32 each), 24 inference (u64).
//! A buffer of zeros is that of a host which has nothing to say.

use crate::profiling::Identity;

/// Bytes that are read of the buffer.
pub(super) const BYTES: usize = 64;
const MAGIC: u32 = 0x5143_4F43;
const MEASURE: u32 = 1;

/// What the host tells about an inference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Control {
    /// Set of shapes: an entry of `allowed_shapes`.
    pub(super) variant: usize,
    /// Whether it is to be measured.
    pub(super) is_measured: bool,
    /// Whose it is.
    pub(super) identity: Identity,
}

impl Control {
    /// `None` where it is something else.
    pub(super) fn decode(bytes: &[u8; BYTES]) -> Option<Self> {
        let word =
            |at: usize| bytes[at..].first_chunk().map_or(0, |word: &[u8; 4]| u32::from_le_bytes(*word));
        match word(0) {
            0 => Some(Self::default()),
            MAGIC => Some(Self {
                variant: word(4) as usize,
                is_measured: word(8) & MEASURE != 0,
                identity: Identity {
                    program: word(12),
                    activation: word(16),
                    inference: u64::from(word(24)) | u64::from(word(28)) << 32,
                },
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_they_are_said_to_be() {
        let mut bytes = [0; BYTES];
        assert_eq!(Control::decode(&bytes), Some(Control::default()));
        bytes[..17].copy_from_slice(&[0x43, 0x4F, 0x43, 0x51, 3, 1, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 5]);
        bytes[24..32].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        let identity = Identity { program: 4, activation: 5, inference: 0x0807_0605_0403_0201 };
        assert_eq!(Control::decode(&bytes), Some(Control { variant: 259, is_measured: true, identity }));
        bytes[8] = 2;
        assert!(!Control::decode(&bytes).unwrap().is_measured);
        bytes[0] = 0x44;
        assert_eq!(Control::decode(&bytes), None);
    }
}
