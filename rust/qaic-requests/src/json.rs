//! Numbers in JSON.

use crate::{MOST_FIELDS, MOST_TENSORS, RequestError, Split, append};

/// Depth of the objects that describe tensors: an object in a list in the object of the request.
const TENSOR_DEPTH: usize = 3;
/// Maximum number of dimensions of a nested list of numbers.
const MOST_DEPTH: usize = 64;
/// Number of decimal digits that always fit an `i64`.
const SAFE_DIGITS: usize = 18;

/// Splits a body into its envelope and the lists under the key `data` of its tensors.
///
/// A list is replaced by `[n]`, where `n` is the position of its place. Nothing else at that position of a tensor begins
/// with `[`. Text that is not JSON stays as it is, so that the parser of the envelope refuses it.
///
/// # Errors
///
/// The envelope has more than `most` bytes or 32,768 values, there are more than 4,096 lists, or a key of a tensor is
/// escaped.
pub fn split(body: &[u8], most: usize) -> Result<Split, RequestError> {
    let mut split = Split { envelope: Vec::new(), places: Vec::new(), raw: Vec::new() };
    let (mut depth, mut copied, mut at, mut values) = (0_usize, 0, 0, 0);
    let mut kinds = [0_u8; TENSOR_DEPTH + 1];
    let mut is_key = false;
    while let Some(&byte) = body.get(at) {
        // A general parser creates an object for each value.
        values += usize::from(matches!(byte, b'{' | b'[' | b','));
        if values > MOST_FIELDS {
            return Err(RequestError::TooMany(MOST_FIELDS));
        }
        match byte {
            b'{' | b'[' => {
                depth += 1;
                if let Some(kind) = kinds.get_mut(depth) {
                    *kind = byte;
                }
                is_key = true;
            }
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                is_key = false;
            }
            b',' => is_key = true,
            b'"' => {
                let end = string_end(body, at);
                let key = body.get(at + 1..end.saturating_sub(1)).unwrap_or_default();
                let is_of_tensor = is_key && depth == TENSOR_DEPTH && kinds == [0, b'{', b'[', b'{'];
                is_key = false;
                if is_of_tensor && key.contains(&b'\\') {
                    return Err(RequestError::EscapedKey);
                }
                if is_of_tensor && key == b"data" {
                    let colon = skip_space(body, end);
                    let value = skip_space(body, colon + 1);
                    if body.get(colon) == Some(&b':') && body.get(value) == Some(&b'[') {
                        let after = list_end(body, value);
                        if split.places.len() == MOST_TENSORS {
                            return Err(RequestError::TooMany(MOST_TENSORS));
                        }
                        append(&mut split.envelope, &body[copied..value], most)?;
                        append(&mut split.envelope, format!("[{}]", split.places.len()).as_bytes(), most)?;
                        split.places.push(value..after);
                        (copied, at) = (after, after);
                        continue;
                    }
                }
                at = end;
                continue;
            }
            _ => {}
        }
        at += 1;
    }
    append(&mut split.envelope, &body[copied..], most)?;
    Ok(split)
}

