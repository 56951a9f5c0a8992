//! Programs, sets and memory on the first device of a `noop` context.

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use qaic_mem::{SharedMemory, Storage};
use qaic_runtime::device::noop::Control;
use qaic_runtime::device::{DeviceId, Placement};
use qaic_runtime::inference_set::InferenceSet;
use qaic_runtime::process::{Deadline, WaitScope};
use qaic_runtime::{Context, Image, ProgramOptions, RuntimeError};

/// A recorded program with an input of 768 bytes.
pub(crate) fn recorded() -> Arc<Image> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/qpc/s01_simple_f32_file.qpc");
    Image::open(&path, true).unwrap()
}

pub(crate) fn control(context: &Context) -> Arc<Control> {
    Arc::clone(context.noop_control(DeviceId(0)).unwrap())
}

/// Creates a set with the options that nearly all tests use.
pub(crate) fn set(
    context: &Arc<Context>,
    image: &Arc<Image>,
    size: u32,
    activations: u32,
) -> Arc<InferenceSet> {
    try_set(context, image, size, activations, ProgramOptions::default()).unwrap()
}

pub(crate) fn try_set(
    context: &Arc<Context>,
    image: &Arc<Image>,
    size: u32,
    activations: u32,
    options: ProgramOptions,
) -> Result<Arc<InferenceSet>, RuntimeError> {
    InferenceSet::new(context, image, &Placement::one(DeviceId(0)), size, activations, options)
}

/// Waits until the device executes `count` inferences.
pub(crate) fn await_executing(control: &Control, count: u32) {
    assert!(control.wait_executing(count, &mut long()).unwrap());
}

/// Asserts that a wait ends when its check returns true.
#[track_caller]
pub(crate) fn assert_interrupted<T: Debug>(wait: impl FnOnce(&mut WaitScope<'_>) -> Result<T, RuntimeError>) {
    let outcome = wait(&mut WaitScope::default().checked_by(&mut || true));
    assert_eq!(outcome.unwrap_err().code(), "call.interrupted");
}

/// A wait that is over at once.
pub(crate) fn soon() -> WaitScope<'static> {
    WaitScope::until(Deadline::after(Duration::from_millis(1)))
}

/// A wait that is longer than any test takes.
pub(crate) fn long() -> WaitScope<'static> {
    WaitScope::until(Deadline::after(Duration::from_mins(1)))
}

/// Memory that the caller may access between inferences.
pub(crate) fn shared(storage: Storage) -> Arc<SharedMemory> {
    // SAFETY: one thread at a time uses the memory.
    unsafe { SharedMemory::of_storage(storage) }
}
