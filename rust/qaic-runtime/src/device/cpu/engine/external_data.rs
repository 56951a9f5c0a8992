//! Refuses graphs that reference data outside of their container.
//!
//! A tensor of an ONNX graph may reference elements in another file. In the graph of a container, only the
//! initializers that the plan lists may do so; the engine receives them from `constants.bin`. Any other
//! reference is refused before the engine receives the graph. The reason is that onnxruntime 1.22 opens
//! absolute paths regardless of the configured folder, and that engines have a special name for elements at
//! an address of the process.
//!
//! The graph is parsed as a protobuf message; the field numbers are those of `onnx.proto`.

use std::collections::HashSet;

use qaic_qpc::names;
use qaic_qpc::plan::Plan;

use super::protobuf::{Fields, Value};

/// Maximum depth of nested messages, as in other protobuf readers.
const DEEPEST: usize = 100;
/// `TensorProto.EXTERNAL`.
const EXTERNAL: u64 = 1;

/// Checks a serialized graph against its plan.
pub(super) fn check(graph: &[u8], plan: &Plan) -> Result<(), String> {
    let tensors = plan.initializers.iter().filter(|initializer| initializer.layout.is_none());
    let listed = tensors.map(|initializer| initializer.name.as_bytes()).collect();
    ReferenceCheck { listed }.message(graph, Kind::Model, 0)
}

/// Message types of a model that can contain tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Model,
    MainGraph,
    InnerGraph,
    Node,
    Attribute,
    SparseTensor,
    Function,
    Training,
    /// An initializer of the main graph.
    Initializer,
    /// Any other tensor.
    Tensor,
}

impl Kind {
    /// Returns the kind of message in a field of this message; `None` if it cannot contain a tensor.
    const fn of_field(self, number: u32) -> Option<Self> {
        Some(match (self, number) {
            (Self::Model, 7) => Self::MainGraph,
            (Self::Model, 20) => Self::Training,
            (Self::Model, 25) => Self::Function,
            (Self::Training, 1 | 2) | (Self::Attribute, 6 | 11) => Self::InnerGraph,
            (Self::MainGraph | Self::InnerGraph, 1) | (Self::Function, 7) => Self::Node,
            (Self::Node, 5) | (Self::Function, 11) => Self::Attribute,
            (Self::MainGraph, 5) => Self::Initializer,
            (Self::InnerGraph, 5) | (Self::Attribute, 5 | 10) | (Self::SparseTensor, 1 | 2) => Self::Tensor,
            (Self::MainGraph | Self::InnerGraph, 15) | (Self::Attribute, 22 | 23) => Self::SparseTensor,
            _ => return None,
        })
    }
}

struct ReferenceCheck<'a> {
    /// Names of the initializers that the engine receives.
    listed: HashSet<&'a [u8]>,
}

impl ReferenceCheck<'_> {
    fn message(&self, bytes: &[u8], kind: Kind, depth: usize) -> Result<(), String> {
        if depth > DEEPEST {
            return Err(format!(
                "the graph is not an ONNX model: messages are nested more than {DEEPEST} deep"
            ));
        }
        if matches!(kind, Kind::Initializer | Kind::Tensor) {
            return self.tensor(bytes, kind);
        }
        for field in Fields(bytes) {
            let (number, value) = field?;
            if let (Some(inner), Value::Bytes(bytes)) = (kind.of_field(number), value) {
                self.message(bytes, inner, depth + 1)?;
            }
        }
        Ok(())
    }

    fn tensor(&self, bytes: &[u8], kind: Kind) -> Result<(), String> {
        let mut name: &[u8] = b"";
        let mut is_external = false;
        let mut location: &[u8] = b"";
        for field in Fields(bytes) {
            match field? {
                (8, Value::Bytes(bytes)) => name = bytes,
                (13, Value::Bytes(entry)) => {
                    is_external = true;
                    let (key, value) = key_and_value(entry)?;
                    if key == b"location" {
                        location = value;
                    }
                }
                (14, Value::Varint(place)) => is_external |= place == EXTERNAL,
                _ => {}
            }
        }
        let is_given = kind == Kind::Initializer
            && self.listed.contains(name)
            && location == names::CONSTANTS.as_bytes();
        if is_external && !is_given {
            return Err(format!(
                "tensor `{}` has external data in \"{}\"; the data of a program are the initializers of its plan, in {}",
                String::from_utf8_lossy(name).escape_debug(),
                String::from_utf8_lossy(location).escape_debug(),
                names::CONSTANTS,
            ));
        }
        Ok(())
    }
}