/// Returns the position after the string that begins at `begin`, or the end of the body.
fn string_end(body: &[u8], begin: usize) -> usize {
    let mut at = begin + 1;
    while let Some(&byte) = body.get(at) {
        match byte {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    body.len()
}

/// Returns the position after the list that begins at `begin`, or the end of the body.
fn list_end(body: &[u8], begin: usize) -> usize {
    let (mut at, mut depth) = (begin, 0_usize);
    while let Some(&byte) = body.get(at) {
        at += 1;
        match byte {
            b'[' => depth += 1,
            b']' if depth == 1 => return at,
            b']' => depth -= 1,
            b'"' => at = string_end(body, at - 1),
            _ => {}
        }
    }
    body.len()
}

fn skip_space(text: &[u8], mut at: usize) -> usize {
    while matches!(text.get(at), Some(b' ' | b'\t' | b'\n' | b'\r')) {
        at += 1;
    }
    at
}

/// Types that can represent all numbers of a list, from the narrowest to the widest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// `true` and `false` only.
    Bool,
    /// Signed integers of 64 bits.
    Signed,
    /// Unsigned integers of 64 bits, at least one of which needs all bits.
    Unsigned,
    /// Other numbers.
    Float,
}

/// Decodes a list, nested or flat, into the bytes of its numbers in the order of this machine.
///
/// Floats have 8 bytes, or 4 if `is_single`; whole numbers 8; `true` and `false` 1.
///
/// # Errors
///
/// The list does not have `expected` numbers, or is not a regular array of numbers. Allocations never exceed the
/// number of values that the text can contain.
pub fn numbers(text: &[u8], expected: usize, is_single: bool) -> Result<(Vec<u8>, Kind), RequestError> {
    let size = if is_single { 4 } else { 8 };
    // A number and its separator have at least two bytes.
    let capacity = if expected <= text.len() / 2 { expected * size } else { 0 };
    let mut bytes = Vec::with_capacity(capacity);
    let (found, kind) = examine(text, |token| {
        if bytes.len() < capacity {
            let number = float(token);
            #[allow(clippy::cast_possible_truncation)]
            // numpy rounds the number in the same way after Python's parser has read it.
            if is_single {
                bytes.extend_from_slice(&(number as f32).to_ne_bytes());
            } else {
                bytes.extend_from_slice(&number.to_ne_bytes());
            }
        }
    })?;
    if found != expected {
        return Err(RequestError::Count { found });
    }
    if kind != Kind::Float {
        bytes.clear();
        for token in tokens(text) {
            match kind {
                Kind::Bool => bytes.push(u8::from(token == b"true")),
                Kind::Unsigned => bytes.extend_from_slice(&whole::<u64>(token).to_ne_bytes()),
                _ => bytes.extend_from_slice(&whole::<i64>(token).to_ne_bytes()),
            }
        }
    }
    Ok((bytes, kind))
}

/// Checks a list, counts its numbers, and passes each to `take`.
fn examine(text: &[u8], mut take: impl FnMut(&[u8])) -> Result<(usize, Kind), RequestError> {
    // Number of elements of each open list; sizes of closed lists by depth.
    let mut open: Vec<usize> = Vec::new();
    let mut sizes: Vec<Option<usize>> = Vec::new();
    let (mut found, mut kind, mut has_sign) = (0, Kind::Bool, false);
    let (mut at, mut leaf_depth, mut is_value_next) = (0, None, true);
    loop {
        at = skip_space(text, at);
        let byte = *text.get(at).ok_or(RequestError::NotJson)?;
        match byte {
            b'[' if is_value_next => {
                if open.len() == MOST_DEPTH {
                    return Err(RequestError::NotNumbers);
                }
                if leaf_depth == Some(open.len()) {
                    return Err(RequestError::Ragged);
                }
                open.push(0);
                if sizes.len() < open.len() {
                    sizes.push(None);
                }
                at = skip_space(text, at + 1);
                is_value_next = text.get(at) != Some(&b']');
            }
            b']' if !is_value_next => {
                let size = open.pop().ok_or(RequestError::NotJson)?;
                if *sizes[open.len()].get_or_insert(size) != size {
                    return Err(RequestError::Ragged);
                }
                at += 1;
                match open.last_mut() {
                    Some(parent) => *parent += 1,
                    None if skip_space(text, at) == text.len() => return Ok((found, kind)),
                    None => return Err(RequestError::NotJson),
                }
            }
            b',' if !is_value_next && !open.is_empty() => {
                (at, is_value_next) = (at + 1, true);
            }
            b'-' | b'0'..=b'9' | b't' | b'f' if is_value_next && !open.is_empty() => {
                if *leaf_depth.get_or_insert(open.len()) != open.len() || sizes.len() > open.len() {
                    return Err(RequestError::Ragged);
                }
                let (length, found_kind) = classify(&text[at..])?;
                take(&text[at..at + length]);
                has_sign |= byte == b'-';
                kind = kind.max(found_kind);
                if kind == Kind::Unsigned && has_sign {
                    kind = Kind::Float;
                }
                if let Some(count) = open.last_mut() {
                    *count += 1;
                }
                found += 1;
                at += length;
                is_value_next = false;
            }
            b'"' | b'n' | b'{' if is_value_next => return Err(RequestError::NotNumbers),
            _ => return Err(RequestError::NotJson),
        }
    }
}

/// Yields the numbers of a list that was examined.
fn tokens(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| !is_of_token(*byte)).filter(|token| !token.is_empty())
}

fn is_of_token(byte: u8) -> bool {
    matches!(byte, b'-' | b'+' | b'.' | b'0'..=b'9' | b'a'..=b'z' | b'E')
}

