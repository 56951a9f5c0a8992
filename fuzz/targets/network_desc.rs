//! Decodes any bytes as a network descriptor, derives all values from it, and encodes it again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use qaic_qpc::transform::TransferPlan;
use qaic_qpc::{Limits, NetworkDesc, dma_mappings, user_mappings};

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits { max_decoded_bytes: 16 << 20, ..Limits::default() };
    let Ok(network) = NetworkDesc::decode(bytes, &limits) else { return };
    let encoded = network.encode();
    let again = NetworkDesc::decode(&encoded, &Limits::default()).expect("own bytes must decode");
    // Compared as bytes, because a NaN is not equal to itself.
    assert_eq!(again.encode(), encoded);

    let _ = user_mappings(&network);
    dma_mappings(&network);
    let _ = network.check_allowed_shapes();
    let variants = TransferPlan::variants(&network).into_iter().flatten();
    for plan in TransferPlan::new(&network).into_iter().chain(variants) {
        for binding in plan.inputs.iter().chain(&plan.outputs) {
            let Some(place) = binding.place else { continue };
            let size = u64::from(plan.dma_sizes[place.buffer as usize]);
            let bytes = if binding.partial_align.is_some() { 8 } else { place.bytes };
            assert!(u64::from(place.offset) + bytes <= size);
        }
        for share in [0, 1, 2] {
            let sizes: Vec<u64> = plan.inputs.iter().map(|input| input.user_bytes * share / 2).collect();
            let Ok(layout) = plan.pack(&sizes) else { continue };
            for slice in &layout.slices {
                let end = u64::from(slice.data_offset) + u64::from(slice.bytes);
                assert!(end <= u64::from(plan.dma_sizes[slice.buffer as usize]));
            }
        }
    }
});
