//! Compares the wire codec with prost in both directions: decoded messages are equal, and prost reads encoded
//! messages.

mod messages;

use messages::canonical;
use proptest::prelude::*;
use prost::Message;
use qaic_qpc::{IoDesc, Limits, NetworkDesc};

use super::generate;

fn limits() -> Limits {
    Limits::default()
}

proptest! {
    #[test]
    fn network_descriptors_mean_the_same_to_both(network in generate::network_desc()) {
        let theirs = messages::NetworkDesc::decode(network.encode().as_slice()).unwrap();
        prop_assert_eq!(canonical(&theirs), canonical(&network));
        let again = NetworkDesc::decode(&theirs.encode_to_vec(), &limits()).unwrap();
        prop_assert_eq!(canonical(&again), canonical(&network));
        prop_assert_eq!(theirs.encode_to_vec(), network.encode());
    }

    #[test]
    fn io_descs_mean_the_same_to_both(network in generate::network_desc()) {
        let Ok(ours) = IoDesc::from_network(&network) else { return Ok(()) };
        let theirs = messages::IoDesc::decode(ours.encode().as_slice()).unwrap();
        prop_assert_eq!(canonical(&theirs), canonical(&ours));
        prop_assert_eq!(theirs.encode_to_vec(), ours.encode());
    }

    #[test]
    fn unknown_fields_are_skipped_by_both(
        network in generate::network_desc(),
        number in 19..10_000_u32,
        varint: u64,
        text in "\\PC{0,10}",
    ) {
        let mut bytes = network.encode();
        prost::encoding::uint64::encode(number, &varint, &mut bytes);
        prost::encoding::string::encode(number, &text, &mut bytes);
        prost::encoding::fixed64::encode(number, &varint, &mut bytes);
        prost::encoding::float::encode(number, &1.5, &mut bytes);
        prost::encoding::encode_key(number, prost::encoding::WireType::StartGroup, &mut bytes);
        prost::encoding::uint64::encode(1, &varint, &mut bytes);
        prost::encoding::encode_key(number, prost::encoding::WireType::EndGroup, &mut bytes);
        prop_assert_eq!(&NetworkDesc::decode(&bytes, &limits()).unwrap(), &network);
        prop_assert_eq!(canonical(&messages::NetworkDesc::decode(bytes.as_slice()).unwrap()), canonical(&network));
    }

    #[test]
    fn concatenation_merges_as_prost_merges(a in generate::network_desc(), b in generate::network_desc()) {
        let bytes = [a.encode(), b.encode()].concat();
        let theirs = messages::NetworkDesc::decode(bytes.as_slice()).unwrap();
        prop_assert_eq!(canonical(&NetworkDesc::decode(&bytes, &limits()).unwrap()), canonical(&theirs));
    }

    #[test]
    fn damaged_bytes_that_prost_reads_are_read_the_same(
        network in generate::network_desc(),
        at: prop::sample::Index,
        value: u8,
    ) {
        let mut bytes = network.encode();
        prop_assume!(!bytes.is_empty());
        let at = at.index(bytes.len());
        bytes[at] = value;
        if let Ok(theirs) = messages::NetworkDesc::decode(bytes.as_slice()) {
            prop_assert_eq!(canonical(&NetworkDesc::decode(&bytes, &limits()).unwrap()), canonical(&theirs));
        }
    }
}

/// The two fields with repeated scalars, in the form without packing.
#[derive(Clone, PartialEq, Message)]
struct Unpacked {
    #[prost(uint32, repeated, packed = "false", tag = "10")]
    thread_groups: Vec<u32>,
    #[prost(uint32, repeated, packed = "false", tag = "17")]
    cluster_offsets: Vec<u32>,
}

#[test]
fn repeated_scalars_are_read_packed_and_unpacked() {
    let unpacked = Unpacked { thread_groups: vec![0, 300, u32::MAX], cluster_offsets: vec![7, 0] };
    let mut bytes = unpacked.encode_to_vec();
    let decoded = NetworkDesc::decode(&bytes, &limits()).unwrap();
    assert_eq!(decoded.thread_groups, unpacked.thread_groups);
    assert_eq!(decoded.cluster_offsets, unpacked.cluster_offsets);
    // Both forms in one message are concatenated.
    bytes.extend(decoded.encode());
    assert_eq!(
        NetworkDesc::decode(&bytes, &limits()).unwrap().thread_groups,
        [0, 300, u32::MAX, 0, 300, u32::MAX]
    );
}

#[test]
fn negative_numbers_take_ten_bytes_as_protobuf_demands() {
    let network = NetworkDesc { batch_size: -1, ..NetworkDesc::default() };
    assert_eq!(network.encode(), [&[0x70][..], &[0xff; 9], &[0x01]].concat());
}

#[test]
fn only_the_bits_of_zero_are_left_out() {
    for (value, expected) in [(0.0, &[][..]), (-0.0, &[0x15, 0, 0, 0, 0x80])] {
        let mut network = NetworkDesc::default();
        network.inputs.push(qaic_qpc::IoBinding::default());
        network.inputs[0].io_initial.qscale = value;
        let bytes = network.encode();
        assert!(
            bytes.ends_with(&[&[0x12, u8::try_from(expected.len()).unwrap()], expected, &[0x1a, 0]].concat())
        );
        let decoded = NetworkDesc::decode(&bytes, &limits()).unwrap();
        assert_eq!(decoded.inputs[0].io_initial.qscale.to_bits(), value.to_bits());
    }
}

#[test]
fn known_fields_of_another_wire_type_are_unknown() {
    // A rule of protobuf that prost violates, because it refuses the message: field 1 as text, then as a number.
    let bytes = [0x0a, 1, b'x', 0x08, 9];
    assert_eq!(NetworkDesc::decode(&bytes, &limits()).unwrap().major_version, 9);
}
