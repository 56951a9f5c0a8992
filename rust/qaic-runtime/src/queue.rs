//! Queues: where clients start the inferences of exec objects.
//!
//! Threads belong to programs, so that their inferences keep their order whichever queue they come through. A queue checks
//! that the device is its own, and may say how many threads a program that goes through it has: with several queues, the
//! last one that was used.

use crate::context::Context;
use crate::device::{DeviceId, Placement};
use crate::error::{InputError, RuntimeError};
use crate::process::Detached;
use crate::request::ExecObj;

/// Starts inferences on a device.
#[derive(Debug)]
pub struct Queue {
    device: DeviceId,
    threads: Option<u32>,
}

impl Queue {
    /// A queue of `device`, which has to be one of `candidates`, or of the first of these. Programs that go through it keep
    /// their threads.
    ///
    /// A device that the context hides may have one: clients that name no device for a program make a queue of device 0 for it,
    /// wherever the program goes.
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

    /// The same with `threads` for each activation of a program that goes through it.
    #[must_use]
    pub fn with_threads(self, threads: u32) -> Self {
        Self { threads: Some(threads), ..self }
    }

    /// The device.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Starts the bound inference and returns at once; see [`ExecObj::enqueue`]. Fails when the program is on another device
    /// that its user named.
    pub fn enqueue(&self, exec: &ExecObj, detached: Detached) -> Result<(), RuntimeError> {
        let program = exec.program();
        let placement = program.placement();
        if !program.options().is_placed_freely && !placement.devices.contains(&self.device) {
            let what = format!(
                "the exec object's program is on device {placement}, this queue is of device {}",
                self.device.0
            );
            return Err(InputError::Argument { what }.into());
        }
        if let Some(threads) = self.threads {
            program.allow_threads(threads);
        }
        exec.enqueue(detached)
    }
}
