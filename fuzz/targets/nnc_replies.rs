//! Reads anything as a reply of a card's firmware. Finds panics, hangs, unbounded allocation, parts that overlap or lie
//! outside, and activations without a channel that can be used.
#![no_main]

use libfuzzer_sys::fuzz_target;
use qaic_kmd::calls::ManageBuffer;
use qaic_kmd::nnc::reply::{
    ActivateReply, ActivationStateReply, CreateResourceGroupReply, DeactivateReply, LoadConstantsReply, LoadElfReply,
    ReleaseResourceGroupReply, Reply, Transaction, UnloadConstantsReply, UnloadElfReply, features, transactions,
};
use qaic_kmd::nnc::{CardStatus, PerformanceInfoReply, ResourceInfoReply};

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
            Ok(Transaction::Channel(_) | Transaction::Features(_)) => covered += 24,
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
    assert!(covered <= bytes.len());
    decode(bytes);

    let first = bytes.get(4..8).map_or(0, |len| u32::from_le_bytes([len[0], len[1], len[2], len[3]]) as usize);
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
    let accepted = [
        LoadConstantsReply::decode(command).is_ok(),
        LoadElfReply::decode(command).is_ok(),
        ActivateReply::decode(command).is_ok(),
        UnloadConstantsReply::decode(command).is_ok(),
        UnloadElfReply::decode(command).is_ok(),
        DeactivateReply::decode(command).is_ok(),
        ActivationStateReply::decode(command).is_ok(),
        CreateResourceGroupReply::decode(command).is_ok(),
        ReleaseResourceGroupReply::decode(command).is_ok(),
        CardStatus::decode(command).is_ok(),
        ResourceInfoReply::decode(command).is_ok(),
        PerformanceInfoReply::decode(command).is_ok(),
    ];
    assert!(accepted.into_iter().filter(|&accepted| accepted).count() <= 1);
}
