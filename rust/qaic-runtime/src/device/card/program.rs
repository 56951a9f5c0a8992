//! A program in a card's memory.

use std::sync::Arc;

use qaic_qpc::metadata::LocatedMetadata;
use qaic_qpc::plan::{Plan, PlanError};
use qaic_qpc::{CrcSegment, Limits, elf, hardware, names};

use super::activation::CardActivation;
use super::connection::Connection;
use super::constants::Constants;
use super::session::CardSession;
use super::slices::Layout;
use crate::device::{Activation, DeviceKind, LoadOptions, LoadedProgram};
use crate::error::{CardError, DeviceError, RuntimeError};
use crate::image::Image;
use crate::program::WaitLimits;

/// Returns the plan of a program compiled for a host; `None` for other programs.
pub(super) fn plan_of(image: &Image) -> Result<Option<&Plan>, RuntimeError> {
    image.plan().map_err(transfers)
}

fn transfers(error: PlanError) -> RuntimeError {
    match error {
        PlanError::Qpc(error) => error.into(),
        error => CardError::Transfers { what: error.to_string() }.into(),
    }
}

/// A loaded program; unloaded when the program and all its activations are dropped.
#[derive(Debug)]
pub(super) struct ProgramShared {
    pub(super) card: Arc<Connection>,
    pub(super) session: Arc<CardSession>,
    pub(super) generation: u64,
    pub(super) image: Arc<Image>,
    pub(super) layout: Layout,
    pub(super) wait: WaitLimits,
    /// DMA buffer that carries the shapes of an inference to the cores.
    pub(super) control: Option<usize>,
    /// The only entry of `allowed_shapes` that a program without a control buffer can run.
    pub(super) only_shapes: Option<usize>,
    pub(super) elf_id: u32,
    constants: Option<Arc<Constants>>,
}

/// Handle of a loaded program.
#[derive(Debug)]
pub(super) struct CardProgram(Arc<ProgramShared>);

impl CardProgram {
    /// Checks a program and loads it. If a step fails, the completed steps are undone.
    ///
    /// Blocking: copies the program and its constants to the card.
    pub(super) fn load(
        card: &Arc<Connection>,
        image: &Arc<Image>,
        options: &LoadOptions,
    ) -> Result<Self, RuntimeError> {
        let token = &options.token;
        let plan = plan_of(image)?;
        if image.container.is_multi_device() {
            return Err(wrong_target(card, "several cards", "the protocol between its parts is not public"));
        }
        let file = image.segment(names::NETWORK_ELF).unwrap_or_default();
        let located = LocatedMetadata::from_elf(file, &Limits::default())?;
        let layout = Layout::new(&located.metadata, &image.network)?;
        let control = plan.and_then(|plan| plan.control_buffer);
        if let Some(plan) = plan {
            plan.check_control_buffer(&image.network).map_err(transfers)?;
            // A card has its own memory, where constants are aligned at their start.
            let constants = image.segment(names::CONSTANTS).map_or(0, <[u8]>::len);
            plan.check_initializers(constants, 0).map_err(transfers)?;
        }
        check_crcs(image)?;
        let (session, status) = card.compatible_session()?;
        if let Some(plan) = plan.filter(|_| !status.is_emulated()) {
            let reason =
                "only virtual and emulated cards run its graph; compile it with the vendor's compiler";
            return Err(wrong_target(card, &plan.target, reason));
        }
        let generation = card.state.generation();
        let needed = located.metadata.hw_version_major;
        let found = status.hw_version >> 16;
        if !options.any_hardware && found != u32::from(needed) {
            return Err(DeviceError::HardwareFamily {
                built_for: hardware::name_of_major(needed.into()).to_owned(),
                device: card.id,
                family: hardware::name_of_major(found),
            }
            .into());
        }
        let crc = metadata_crc(image, located.section)?;
        let constants = Constants::of(card, &session, generation, image, token)?;
        let elf_id = session.load_elf(crc, file, token)?;
        card.start_event_pump();
        Ok(Self(Arc::new(ProgramShared {
            card: Arc::clone(card),
            session,
            generation,
            image: Arc::clone(image),
            layout,
            wait: options.wait,
            control,
            only_shapes: if control.is_some() { None } else { own_shapes(image) },
            elf_id,
            constants,
        })))
    }
}

impl LoadedProgram for CardProgram {
    fn activate(&self) -> Result<Arc<dyn Activation>, RuntimeError> {
        Ok(Arc::new(CardActivation::new(&self.0)?))
    }
}

impl ProgramShared {
    /// Id of the constants; 0 if there are none.
    pub(super) fn constants_id(&self) -> u32 {
        self.constants.as_ref().map_or(0, |constants| constants.id)
    }
}

impl Drop for ProgramShared {
    fn drop(&mut self) {
        if self.session.fork_guard.is_current() && self.session.state.check(self.generation).is_ok() {
            self.session.log_failure("the program was not unloaded", self.session.unload_elf(self.elf_id));
        }
    }
}

fn wrong_target(card: &Connection, built_for: &str, reason: &str) -> RuntimeError {
    DeviceError::WrongTarget {
        built_for: built_for.to_owned(),
        device: card.id,
        kind: DeviceKind::Card.name(),
        reason: reason.to_owned(),
    }
    .into()
}

/// Verifies the checksums in the CRC segments.
fn check_crcs(image: &Image) -> Result<(), RuntimeError> {
    for segment in CrcSegment::ALL {
        let Some(stored) = segment.stored(&image.container, image.bytes())? else { continue };
        let computed = segment.compute(&image.container, image.bytes())?;
        if let Some(computed) = computed.filter(|&computed| computed != stored) {
            return Err(CardError::Transfers {
                what: format!(
                    "segment {} contains the CRC {stored:#010x}, but the CRC of the covered data is {computed:#010x}",
                    segment.name()
                ),
            }
            .into());
        }
    }
    Ok(())
}

/// Returns the CRC of the metadata for the firmware; 0 if the container has none.
fn metadata_crc(image: &Image, section: &str) -> Result<u32, RuntimeError> {
    let segment =
        if section == elf::METADATA_FB_SECTION { CrcSegment::MetadataFb } else { CrcSegment::Metadata };
    Ok(segment.stored(&image.container, image.bytes())?.unwrap_or_default())
}

/// Returns the entry that has the shapes of the bindings, for a program with several permitted shapes. A card cannot
/// run the other entries, because no public interface can select them.
fn own_shapes(image: &Image) -> Option<usize> {
    let network = &image.network;
    let inputs = network.inputs.iter().map(|binding| &binding.io_initial.dims);
    let outputs = network.outputs.iter().map(|binding| &binding.io_transformed.dims);
    let own: Vec<_> = inputs.chain(outputs).collect();
    let is_own = |shapes: &[qaic_qpc::TensorShape]| {
        shapes.len() == own.len() && shapes.iter().zip(&own).all(|(shape, own)| shape.dims == **own)
    };
    network.allowed_shapes.iter().position(|entry| is_own(&entry.shapes))
}
