//! Bytes as text.

/// Converts bytes to text with two lower-case digits each.
pub(super) fn encode(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|&byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_of_bytes_has_two_digits_for_each() {
        assert_eq!(encode(&[0x0F, 0xA0]), "0fa0");
        for byte in 0..=u8::MAX {
            assert_eq!(u8::from_str_radix(&encode(&[byte]), 16), Ok(byte));
        }
    }
}
