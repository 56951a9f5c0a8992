//! Queues, through which clients start the inferences of exec objects.
//!
//! Threads belong to programs, so that inferences keep their order in any queue. A queue checks that a program runs
//! on the device of the queue. A queue may also set the number of threads of its programs; with several queues, the
//! last one used determines the number.

use crate::context::Context;
use crate::device::{DeviceId, Placement};
use crate::error::RuntimeError;
use crate::process::Detached;
use crate::request::ExecObj;

/// Starts inferences on a device.
#[derive(Debug)]
pub struct Queue {
    /// The device.
    pub device: DeviceId,
    /// Number of threads for each activation of a program that uses the queue; by default, programs keep their number.
    pub threads: Option<u32>,
}

impl Queue {
    /// Creates a queue of `device`, which must be one of `candidates`, or of the first candidate.
    ///
    /// A device that the context hides may have a queue. Clients that name no device for a program create a queue of
    /// device 0 for it, regardless of the device that the program is loaded on.
    pub fn new(
        context: &Context,
        candidates: &[DeviceId],
        device: Option<DeviceId>,
    ) -> Result<Self, RuntimeError> {
        let device = match device.filter(|id| context.hides(*id)) {
            Some(hidden) => hidden,
            None => Placement::named(candidates, device, "")?.first().unwrap_or(DeviceId(0)),
        };
        Ok(Self { device, threads: None })
    }

    /// Starts the bound inference and returns at once. Inferences of one activation that retain state run in the order
    /// in which they were enqueued. Fails if the user placed the program on another device.
    pub fn enqueue(&self, exec: &ExecObj, detached: Detached) -> Result<(), RuntimeError> {
        let program = &exec.program;
        let placement = &program.placement;
        if !program.options.is_placed_freely && !placement.devices.contains(&self.device) {
            let what = format!(
                "the program of the exec object is on device {placement}, but this queue belongs to device {}",
                self.device.0
            );
            return Err(RuntimeError::argument(what));
        }
        if let Some(threads) = self.threads {
            program.allow_threads(threads);
        }
        exec.enqueue(detached)
    }
}
