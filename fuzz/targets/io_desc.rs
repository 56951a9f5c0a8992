//! Decodes any bytes as an `IoDesc`, and as a network descriptor from which one is derived; both must be
//! encoded and decoded.
#![no_main]

use libfuzzer_sys::fuzz_target;
use qaic_qpc::{IoDesc, Limits, NetworkDesc};

fuzz_target!(|bytes: &[u8]| {
    let limits = Limits { max_decoded_bytes: 16 << 20, ..Limits::default() };
    let decoded = IoDesc::decode(bytes, &limits).ok();
    let network = NetworkDesc::decode(bytes, &limits).ok();
    let derived = network.and_then(|network| IoDesc::from_network(&network).ok());
    for io_desc in decoded.into_iter().chain(derived) {
        let encoded = io_desc.encode();
        let again = IoDesc::decode(&encoded, &Limits::default()).expect("own bytes must decode");
        // Compared as bytes, because a NaN is not equal to itself.
        assert_eq!(again.encode(), encoded);
    }
});
