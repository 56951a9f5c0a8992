//! Replies of the firmware from bytes at offsets, independently of the declarations, and bytes that no
//! firmware should send.

use super::parse::{ReplyError, Transaction, features, transactions};
use super::reply::{
    ActivateReply, DeactivateReply, LoadConstantsReply, LoadElfReply, PerformanceInfoReply, Reply,
    ResourceInfoReply, UnloadConstantsReply, UnloadElfReply,
};
use super::{CardStatus, NncStatus, PerformanceInfo, ResourceInfo};
use crate::ManageBuffer;
use proptest::collection::vec;
use proptest::prelude::*;

/// Bytes with little-endian words of these sizes at these offsets.
fn at(total: usize, fields: &[(usize, usize, u64)]) -> Vec<u8> {
    let mut bytes = vec![0; total];
    for &(offset, size, value) in fields {
        bytes[offset..offset + size].copy_from_slice(&value.to_le_bytes()[..size]);
    }
    bytes
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn put(bytes: &mut [u8], offset: usize, text: &str) {
    bytes[offset..offset + text.len()].copy_from_slice(text.as_bytes());
}

fn transaction(kind: u32, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(8 + body.len()).unwrap();
    [&kind.to_le_bytes(), &len.to_le_bytes(), body].concat()
}

fn message(transactions: &[Vec<u8>]) -> ManageBuffer<'static> {
    let mut message = ManageBuffer::default();
    for transaction in transactions {
        message.push(transaction).unwrap();
    }
    message
}

/// Reply to a successful activation, on channel 3.
fn activated() -> (Vec<u8>, Vec<u8>) {
    let command = at(88, &[(0, 4, 10), (8, 4, 77), (12, 4, 3), (16, 8, 0x1_2345_0000)]);
    (transaction(3, &command), transaction(8, &at(16, &[(4, 4, 3)])))
}

#[test]
fn reply_to_a_load_has_id_and_status() {
    let constants = at(16, &[(0, 4, 2), (4, 4, 9), (8, 4, 0)]);
    assert_eq!(
        LoadConstantsReply::decode(&constants),
        Ok(LoadConstantsReply { constants_id: 9, ..LoadConstantsReply::default() })
    );
    let elf = at(16, &[(0, 4, 4), (4, 4, 8), (8, 4, 0xFFFF_FFFC)]);
    assert_eq!(
        LoadElfReply::decode(&elf),
        Ok(LoadElfReply { elf_id: 8, status: NncStatus::MEMORY_EXHAUSTED, ..LoadElfReply::default() })
    );
}

#[test]
fn reply_to_an_activation_has_every_field() {
    let longs = [0x13, 1, 0x14, 1, 0x15, 1, 0x16, 1, 17, 18, 0x19, 1, 20, 21, 0x22, 1];
    // The last word is not aligned.
    let mask = [2, 1, 0xDD, 0xCC, 0xBB, 0xAA, 0, 0];
    let command = [words(&[10, 0xFFFF_FFDC, 11, 12]), words(&longs), mask.to_vec()].concat();
    let expected = ActivateReply {
        status: NncStatus::RESTARTING,
        activation_id: 11,
        virtual_channel_id: 12,
        ddr_base: 0x1_0000_0013,
        dynamic_ddr_base: 0x1_0000_0014,
        mcid_base: 0x1_0000_0015,
        mcid_base_dma_cmd: 0x1_0000_0016,
        dma_type: 17,
        pc_mask: 18,
        cmd_nsp_base_polling_addr: 0x1_0000_0019,
        cmd_nsp_polling_info_size: 20,
        cmd_nsp_polling_data: 21,
        cmd_doorbell_addr: 0x1_0000_0022,
        cmd_doorbell_length: 2,
        cmd_doorbell_valid: 1,
        nsp_mask: 0xAABB_CCDD.into(),
        ..ActivateReply::default()
    };
    assert_eq!(ActivateReply::decode(&command), Ok(expected));
}