/// Returns the length of the number at the beginning of a text, and the type that it needs.
fn classify(text: &[u8]) -> Result<(usize, Kind), RequestError> {
    if let Some(word) = [&b"true"[..], b"false"].into_iter().find(|word| text.starts_with(word)) {
        return Ok((word.len(), Kind::Bool));
    }
    let begin = usize::from(text.first() == Some(&b'-'));
    let whole = begin + digits_in(&text[begin..]);
    if whole == begin || (whole > begin + 1 && text[begin] == b'0') {
        return Err(RequestError::NotJson);
    }
    let mut end = whole;
    if text.get(end) == Some(&b'.') {
        end = digits_behind(text, end + 1)?;
    }
    if matches!(text.get(end), Some(b'e' | b'E')) {
        let has_sign = matches!(text.get(end + 1), Some(b'+' | b'-'));
        end = digits_behind(text, end + 1 + usize::from(has_sign))?;
    }
    let token = &text[..end];
    let kind = match whole - begin {
        _ if end != whole => Kind::Float,
        ..=SAFE_DIGITS => Kind::Signed,
        _ if parse::<i64>(token).is_some() => Kind::Signed,
        _ if parse::<u64>(token).is_some() => Kind::Unsigned,
        _ => Kind::Float,
    };
    Ok((end, kind))
}

/// Returns the position after the digits at a position; at least one digit is required.
fn digits_behind(text: &[u8], begin: usize) -> Result<usize, RequestError> {
    match digits_in(text.get(begin..).unwrap_or_default()) {
        0 => Err(RequestError::NotJson),
        count => Ok(begin + count),
    }
}

fn digits_in(text: &[u8]) -> usize {
    text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len())
}

fn parse<T: std::str::FromStr>(token: &[u8]) -> Option<T> {
    std::str::from_utf8(token).ok()?.parse().ok()
}

/// Parses an integer; `true` is 1, in lists that mix numbers and truth values.
fn whole<T: std::str::FromStr + From<bool>>(token: &[u8]) -> T {
    parse(token).unwrap_or_else(|| T::from(token == b"true"))
}

fn float(token: &[u8]) -> f64 {
    parse(token).unwrap_or_else(|| f64::from(u8::from(token == b"true")))
}

#[cfg(test)]
mod tests {
    use super::{Kind, numbers, split};
    use crate::{MOST_FIELDS, RequestError};
    use proptest::prelude::*;
    use serde_json::Value;

    fn floats(bytes: &[u8]) -> Vec<f64> {
        bytes.as_chunks().0.iter().map(|chunk| f64::from_ne_bytes(*chunk)).collect()
    }

    fn signed(bytes: &[u8]) -> Vec<i64> {
        bytes.as_chunks().0.iter().map(|chunk| i64::from_ne_bytes(*chunk)).collect()
    }

    #[test]
    fn lists_of_tensors_leave_the_envelope() {
        let body =
            br#"{"id":"\"data\":[1]","inputs":[{"data" : [[1],[2]],"name":"x"},{"data":[]}],"data":[5]}"#;
        let split = split(body, 1000).unwrap();
        let marked = br#"{"id":"\"data\":[1]","inputs":[{"data" : [0],"name":"x"},{"data":[1]}],"data":[5]}"#;
        assert_eq!(split.envelope, marked);
        let places: Vec<&[u8]> = split.places.iter().map(|place| &body[place.clone()]).collect();
        assert_eq!(places, [&b"[[1],[2]]"[..], b"[]"]);
    }

