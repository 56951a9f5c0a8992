//! Full rings, slow inferences and signals.

use crate::tests::prelude::*;
use qaic_emu::EmuClock;
use qaic_kmd::SystemClock;

#[test]
fn submission_to_a_full_ring_fails_after_fifty_attempts() {
    let rig = Rig::faulty("execute@1=EAGAIN*all");
    let mut exec = rig.exec();
    let began = rig.now();
    let error = run(&mut *exec, 1).unwrap_err();
    assert!(
        matches!(error.detail(), ErrorDetail::Card(CardError::RingFull { attempts: 50, elements: 2, .. })),
        "{error}"
    );
    assert_eq!(rig.now().checked_sub(began).unwrap(), Duration::from_millis(98_245));
    assert_eq!(
        [Request::ExecuteBo, Request::PerfStatsBo, Request::WaitBo].map(|call| rig.card.calls(call)),
        // The attempt of the submission, and fifty more.
        [51, 1, 0]
    );
    rig.plan("");
    run(&mut *exec, 2).unwrap();
}

#[test]
fn submission_to_a_full_ring_pauses_longer_each_time() {
    let rig = Rig::faulty("execute@1=EAGAIN*4");
    let mut exec = rig.exec();
    let began = rig.now();
    run(&mut *exec, 1).unwrap();
    assert_eq!(rig.now().checked_sub(began).unwrap(), Duration::from_millis(5 + 10 + 20));
    assert_eq!(rig.card.calls(Request::ExecuteBo), 5);
}

#[test]
fn submission_to_a_full_ring_continues_after_any_completion() {
    let rig = Rig::faulty("execute@2=EAGAIN");
    let activation = rig.activation();
    let mut first = activation.create_exec().unwrap();
    let mut second = activation.create_exec().unwrap();
    first.submit().unwrap();
    second.submit().unwrap();
    first.execute().unwrap();
    let began = rig.now();
    second.execute().unwrap();
    assert_eq!(rig.now(), began);
}

#[test]
fn wait_that_times_out_is_retried_as_often_as_configured() {
    let rig = Rig::faulty("wait@1=ETIMEDOUT*5; wait@7=ETIMEDOUT*6");
    let mut exec = rig.exec();
    run(&mut *exec, 1).unwrap();
    assert_eq!(rig.card.calls(Request::WaitBo), 6);
    let error = run(&mut *exec, 2).unwrap_err();
    assert!(matches!(error.detail(), ErrorDetail::Timeout { timeout_ms: 30_000, .. }), "{error}");
    assert_eq!(rig.card.calls(Request::WaitBo), 12);
    run(&mut *exec, 3).unwrap();
}

#[test]
fn wait_in_slices_takes_the_same_time() {
    let rig = Rig::with(EmuOptions::default(), &CardProgramSpec::stuck());
    for (try_ms, retries, slice_ms, calls, total_ms) in
        [(0, 5, None, 6, 30_000), (1000, 1, None, 2, 2000), (500, 2, Some(200), 9, 1500), (7, 0, None, 1, 7)]
    {
        let wait = WaitLimits { try_ms, retries, slice_ms };
        let options = LoadOptions { wait, ..LoadOptions::default() };
        let activation = rig.device.load(&rig.image, &options).unwrap().activate().unwrap();
        let mut exec = activation.create_exec().unwrap();
        let (began, waited) = (rig.now(), rig.card.calls(Request::WaitBo));
        assert_eq!(exec.execute().unwrap_err().code(), "device.timeout");
        assert_eq!(rig.card.calls(Request::WaitBo) - waited, calls);
        assert_eq!(rig.now().checked_sub(began).unwrap(), Duration::from_millis(total_ms));
    }
}

#[test]
fn signal_during_any_call_loses_nothing() {
    let rig = Rig::faulty(
        "manage@1=EINTR; manage@4=EINTR*3; create_bo@1=EINTR; attach@2=EINTR; mmap_bo@1=EINTR; mmap@1=EINTR; \
         execute@1=EINTR*2; wait@1=EINTR*3; detach@1=EINTR; version@1=EINTR; open@1=EINTR",
    );
    let mut exec = rig.exec();
    for value in 1..4 {
        run(&mut *exec, value).unwrap();
    }
    assert_eq!([Request::ExecuteBo, Request::WaitBo].map(|call| rig.card.calls(call)), [5, 6]);
}

