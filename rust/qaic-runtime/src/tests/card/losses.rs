//! Cards that are reset, and cores that restart, while programs use them.

use crate::tests::prelude::*;
use qaic_emu::ExecutionMode;

/// Longer than any test takes.
const LONG: Duration = Duration::from_mins(1);

fn pass(rig: &Rig, time: Duration) {
    rig.kmd.clock().sleep(time);
}

#[test]
fn reset_during_waits_ends_every_inference() {
    for profile in [Profile::Old, Profile::New, Profile::Ssr] {
        let options = EmuOptions {
            profile,
            execution_mode: ExecutionMode::Threads,
            clock: qaic_emu::EmuClock::System(qaic_kmd::SystemClock::default()),
            boot: Duration::from_millis(20),
            ..EmuOptions::default()
        };
        let rig = Rig::with(options, &CardProgramSpec::stuck());
        let program = rig.load().unwrap();
        let activation = program.activate().unwrap();
        let mut execs: Vec<_> = (0..4).map(|_| activation.create_exec().unwrap()).collect();
        let codes: Vec<_> = thread::scope(|scope| {
            let waiting: Vec<_> = execs
                .iter_mut()
                .map(|exec| scope.spawn(move || exec.execute().unwrap_err().code()))
                .collect();
            assert!(rig.card.await_waiters(4, LONG));
            rig.card.reset();
            waiting.into_iter().map(|waiting| waiting.join().unwrap()).collect()
        });
        assert_eq!(codes, ["device.lost"; 4], "{profile:?}");
        // From now on, every call fails in the same way.
        assert_eq!(execs[0].execute().unwrap_err().code(), "device.lost");
        assert_eq!(activation.create_exec().unwrap_err().code(), "device.lost");
        assert_eq!(program.activate().unwrap_err().code(), "device.lost");
        rig.card.hurry();
        assert_eq!(execs[0].execute().unwrap_err().code(), "device.lost");
        assert_eq!(program.activate().unwrap_err().code(), "device.lost");
        drop((execs, activation, program));
        assert_eq!(rig.device.status(), DeviceStatus::Ready);
        let again = rig.activation();
        drop(again.create_exec().unwrap());
    }
}

#[test]
fn card_in_reset_is_not_ready() {
    for profile in [Profile::Old, Profile::New, Profile::Ssr] {
        let rig = Rig::with(EmuOptions { profile, ..EmuOptions::default() }, &CardProgramSpec::default());
        let mut exec = rig.exec();
        rig.card.reset();
        let DeviceStatus::Error { reason } = rig.device.status() else { panic!("ready") };
        assert!(!reason.is_empty());
        assert_eq!(rig.load().unwrap_err().code(), "device.unavailable", "{profile:?}");
        assert_eq!(run(&mut *exec, 1).unwrap_err().code(), "device.lost");
        drop(exec);
        rig.card.hurry();
        run(&mut *rig.exec(), 2).unwrap();
    }
}

#[test]
fn program_of_before_a_reset_frees_nothing_of_a_new_one() {
    for profile in [Profile::Old, Profile::New, Profile::Ssr] {
        let rig = Rig::with(EmuOptions { profile, ..EmuOptions::default() }, &CardProgramSpec::default());
        let old_program = rig.load().unwrap();
        let old = old_program.activate().unwrap();
        let mut old_exec = old.create_exec().unwrap();
        run(&mut *old_exec, 1).unwrap();
        rig.card.reset();
        rig.card.hurry();
        // The new activation has the channel of the old one.
        let new = rig.activation();
        let mut new_exec = new.create_exec().unwrap();
        assert_eq!(run(&mut *old_exec, 2).unwrap_err().code(), "device.lost", "{profile:?}");
        run(&mut *new_exec, 3).unwrap();
        // The firmware may have reused the ids of the old objects, so no message contains them.
        let calls = rig.card.calls(Request::Manage);
        drop((old_exec, old, old_program));
        assert_eq!(rig.card.calls(Request::Manage), calls);
        run(&mut *new_exec, 4).unwrap();
    }
}

#[test]
fn dead_descriptor_is_replaced() {
    let rig = Rig::faulty("execute@2=dead");
    let mut exec = rig.exec();
    run(&mut *exec, 1).unwrap();
    assert_eq!(run(&mut *exec, 2).unwrap_err().code(), "device.lost");
    drop(exec);
    run(&mut *rig.exec(), 3).unwrap();
}

#[test]
fn restart_of_cores_loses_one_channel() {
    let rig = Rig::with(EmuOptions::default(), &CardProgramSpec::stuck());
    let program = rig.load().unwrap();
    let activation = program.activate().unwrap();
    let other = program.activate().unwrap();
    let mut exec = activation.create_exec().unwrap();
    let mut other_exec = other.create_exec().unwrap();
    rig.plan("time@1s=ssr(0)");
    // The loss ends the inference in flight; later calls fail in the same way.
    assert_eq!(exec.execute().unwrap_err().code(), "device.channel_lost");
    assert_eq!(exec.execute().unwrap_err().code(), "device.channel_lost");
    assert_eq!(activation.create_exec().unwrap_err().code(), "device.channel_lost");
    // The other activation has lost nothing; its program is only stuck.
    assert_eq!(other_exec.execute().unwrap_err().code(), "device.timeout");
    drop((exec, activation));
    // The images are still there.
    let again = program.activate().unwrap();
    drop(again.create_exec().unwrap());
}

