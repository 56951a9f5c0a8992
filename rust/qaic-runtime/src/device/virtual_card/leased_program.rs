//! A program on virtual cards, which wraps the device's own program. Its activations hold cores of all cards of the
//! program.
//!
//! Devices therefore need not count cores: activating the wrapper takes the cores first.

use std::sync::Arc;

use super::resource_tracker::{CoreLease, ProgramReservation, Requirements};
use crate::device::{Activation, Device, Exec, LoadOptions, LoadedProgram, Placement};
use crate::error::RuntimeError;
use crate::image::Image;

/// Loads a container on the first of `devices`, which must exist and be distinct, and reserves resources on all of
/// them.
pub(crate) fn load(
    devices: &[&Arc<dyn Device>],
    placement: &Placement,
    image: &Arc<Image>,
    options: &LoadOptions,
) -> Result<Arc<dyn LoadedProgram>, RuntimeError> {
    let Some(first) = devices.first() else {
        return Err(RuntimeError::internal("a program without a device"));
    };
    if let Some(needed) = first.partitions(image)?
        && needed as usize != devices.len()
    {
        let found = devices.len();
        let what = if needed == 1 {
            format!("the program runs on one device; the mapping \"{placement}\" names {found}")
        } else {
            format!(
                "the program is partitioned for {needed} devices; the mapping \"{placement}\" names {found}: name \
                 {needed}, or omit the mapping to select them automatically"
            )
        };
        return Err(RuntimeError::argument(what));
    }
    let program = first.load(image, options)?;
    let trackers = devices.iter().filter_map(|device| device.resource_tracker().cloned());
    let requirements = Requirements::of(image, devices.len());
    let reservation = ProgramReservation::new(trackers, requirements, options.share_group.as_deref())?;
    Ok(Arc::new(LeasedProgram { program, reservation: Arc::new(reservation) }))
}

#[derive(Debug)]
struct LeasedProgram {
    program: Arc<dyn LoadedProgram>,
    reservation: Arc<ProgramReservation>,
}

impl LoadedProgram for LeasedProgram {
    fn activate(&self) -> Result<Arc<dyn Activation>, RuntimeError> {
        let lease = self.reservation.activate()?;
        Ok(Arc::new(LeasedActivation { activation: self.program.activate()?, _lease: lease }))
    }
}

#[derive(Debug)]
struct LeasedActivation {
    activation: Arc<dyn Activation>,
    // Dropped last: the cores become free when they are no longer used.
    _lease: CoreLease,
}

impl Activation for LeasedActivation {
    fn create_exec(&self) -> Result<Box<dyn Exec>, RuntimeError> {
        self.activation.create_exec()
    }

    fn updates_state(&self, output: usize) -> bool {
        self.activation.updates_state(output)
    }
}
