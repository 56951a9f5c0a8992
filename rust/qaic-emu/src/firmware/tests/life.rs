//! Life cycles of images, activations and channels.

use std::sync::mpsc;

use super::*;
use crate::data_path::pages::Pages;

#[test]
fn unload_of_an_image_in_use_is_refused() {
    let firmware = firmware(Loopback);
    let elf_id = load_elf(&firmware, 1, b"elf").unwrap();
    let constants_id = announce(&firmware, 1, 3, 2).unwrap();
    assert_eq!(load_payload(&firmware, 1, constants_id, 0, &[1, 2, 3]), 0);
    assert_eq!(load_payload(&firmware, 1, constants_id, 3, &[4, 5]), 0);
    let (id, channel) = activate(&firmware, 1, constants_id, elf_id).unwrap();
    assert_eq!(unload(&firmware, 1, elf_id, true), -9);
    assert_eq!(unload(&firmware, 1, constants_id, false), -9);
    // Other users cannot unload it.
    assert_eq!(unload(&firmware, 2, elf_id, true), -19);
    assert_eq!(deactivate(&firmware, 2, id, channel), -11);
    assert_eq!(deactivate(&firmware, 1, id + 1, channel), -11);
    assert_eq!(firmware.resource_usage().channels, [channel]);
    assert_eq!(deactivate(&firmware, 1, id, channel), 0);
    assert_eq!(deactivate(&firmware, 1, id, channel), -11);
    assert!(firmware.channel(channel).is_none());
    assert_eq!(unload(&firmware, 1, elf_id, true), 0);
    assert_eq!(unload(&firmware, 1, constants_id, false), 0);
    assert_eq!(unload(&firmware, 1, constants_id, false), -19);
    assert!(firmware.resource_usage().is_untouched());
}

#[test]
fn resource_used_up_is_refused_with_its_status() {
    let firmware = firmware(Greedy);
    // Cores, semaphores, multicast ids in units of 16, memory in units of 256 MB.
    let mut sizes = Vec::new();
    for (requirements, status) in
        [([9, 0, 0, 0], -13), ([0, 17, 0, 0], -15), ([0, 0, 97, 0], -12), ([0, 0, 0, 64], -4)]
    {
        let elf_id = load_elf(&firmware, 1, &requirements).unwrap();
        let (id, channel) = activate(&firmware, 1, 0, elf_id).unwrap();
        let before = firmware.resource_usage();
        assert_eq!(activate(&firmware, 1, 0, elf_id), Err(status), "{requirements:?}");
        assert_eq!(firmware.resource_usage(), before);
        assert_eq!(deactivate(&firmware, 1, id, channel), 0);
        assert!(activate(&firmware, 1, 0, elf_id).is_ok());
        firmware.terminate(1);
        sizes.push(firmware.resource_usage());
    }
    assert!(sizes.iter().all(ResourceUsage::is_untouched));
    let elf_id = load_elf(&firmware, 1, &[0, 0, 0, 0]).unwrap();
    let channels: Vec<_> = (0..16).map(|_| activate(&firmware, 1, 0, elf_id).unwrap().1).collect();
    assert_eq!(channels, (0..16).collect::<Vec<_>>());
    assert_eq!(activate(&firmware, 1, 0, elf_id), Err(-14));
    // Images and constants also use memory.
    assert_eq!(announce(&firmware, 1, 32_692 << 20, 0), Err(-4));
    assert_eq!(announce(&firmware, 1, u64::MAX, 1), Err(-6));
    assert_eq!(announce(&firmware, 1, 0, 32_691 << 20).map(|_| ()), Ok(()));
    assert_eq!(load_elf(&firmware, 1, &[0, 0, 0, 0]), Err(-4));
    // They also use ids: at most as many as the status can count.
    firmware.terminate(1);
    for _ in 0..255 {
        load_elf(&firmware, 1, &[0, 0, 0, 0]).unwrap();
    }
    assert_eq!(load_elf(&firmware, 1, &[0, 0, 0, 0]), Err(-20));
}