#[test]
fn wait_with_endless_signals_ends() {
    let wait = WaitLimits { try_ms: 5, retries: 1, slice_ms: None };
    let options = LoadOptions { wait, ..LoadOptions::default() };
    for clock in [EmuClock::default(), EmuClock::System(SystemClock::default())] {
        let rig = Rig::with(EmuOptions { clock, ..EmuOptions::default() }, &CardProgramSpec::stuck());
        let activation = rig.device.load(&rig.image, &options).unwrap().activate().unwrap();
        let mut exec = activation.create_exec().unwrap();
        rig.plan("wait@1=EINTR*all");
        let error = exec.execute().unwrap_err();
        assert!(matches!(error.detail(), ErrorDetail::Timeout { timeout_ms: 10, .. }), "{error}");
        rig.plan("");
    }
}

#[test]
fn cancelled_inference_ends_soon_and_its_buffers_are_reclaimed() {
    let rig = Rig::with(EmuOptions::default(), &CardProgramSpec::stuck());
    let wait = WaitLimits { try_ms: 0, retries: 5, slice_ms: Some(200) };
    let options = LoadOptions { wait, ..LoadOptions::default() };
    let activation = rig.device.load(&rig.image, &options).unwrap().activate().unwrap();
    let mut exec = activation.create_exec().unwrap();
    let canceller = exec.canceller();
    // There is nothing to cancel, so the next inference is unaffected.
    canceller.cancel();
    exec.submit().unwrap();
    canceller.cancel();
    assert_eq!(exec.execute().unwrap_err().code(), "call.interrupted");
    assert_eq!(rig.card.calls(Request::WaitBo), 0);
    assert_eq!(exec.submit().unwrap_err().code(), "inference.in_flight");
    assert_eq!(exec.reclaim(&mut || false).unwrap_err().code(), "device.timeout");
    let mut looks = 0;
    let mut check = || {
        looks += 1;
        looks == 4
    };
    assert_eq!(exec.execute_interruptibly(&mut check).unwrap_err().code(), "call.interrupted");
    assert_eq!(looks, 4);
}

#[test]
fn lost_completion_times_out_and_leaves_nothing() {
    for fault in ["lost_completion", "short_completion"] {
        let rig = Rig::faulty(&format!("inference@2={fault}"));
        let mut exec = rig.exec();
        run(&mut *exec, 1).unwrap();
        let outcome = run(&mut *exec, 2);
        // The completion of the output ends an inference. If only that of the input is missing, the next
        // inference finds a queued buffer.
        match fault {
            "lost_completion" => assert_eq!(outcome.unwrap_err().code(), "device.timeout"),
            _ => outcome.unwrap(),
        }
    }
}

/// Requests without data after the output do not delay it, but they delay the next inference.
#[test]
fn stuck_request_after_the_output_times_out_the_next_inference() {
    let mut spec = CardProgramSpec::stuck();
    let waiting = std::mem::take(&mut spec.metadata.dma_requests[1].semaphore_ops);
    let last = DmaRequest { semaphore_ops: waiting, ..DmaRequest::default() };
    spec.metadata.dma_requests.push(last);
    let rig = Rig::with(EmuOptions::default(), &spec);
    let mut exec = rig.exec();
    run(&mut *exec, 1).unwrap();
    let began = rig.now();
    let error = run(&mut *exec, 2).unwrap_err();
    assert!(matches!(error.detail(), ErrorDetail::Timeout { timeout_ms: 5000, .. }), "{error}");
    assert_eq!(rig.now().checked_sub(began).unwrap(), Duration::from_secs(5));
}

#[test]
fn transfer_error_is_not_reported() {
    let rig = Rig::faulty("inference@1=dma_status(7)");
    let mut exec = rig.exec();
    exec.execute().unwrap();
    run(&mut *exec, 2).unwrap();
}

#[test]
fn cores_that_hang_time_out_and_the_program_unloads() {
    let rig = Rig::faulty("inference@1=hang");
    let mut exec = rig.exec();
    assert_eq!(exec.execute().unwrap_err().code(), "device.timeout");
}
