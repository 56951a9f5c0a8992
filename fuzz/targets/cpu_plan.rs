//! Reads any bytes as the plan of a CPU program, as the ELF that has a plan, and as a control buffer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use qaic_mem::convert::Isa;
use qaic_mem::stored::StoredRows;
use qaic_qpc::NetworkDesc;
use qaic_qpc::plan::{CONTROL_BYTES, Control, Plan, VERSIONS};

const CONSTANTS: usize = 4096;

fuzz_target!(|bytes: &[u8]| {
    if let Some(control) = Control::decode(bytes) {
        assert_eq!(Control::decode(&control.encode()), Some(control));
    }
    assert!(bytes.len() >= CONTROL_BYTES || Control::decode(bytes) == Control::decode(&padded(bytes)));
    let _ = Plan::of_elf(bytes);
    let Ok(plan) = Plan::decode(bytes) else { return };
    assert!(VERSIONS.contains(&plan.version));
    // Another reader of JSON must find the same values. It also refuses numbers beyond float64 and unpaired
    // surrogates, in entries that no plan has.
    if let Ok(value) = serde_json::from_slice::<serde_json::Value>(bytes) {
        assert_eq!(value["target"].as_str(), Some(plan.target.as_str()));
        assert_eq!(value["initializers"].as_array().map(Vec::len), Some(plan.initializers.len()));
    }
    for initializer in &plan.initializers {
        let Ok(range) = initializer.range(CONSTANTS, 0) else { continue };
        assert!(range.end <= CONSTANTS && range.start.is_multiple_of(64));
        let is_dense = initializer.dtype.dense_bytes(&initializer.dims) == Some(range.len() as u64);
        assert!(is_dense || initializer.encoding.is_some() || initializer.layout.is_some());
        // Kernels accept what the plan accepts.
        if let Ok(Some(matrix)) = initializer.matrix() {
            let zeros = [0; CONSTANTS];
            let stored = StoredRows::new(matrix.form, matrix.layout, matrix.rows, matrix.len, &zeros[range]);
            let mut numbers = [1.0; 256];
            let decoded = matrix.len.min(numbers.len()) * matrix.rows.min(1);
            stored.unwrap().gather(Isa::best(), 0, &mut numbers[..decoded]);
            assert!(numbers[..decoded].iter().all(|&number| number == 0.0));
        }
    }
    if plan.check_initializers(CONSTANTS, 0).is_ok() {
        assert!(
            plan.initializers.iter().map(|initializer| initializer.size).sum::<u64>() <= CONSTANTS as u64
        );
    }
    let network = NetworkDesc::default();
    let is_empty = plan.inputs.is_empty() && plan.outputs.is_empty() && plan.variants.is_empty();
    assert_eq!(plan.check_network(&network).is_ok(), is_empty);
    assert_eq!(plan.check_control_buffer(&network).is_ok(), plan.control_buffer.is_none());
    let _ = plan.stats.as_ref().map(|stats| stats.fingerprint());
});

fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(CONTROL_BYTES, 0);
    padded
}
