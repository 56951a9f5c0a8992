//! Reads any bytes as a reply of a card's firmware. Finds panics, hangs, unbounded allocation, parts that
//! overlap or are out of bounds, and activations without a usable channel.
#![no_main]

use libfuzzer_sys::fuzz_target;
use qaic_kmd::ManageBuffer;
use qaic_kmd::protocol::parse::{ReplyError, Transaction, features, transactions};
use qaic_kmd::protocol::{
    ActivateReply, CardStatus, DeactivateReply, LoadConstantsReply, LoadElfReply, PerformanceInfoReply,
    Reply, ResourceInfoReply, UnloadConstantsReply, UnloadElfReply,
};

fuzz_target!(|bytes: &[u8]| {
    let mut covered = 0;
    for transaction in transactions(bytes) {
        match transaction {
            Ok(Transaction::Passthrough(command)) => {
                assert!(bytes.as_ptr_range().contains(&command.as_ptr()) || command.is_empty());
                covered += 8 + command.len();
                decode(command);
            }
            Ok(Transaction::Other { body, .. }) => covered += 8 + body.len(),
            // Without the last field, which may be missing.
            Ok(Transaction::Channel(_)) => covered += 16,
            Ok(Transaction::Features(_)) => covered += 24,
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    assert!(covered <= bytes.len());
    decode(bytes);

    let first =
        bytes.get(4..8).map_or(0, |len| u32::from_le_bytes([len[0], len[1], len[2], len[3]]) as usize);
    let (first, second) = bytes.split_at(first.min(bytes.len()));
    let mut message = ManageBuffer::default();
    if message.push(first).is_some() && message.push(second).is_some() {
        if let Ok(reply) = ActivateReply::with_channel(&message)
            && reply.status.is_success()
        {
            assert!(reply.virtual_channel_id < 16);
        }
        let _ = (features(&message), CardStatus::of(&message), LoadConstantsReply::of(&message));
    }
});

fn decode(command: &[u8]) {
    fn is_taken<R: Reply>(command: &[u8]) -> bool {
        let found: Result<R, ReplyError> = R::decode(command);
        found.is_ok()
    }
    let all = [
        is_taken::<LoadConstantsReply>,
        is_taken::<LoadElfReply>,
        is_taken::<ActivateReply>,
        is_taken::<UnloadConstantsReply>,
        is_taken::<UnloadElfReply>,
        is_taken::<DeactivateReply>,
        is_taken::<CardStatus>,
        is_taken::<ResourceInfoReply>,
        is_taken::<PerformanceInfoReply>,
    ];
    assert!(all.into_iter().filter(|is_taken| is_taken(command)).count() <= 1);
}