#[test]
fn reply_to_an_activation_has_the_kernels_channel() {
    let (command, channel) = activated();
    let reply = ActivateReply::with_channel(&message(&[command.clone(), channel.clone()])).unwrap();
    assert_eq!((reply.activation_id, reply.virtual_channel_id, reply.ddr_base), (77, 3, 0x1_2345_0000));
    // The type in the kernel headers is accepted as well as the one that kernels send.
    let mut other_type = command.clone();
    other_type[0] = 2;
    assert!(ActivateReply::with_channel(&message(&[other_type, channel.clone()])).is_ok());

    let error = |transactions: &[Vec<u8>]| {
        ActivateReply::with_channel(&message(transactions)).unwrap_err().to_string()
    };
    assert_eq!(error(std::slice::from_ref(&command)), "reply to activate: found 1 transactions, expected 2");
    let third = transaction(99, &[]);
    assert_eq!(
        error(&[command.clone(), channel.clone(), third.clone()]),
        "reply to activate: found 3 transactions, expected 2"
    );
    assert_eq!(
        error(&[command.clone(), third]),
        "channel of an activation: found none in 104 bytes, expected one"
    );
    assert_eq!(
        error(&[command.clone(), transaction(8, &at(16, &[(4, 4, 4)]))]),
        "reply to activate: found channel 4 and virtual channel 3, expected the same"
    );
    assert_eq!(
        error(&[command, transaction(8, &at(16, &[(0, 4, 1), (4, 4, 3)]))]),
        "reply to activate: found status 1 of the channel, expected 0, as in the command"
    );
    let sixteen = transaction(3, &at(88, &[(0, 4, 10), (12, 4, 16)]));
    assert_eq!(error(&[sixteen, channel]), "reply to activate: found virtual channel 16, expected 0 to 15");
}

#[test]
fn refused_activation_with_or_without_a_channel_is_the_same() {
    let refused = transaction(3, &at(88, &[(0, 4, 10), (4, 4, 0xFFFF_FFF3)]));
    let channel = transaction(8, &at(16, &[(0, 4, 1)]));
    for transactions in [vec![refused.clone()], vec![refused, channel]] {
        let reply = ActivateReply::with_channel(&message(&transactions)).unwrap();
        assert_eq!(reply.status, NncStatus::NSP_ALLOC);
    }
}

/// Returns the status of a reply without other fields, and the reason why the same bytes with another number
/// are refused.
fn status_only<R: Reply>(number: u8) -> (NncStatus, String) {
    let bytes = at(8, &[(0, 4, number.into()), (4, 4, 0xFFFF_FFF7)]);
    let other = at(8, &[(0, 4, 50)]);
    (R::decode(&bytes).unwrap().status(), R::decode(&other).unwrap_err().to_string())
}

#[test]
fn reply_of_a_status_only_has_it_behind_the_number() {
    for (found, (name, number)) in [
        (status_only::<UnloadConstantsReply>(6), ("unload constants", 6)),
        (status_only::<UnloadElfReply>(8), ("unload ELF", 8)),
        (status_only::<DeactivateReply>(12), ("deactivate", 12)),
    ] {
        let refusal = format!("reply to {name}: found command 50, expected command {number}");
        assert_eq!(found, (NncStatus::NOT_PERMITTED, refusal));
    }
}

#[test]
fn reply_to_a_deactivation_lacks_the_kernels_part() {
    let mut reply = message(&[transaction(3, &at(16, &[(0, 4, 12)]))]);
    assert!(DeactivateReply::of(&reply).unwrap().status.is_success());
    // The kernel also counts its own part of the reply, which the second transaction represents.
    reply.push(&transaction(11, &[0; 8])).unwrap();
    assert!(DeactivateReply::of(&reply).unwrap().status.is_success());
}

#[test]
fn reply_to_constants_is_alone() {
    let constants = transaction(3, &at(16, &[(0, 4, 2), (4, 4, 9)]));
    assert_eq!(LoadConstantsReply::of(&message(std::slice::from_ref(&constants))).unwrap().constants_id, 9);
    assert_eq!(
        LoadConstantsReply::of(&message(&[constants, transaction(3, &[])])).unwrap_err().to_string(),
        "reply to load constants: found 2 transactions, expected 1"
    );
}

#[test]
fn reply_with_features_has_a_transaction_of_its_own() {
    let body = at(16, &[(0, 2, 5), (2, 2, 1), (4, 4, 0), (8, 8, 0x1_0000_0010)]);
    let found = features(&message(&[transaction(14, &body)])).unwrap();
    assert_eq!((found.major, found.minor, found.status, found.status_flags), (5, 1, 0, 0x1_0000_0010));
    assert_eq!(
        features(&message(&[transaction(14, &body[..12])])).unwrap_err().to_string(),
        "transaction with the firmware's features: found 12 bytes, expected at least 16"
    );
    assert_eq!(
        features(&message(&[transaction(3, &[0; 8])])).unwrap_err().to_string(),
        "transaction with the firmware's features: found none in 16 bytes, expected one"
    );
}

fn resources() -> Vec<u8> {
    let (first, cores) = (words(&[101, 102, 103]), [104, 105, 106, 107]);
    [&first[..], &cores, &words(&[108, 109, 110, 111]), &[112, 113, 0, 0, 0, 0, 0, 0]].concat()
}