#[test]
fn data_of_another_tag_or_length_is_refused() {
    let firmware = firmware(Loopback);
    let load = |tag: u32, length: u64, data: Vec<(u32, &[u8])>| {
        let mut message = vec![command(3, 96, &[(4, &le(tag)), (80, &le64(length))])];
        message.extend(data.into_iter().map(|(tag, data)| Transaction::Dma { tag, data: data.into() }));
        status_of(&ask(&firmware, 1, message), 8)
    };
    assert_eq!(load(100, 3, vec![(100, b"elf")]), 0);
    assert_eq!(load(100, 3, vec![(300, b"con"), (100, b"elf")]), 0);
    assert_eq!(load(100, 3, vec![]), -6);
    assert_eq!(load(100, 3, vec![(300, b"elf")]), -6);
    assert_eq!(load(100, 4, vec![(100, b"elf")]), -6);
    assert_eq!(load(100, 2, vec![(100, b"elf")]), -6);
    // Tags have a fixed length; names end with a terminator.
    assert_eq!(load(300, 3, vec![(300, b"elf")]), -6);
    let message = vec![
        command(3, 96, &[(4, &le(100)), (16, &[b'x'; 64]), (80, &le64(3))]),
        Transaction::Dma { tag: 100, data: (*b"elf").into() },
    ];
    assert_eq!(status_of(&ask(&firmware, 1, message), 8), -6);
    assert_eq!(firmware.resource_usage().elves, 2);
}

#[test]
fn refused_part_frees_the_constants() {
    let firmware = firmware(Loopback);
    let constants_id = announce(&firmware, 1, 2, 2).unwrap();
    assert_eq!(load_payload(&firmware, 2, constants_id, 0, &[1]), -19);
    assert_eq!(load_payload(&firmware, 1, constants_id, 0, &[1, 2]), 0);
    assert_eq!(load_payload(&firmware, 1, constants_id, 1, &[1, 2]), -6);
    assert_eq!(unload(&firmware, 1, constants_id, false), -19);
    assert!(firmware.resource_usage().is_untouched());

    let elf_id = load_elf(&firmware, 1, b"elf").unwrap();
    for (parts, status) in [(&[][..], -8), (&[(0, 2)][..], -50), (&[(2, 2)][..], -8)] {
        let constants_id = announce(&firmware, 1, 2, 2).unwrap();
        for (offset, len) in parts {
            assert_eq!(load_payload(&firmware, 1, constants_id, *offset, &vec![1; *len]), 0);
        }
        let before = firmware.resource_usage();
        assert_eq!(activate(&firmware, 1, constants_id, elf_id), Err(status));
        assert_eq!(firmware.resource_usage(), before);
    }
}

#[test]
fn constants_reach_the_cores_in_their_order() {
    #[derive(Debug)]
    struct Check;
    impl Workload for Check {
        fn activate(&self, images: &Images) -> Result<Box<dyn Running>, NncStatus> {
            let is_right = (&*images.elf, &*images.constants) == (b"elf", &[1, 2, 0, 3, 4, 5]);
            if is_right { Loopback.activate(images) } else { Err(NncStatus(-100)) }
        }
    }
    let firmware = firmware(Check);
    let elf_id = load_elf(&firmware, 1, b"elf").unwrap();
    let constants_id = announce(&firmware, 1, 3, 4).unwrap();
    assert_eq!(load_payload(&firmware, 1, constants_id, 3, &[3, 4, 5]), 0);
    assert_eq!(load_payload(&firmware, 1, constants_id, 0, &[1, 2]), 0);
    assert!(activate(&firmware, 1, constants_id, elf_id).is_ok());
    // A refusal by the cores leaves no resources in use.
    let before = firmware.resource_usage();
    assert_eq!(activate(&firmware, 1, 0, elf_id), Err(-100));
    assert_eq!(firmware.resource_usage(), before);
}

#[test]
fn activation_with_an_unsupported_field_is_refused() {
    let firmware = firmware(Loopback);
    let elf_id = load_elf(&firmware, 1, b"elf").unwrap();
    let with = |changes: &[(usize, &[u8])]| {
        activate_with(&firmware, 1, activate_command(0, elf_id, changes)).map(|_| ())
    };
    assert_eq!(with(&[(16, &le(1))]), Err(-6));
    assert_eq!(with(&[(20, &le(99))]), Err(-11));
    assert_eq!(with(&[(28, &le(99))]), Err(-11));
    assert_eq!(with(&[(32, &le(2))]), Err(-6));
    assert_eq!(with(&[(36, &le(1))]), Err(-2));
    assert_eq!(with(&[(40, &[1])]), Err(-66));
    assert_eq!(with(&[(24, &le(2))]), Err(-6));
    assert_eq!(activate(&firmware, 1, 0, elf_id + 1), Err(-19));
    assert_eq!(activate(&firmware, 1, elf_id, elf_id), Err(-19));
    // The channel's transaction and the command's word belong together.
    let refused =
        TransactionReply::Activate(ChannelReply { status: 52_u32.wrapping_neg(), dbc_id: 0, options: 0 });
    let reply = ask(&firmware, 1, vec![activate_command(0, elf_id, &[])]);
    assert_eq!(status_of(&reply, 4), -52);
    assert_eq!(firmware.handle(1, vec![SETUP]), [refused]);
    let no_ring = Transaction::Activate { queue_size: 0, options: 0 };
    let replies = firmware.handle(1, vec![activate_command(0, elf_id, &[]), no_ring]);
    assert!(matches!(replies[1], TransactionReply::Activate(ChannelReply { status, .. }) if status != 0));
    assert_eq!(firmware.resource_usage().activations, 0);
    assert_eq!(with(&[(32, &le(1))]), Ok(()));
}

