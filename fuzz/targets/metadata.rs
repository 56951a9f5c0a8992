//! Decodes any bytes as a metadata section, and as an ELF file with one; decoded metadata must be unchanged
//! after encoding.
#![no_main]

use libfuzzer_sys::fuzz_target;
use qaic_qpc::metadata::{LocatedMetadata, Metadata};
use qaic_qpc::{Limits, elf};

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits { max_decoded_bytes: 16 << 20, ..Limits::default() };
    let section = Metadata::decode_section(bytes, &limits).ok();
    let file = LocatedMetadata::from_elf(bytes, &limits).map(|located| located.metadata).ok();
    let _ = elf::load_image_crc(bytes);
    if let Ok(Some(range)) = elf::section(bytes, "image_crc32") {
        assert!(range.end <= bytes.len());
    }
    for mut metadata in section.into_iter().chain(file) {
        if metadata.network_name.is_empty() {
            metadata.network_name = "unnamed".to_owned();
        }
        let encoded = metadata.encode_flatbuffer();
        let again = Metadata::decode_flatbuffer(&encoded, &Limits::default()).expect("own bytes must decode");
        assert_eq!(again, metadata);
    }
});
