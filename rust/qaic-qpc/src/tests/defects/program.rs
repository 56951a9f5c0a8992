//! Defects of ELF files and metadata.

use qaic_qpc::metadata::{LocatedMetadata, Metadata};
use qaic_qpc::{Limits, QpcError, elf};

use super::code;

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

#[test]
fn rejects_what_is_not_elf() {
    for bytes in [&b""[..], b"not an ELF file at all", b"\x7fELF", &[0x7f; 64]] {
        assert_eq!(code(&elf::section(bytes, "metadata").unwrap_err()), "qpc.elf");
        assert_eq!(code(&LocatedMetadata::from_elf(bytes, &Limits::default()).unwrap_err()), "qpc.elf");
    }
}

#[test]
fn rejects_sections_outside_the_file() {
    let mut file = elf::build(&[("metadata", b"1234")]).unwrap();
    let table = u32::from_le_bytes(file[32..36].try_into().unwrap()) as usize;
    // Size of the first section after the null section.
    file[table + 40 + 20..][..4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(code(&elf::section(&file, "metadata").unwrap_err()), "qpc.elf");
}

#[test]
fn rejects_elf_names_that_cannot_be_written() {
    assert_eq!(code(&elf::build(&[("", b"")]).unwrap_err()), "qpc.invalid_name");
    assert_eq!(code(&elf::build(&[("a\0", b"")]).unwrap_err()), "qpc.invalid_name");
    assert_eq!(code(&elf::build(&[("a", b""), ("a", b"")]).unwrap_err()), "qpc.duplicate_segment");
    assert_eq!(code(&elf::build(&[(".shstrtab", b"")]).unwrap_err()), "qpc.duplicate_segment");
}

#[test]
fn rejects_elf_without_metadata() {
    let file = elf::build(&[("metadata_", b"1234"), ("xmetadata", b"")]).unwrap();
    assert_eq!(LocatedMetadata::from_elf(&file, &Limits::default()).unwrap_err(), QpcError::MetadataMissing);
}

#[test]
fn rejects_other_metadata_versions() {
    for version_major in [0, 2, u16::MAX] {
        let bytes = Metadata { version_major, ..Metadata::default() }.encode_flatbuffer();
        let error = Metadata::decode_section(&bytes, &Limits::default()).unwrap_err();
        assert_eq!(error, QpcError::MetadataVersion { found: version_major, supported: 1 });
        assert_eq!(error.report().class, "QpcVersionError");
    }
}

#[test]
fn rejects_unknown_required_fields() {
    let field = "AicMetadataFlat_Metadata->warpDrive";
    let known = "AicMetadataFlat_Metadata->networkName";
    let metadata = Metadata { required_fields: vec![known.into(), field.into()], ..Metadata::default() };
    let error = Metadata::decode_section(&metadata.encode_flatbuffer(), &Limits::default()).unwrap_err();
    assert_eq!(error, QpcError::UnknownRequiredField { field: field.into() });
}

#[test]
fn rejects_metadata_that_multiplies_by_sharing() {
    // A root whose list of DMA requests refers to one table many times; the list of that table refers to one table
    // many times.
    let count = 4096_u32;
    let mut bytes = Vec::new();
    let words = |bytes: &mut Vec<u8>, values: &[u32]| {
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    };
    // Root at 20 (its field table at 4 has only id 6); list of requests at 28.
    words(&mut bytes, &[24]);
    bytes.extend([18, 0, 8, 0]);
    bytes.extend([0; 12]);
    bytes.extend([4, 0, 0, 0]);
    words(&mut bytes, &[20, 4]);
    assert_eq!(bytes.len(), 32);
    let table = 32 + 4 + 4 * count;
    words(&mut bytes, &[count]);
    for slot in 0..count {
        words(&mut bytes, &[table + 8 - (36 + 4 * slot)]);
    }
    // Field table with id 0 at `table`, the request at `table + 8`, followed by its list; all entries refer to the
    // request.
    bytes.extend([6, 0, 8, 0, 4, 0, 0, 0]);
    words(&mut bytes, &[8, 4, count]);
    let operation = table + 20 + 4 * count;
    for slot in 0..count {
        words(&mut bytes, &[operation + 4 - (table + 20 + 4 * slot)]);
    }
    // An operation without fields.
    bytes.extend([4, 0, 4, 0]);
    words(&mut bytes, &[4]);
    let limits = Limits { max_decoded_bytes: 8 << 20, ..Limits::default() };
    let error = Metadata::decode_section(&bytes, &limits).unwrap_err();
    assert_eq!(error, QpcError::LimitExceeded { what: "decoded bytes", max: 8 << 20 });
}

#[test]
fn keeps_field_tables_that_do_not_even_hold_their_own_size() {
    // Root at 8, its field table at 4 has size 0: no field is present, so the version is 0.
    let bytes = [8, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0];
    let error = Metadata::decode_flatbuffer(&bytes, &Limits::default()).unwrap_err();
    assert_eq!(error, QpcError::MetadataVersion { found: 0, supported: 1 });
}

#[test]
fn keeps_metadata_at_odd_addresses() {
    let metadata = Metadata { network_name: "odd".into(), num_nsps: 3, ..Metadata::default() };
    let encoded = metadata.encode_flatbuffer();
    for shift in 0..8 {
        let mut shifted = vec![0; shift];
        shifted.extend(&encoded);
        assert_eq!(Metadata::decode_section(&shifted[shift..], &Limits::default()).unwrap(), metadata);
    }
    let mut terminated = vec![1, 0, 0, 0, 0, 0, 0, 0];
    terminated.extend(&encoded);
    assert_eq!(Metadata::decode_section(&terminated, &Limits::default()).unwrap(), metadata);
}

#[test]
fn rejects_legacy_metadata_that_points_outside() {
    let mut sound = vec![0_u8; 161];
    sound[0] = 1;
    // The name is the byte after the struct; one byte of L2TCM and one DMA request are at 0.
    sound[8] = 160;
    sound[116] = 1;
    sound[126] = 1;
    Metadata::decode_section(&sound, &Limits::default()).unwrap();
    let lists = [(8, "networkName"), (24, "L2TCMInitState"), (32, "dmaRequests"), (48, "hostMulticastTable")];
    for (at, field) in lists {
        for offset in [161, u64::MAX] {
            let mut damaged = sound.clone();
            put(&mut damaged, at, offset);
            let error = Metadata::decode_section(&damaged, &Limits::default()).unwrap_err();
            assert_eq!(error, QpcError::LegacyMetadata { field, size: 161 });
        }
    }
}
