//! Messages are built and replies are read by the offsets of the specification, independently of the code of
//! the firmware and of the runtime.

mod bytes;
mod life;
mod properties;

use std::sync::Mutex;

use super::*;
use crate::data_path::channel::{Element, Step};
use crate::workload::{Loopback, Requirements, Running};

/// A command with its fields at their offsets, followed by eight zero bytes.
fn command(id: u32, size: usize, fields: &[(usize, &[u8])]) -> Transaction {
    let mut bytes = vec![0; size + 8];
    bytes[..4].copy_from_slice(&id.to_le_bytes());
    for (offset, field) in fields {
        bytes[*offset..offset + field.len()].copy_from_slice(field);
    }
    Transaction::Passthrough(bytes)
}

fn le(value: u32) -> [u8; 4] {
    value.to_le_bytes()
}

fn le64(value: u64) -> [u8; 8] {
    value.to_le_bytes()
}

fn word(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(bytes[offset..offset + 4].try_into().unwrap())
}

fn long(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(bytes[offset..offset + 8].try_into().unwrap())
}

fn status_of(bytes: &[u8], offset: usize) -> i32 {
    word(bytes, offset).cast_signed()
}

/// The reply to one command, without a channel's transaction.
fn ask(firmware: &Firmware, user: u32, message: Vec<Transaction>) -> Vec<u8> {
    match &firmware.handle(user, message)[..] {
        [TransactionReply::Passthrough(bytes)] => bytes.clone(),
        other => panic!("{other:?}"),
    }
}

fn load_elf(firmware: &Firmware, user: u32, data: &[u8]) -> Result<u32, i32> {
    let fields: [(usize, &[u8]); 4] =
        [(4, &le(100)), (8, &le(4711)), (16, b"NetworkImage"), (80, &le64(data.len() as u64))];
    let message = vec![command(3, 96, &fields), Transaction::Dma { tag: 100, data: data.into() }];
    let reply = ask(firmware, user, message);
    assert_eq!((reply.len(), word(&reply, 0)), (16, 4));
    match status_of(&reply, 8) {
        0 => Ok(word(&reply, 4)),
        status => Err(status),
    }
}

fn announce(firmware: &Firmware, user: u32, static_bytes: u64, dynamic_bytes: u64) -> Result<u32, i32> {
    let fields: [(usize, &[u8]); 5] = [
        (4, &le(4711)),
        (8, b"ConstantsDescriptor"),
        (72, &le(24)),
        (80, &le64(static_bytes)),
        (88, &le64(dynamic_bytes)),
    ];
    let reply = ask(firmware, user, vec![command(15, 80 + 24, &fields)]);
    assert_eq!((reply.len(), word(&reply, 0)), (16, 2));
    match status_of(&reply, 8) {
        0 => Ok(word(&reply, 4)),
        status => Err(status),
    }
}

fn load_payload(firmware: &Firmware, user: u32, id: u32, offset: u64, data: &[u8]) -> i32 {
    let fields: [(usize, &[u8]); 5] =
        [(4, &le(4711)), (8, &le(300)), (12, &le(id)), (16, &le64(data.len() as u64)), (24, &le64(offset))];
    let message = vec![command(16, 32, &fields), Transaction::Dma { tag: 300, data: data.into() }];
    let reply = ask(firmware, user, message);
    assert_eq!((reply.len(), word(&reply, 0)), (16, 2));
    status_of(&reply, 8)
}

fn unload(firmware: &Firmware, user: u32, id: u32, is_elf: bool) -> i32 {
    let reply = ask(firmware, user, vec![command(if is_elf { 7 } else { 5 }, 8, &[(4, &le(id))])]);
    assert_eq!((reply.len(), word(&reply, 0)), (8, if is_elf { 8 } else { 6 }));
    status_of(&reply, 4)
}

fn activate_command(constants_id: u32, elf_id: u32, changes: &[(usize, &[u8])]) -> Transaction {
    let fields: [(usize, &[u8]); 6] = [
        (4, &le(4711)),
        (8, &le(constants_id)),
        (12, &le(elf_id)),
        (20, &le(u32::MAX)),
        (24, &le(1)),
        (28, &le(u32::MAX)),
    ];
    command(9, 48, &[&fields[..], changes].concat())
}

const SETUP: Transaction = Transaction::Activate { queue_size: 512, options: 0 };

/// Activation id and channel.
fn activate(firmware: &Firmware, user: u32, constants_id: u32, elf_id: u32) -> Result<(u32, u32), i32> {
    activate_with(firmware, user, activate_command(constants_id, elf_id, &[]))
}

fn activate_with(firmware: &Firmware, user: u32, command: Transaction) -> Result<(u32, u32), i32> {
    let replies = firmware.handle(user, vec![command, SETUP]);
    let [
        TransactionReply::Passthrough(reply),
        TransactionReply::Activate(ChannelReply { status, dbc_id, .. }),
    ] = &replies[..]
    else {
        panic!("{replies:?}")
    };
    assert_eq!((reply.len(), word(reply, 0), word(reply, 4)), (88, 10, *status));
    if *status == 0 {
        assert_eq!(word(reply, 12), *dbc_id);
        Ok((word(reply, 8), *dbc_id))
    } else {
        Err(status.cast_signed())
    }
}

fn deactivate(firmware: &Firmware, user: u32, activation_id: u32, dbc_id: u32) -> i32 {
    let fields: [(usize, &[u8]); 2] = [(4, &le(activation_id)), (8, &le(1))];
    let replies = firmware.handle(user, vec![command(11, 16, &fields)]);
    let [TransactionReply::Passthrough(reply), channel @ ..] = &replies[..] else { panic!("{replies:?}") };
    let status = word(reply, 4);
    assert_eq!((reply.len(), word(reply, 0)), (8, 12));
    // The reply names no channel for an activation of another user.
    if status == 0 {
        assert_eq!(channel, [TransactionReply::Deactivate { status, dbc_id }]);
    } else {
        assert!(channel.is_empty(), "{channel:?}");
    }
    status.cast_signed()
}

/// The bytes of a program are its requirements: cores, semaphores, multicast ids, and MB.
#[derive(Debug)]
struct Greedy;

impl Workload for Greedy {
    fn requirements(&self, elf: &[u8]) -> Result<Requirements, NncStatus> {
        let [cores, semaphores, multicast_ids, megabytes] = elf else { return Err(NncStatus::METADATA) };
        Ok(Requirements {
            cores: (*cores).into(),
            semaphores: (*semaphores).into(),
            multicast_ids: u32::from(*multicast_ids) * 16,
            ddr_bytes: u64::from(*megabytes) << 28,
            image_bytes: 1 << 20,
        })
    }

    fn activate(&self, images: &Images) -> Result<Box<dyn Running>, NncStatus> {
        Loopback.activate(images)
    }
}

fn firmware(workload: impl Workload + 'static) -> Firmware {
    Firmware::new(FirmwareConfig::default(), Arc::new(workload))
}