fn assert_resources(found: &ResourceInfo) {
    assert_eq!((found.dram_total_mb, found.dram_free_mb, found.fragmentation), (101, 102, 103));
    assert_eq!((found.vc_total, found.vc_free, found.nsp_total, found.nsp_free), (104, 105, 106, 107));
    assert_eq!((found.mcid_total, found.mcid_free, found.sem_total, found.sem_free), (108, 109, 110, 111));
    assert_eq!((found.pc_total, found.pc_reserved), (112, 113));
}

fn performance() -> Vec<u8> {
    words(&[201, 202, 203, 204, 205, 0, 206, 0, 207, 0, 0, 0, 0, 0])
}

fn assert_performance(found: &PerformanceInfo) {
    assert_eq!((found.nsp_hz, found.ddr_hz, found.compnoc_hz), (201, 202, 203));
    assert_eq!((found.memnoc_hz, found.sysnoc_hz), (204, 205));
    assert_eq!((found.peak_compute, found.dram_bw_kb_per_s), (206, 207));
}

#[test]
fn reply_with_resources_and_frequencies_is_read() {
    let mut command = at(56, &[(0, 4, 33), (4, 4, 0xFFFF_FFFF), (48, 4, 0xFFFF_FFF5)]);
    command[8..48].copy_from_slice(&resources());
    let reply = ResourceInfoReply::decode(&command).unwrap();
    assert_eq!((reply.res_grp_id, reply.status), (-1, NncStatus::NOT_FOUND));
    assert_resources(&reply.resources);

    let mut command = at(64, &[(0, 4, 35), (4, 4, 0xFFFF_FFF9)]);
    command[8..64].copy_from_slice(&performance());
    let reply = PerformanceInfoReply::decode(&command).unwrap();
    assert_eq!(reply.status, NncStatus(-7));
    assert_performance(&reply.performance);
}

#[test]
fn reply_to_a_status_query_has_every_field() {
    let mut device = at(
        320,
        &[
            (0, 1, 1),
            (1, 1, 2),
            (2, 1, 3),
            (3, 1, 255),
            (96, 4, 0x0002_0000),
            (148, 4, 0x0102_0304),
            (248, 4, 5),
            (252, 4, 6),
            (256, 1, 7),
            (257, 1, 8),
            (258, 2, 9),
            (260, 2, 10),
            (262, 2, 17),
            (264, 2, 11),
            (290, 1, 1),
            (292, 4, 12),
            (296, 8, 0x1_0000_000D),
            (304, 8, 0x1_0000_000E),
            (312, 4, 15),
            (316, 1, 4),
            (317, 1, 16),
        ],
    );
    // Fills the field, so that no NUL ends it.
    put(&mut device, 4, &"q".repeat(38));
    put(&mut device, 42, "oem");
    put(&mut device, 80, "variant");
    put(&mut device, 100, "serial");
    put(&mut device, 116, "board");
    put(&mut device, 266, "boot loader");
    device[152..192].copy_from_slice(&resources());
    device[192..248].copy_from_slice(&performance());
    let mut cores = at(168, &[(0, 1, 21), (1, 1, 22), (2, 1, 23), (3, 1, 24)]);
    put(&mut cores, 8, "core qc");
    put(&mut cores, 72, "core oem");
    put(&mut cores, 120, "core variant");

    let mut command = at(504, &[(0, 4, 14), (4, 4, 0), (8, 1, 12)]);
    command[16..336].copy_from_slice(&device);
    command[336..504].copy_from_slice(&cores);
    let found = CardStatus::decode(&command).unwrap();
    assert_eq!((found.status, found.format_version), (NncStatus::SUCCESS, 12));
    assert_eq!(found.firmware_version(), [1, 2, 3, 255]);
    let texts = [
        found.qc_image_version.to_string(),
        found.oem_image_version.to_string(),
        found.image_variant.to_string(),
        found.serial.to_string(),
        found.board_serial.to_string(),
        found.sbl_image_name.to_string(),
        found.nsp_qc_image_version.to_string(),
        found.nsp_oem_image_version.to_string(),
        found.nsp_image_variant.to_string(),
    ];
    let others = ["oem", "variant", "serial", "board", "boot loader", "core qc", "core oem", "core variant"];
    assert_eq!(texts[0], "q".repeat(38));
    assert_eq!(texts[1..], others);
    assert_eq!((found.hw_version, found.compiler_version), (0x0002_0000, 0x0102_0304));
    assert_resources(&found.resources);
    assert_performance(&found.performance);
    assert_eq!((found.num_loaded_consts, found.num_consts_in_use), (5, 6));
    assert_eq!((found.num_loaded_nws, found.num_active_nws), (7, 8));
    assert_eq!((found.metadata_version(), found.command_protocol()), ((9, 10), (17, 11)));
    assert_eq!(found.need_reset_to_retire_pages, 1);
    assert_eq!((found.pvs_image_version, found.nsp_pgmask), (12, 0x1_0000_000D));
    assert_eq!((found.qts_time_offset_us, found.num_retired_pages), (0x1_0000_000E, 15));
    assert_eq!((found.sku_type, found.complex_id), (4, 16));
    assert_eq!(found.nsp_version(), [21, 22, 23, 24]);
}