#[test]
fn refusal_of_an_activation_is_in_one_transaction_or_in_both() {
    let config = FirmwareConfig { nacks_both: false, ..FirmwareConfig::default() };
    let firmware = Firmware::new(config, Arc::new(Loopback));
    let replies = firmware.handle(1, vec![activate_command(0, 1, &[]), SETUP]);
    let [TransactionReply::Passthrough(reply)] = &replies[..] else { panic!("{replies:?}") };
    assert_eq!((reply.len(), status_of(reply, 4)), (88, -19));
    // The same for a command that cannot be parsed.
    let bad = Transaction::Passthrough(le(9).to_vec());
    let replies = firmware.handle(1, vec![bad.clone(), SETUP]);
    assert!(matches!(&replies[..], [TransactionReply::Passthrough(_)]), "{replies:?}");
    let replies = self::firmware(Loopback).handle(1, vec![bad, SETUP]);
    assert_eq!(
        replies[1],
        TransactionReply::Activate(ChannelReply { status: 17_u32.wrapping_neg(), dbc_id: 0, options: 0 })
    );
}

#[test]
fn channel_of_an_activation_goes_with_it_or_with_its_user() {
    let firmware = firmware(Loopback);
    let elf_id = load_elf(&firmware, 1, b"elf").unwrap();
    let (id, channel) = activate(&firmware, 1, 0, elf_id).unwrap();
    // Without a channel transaction of the driver, the command gives up the channel of its activation.
    let (other, other_channel) = activate(&firmware, 1, 0, elf_id).unwrap();
    let asks = |id: u32| command(11, 16, &[(4, &le(id)), (8, &le(1))]);
    let replies = firmware.handle(1, vec![asks(other)]);
    assert_eq!(replies[1..], [TransactionReply::Deactivate { status: 0, dbc_id: other_channel }]);
    assert_eq!(firmware.resource_usage().activations, 1);
    assert_eq!(status_of(&ask(&firmware, 1, vec![asks(other)]), 4), -11);
    let without = command(11, 16, &[(4, &le(id))]);
    assert_eq!(status_of(&ask(&firmware, 1, vec![without]), 4), 0);
    assert_eq!(
        (firmware.resource_usage().activations, firmware.resource_usage().channels),
        (0, vec![channel])
    );
    assert_eq!(unload(&firmware, 1, elf_id, true), 0);
    // Without the request, the channel stays in use until the user is terminated.
    firmware.terminate(2);
    assert_eq!(firmware.resource_usage().channels, vec![channel]);
    firmware.terminate(1);
    assert!(firmware.resource_usage().is_untouched());
}

#[test]
fn activation_without_a_channel_has_none() {
    let firmware = firmware(Greedy);
    let elf_id = load_elf(&firmware, 1, &[3, 1, 1, 0]).unwrap();
    let without_channel: [(usize, &[u8]); 2] = [(24, &le(0)), (28, &le(0xFE))];
    let reply = ask(&firmware, 1, vec![activate_command(0, elf_id, &without_channel)]);
    assert_eq!((status_of(&reply, 4), word(&reply, 12)), (0, u32::MAX));
    firmware.terminate(1);
    assert!(firmware.resource_usage().is_untouched());
}

