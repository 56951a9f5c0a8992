//! Any requests of any users, in any order.

use proptest::prelude::*;

use super::*;

/// Ids are small, so that those of random commands often belong to a user.
fn small() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0..12_u32, 1 => Just(u32::MAX), 1 => Just(0xFE_u32), 1 => any::<u32>()]
}

#[derive(Clone, Debug)]
enum Move {
    Send(Vec<Transaction>),
    Terminate,
    BeginRestart(u32),
    EndRestart,
    Reset,
}

fn sends() -> impl Strategy<Value = Vec<Transaction>> {
    let elf = (0..6_u8, 0..20_u8, 0..100_u8, 0..40_u8).prop_map(|(cores, semaphores, mcids, memory)| {
        let data: Arc<[u8]> = [cores, semaphores, mcids, memory].into();
        let fields: [(usize, &[u8]); 2] = [(4, &le(100)), (80, &le64(4))];
        vec![command(3, 96, &fields), Transaction::Dma { tag: 100, data }]
    });
    let constants = (0..1_u64 << 34, 0..1_u64 << 34).prop_map(|(fixed, dynamic)| {
        vec![command(15, 104, &[(72, &le(24)), (80, &le64(fixed)), (88, &le64(dynamic))])]
    });
    let payload = (small(), 0..40_u64, 1..20_usize).prop_map(|(id, offset, len)| {
        let fields: [(usize, &[u8]); 4] =
            [(8, &le(300)), (12, &le(id)), (16, &le64(len as u64)), (24, &le64(offset))];
        vec![command(16, 32, &fields), Transaction::Dma { tag: 300, data: vec![7; len].into() }]
    });
    let activate = (small(), small(), small(), small(), any::<bool>()).prop_map(
        |(constants_id, elf_id, group, channel, has_constants)| {
            let constants_id = if has_constants { constants_id } else { 0 };
            let (group, channel) = (group.wrapping_sub(4), channel.wrapping_sub(4));
            vec![activate_command(constants_id, elf_id, &[(20, &le(group)), (28, &le(channel))]), SETUP]
        },
    );
    let plain = (small(), small()).prop_map(|(elf_id, _)| vec![activate_command(0, elf_id, &[]), SETUP]);
    let deactivate = (small(), any::<bool>())
        .prop_map(|(id, tears_down)| vec![command(11, 16, &[(4, &le(id)), (8, &le(tears_down.into()))])]);
    let by_id = (prop::sample::select(vec![5_u32, 7]), small())
        .prop_map(|(command_id, id)| vec![command(command_id, 8, &[(4, &le(id))])]);
    prop_oneof![elf, constants, payload, activate, plain, deactivate, by_id]
}

fn moves() -> impl Strategy<Value = (u32, Move)> {
    let step = prop_oneof![
        40 => sends().prop_map(Move::Send),
        2 => Just(Move::Terminate),
        1 => (0..18_u32).prop_map(Move::BeginRestart),
        2 => Just(Move::EndRestart),
        1 => Just(Move::Reset),
    ];
    (1..4_u32, step)
}

/// Checks the invariants of a resource usage.
fn check(usage: &ResourceUsage) -> Result<(), TestCaseError> {
    let ResourceUsage { totals, free, .. } = usage;
    prop_assert!(free.cores <= totals.cores && free.multicast_ids <= totals.multicast_ids);
    prop_assert!(free.semaphores <= totals.semaphores && free.ddr_bytes <= totals.ddr_bytes);
    prop_assert!(free.physical_channels <= totals.physical_channels);
    prop_assert!(free.channels <= totals.channels);
    prop_assert_eq!(usage.channels.len(), (totals.channels - free.channels) as usize);
    prop_assert!(usage.constants_in_use <= usage.constants);
    Ok(())
}

proptest! {
    /// The tables never exceed the card's resources, refusals change nothing, and terminated users hold
    /// nothing.
    #[test]
    fn resource_usage_after_any_commands_adds_up(moves in prop::collection::vec(moves(), 0..60)) {
        let firmware = firmware(Greedy);
        for (user, step) in moves {
            let before = firmware.resource_usage();
            match step {
                Move::Send(message) => {
                    // A refused payload frees its constants.
                    let keeps = !matches!(&message[0], Transaction::Passthrough(bytes) if bytes[0] == 16);
                    let replies = firmware.handle(user, message);
                    let is_refused = replies.iter().all(|reply| match reply {
                        TransactionReply::Passthrough(bytes) => {
                            let offset = if bytes[0] == 2 || bytes[0] == 4 { 8 } else { 4 };
                            word(bytes, offset) != 0
                        }
                        TransactionReply::Activate(ChannelReply { status, .. }) | TransactionReply::Deactivate { status, .. } => *status != 0,
                        TransactionReply::Status(_) => false,
                    });
                    prop_assert!(!(is_refused && keeps) || firmware.resource_usage() == before);
                }
                Move::Terminate => firmware.terminate(user),
                Move::BeginRestart(dbc_id) => firmware.begin_restart(dbc_id),
                Move::EndRestart => firmware.end_restart(),
                Move::Reset => {
                    firmware.reset();
                    prop_assert!(firmware.resource_usage().is_untouched());
                }
            }
            check(&firmware.resource_usage())?;
        }
        for user in 1..4 {
            firmware.terminate(user);
        }
        firmware.end_restart();
        prop_assert!(firmware.resource_usage().is_untouched(), "{:?}", firmware.resource_usage());
    }

    /// Any bytes get a reply for each command, with a number that is not the command's own.
    #[test]
    fn command_of_any_bytes_is_answered(
        id in prop_oneof![4 => 0..52_u32, 1 => any::<u32>()],
        bytes in prop::collection::vec(any::<u8>(), 0..160),
        is_strict in any::<bool>(),
    ) {
        let config = FirmwareConfig { is_strict, ..FirmwareConfig::default() };
        let firmware = Firmware::new(config, Arc::new(Loopback));
        for bytes in [bytes.clone(), [&le(id)[..], &bytes].concat()] {
            let number = bytes.first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
            let replies = firmware.handle(1, vec![Transaction::Passthrough(bytes)]);
            let [TransactionReply::Passthrough(reply)] = &replies[..] else { panic!("{replies:?}") };
            prop_assert!(reply.len() >= 8);
            let expected = match number { 15 | 16 => 2, other => other.wrapping_add(1) };
            prop_assert_eq!(word(reply, 0), expected);
        }
    }
}