    #[test]
    fn envelopes_and_tensors_are_bounded() {
        assert_eq!(split(&[b'['; 101], 100).unwrap_err(), RequestError::EnvelopeTooLong(100));
        let many = format!("{{\"inputs\":[{}]}}", vec![r#"{"data":[]}"#; 4097].join(","));
        assert_eq!(split(many.as_bytes(), 1 << 20).unwrap_err(), RequestError::TooMany(4096));
        let values = format!("[{}1]", "[],".repeat(MOST_FIELDS / 2));
        assert_eq!(split(values.as_bytes(), 1 << 20).unwrap_err(), RequestError::TooMany(MOST_FIELDS));
        split(&values.as_bytes()[1..], 1 << 20).unwrap();
        let escaped = br#"{"inputs":[{"d\u0061ta":[7]}]}"#;
        assert_eq!(split(escaped, 1000).unwrap_err(), RequestError::EscapedKey);
    }

    #[test]
    fn kinds_give_way_as_in_numpy() {
        for (text, kind) in [
            ("[true,false]", Kind::Bool),
            ("[true,2]", Kind::Signed),
            ("[9223372036854775807]", Kind::Signed),
            ("[9223372036854775808,1]", Kind::Unsigned),
            ("[9223372036854775808,-1]", Kind::Float),
            ("[-1,9223372036854775808]", Kind::Float),
            ("[1,0.5]", Kind::Float),
            ("[1E2]", Kind::Float),
            ("[100000000000000000000000000000]", Kind::Float),
        ] {
            let count = text.matches(',').count() + 1;
            assert_eq!(numbers(text.as_bytes(), count, false).unwrap().1, kind, "{text}");
        }
    }

    #[test]
    fn what_is_no_array_of_numbers_is_refused() {
        for (text, error) in [
            ("[[1],[2,3]]", RequestError::Ragged),
            ("[1,[2]]", RequestError::Ragged),
            ("[[1],2]", RequestError::Ragged),
            ("[[1],[]]", RequestError::Ragged),
            ("[\"1\"]", RequestError::NotNumbers),
            ("[null]", RequestError::NotNumbers),
            ("[{}]", RequestError::NotNumbers),
            ("[1,]", RequestError::NotJson),
            ("[,1]", RequestError::NotJson),
            ("[1 2]", RequestError::NotJson),
            ("[01]", RequestError::NotJson),
            ("[1.]", RequestError::NotJson),
            ("[.5]", RequestError::NotJson),
            ("[+1]", RequestError::NotJson),
            ("[-]", RequestError::NotJson),
            ("[1e]", RequestError::NotJson),
            ("[truth]", RequestError::NotJson),
            ("[1", RequestError::NotJson),
            ("[1]]", RequestError::NotJson),
            ("[1]2", RequestError::NotJson),
            ("[1}", RequestError::NotJson),
            ("", RequestError::NotJson),
            ("1", RequestError::NotJson),
        ] {
            assert_eq!(numbers(text.as_bytes(), 1, false).unwrap_err(), error, "{text}");
        }
        let deep = format!("{}1{}", "[".repeat(65), "]".repeat(65));
        assert_eq!(numbers(deep.as_bytes(), 1, false).unwrap_err(), RequestError::NotNumbers);
    }

    #[test]
    fn a_count_that_differs_is_told() {
        assert_eq!(numbers(b"[[1,2],[3,4]]", 5, false).unwrap_err(), RequestError::Count { found: 4 });
        assert_eq!(numbers(b"[[], []]", 0, false).unwrap(), (Vec::new(), Kind::Bool));
    }

    proptest! {
        #[test]
        fn numbers_are_those_of_another_parser(
            rows in prop::collection::vec(prop::collection::vec(any::<f64>().prop_filter("finite", |v| v.is_finite()), 3), 0..5)
        ) {
            let text = serde_json::to_string(&rows).unwrap();
            let flat: Vec<f64> = rows.concat();
            let (bytes, kind) = numbers(text.as_bytes(), flat.len(), false).unwrap();
            if !flat.is_empty() {
                prop_assert_eq!(kind, Kind::Float);
            }
            let bits = |values: &[f64]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&floats(&bytes)), bits(&flat));
        }

        #[test]
        fn whole_numbers_are_exact(values in prop::collection::vec(any::<i64>(), 1..20)) {
            let text = serde_json::to_string(&values).unwrap();
            let (bytes, kind) = numbers(text.as_bytes(), values.len(), true).unwrap();
            prop_assert_eq!(kind, Kind::Signed);
            prop_assert_eq!(signed(&bytes), values);
        }

        #[test]
        fn any_text_is_split_without_a_panic(text in "[\\[\\]{}\":,a-d0-9 \\\\]{0,60}") {
            let split = split(text.as_bytes(), 1 << 20);
            if let Ok(split) = split {
                for place in split.places {
                    drop(numbers(&text.as_bytes()[place], 3, true));
                }
            }
        }

        #[test]
        fn an_accepted_list_is_json(text in "\\[[\\[\\]0-9eE.,+tru -]{0,12}\\]") {
            for expected in 0..8 {
                if numbers(text.as_bytes(), expected, false).is_ok() {
                    prop_assert!(serde_json::from_str::<Value>(&text).is_ok(), "{}", text);
                }
            }
        }
    }
}
