//! Compares the protobuf reader with prost: both read the same values from bytes that prost accepts, and
//! prost reads the same values from encoded messages. The first byte selects the message.
#![no_main]

#[path = "../../rust/qaic-qpc/src/tests/oracle/messages.rs"]
mod messages;

use libfuzzer_sys::fuzz_target;
use messages::canonical;
use prost::Message;
use qaic_qpc::{IoDesc, Limits, NetworkDesc, QpcError};
use serde::Serialize;

fn compare<O: Serialize, T: Message + Default + Serialize>(
    bytes: &[u8],
    ours: Result<O, QpcError>,
    encode: impl Fn(&O) -> Vec<u8>,
) {
    match (ours, T::decode(bytes)) {
        (Ok(ours), Ok(theirs)) => assert_eq!(canonical(&ours), canonical(&theirs)),
        // prost refuses a known field with another wire type, although protobuf skips such a field; prost
        // must read the encoded result.
        (Ok(ours), Err(_)) => {
            let again = T::decode(encode(&ours).as_slice()).expect("own bytes must decode");
            assert_eq!(canonical(&ours), canonical(&again));
        }
        (Err(error), Ok(_)) => assert_eq!(error.report().class, "QpcLimitError", "only we refuse: {error}"),
        (Err(_), Err(_)) => {}
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let limits = Limits { max_decoded_bytes: 16 << 20, ..Limits::default() };
    if choice % 2 == 0 {
        compare::<_, messages::NetworkDesc>(bytes, NetworkDesc::decode(bytes, &limits), NetworkDesc::encode);
    } else {
        compare::<_, messages::IoDesc>(bytes, IoDesc::decode(bytes, &limits), IoDesc::encode);
    }
});
