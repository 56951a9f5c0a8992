//! The owner of a channel during control messages, as in the kernel's driver (drivers/accel/qaic of Linux
//! 6.12).

use crate::tests::prelude::*;
use crate::tests::rig::{Active, events, load};

const LIMIT: Duration = Duration::from_mins(1);

/// Returns the result of a deactivation while another thread waits, and the result of that wait.
fn deactivated_during_a_wait(
    rig: &Rig,
    active: Active,
    output: u32,
) -> (Result<(), Errno>, Result<(), Errno>) {
    std::thread::scope(|scope| {
        let file = Arc::clone(&rig.file);
        let wait = scope.spawn(move || file.wait(active.dbc_id, output, 2000));
        assert!(rig.control.await_waiters(1, LIMIT));
        (rig.deactivate(active), wait.join().unwrap())
    })
}

/// `disable_dbc` in `qaic_data.c` synchronizes with the readers of the channel, of which a wait is one.
#[test]
fn deactivation_blocks_until_waits_end_and_wakes_none() {
    let rig = Rig::threaded();
    let active = rig.activate(8);
    let output = rig.output(active);
    rig.plan("inference@1=hang");
    rig.execute(active, &[output]).unwrap();
    assert_eq!(deactivated_during_a_wait(&rig, active, output), (Ok(()), Err(Errno::TIMEDOUT)));
    assert_eq!(rig.wait(active, output), Err(Errno::PERM));
}

/// `msg_xfer` in `qaic_control.c` ends its wait after a signal; `resp_worker` drops the later reply, except
/// for freed channels.
#[test]
fn message_interrupted_by_a_signal_was_carried_out() {
    let rig = Rig::of(Profile::Ssr);
    rig.plan("command(load_elf)@1=EINTR; command(deactivate)@1=EINTR");
    assert_eq!(load(rig.file()), Err(Errno::INTR));
    assert_eq!(rig.control.resource_usage().elves, 1);
    let active = rig.activate(8);
    assert_eq!(rig.deactivate(active), Err(Errno::INTR));
    assert_eq!(rig.control.resource_usage().activations, 0);
    assert_eq!(rig.deactivate(active), Err(Errno::PERM));
    // The channel is free.
    let again = rig.activate(8);
    assert_eq!(again.dbc_id, active.dbc_id);
}

/// A stop ends the wait in `msg_xfer` as a signal does, and the kernel repeats the call when the process
/// continues.
#[test]
fn message_interrupted_by_a_stop_is_carried_out_twice() {
    let rig = Rig::threaded();
    let stopped = |call: &(dyn Fn() -> Result<(), Errno> + Sync)| {
        std::thread::scope(|scope| {
            let made = scope.spawn(call);
            assert!(rig.control.await_waiters(1, LIMIT));
            rig.control.stop_and_continue();
            made.join().unwrap()
        })
    };
    rig.plan("command(load_elf)@1=slow(3600s); command(deactivate)@1=slow(3600s)");
    assert_eq!(stopped(&|| load(rig.file()).map(|_| ())), Ok(()));
    assert_eq!(rig.control.resource_usage().elves, 2);
    let active = rig.activate(8);
    // The second call finds that the channel was released; the reply to the first call frees it.
    assert_eq!(stopped(&|| rig.deactivate(active)), Err(Errno::PERM));
    assert_eq!(rig.control.resource_usage().activations, 0);
    assert_eq!(rig.activate(8).dbc_id, active.dbc_id);
}

#[test]
fn reply_after_the_time_limit_is_dropped() {
    let rig = Rig::of(Profile::Ssr);
    rig.plan("command(load_elf)@1=slow(61s); command(load_elf)@2=slow(59s)");
    assert_eq!(load(rig.file()), Err(Errno::TIMEDOUT));
    assert!(load(rig.file()).is_ok());
    assert_eq!((rig.control.resource_usage().elves, rig.kmd.clock().now().as_secs()), (2, 60 + 59));
}

/// `encode_deactivate` has taken the channel from its owner before `msg_xfer` finds no room.
#[test]
fn deactivation_without_room_was_not_sent_and_gave_the_channel_up() {
    let rig = Rig::of(Profile::Ssr);
    let active = rig.activate(8);
    let output = rig.output(active);
    rig.plan("command(deactivate)@1=EAGAIN; command(status)@1=EAGAIN");
    assert_eq!(rig.file().manage(&mut message::status_query()), Err(Errno::AGAIN));
    assert_eq!(rig.deactivate(active), Err(Errno::AGAIN));
    assert_eq!(rig.control.resource_usage().activations, 1);
    assert_eq!(rig.execute(active, &[output]), Err(Errno::PERM));
    assert_eq!(rig.deactivate(active), Err(Errno::PERM));
    // `qaic_postclose` would not free the channel, so an activation that gets it would wait forever; the firmware's
    // reply frees it.
    assert_eq!(rig.file().manage(&mut message::deactivate_given_up(active.activation_id)), Ok(()));
}

#[test]
fn close_of_a_file_frees_its_channel_without_an_event() {
    let rig = Rig::of(Profile::Ssr);
    let mut listener = rig.kmd.events().unwrap();
    let state = |state, dbc_id| EventKind::Channel { dbc_id, state };
    let kinds = |found: Vec<qaic_kmd::Event>| found.into_iter().map(|event| event.kind).collect::<Vec<_>>();
    let other = rig.open().unwrap();
    let first = crate::tests::rig::activate(&*other, 8).unwrap();
    drop(other);
    assert_eq!(kinds(events(&mut *listener)), [state(DbcState::Assigned, first.dbc_id)]);
    // The channel still has that state when it is reused.
    let second = rig.activate(8);
    assert_eq!(second.dbc_id, first.dbc_id);
    assert_eq!(kinds(events(&mut *listener)), []);
    rig.deactivate(second).unwrap();
    assert_eq!(kinds(events(&mut *listener)), [state(DbcState::Idle, first.dbc_id)]);
}

/// `qaic_perf_stats_bo_ioctl` answers `total_slice_nents`, which attaching sets.
#[test]
fn count_of_elements_is_known_before_the_first_execution() {
    let rig = Rig::of(Profile::New);
    let active = rig.activate(8);
    let output = rig.output(active);
    let elements = || {
        let mut entry = [PerfStatsEntry { handle: output, ..PerfStatsEntry::default() }];
        rig.file().perf_stats(active.dbc_id, &mut entry).unwrap();
        entry[0].num_queue_element
    };
    assert_eq!(elements(), 1);
    rig.file().detach_slices(output).unwrap();
    assert_eq!(elements(), 0);
}
