//! Bytes as text.

/// Two lower-case digits a byte.
pub(super) fn encode(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|&byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

/// Returns the bytes that [`encode`] was given; `None` if `text` is not a result of [`encode`].
pub(super) fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|pair| {
            let [high, low] = <[u8; 2]>::try_from(pair).ok()?;
            Some(digit(high)? << 4 | digit(low)?)
        })
        .collect()
}

fn digit(character: u8) -> Option<u8> {
    match character {
        b'0'..=b'9' => Some(character - b'0'),
        b'a'..=b'f' => Some(character - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn hex_of_any_bytes_round_trips(bytes: Vec<u8>) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }
    }

    #[test]
    fn decode_of_other_text_is_none() {
        assert_eq!(encode(&[0x0F, 0xA0]), "0fa0");
        for text in ["0", "0g", "AA", "0x10", "é"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }
}
