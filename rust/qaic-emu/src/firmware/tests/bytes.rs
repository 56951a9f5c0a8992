//! Every reply, byte for byte.

use super::*;

/// A reply whose bytes are zero except for these fields.
fn expect(size: usize, fields: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; size];
    for (offset, field) in fields {
        bytes[*offset..offset + field.len()].copy_from_slice(field);
    }
    bytes
}

/// Frequencies of the cores, of the memory and of the networks.
const HERTZ: [u32; 5] = [825_000_000, 2_133_000_000, 1_450_000_000, 1_000_000_000, 667_000_000];

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| le(*word)).collect()
}

#[test]
fn load_and_unload_have_replies_of_known_bytes() {
    let firmware = firmware(Greedy);
    let elf_id = load_elf(&firmware, 1, &[1, 0, 0, 0]).unwrap();
    let constants_id = announce(&firmware, 1, 4, 0).unwrap();
    assert_eq!(load_payload(&firmware, 1, constants_id, 0, &[1, 2, 3, 4]), 0);
    let reply = |id, ok: [u8; 4]| vec![command(id, 8, &[(4, &ok)])];
    assert_eq!(ask(&firmware, 1, reply(7, le(elf_id))), [8, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(ask(&firmware, 1, reply(7, le(elf_id))), [8, 0, 0, 0, 0xED, 0xFF, 0xFF, 0xFF]);
    assert_eq!(ask(&firmware, 1, reply(5, le(constants_id))), [6, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(load_elf(&firmware, 1, b"no requirements"), Err(-5));
}

#[test]
fn activation_and_deactivation_have_replies_of_known_bytes() {
    let firmware = firmware(Greedy);
    let elf_id = load_elf(&firmware, 1, &[3, 2, 1, 1]).unwrap();
    let mut bases = Vec::new();
    for (cores, channel) in [(0b111_u32, 0_u32), (0b11_1000, 1)] {
        let replies = firmware.handle(1, vec![activate_command(0, elf_id, &[]), SETUP]);
        let TransactionReply::Passthrough(reply) = &replies[0] else { panic!("{replies:?}") };
        assert_eq!(
            replies[1],
            TransactionReply::Activate(ChannelReply { status: 0, dbc_id: channel, options: 0 })
        );
        let (ddr, mcids) = (long(reply, 16), long(reply, 32));
        let expected = [
            words(&[10, 0, word(reply, 8), channel]),
            [ddr, ddr + (1 << 28), mcids, mcids].map(le64).concat(),
            words(&[0, 1 << channel, 0, 0, 0, 0, 0, 0]),
            // The mask of the cores is not aligned.
            [&[3, 0], &le(cores)[..], &[0, 0]].concat(),
        ];
        assert_eq!(*reply, expected.concat());
        assert!(ddr >= 1 << 32 && ddr % 64 == 0 && mcids % 0x80_0000 == 0);
        bases.push((ddr, mcids, word(reply, 8)));
    }
    assert!(bases[0].0 != bases[1].0 && bases[0].1 != bases[1].1);
    let fields: [(usize, &[u8]); 2] = [(4, &le(bases[1].2)), (8, &le(1))];
    assert_eq!(
        firmware.handle(1, vec![command(11, 16, &fields)]),
        [
            TransactionReply::Passthrough(vec![12, 0, 0, 0, 0, 0, 0, 0]),
            TransactionReply::Deactivate { status: 0, dbc_id: 1 }
        ]
    );
    // The channel number is reused; the address is not.
    let (id, channel) = activate(&firmware, 1, 0, elf_id).unwrap();
    assert_eq!(channel, 1);
    assert!(!bases.iter().any(|base| base.2 == id));
}

#[test]
fn resource_info_has_the_resources_of_the_card() {
    let firmware = firmware(Greedy);
    let elf_id = load_elf(&firmware, 1, &[3, 8, 6, 1]).unwrap();
    activate(&firmware, 1, 0, elf_id).unwrap();
    let info = |group: u32| vec![command(32, 16, &[(8, &le(group))])];
    let memory = words(&[33, u32::MAX, 32_692, 32_692 - 256 - 1, 0]);
    let others = words(&[3072, 2976, 32, 24, 16, 0, 0, 0]);
    let of_card = [memory, vec![16, 15, 16, 13], others].concat();
    assert_eq!(ask(&firmware, 1, info(u32::MAX)), of_card);
    // There are no groups.
    assert_eq!(ask(&firmware, 1, info(77)), expect(56, &[(0, &le(33)), (48, &le(11_u32.wrapping_neg()))]));
}

#[test]
fn performance_reply_has_each_figure() {
    let firmware = firmware(Loopback);
    let peak = le64(Performance::default().peak_operations_per_second).to_vec();
    let expected = [words(&[35, 0]), words(&HERTZ), words(&[0]), peak, vec![0; 24]].concat();
    assert_eq!(ask(&firmware, 1, vec![command(34, 8, &[])]), expected);
}

#[test]
fn status_reply_has_504_bytes_with_each_field_in_its_place() {
    let config = FirmwareConfig {
        format_version: 13,
        metadata_version: (1, 2),
        nnc_version: (17, 3),
        hw_version: 0x0003_0001,
        sku_type: 7,
        fw_version: [1, 2, 3, 4],
        qc_image: "Q".repeat(100),
        oem_image: "O".repeat(38),
        image_variant: "V".into(),
        sbl_image: "S".repeat(23),
        pvs_image_version: 0x0102_0304,
        nsp_version: [5, 6, 7, 8],
        serial: "1234".into(),
        board_serial: "B".repeat(31),
        nsp_defects: 0x8000_0000_0000_0001,
        performance: Performance { ddr_kilobytes_per_second: 99, ..Performance::default() },
        reply_tail_bytes: 8,
        ..FirmwareConfig::default()
    };
    let firmware = Firmware::new(config, Arc::new(Greedy));
    let elf_id = load_elf_with_tail(&firmware);
    let mut status = firmware.handle(1, vec![command(13, 8, &[])]);
    let Some(TransactionReply::Passthrough(reply)) = status.pop() else { panic!("{status:?}") };
    assert_eq!(elf_id, 1);
    // The device's part begins at 16, that of the cores at 336; resources at 168 and 208.
    let expected = expect(
        512,
        &[
            (0, &le(14)),
            (8, &[13]),
            (16, &[1, 2, 3, 4]),
            (20, &[b'Q'; 37]),
            (58, &[b'O'; 37]),
            (96, b"V"),
            (112, &le(0x0003_0001)),
            (116, b"1234"),
            (132, &[b'B'; 31]),
            (168, &words(&[32_692, 32_691, 0])),
            (180, &[16, 16, 16, 16]),
            (184, &words(&[3072, 3072, 32, 32, 16])),
            (208, &words(&HERTZ)),
            (232, &le64(Performance::default().peak_operations_per_second)),
            (240, &le64(99)),
            (272, &[1, 0]),
            (274, &[1, 0, 2, 0, 17, 0, 3, 0]),
            (282, &[b'S'; 23]),
            (308, &le(0x0102_0304)),
            (312, &le64(0x8000_0000_0000_0001)),
            (332, &[7]),
            (336, &[5, 6, 7, 8]),
            (344, &[b'Q'; 63]),
            (408, &[b'O'; 38]),
            (456, b"V"),
        ],
    );
    assert_eq!(reply, expected);
}

fn load_elf_with_tail(firmware: &Firmware) -> u32 {
    let fields: [(usize, &[u8]); 2] = [(4, &le(100)), (80, &le64(4))];
    let message = vec![command(3, 96, &fields), Transaction::Dma { tag: 100, data: [1, 1, 1, 1].into() }];
    let reply = ask(firmware, 1, message);
    assert_eq!((reply.len(), &reply[16..]), (24, &[0; 8][..]));
    word(&reply, 4)
}

#[test]
fn status_reply_after_loads_has_their_counts() {
    let firmware = firmware(Greedy);
    let elf_id = load_elf(&firmware, 1, &[1, 1, 1, 1]).unwrap();
    let constants_id = announce(&firmware, 2, 1, 0).unwrap();
    assert_eq!(load_payload(&firmware, 2, constants_id, 0, &[1]), 0);
    let counts = || {
        let reply = ask(&firmware, 3, vec![command(13, 8, &[])]);
        (word(&reply, 264), word(&reply, 268), reply[272], reply[273])
    };
    assert_eq!(counts(), (1, 0, 1, 0));
    // The constants belong to another user, so they are unknown.
    assert_eq!(activate(&firmware, 1, constants_id, elf_id), Err(-19));
    let other = load_elf(&firmware, 2, &[1, 1, 1, 1]).unwrap();
    activate(&firmware, 2, constants_id, other).unwrap();
    assert_eq!(counts(), (1, 1, 2, 1));
}

#[test]
fn features_request_is_answered_in_its_transaction() {
    let config =
        FirmwareConfig { transport_version: (5, 1), status_flags: 0x21, ..FirmwareConfig::default() };
    let firmware = Firmware::new(config, Arc::new(Loopback));
    assert_eq!(
        firmware.handle(1, vec![Transaction::Status]),
        [TransactionReply::Status(Features { major: 5, minor: 1, status: 0, status_flags: 0x21 })]
    );
}

#[test]
fn bytes_that_are_no_command_are_refused_with_length_or_number() {
    let firmware = firmware(Loopback);
    let refused = |bytes: Vec<u8>| ask(&firmware, 1, vec![Transaction::Passthrough(bytes)]);
    let minus = |status: u32| le(status.wrapping_neg());
    assert_eq!(refused(vec![]), expect(8, &[(0, &le(1)), (4, &minus(17))]));
    assert_eq!(refused(vec![3, 0, 0]), expect(8, &[(0, &le(1)), (4, &minus(17))]));
    for id in [0, 1, 2, 17, 19, 20, 21, 24, 28, 36, 38, 43, 44, 50, 51, u32::MAX] {
        let mut bytes = vec![0; 16];
        bytes[..4].copy_from_slice(&le(id));
        assert_eq!(refused(bytes), expect(8, &[(0, &le(id.wrapping_add(1))), (4, &minus(3))]), "{id}");
    }
    // Commands that are too short or too long, with other values in the eight bytes after them. The reply has the size
    // of the command.
    let sizes = [(13, 8, 504, 4), (32, 16, 56, 48), (16, 32, 16, 8), (3, 96, 16, 8), (34, 8, 64, 4)];
    for (id, size, reply_size, offset) in sizes {
        let Transaction::Passthrough(whole) = command(id, size, &[]) else { unreachable!() };
        let long = [&whole[..], &[0]].concat();
        let mut dirty = whole.clone();
        dirty[size + 7] = 1;
        for bytes in [&whole[..size - 1], &whole[..size], &long, &dirty] {
            let reply = refused(bytes.to_vec());
            assert_eq!((reply.len(), status_of(&reply, offset)), (reply_size, -17), "{id} {}", bytes.len());
        }
    }
    // A descriptor whose length exceeds the command.
    let reply = ask(&firmware, 1, vec![command(15, 80 + 24, &[(72, &le(u32::MAX))])]);
    assert_eq!(status_of(&reply, 8), -17);
    let reply = ask(&firmware, 1, vec![command(15, 80 + 8, &[(72, &le(8))])]);
    assert_eq!(status_of(&reply, 8), -6);
}

#[test]
fn lenient_firmware_accepts_commands_that_are_long_enough() {
    let config = FirmwareConfig { is_strict: false, ..FirmwareConfig::default() };
    let firmware = Firmware::new(config, Arc::new(Loopback));
    let status = |bytes: Vec<u8>| status_of(&ask(&firmware, 1, vec![Transaction::Passthrough(bytes)]), 4);
    assert_eq!(status([&le(13)[..], &[0; 4]].concat()), 0);
    assert_eq!(status([&le(13)[..], &[9; 40]].concat()), 0);
    assert_eq!(status([&le(13)[..], &[0; 3]].concat()), -17);
}

#[test]
fn refusal_by_a_fault_has_the_layout_of_the_command() {
    let firmware = firmware(Loopback);
    let activate = || vec![activate_command(0, 1, &[]), SETUP];
    let reply = TransactionReply::Passthrough(expect(88, &[(0, &le(10)), (4, &le(13_u32.wrapping_neg()))]));
    let setup =
        TransactionReply::Activate(ChannelReply { status: 13_u32.wrapping_neg(), dbc_id: 0, options: 0 });
    assert_eq!(firmware.refuse(1, activate(), NncStatus(-13), false), std::slice::from_ref(&reply));
    assert_eq!(firmware.refuse(1, activate(), NncStatus(-13), true), [reply, setup]);
    let elf_id = load_elf(&firmware, 1, b"elf").unwrap();
    let (id, channel) = super::activate(&firmware, 1, 0, elf_id).unwrap();
    let deactivate = || vec![command(11, 16, &[(4, &le(id)), (8, &le(1))])];
    let refused = [
        TransactionReply::Passthrough(expect(8, &[(0, &le(12)), (4, &le(1_u32.wrapping_neg()))])),
        TransactionReply::Deactivate { status: u32::MAX, dbc_id: channel },
    ];
    assert_eq!(firmware.refuse(1, deactivate(), NncStatus(-1), false), refused);
    assert_eq!(firmware.refuse(1, deactivate(), NncStatus(-1), true), refused);
    // An activation of another user cannot be undone.
    assert_eq!(firmware.refuse(2, deactivate(), NncStatus(-1), true), refused[..1]);
    firmware.terminate(1);
    assert_eq!(
        firmware.refuse(1, vec![Transaction::Status], NncStatus(-1), true),
        [TransactionReply::Status(Features { major: 5, minor: 0, status: u32::MAX, status_flags: 0 })]
    );
    assert!(firmware.resource_usage().is_untouched());
}