#[test]
fn reply_with_a_wrong_header_ends_there() {
    let error = |bytes: &[u8]| {
        let found: Vec<_> = transactions(bytes).collect();
        assert_eq!(found.len(), 1);
        found[0].clone().unwrap_err().to_string()
    };
    assert_eq!(error(&[3, 0, 0]), "header of a transaction: found 3 bytes, expected 8 bytes");
    for (len, text) in [(0_u32, "0"), (7, "7"), (9, "9"), (u32::MAX, "4294967295")] {
        let bytes = [3_u32.to_le_bytes(), len.to_le_bytes()].concat();
        assert_eq!(
            error(&bytes),
            format!("header of a transaction: found length {text}, expected 8 to 8, the rest of the reply")
        );
    }
}

/// Decodes the bytes as every kind of reply; returns the number of kinds that accept them.
fn decoded(command: &[u8]) -> usize {
    fn is_taken<R: Reply>(command: &[u8]) -> bool {
        let found: Result<R, ReplyError> = R::decode(command);
        found.is_ok()
    }
    let all = [
        is_taken::<LoadConstantsReply>,
        is_taken::<LoadElfReply>,
        is_taken::<UnloadConstantsReply>,
        is_taken::<UnloadElfReply>,
        is_taken::<ActivateReply>,
        is_taken::<DeactivateReply>,
        is_taken::<CardStatus>,
        is_taken::<ResourceInfoReply>,
        is_taken::<PerformanceInfoReply>,
    ];
    all.into_iter().filter(|is_taken| is_taken(command)).count()
}

/// Firmware may omit the unused end of a reply.
#[test]
fn reply_without_its_unused_end_is_read() {
    let body = at(40, &[(0, 4, 10), (8, 4, 7), (12, 4, 3), (16, 8, 0x1000), (32, 8, 0x2000)]);
    let channel = at(8, &[(4, 4, 3)]);
    let reply =
        ActivateReply::with_channel(&message(&[transaction(3, &body), transaction(8, &channel)])).unwrap();
    assert_eq!((reply.activation_id, reply.virtual_channel_id), (7, 3));
    assert_eq!((reply.ddr_base, reply.mcid_base, reply.nsp_mask.get()), (0x1000, 0x2000, 0));
    let short = message(&[transaction(3, &body), transaction(8, &channel[..7])]);
    assert!(ActivateReply::with_channel(&short).is_err());
}

proptest! {
    #[test]
    fn reply_one_byte_short_of_what_is_used_is_refused(
        (id, bytes) in prop::sample::select(vec![
            (2_u8, 12_usize), (4, 12), (6, 8), (8, 8), (10, 40), (12, 8), (14, 282), (33, 52), (35, 64),
        ]),
        content in vec(any::<u8>(), 600),
        less in 1_usize..8,
        more in 0_usize..64,
    ) {
        let mut content = content;
        content[..4].copy_from_slice(&[id, 0, 0, 0]);
        prop_assert_eq!(decoded(&content[..bytes + more]), 1);
        prop_assert_eq!(decoded(&content[..bytes - less]), 0);
    }

    #[test]
    fn reply_of_any_bytes_does_not_panic(bytes in vec(any::<u8>(), 0..600), id in 0_u8..40, kind in 0_u32..20) {
        let count = transactions(&bytes).count();
        prop_assert!(count <= bytes.len() / 8 + 1);
        decoded(&bytes);
        let mut command = bytes;
        command.splice(0..0, [id, 0, 0, 0]);
        decoded(&command);
        // A tag of type 5 is data of the sender and never part of a reply.
        if kind != 5 {
            let reply = message(&[transaction(kind, &command), transaction(8, &command)]);
            let _ = ActivateReply::with_channel(&reply);
            let _ = features(&reply);
            let _ = CardStatus::of(&reply);
        }
    }

    #[test]
    fn reply_of_any_transactions_round_trips(
        parts in vec((prop::sample::select(vec![0_u32, 2, 3, 4, 11, 99]), vec(any::<u8>(), 0..40)), 0..8),
    ) {
        let bytes: Vec<u8> = parts.iter().flat_map(|(kind, body)| transaction(*kind, body)).collect();
        let found: Vec<_> = transactions(&bytes).collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(found.len(), parts.len());
        for (found, (kind, body)) in found.iter().zip(&parts) {
            let expected = match kind {
                2 | 3 => Transaction::Passthrough(body),
                kind => Transaction::Other { kind: *kind, body },
            };
            prop_assert_eq!(*found, expected);
        }
    }
}
