//! Opens any bytes as a container and reads all of its contents. Finds panics, hangs and unbounded
//! allocation.
#![no_main]

use libfuzzer_sys::fuzz_target;
use qaic_qpc::{ConstantsDesc, Container, Limits, NetworkDesc, QpcInfo, validate};

fuzz_target!(|bytes: &[u8]| {
    // A mutated length must not hide the bytes after the header.
    let mut fixed = bytes.to_vec();
    if let Some(size) = fixed.get_mut(8..16) {
        size.copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    }
    for bytes in [bytes, &fixed] {
        validate(bytes);
        let limits = Limits { max_decoded_bytes: 16 << 20, ..Limits::default() };
        let Ok(container) = Container::parse(bytes, &limits) else { continue };
        assert!(container.segments.iter().all(|segment| segment.range.end <= bytes.len()));
        if let Some(ranges) = container.constants() {
            assert_eq!(ranges.static_part.end, ranges.dynamic_part.start);
        }
        if let Some(segment) = container.segment("constantsdesc.bin") {
            let _ = ConstantsDesc::decode(segment.payload(bytes));
        }
        if let Some(segment) = container.segment("networkdesc.bin")
            && let Ok(network) = NetworkDesc::decode(segment.payload(bytes), &limits)
        {
            let _ = QpcInfo::new(&container, bytes, &network);
        }
    }
});
