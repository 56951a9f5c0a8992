//! Failed creations of exec objects leave no resources in use.

use crate::tests::prelude::*;

/// Returns the error of creating an exec under a fault plan; a later creation succeeds.
#[track_caller]
fn refused(plan: &str) -> String {
    let rig = Rig::new();
    let activation = rig.activation();
    let before = rig.card.resource_usage();
    rig.plan(plan);
    let error = activation.create_exec().unwrap_err();
    rig.plan("");
    assert_eq!(rig.card.resource_usage(), before);
    let mut exec = activation.create_exec().unwrap();
    run(&mut *exec, 1).unwrap();
    error.code().to_owned()
}

#[test]
fn load_without_memory_at_any_step_frees_all() {
    for call in ["create_bo", "attach", "mmap_bo", "mmap"] {
        for number in [1, 2] {
            assert_eq!(refused(&format!("{call}@{number}=ENOMEM")), "device.memory", "{call} {number}");
        }
    }
}

#[test]
fn load_with_another_error_reports_it_unchanged() {
    assert_eq!(refused("attach@2=ENOSPC"), "device.driver");
    assert_eq!(refused("create_bo@2=EINVAL"), "device.driver");
    assert_eq!(refused("mmap@1=EFAULT"), "device.driver");
}

#[test]
fn slice_in_more_pieces_than_the_ring_is_refused() {
    let mut spec = CardProgramSpec::default();
    for (buffer, request) in spec.network.dma_buffers.iter_mut().zip(&mut spec.metadata.dma_requests) {
        (buffer.size, request.size) = (600 * 4096, 600 * 4096);
    }
    let rig = Rig::with(EmuOptions { fragment_bytes: 4096, ..EmuOptions::default() }, &spec);
    let activation = rig.activation();
    let error = activation.create_exec().unwrap_err();
    assert_eq!(error.code(), "device.driver");
}

#[test]
fn inference_larger_than_the_ring_fails() {
    let mut spec = CardProgramSpec::default();
    for (buffer, request) in spec.network.dma_buffers.iter_mut().zip(&mut spec.metadata.dma_requests) {
        (buffer.size, request.size) = (300 * 4096, 300 * 4096);
    }
    let rig = Rig::with(EmuOptions { fragment_bytes: 4096, ..EmuOptions::default() }, &spec);
    let mut exec = rig.exec();
    // Two buffers of 300 pieces each can be attached, but together they exceed the ring, so no retry finds
    // room.
    let began = rig.now();
    let error = exec.execute().unwrap_err();
    assert!(
        matches!(error.detail(), ErrorDetail::Card(CardError::RingFull { attempts: 1, elements: 600, .. })),
        "{error}"
    );
    assert_eq!((rig.now(), rig.card.calls(Request::ExecuteBo)), (began, 1));
}
