//! Compares commands with bytes that are built by offset, independently of the declarations.

use proptest::prelude::*;

use super::*;

const ID: u32 = 0x0102_0304;
const PROCESS: Volatile<u32> = Volatile(ID);

fn encoded(command: &impl Numbered) -> Vec<u8> {
    bytemuck::bytes_of(command).to_vec()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Bytes of a name of 64 bytes between words.
fn named(before: &[u32], name: &str, after: &[u32]) -> Vec<u8> {
    [words(before), name.into(), vec![0; 64 - name.len()], words(after)].concat()
}

#[test]
fn command_has_each_field_in_its_place() {
    let constants = LoadConstantsEx {
        process_id: PROCESS,
        name: Text::new("Abc"),
        descriptor_len: 24,
        ..Default::default()
    };
    let expected = named(&[15, ID], "Abc", &[24, 0]);
    assert_eq!(encoded(&constants), expected);
    assert_eq!(passthrough(&constants, &[7; 24])[8..], [&expected[..], &[7; 24], &[0; 8]].concat());

    let payload = LoadConstantsPayload {
        process_id: PROCESS,
        tag: 300,
        constants_id: 9,
        data_length: 0x1_0000_0002,
        offset: 0x3_0000_0004,
        ..Default::default()
    };
    assert_eq!(encoded(&payload), words(&[16, ID, 300, 9, 2, 1, 4, 3]));

    let elf = LoadElf {
        tag: 100,
        process_id: PROCESS,
        metadata_crc: 0x0506_0708,
        name: Text::new("NetworkImage"),
        data_length: 0x1122_3344_5566_7788,
        metadata_flatbuffer_crc: 0x0D0C_0B0A,
        ..Default::default()
    };
    let lengths = [0x5566_7788, 0x1122_3344, 0x0D0C_0B0A, 0];
    assert_eq!(encoded(&elf), named(&[3, 100, ID, 0x0506_0708], "NetworkImage", &lengths));

    let activate = Activate {
        process_id: Volatile(1),
        constants_id: 2,
        elf_id: 3,
        reservation_type: 4,
        resource_res_id: -1,
        opt_vc_setup: 5,
        vc_res_id: -1,
        initial_state: 6,
        dma_type: 7,
        opt_support_datapath_switching: 8,
        ..Default::default()
    };
    assert_eq!(encoded(&activate), words(&[9, 1, 2, 3, 4, u32::MAX, 5, u32::MAX, 6, 7, 8, 0]));

    let deactivate = Deactivate { activation_id: ID, opt_vc_teardown: 1, ..Default::default() };
    assert_eq!(encoded(&deactivate), words(&[11, ID, 1, 0]));
    assert_eq!(encoded(&UnloadConstants { constants_id: ID, ..Default::default() }), words(&[5, ID]));
    assert_eq!(encoded(&UnloadElf { elf_id: ID, ..Default::default() }), words(&[7, ID]));
    assert_eq!(encoded(&GetStatus { info_type: 2, ..Default::default() }), words(&[13, 2]));
    assert_eq!(encoded(&GetPerformanceInfo::default()), words(&[34, 0]));
    let resources = GetResourceInfo { process_id: PROCESS, res_grp_id: -1, ..Default::default() };
    assert_eq!(encoded(&resources), words(&[32, ID, u32::MAX, 0]));
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
