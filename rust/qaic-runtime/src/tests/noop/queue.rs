//! Queues: the programs that use a queue, and the effects of the queue.

use crate::tests::prelude::*;
use qaic_runtime::Queue;
use qaic_runtime::binding::BindingSpecs;

/// A context that shows some of three cards that no other test uses.
fn context(visible: Option<&str>) -> Arc<Context> {
    noop(RegistryOptions {
        virtual_cards: Some(3),
        visible_devices: visible.map(str::to_owned),
        ..RegistryOptions::default()
    })
}

/// An exec object with memory for its tensors, on a device.
fn ready(context: &Arc<Context>, device: u32, is_placed_freely: bool) -> BoundBuffers {
    let options = ProgramOptions { is_placed_freely, ..ProgramOptions::default() };
    let card = Placement::one(DeviceId(device));
    let program = Program::new(context, &resizable(), &card, &options).unwrap();
    let specs = Arc::new(BindingSpecs::of_buffers(&program).unwrap());
    let buffers = specs.iter().map(|_| shared(Storage::new(4 * ELEMENTS as usize).unwrap()));
    let buffers: Vec<_> = buffers.collect();
    let bound = BoundBuffers::new(ExecObj::new(&program, true).unwrap(), specs);
    bound.replace_all(&buffers, None).unwrap();
    bound
}

fn wait(bound: &BoundBuffers) {
    bound.exec.wait(&mut WaitScope::default()).unwrap();
}

#[test]
fn queue_is_of_the_named_device_or_the_first_candidate() {
    let context = context(None);
    let candidates = [DeviceId(2), DeviceId(1)];
    let device = |named: Option<u32>| {
        Queue::new(&context, &candidates, named.map(DeviceId)).map(|queue| queue.device.0)
    };
    assert_eq!(device(None).unwrap(), 2);
    assert_eq!(device(Some(1)).unwrap(), 1);
    // The device exists and is visible, but the client did not choose it.
    assert_eq!(device(Some(0)).unwrap_err().to_string(), "device 0 does not exist; existing ids: [2, 1]");
    assert_eq!(device(Some(7)).unwrap_err().code(), "device.not_found");
}

#[test]
fn hidden_device_may_have_a_queue() {
    let context = context(Some("1"));
    let shown: Vec<_> = context.devices.iter().map(|device| device.id()).collect();
    let hidden: Vec<_> = (0..3).map(DeviceId).filter(|id| !shown.contains(id)).collect();
    assert!(!hidden.is_empty());
    for id in hidden {
        assert_eq!(Queue::new(&context, &shown, Some(id)).unwrap().device, id);
    }
    assert_eq!(Queue::new(&context, &shown, Some(DeviceId(7))).unwrap_err().code(), "device.not_found");
}

#[test]
fn queue_takes_programs_of_its_device_and_those_whose_user_named_none() {
    let context = context(None);
    let candidates: Vec<_> = context.devices.iter().map(|device| device.id()).collect();
    let queue = Queue::new(&context, &candidates, Some(DeviceId(0))).unwrap();
    let (own, free, other) = (ready(&context, 0, false), ready(&context, 1, true), ready(&context, 1, false));
    for taken in [&own, &free] {
        queue.enqueue(&taken.exec, Detached::assume()).unwrap();
        wait(taken);
        assert_eq!(taken.exec.program.completed.total(), 1);
    }
    assert_eq!(
        queue.enqueue(&other.exec, Detached::assume()).unwrap_err().to_string(),
        "the program of the exec object is on device 1, but this queue belongs to device 0"
    );
    wait(&other);
    assert_eq!(other.exec.program.completed.total(), 0);
}
