//! Compares commands with bytes that are built by offset, independently of the declarations.

use proptest::prelude::*;

use super::*;

/// Bytes of a command: zeros except for these.
fn at(total: usize, fields: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![0; total];
    for (offset, field) in fields {
        bytes[*offset..*offset + field.len()].copy_from_slice(field);
    }
    bytes
}

fn encoded(command: &impl Numbered) -> &[u8] {
    bytemuck::bytes_of(command)
}

const MINUS_ONE: [u8; 4] = [0xFF; 4];

#[test]
fn load_constants_ex_has_each_field_in_its_place() {
    let command = LoadConstantsEx {
        process_id: ProcessId(0x0102_0304),
        name: Text::new("Abc"),
        descriptor_len: 24,
        ..LoadConstantsEx::default()
    };
    let expected = at(80, &[(0, &[15]), (4, &[4, 3, 2, 1]), (8, b"Abc"), (72, &[24, 0, 0, 0])]);
    assert_eq!(encoded(&command), expected);
    let transaction = passthrough(&command, &[7; 24]);
    assert_eq!(transaction[8..], [&expected[..], &[7; 24], &[0; 8]].concat());
}

#[test]
fn load_constants_payload_has_each_field_in_its_place() {
    let command = LoadConstantsPayload {
        process_id: ProcessId(5),
        tag: 300,
        constants_id: 9,
        data_length: 0x1_0000_0001,
        offset: 0x2_0000_0003,
        ..LoadConstantsPayload::default()
    };
    let expected =
        [16, 0, 0, 0, 5, 0, 0, 0, 0x2c, 1, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0];
    assert_eq!(encoded(&command), expected);
}

#[test]
fn load_elf_has_each_field_in_its_place() {
    let command = LoadElf {
        tag: 100,
        process_id: ProcessId(0x0102_0304),
        metadata_crc: 0x0506_0708,
        name: Text::new("NetworkImage"),
        data_length: 0x1122_3344_5566_7788,
        metadata_flatbuffer_crc: 0x0D0C_0B0A,
        ..LoadElf::default()
    };
    let expected = at(
        96,
        &[
            (0, &[3]),
            (4, &[100, 0, 0, 0]),
            (8, &[4, 3, 2, 1]),
            (12, &[8, 7, 6, 5]),
            (16, b"NetworkImage"),
            (80, &[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]),
            (88, &[10, 11, 12, 13]),
        ],
    );
    assert_eq!(encoded(&command), expected);
}

#[test]
fn commands_with_one_id_have_it_behind_the_number() {
    let id = 0x0102_0304;
    let unload = UnloadConstants { constants_id: id, ..UnloadConstants::default() };
    assert_eq!(encoded(&unload), [5, 0, 0, 0, 4, 3, 2, 1]);
    assert_eq!(encoded(&UnloadElf { elf_id: id, ..UnloadElf::default() }), [7, 0, 0, 0, 4, 3, 2, 1]);
}

#[test]
fn activate_has_each_field_in_its_place() {
    let command = Activate {
        process_id: ProcessId(1),
        constants_id: 2,
        elf_id: 3,
        reservation_type: 4,
        resource_res_id: -1,
        opt_vc_setup: 5,
        vc_res_id: -1,
        initial_state: 6,
        dma_type: 7,
        opt_support_datapath_switching: 8,
        ..Activate::default()
    };
    let expected = at(
        48,
        &[
            (0, &[9]),
            (4, &[1]),
            (8, &[2]),
            (12, &[3]),
            (16, &[4]),
            (20, &MINUS_ONE),
            (24, &[5]),
            (28, &MINUS_ONE),
            (32, &[6]),
            (36, &[7]),
            (40, &[8]),
        ],
    );
    assert_eq!(encoded(&command), expected);
}

#[test]
fn deactivate_has_each_field_in_its_place() {
    let command = Deactivate { activation_id: 6, opt_vc_teardown: 1, ..Deactivate::default() };
    assert_eq!(encoded(&command), [11, 0, 0, 0, 6, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn questions_have_each_field_in_its_place() {
    assert_eq!(encoded(&GetStatus::default()), [13, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(encoded(&GetStatus { info_type: 2, ..GetStatus::default() }), [13, 0, 0, 0, 2, 0, 0, 0]);
    assert_eq!(encoded(&GetPerformanceInfo::default()), [34, 0, 0, 0, 0, 0, 0, 0]);
    let resources =
        GetResourceInfo { process_id: ProcessId(2), res_grp_id: -1, ..GetResourceInfo::default() };
    assert_eq!(encoded(&resources), [32, 0, 0, 0, 2, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0]);
}

proptest! {
    #[test]
    fn transaction_of_any_command_keeps_it_and_ends_in_zeros(
        descriptor in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let command = LoadConstantsEx::default();
        let bytes = passthrough(&command, &descriptor);
        prop_assert_eq!(bytes.len() % 8, 0);
        prop_assert_eq!(&bytes[..4], &[1, 0, 0, 0]);
        prop_assert_eq!(&bytes[4..8], &u32::try_from(bytes.len()).unwrap().to_le_bytes());
        prop_assert_eq!(&bytes[8..88], encoded(&command));
        prop_assert_eq!(&bytes[88..88 + descriptor.len()], &descriptor[..]);
        let behind = &bytes[88 + descriptor.len()..];
        prop_assert!((8..16).contains(&behind.len()) && behind.iter().all(|&byte| byte == 0));
    }
}