#[test]
fn restart_between_inferences_is_reported_by_the_next() {
    let rig = Rig::new();
    let program = rig.load().unwrap();
    let activation = program.activate().unwrap();
    let mut exec = activation.create_exec().unwrap();
    run(&mut *exec, 1).unwrap();
    rig.card.restart_cores(0, true);
    assert_eq!(run(&mut *exec, 2).unwrap_err().code(), "device.channel_lost");
    drop((exec, activation));
    // The activation is refused until the cores have restarted, and is then repeated.
    let began = rig.now();
    let again = program.activate().unwrap();
    assert!(rig.now() > began);
    run(&mut *again.create_exec().unwrap(), 3).unwrap();
}

#[test]
fn cores_that_never_come_back_lose_the_card() {
    let rig = Rig::new();
    let program = rig.load().unwrap();
    let activation = program.activate().unwrap();
    let other = program.activate().unwrap();
    let mut exec = activation.create_exec().unwrap();
    let mut other_exec = other.create_exec().unwrap();
    rig.card.restart_cores(0, false);
    assert_eq!(rig.device.status(), DeviceStatus::Ready);
    assert_eq!(run(&mut *exec, 1).unwrap_err().code(), "device.channel_lost");
    run(&mut *other_exec, 2).unwrap();
    pass(&rig, Duration::from_secs(16));
    // A query of the status detects the loss.
    let _ = rig.device.status();
    assert_eq!(run(&mut *other_exec, 3).unwrap_err().code(), "device.lost");
    assert_eq!(program.activate().unwrap_err().code(), "device.lost");
}

#[test]
fn reset_at_any_call_loses_the_card_only() {
    let calls = [
        "create_bo@1",
        "create_bo@2",
        "attach@1",
        "mmap_bo@1",
        "mmap@1",
        "execute@1",
        "wait@1",
        "detach@1",
        "manage@1",
        "manage@4",
        "command(load_elf)@1",
        "command(activate)@1",
        "command(deactivate)@1",
    ];
    for profile in [Profile::Old, Profile::New, Profile::Ssr] {
        for call in calls {
            let rig = Rig::with(EmuOptions { profile, ..EmuOptions::default() }, &CardProgramSpec::default());
            rig.plan(&format!("{call}=reset"));
            let outcome = rig.load().and_then(|program| {
                let activation = program.activate()?;
                let mut exec = activation.create_exec()?;
                run(&mut *exec, 1)
            });
            if let Err(error) = outcome {
                assert!(
                    ["device.lost", "device.unavailable"].contains(&error.code()),
                    "{profile:?} {call}: {error}"
                );
            }
            rig.plan("");
            rig.card.hurry();
            run(&mut *rig.exec(), 2).unwrap();
        }
    }
}

#[test]
fn drop_of_everything_during_a_loss_does_not_hang() {
    let rig = Rig::with(EmuOptions::default(), &CardProgramSpec::stuck());
    let activation = rig.activation();
    let mut execs: Vec<Box<dyn Exec>> = (0..3).map(|_| activation.create_exec().unwrap()).collect();
    for exec in &mut execs {
        exec.submit().unwrap();
    }
    rig.card.reset();
    drop((execs, activation));
    rig.card.hurry();
}

/// No event confirms these losses, so the card may still hold the resources of the activation.
#[test]
fn loss_seen_by_an_error_alone_leaves_nothing() {
    for plan in
        ["wait@1=EPERM", "wait@1=EPIPE", "wait@1=ENODEV", "wait@1=EIO", "execute@1=EPERM", "execute@1=EPIPE"]
    {
        let rig = Rig::new();
        let mut exec = rig.exec();
        rig.plan(plan);
        let code = run(&mut *exec, 1).unwrap_err().code();
        assert!(["device.lost", "device.channel_lost"].contains(&code), "{plan}: {code}");
        drop(exec);
        run(&mut *rig.exec(), 2).unwrap();
        // The device keeps the file open, with nothing loaded through it.
        let left = rig.card.invariants();
        assert!(left.len() == 1 && left[0].contains("open files: 1"), "{plan}: {left:?}");
    }
}

/// A signal may arrive after the message was sent; the id of the loaded object is then unknown.
#[test]
fn control_message_interrupted_by_a_signal_closes_the_file() {
    let rig = Rig::new();
    rig.plan("command(load_elf)@1=EINTR");
    let opened = rig.card.calls(Request::Version);
    drop(rig.activation());
    drop(rig.activation());
    assert_eq!(rig.card.calls(Request::Version), opened + 2);
}