#[test]
fn closed_user_frees_all_it_had_and_nothing_else() {
    let firmware = firmware(Loopback);
    let mine = load_elf(&firmware, 1, b"elf").unwrap();
    let theirs = load_elf(&firmware, 2, b"elf").unwrap();
    announce(&firmware, 1, 8, 8).unwrap();
    let (_, my_channel) = activate(&firmware, 1, 0, mine).unwrap();
    let (_, their_channel) = activate(&firmware, 2, 0, theirs).unwrap();
    let (my_path, their_path) =
        (firmware.channel(my_channel).unwrap(), firmware.channel(their_channel).unwrap());
    let element = |id| Element {
        pages: Pages::new(1).unwrap(),
        host_offset: 0,
        dev_addr: 0,
        len: 8,
        to_device: true,
        sems: [qaic_kmd::abi::Sem::default(); 4],
        doorbell: None,
        id,
        is_late: false,
    };
    my_path.push(element(1));
    their_path.push(element(2));
    firmware.terminate(1);
    assert_eq!((my_path.step(), my_path.occupancy()), (Step::Idle, 0));
    assert_eq!(their_path.step(), Step::Completed { element_id: 2, dma_status: 0 });
    let left = firmware.resource_usage();
    assert_eq!((left.elves, left.constants, left.activations, left.channels), (1, 0, 1, vec![their_channel]));
    firmware.terminate(1);
    firmware.reset();
    assert_eq!(their_path.step(), Step::Idle);
    assert!(firmware.resource_usage().is_untouched());
    // Ids from before a reset belong to no user.
    assert_eq!(unload(&firmware, 2, theirs, true), -19);
    assert!(load_elf(&firmware, 2, b"elf").unwrap() > theirs);
}

#[test]
fn cores_that_restart_lose_their_activation_only() {
    let firmware = firmware(Loopback);
    let elf_id = load_elf(&firmware, 1, b"elf").unwrap();
    let (id, channel) = activate(&firmware, 1, 0, elf_id).unwrap();
    let (other, other_channel) = activate(&firmware, 1, 0, elf_id).unwrap();
    let path = firmware.channel(channel).unwrap();
    firmware.begin_restart(channel);
    assert_eq!(path.step(), Step::Idle);
    assert!(firmware.channel(channel).is_none() && firmware.channel(other_channel).is_some());
    assert_eq!(firmware.resource_usage().restarting, Some(channel));
    assert_eq!(activate(&firmware, 1, 0, elf_id), Err(-36));
    assert_eq!(deactivate(&firmware, 1, id, channel), -11);
    assert_eq!(deactivate(&firmware, 1, other, other_channel), 0);
    firmware.end_restart();
    assert!(activate(&firmware, 1, 0, elf_id).is_ok());
}

/// Cores whose preparation ends when a test permits it.
#[derive(Debug)]
struct Slow {
    began: mpsc::Sender<()>,
    go_on: Mutex<mpsc::Receiver<()>>,
}

impl Workload for Slow {
    fn activate(&self, images: &Images) -> Result<Box<dyn Running>, NncStatus> {
        self.began.send(()).unwrap();
        self.go_on.lock().unwrap().recv().unwrap();
        Loopback.activate(images)
    }
}

fn slow() -> (Firmware, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let ((began, has_begun), (allow, go_on)) = (mpsc::channel(), mpsc::channel());
    (firmware(Slow { began, go_on: Mutex::new(go_on) }), has_begun, allow)
}

#[test]
fn command_beside_an_activation_in_progress_is_answered() {
    let (firmware, has_begun, allow) = slow();
    let elf_id = load_elf(&firmware, 1, b"elf").unwrap();
    std::thread::scope(|scope| {
        let activated = scope.spawn(|| activate(&firmware, 1, 0, elf_id));
        has_begun.recv().unwrap();
        assert!(load_elf(&firmware, 2, b"elf").is_ok());
        assert_eq!(unload(&firmware, 1, elf_id, true), -9);
        let usage = firmware.resource_usage();
        assert_eq!((usage.activations, usage.free.cores), (1, 15));
        allow.send(()).unwrap();
        let (_, channel) = activated.join().unwrap().unwrap();
        assert!(firmware.channel(channel).is_some());
    });
}

#[test]
fn activation_that_ends_before_its_cores_are_ready_frees_them() {
    for is_reset in [true, false] {
        let (firmware, has_begun, allow) = slow();
        let elf_id = load_elf(&firmware, 1, b"elf").unwrap();
        std::thread::scope(|scope| {
            let activated = scope.spawn(|| activate(&firmware, 1, 0, elf_id));
            has_begun.recv().unwrap();
            if is_reset {
                firmware.reset()
            } else {
                firmware.terminate(1)
            }
            allow.send(()).unwrap();
            assert_eq!(activated.join().unwrap(), Err(-1));
        });
        assert!(firmware.resource_usage().is_untouched() && firmware.channel(0).is_none());
    }
}