/// The two texts of a `StringStringEntryProto`.
fn key_and_value(entry: &[u8]) -> Result<(&[u8], &[u8]), String> {
    let (mut key, mut value): (&[u8], &[u8]) = (b"", b"");
    for field in Fields(entry) {
        match field? {
            (1, Value::Bytes(bytes)) => key = bytes,
            (2, Value::Bytes(bytes)) => value = bytes,
            _ => {}
        }
    }
    Ok((key, value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A field that holds bytes.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        // Two bytes of a tag and two of a length, which may be longer than necessary.
        let [length, high] = [bytes.len() & 0x7f, bytes.len() >> 7].map(|part| u8::try_from(part).unwrap());
        [&[(number & 0x0f) << 3 | 0x82, number >> 4, length | 0x80, high], bytes].concat()
    }

    fn tensor(name: &str, location: &str) -> Vec<u8> {
        let entry = [field(1, b"location"), field(2, location.as_bytes())].concat();
        [field(8, name.as_bytes()), field(13, &entry), vec![14 << 3, 1]].concat()
    }

    fn checked(graph: &[u8]) -> Result<(), String> {
        ReferenceCheck { listed: HashSet::from([&b"w"[..]]) }.message(graph, Kind::Model, 0)
    }

    /// Places of a tensor in a model, as the numbers of the fields on the way to it.
    const PLACES: [&[u8]; 12] = [
        &[7, 1, 5, 5],
        &[7, 1, 5, 10],
        &[7, 1, 5, 22, 1],
        &[7, 1, 5, 23, 2],
        &[7, 1, 5, 6, 5],
        &[7, 1, 5, 11, 1, 5, 5],
        &[7, 1, 5, 6, 15, 1],
        &[7, 15, 2],
        &[20, 1, 5],
        &[20, 2, 15, 1],
        &[25, 7, 5, 5],
        &[25, 11, 5],
    ];

    fn inside(place: &[u8], innermost: Vec<u8>) -> Vec<u8> {
        place.iter().rev().fold(innermost, |bytes, &number| field(number, &bytes))
    }

    #[test]
    fn graph_with_listed_initializers_is_accepted() {
        checked(&inside(&[7, 5], tensor("w", "constants.bin"))).unwrap();
        checked(&inside(&[7, 5], field(8, b"inside"))).unwrap();
        checked(&[]).unwrap();
    }

    #[test]
    fn graph_with_other_external_data_is_refused_with_its_name() {
        for location in ["/etc/passwd", "data.bin", "./constants.bin", "*/_ORT_MEM_ADDR_/*", ""] {
            let message = checked(&inside(&[7, 5], tensor("w", location))).unwrap_err();
            assert!(message.contains("`w`") && message.contains(&format!("\"{location}\"")), "{message}");
        }
        assert!(checked(&inside(&[7, 5], tensor("v", "constants.bin"))).is_err());
        for place in PLACES {
            assert!(checked(&inside(place, tensor("w", "constants.bin"))).is_err(), "{place:?}");
        }
    }

    #[test]
    fn graph_with_half_of_the_external_data_fields_is_refused() {
        let location = field(13, &[field(1, b"location"), field(2, b"/etc/passwd")].concat());
        // Readers join a tensor that is written in two parts.
        for half in [location, vec![14 << 3, 1]] {
            assert!(checked(&inside(&[7, 1, 5, 5], half.clone())).is_err());
            assert!(checked(&inside(&[7, 5], [field(8, b"w"), half].concat())).is_err());
        }
    }

    #[test]
    fn graph_with_ambiguous_encoding_is_refused() {
        // A group, a field number beyond 32 bits, field 0, a length past the end, an unterminated number.
        for bytes in [&[0x3b, 0x3c][..], &[0xba, 0x80, 0x80, 0x80, 0x10, 0], &[2, 0], &[0x3a, 1], &[0x80]] {
            assert!(checked(bytes).is_err(), "{bytes:?}");
        }
        let deep = (0..60).fold(Vec::new(), |bytes, _| inside(&[1, 5, 6], bytes));
        assert!(checked(&inside(&[7], deep)).unwrap_err().contains("are nested"));
    }

    proptest! {
        #[test]
        fn graph_of_any_bytes_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), place in 0..PLACES.len()) {
            let _ = checked(&bytes);
            let _ = checked(&inside(PLACES[place], bytes));
        }
    }
}
