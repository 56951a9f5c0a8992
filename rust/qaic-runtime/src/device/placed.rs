//! A program in its place: the device's own program, with the books of the virtual cards it lies on.
//!
//! Devices need not count: what they load is wrapped here, and activating the wrapper takes cores first.

use std::sync::Arc;

use super::ledger::{Demand, Entry, Seat};
use super::{Activation, Device, Exec, LoadOptions, LoadedProgram, Placement};
use crate::error::RuntimeError;
use crate::image::Image;

/// Loads a container on the first of `devices`, which exist and are distinct, and enters it in the books of all.
pub(crate) fn load(
    devices: &[&Arc<dyn Device>],
    placement: &Placement,
    image: &Arc<Image>,
    options: &LoadOptions,
) -> Result<Arc<dyn LoadedProgram>, RuntimeError> {
    let Some(first) = devices.first() else {
        return Err(RuntimeError::Internal { what: "a program without a device".to_owned() });
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
                 {needed}, or none to have them chosen"
            )
        };
        return Err(RuntimeError::Argument { what });
    }
    let program = first.load(image, options)?;
    let ledgers = devices.iter().filter_map(|device| device.ledger().cloned());
    let demand = Demand::of(image, devices.len());
    let entry = Arc::new(Entry::new(ledgers, demand, options.share_group.as_deref())?);
    Ok(Arc::new(PlacedProgram { program, entry }))
}

#[derive(Debug)]
struct PlacedProgram {
    program: Arc<dyn LoadedProgram>,
    entry: Arc<Entry>,
}

impl LoadedProgram for PlacedProgram {
    fn activate(&self) -> Result<Arc<dyn Activation>, RuntimeError> {
        let seat = self.entry.activate()?;
        Ok(Arc::new(PlacedActivation { activation: self.program.activate()?, _seat: seat }))
    }
}

#[derive(Debug)]
struct PlacedActivation {
    activation: Arc<dyn Activation>,
    // Dropped last: the cores are free when nothing uses them any more.
    _seat: Seat,
}

impl Activation for PlacedActivation {
    fn create_exec(&self) -> Result<Box<dyn Exec>, RuntimeError> {
        self.activation.create_exec()
    }
}
