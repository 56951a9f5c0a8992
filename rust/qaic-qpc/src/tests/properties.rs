//! Round trips over random values, and robustness over random and damaged bytes.

use std::collections::BTreeMap;

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use qaic_qpc::metadata::{LocatedMetadata, Metadata};
use qaic_qpc::transform::TransferPlan;
use qaic_qpc::writer::{self, SegmentData};
use qaic_qpc::{ConstantsDesc, Container, IoDesc, Limits, NetworkDesc, QpcInfo, elf, validate};

use super::{fixture, generate};

fn payloads() -> impl Strategy<Value = BTreeMap<String, Vec<u8>>> {
    btree_map("[a-z.]{1,20}|\\PC{1,8}", vec(any::<u8>(), 0..200), 1..8)
        .prop_filter("NUL", |segments| segments.keys().all(|name| !name.contains('\0')))
}

fn check_container(
    bytes: &[u8],
    segments: &[SegmentData<'_>],
    alignment: usize,
) -> Result<(), TestCaseError> {
    let container = Container::parse(bytes, &Limits::default()).unwrap();
    prop_assert_eq!(container.segments.len(), segments.len());
    for (found, expected) in container.segments.iter().zip(segments) {
        prop_assert_eq!(&found.name, expected.name);
        prop_assert_eq!(found.payload(bytes), expected.payload);
        prop_assert_eq!(found.range.start % alignment, 0);
    }
    Ok(())
}

/// Runs all readers of a container on arbitrary bytes. The test passes if they return.
fn read_everything(bytes: &[u8]) {
    let limits = Limits { max_decoded_bytes: 16 << 20, ..Limits::default() };
    validate(bytes);
    let Ok(container) = Container::parse(bytes, &limits) else { return };
    container.constants();
    for segment in &container.segments {
        read_message(segment.payload(bytes), &limits);
        let _ = ConstantsDesc::decode(segment.payload(bytes));
        let _ = LocatedMetadata::from_elf(segment.payload(bytes), &limits);
        let _ = elf::load_image_crc(segment.payload(bytes));
        if let Ok(network) = NetworkDesc::decode(segment.payload(bytes), &limits) {
            let _ = QpcInfo::new(&container, bytes, &network);
        }
    }
}

fn read_message(bytes: &[u8], limits: &Limits) {
    let _ = IoDesc::decode(bytes, limits);
    let _ = Metadata::decode_section(bytes, limits);
    let Ok(network) = NetworkDesc::decode(bytes, limits) else { return };
    let _ = IoDesc::from_network(&network);
    let _ = network.check_allowed_shapes();
    let variants = TransferPlan::variants(&network).into_iter().flatten();
    for plan in TransferPlan::new(&network).into_iter().chain(variants) {
        let _ = plan.pack(&plan.inputs.iter().map(|input| input.user_bytes).collect::<Vec<_>>());
    }
}

proptest! {
    #[test]
    fn aligned_containers_round_trip(segments in payloads(), shift in 3..9_u32, base: u32) {
        let segments: Vec<_> = segments
            .iter()
            .map(|(name, payload)| SegmentData { name, offset: 0, payload })
            .collect();
        let mut bytes = writer::build_in_memory(&segments, 1 << shift).unwrap();
        prop_assert_eq!(bytes.len() % 8, 0);
        check_container(&bytes, &segments, 1 << shift)?;
        writer::rebase(&mut bytes, u64::from(base) << 20).unwrap();
        check_container(&bytes, &segments, 1 << shift)?;
    }

    #[test]
    fn packed_containers_round_trip(mut segments in payloads()) {
        segments.insert("network.elf".to_owned(), b"elf".to_vec());
        let segments: Vec<_> = segments
            .iter()
            .map(|(name, payload)| SegmentData { name, offset: 0, payload })
            .collect();
        let bytes = writer::build_file(&segments).unwrap();
        let names: usize = segments.iter().map(|segment| segment.name.len() + 1).sum();
        let payload: usize = segments.iter().map(|segment| segment.payload.len()).sum();
        prop_assert_eq!(bytes.len(), 40 + 32 * segments.len() + names + payload);
        check_container(&bytes, &segments, 1)?;
    }

    #[test]
    fn network_descriptors_round_trip(network in generate::network_desc()) {
        let bytes = network.encode();
        let decoded = NetworkDesc::decode(&bytes, &Limits::default()).unwrap();
        prop_assert_eq!(&decoded, &network);
        prop_assert_eq!(decoded.encode(), bytes);
        let json = serde_json::to_string(&network).unwrap();
        prop_assert_eq!(serde_json::from_str::<NetworkDesc>(&json).unwrap(), network);
    }

    #[test]
    fn metadata_round_trips(metadata in generate::metadata()) {
        let bytes = metadata.encode_flatbuffer();
        prop_assert_eq!(&Metadata::decode_section(&bytes, &Limits::default()).unwrap(), &metadata);
        let terminated = [&[1, 0, 0, 0, 0, 0, 0, 0], bytes.as_slice()].concat();
        let file = elf::build(&[("other", b"x"), ("metadata", &terminated)]).unwrap();
        prop_assert_eq!(&LocatedMetadata::from_elf(&file, &Limits::default()).unwrap().metadata, &metadata);
        let json = serde_json::to_string(&metadata).unwrap();
        prop_assert_eq!(serde_json::from_str::<Metadata>(&json).unwrap(), metadata);
    }

    #[test]
    fn elf_sections_round_trip(sections in payloads()) {
        let list: Vec<_> = sections.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
        let file = elf::build(&list).unwrap();
        for (name, bytes) in &list {
            prop_assert_eq!(&file[elf::section(&file, name).unwrap().unwrap()], *bytes);
        }
        prop_assert_eq!(elf::section(&file, "no such section").unwrap(), None);
        prop_assert_eq!(elf::load_image_crc(&file).unwrap(), 0);
    }

    #[test]
    fn constants_descriptors_round_trip(sizes: [u64; 2], ecc: [u8; 2]) {
        let descriptor = ConstantsDesc {
            static_constants_size: sizes[0],
            dynamic_constants_size: sizes[1],
            static_ecc: ecc[0],
            dynamic_ecc: ecc[1],
        };
        prop_assert_eq!(ConstantsDesc::decode(&descriptor.encode()).unwrap(), descriptor);
    }

    #[test]
    fn io_desc_of_any_network_round_trips_or_is_refused(network in generate::network_desc()) {
        if let Ok(io_desc) = IoDesc::from_network(&network) {
            prop_assert_eq!(IoDesc::decode(&io_desc.encode(), &Limits::default()).unwrap(), io_desc);
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..400)) {
        read_everything(&bytes);
        read_message(&bytes, &Limits::default());
    }

    #[test]
    fn damaged_fixtures_never_panic(
        case in 0..13_usize,
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = FIXTURES.with(|cases| cases[case].bytes.clone());
        for (at, value) in damage {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        read_everything(&bytes);
    }

    #[test]
    fn damaged_messages_never_panic(
        network in generate::network_desc(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = network.encode();
        for (at, value) in damage {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
        }
        read_message(&bytes, &Limits::default());
    }
}

thread_local! {
    static FIXTURES: Vec<fixture::Case> = fixture::good();
}
