//! A program in a card's memory (device-kmd §4.1).

use std::sync::Arc;

use qaic_qpc::container::names;
use qaic_qpc::crc::CrcSegment;
use qaic_qpc::elf;
use qaic_qpc::limits::Limits;
use qaic_qpc::metadata::LocatedMetadata;
use serde::Deserialize;

use super::activation::KmdActivation;
use super::card::Card;
use super::constants::Constants;
use super::line::Line;
use super::slices::Layout;
use crate::device::{Activation, DeviceKind, LoadOptions, LoadedProgram};
use crate::error::RuntimeError;
use crate::image::Image;
use crate::program::WaitLimits;

/// ELF section that only programs compiled for a host have.
const PLAN_SECTION: &str = "openqaic_plan";

/// What this device reads of the plan of a program compiled for a host.
#[derive(Debug, Deserialize)]
pub(super) struct HostPlan {
    #[serde(default)]
    pub(super) target: String,
    /// Devices that it is partitioned for.
    #[serde(default)]
    pub(super) devices: Option<u32>,
    /// DMA buffer through which its cores are told what no request can say.
    #[serde(default)]
    control_buffer: Option<usize>,
}

impl HostPlan {
    /// The plan of a container, if it has one.
    pub(super) fn of(image: &Image) -> Result<Option<Self>, RuntimeError> {
        let file = image.segment(names::NETWORK_ELF).unwrap_or_default();
        let Some(range) = elf::section(file, PLAN_SECTION)? else { return Ok(None) };
        let plan = serde_json::from_slice(file.get(range).unwrap_or_default());
        plan.map(Some).map_err(|error| RuntimeError::Transfers {
            what: format!("section {PLAN_SECTION} is not a plan: {error}"),
        })
    }
}

/// A loaded program. Unloaded when it and all its activations are gone.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) card: Arc<Card>,
    pub(super) line: Arc<Line>,
    pub(super) generation: u64,
    pub(super) image: Arc<Image>,
    pub(super) layout: Layout,
    pub(super) wait: WaitLimits,
    /// DMA buffer that the cores are told through.
    pub(super) control: Option<usize>,
    /// The only entry of `allowed_shapes` that a program without such a buffer can run.
    pub(super) only_shapes: Option<usize>,
    pub(super) elf_id: u32,
    constants: Option<Arc<Constants>>,
}

/// The handle on a loaded program.
#[derive(Debug)]
pub(super) struct KmdProgram(Arc<Loaded>);

impl KmdProgram {
    /// Checks a program and loads it. What was loaded of one that fails is unloaded again.
    ///
    /// Blocking: copies the program and its constants to the card.
    pub(super) fn load(
        card: &Arc<Card>,
        image: &Arc<Image>,
        options: &LoadOptions,
    ) -> Result<Self, RuntimeError> {
        let token = &*options.token;
        let plan = HostPlan::of(image)?;
        check_target(card, image, plan.as_ref())?;
        let file = image.segment(names::NETWORK_ELF).unwrap_or_default();
        let located = LocatedMetadata::from_elf(file, &Limits::default())?;
        let layout = Layout::new(&located.metadata, image.network())?;
        let control = plan.and_then(|plan| plan.control_buffer);
        check_control(image, control)?;
        check_crcs(image)?;
        let (line, status) = card.admit()?;
        let generation = card.health.generation();
        let needed = located.metadata.hw_version_major;
        if !options.any_hardware && status.hw_version >> 16 != u32::from(needed) {
            return Err(RuntimeError::HardwareFamily {
                built_for: family(needed.into()).to_owned(),
                device: card.id,
                family: family(status.hw_version >> 16),
            });
        }
        let crc = metadata_crc(image, located.section)?;
        let constants = Constants::of(card, &line, generation, image, token)?;
        let elf_id = line.load_elf(crc, file, token)?;
        card.watch();
        Ok(Self(Arc::new(Loaded {
            card: Arc::clone(card),
            line,
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

impl LoadedProgram for KmdProgram {
    fn activate(&self) -> Result<Arc<dyn Activation>, RuntimeError> {
        Ok(Arc::new(KmdActivation::new(&self.0)?))
    }
}

impl Loaded {
    /// Id of the constants, 0 for none.
    pub(super) fn constants_id(&self) -> u32 {
        self.constants.as_ref().map_or(0, |constants| constants.id)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        if self.line.origin.is_here() && self.line.health.check(self.generation).is_ok() {
            self.line.note("the program was not unloaded", self.line.unload_elf(self.elf_id));
        }
    }
}

/// Refuses what the card cannot run whatever its state.
fn check_target(card: &Card, image: &Image, plan: Option<&HostPlan>) -> Result<(), RuntimeError> {
    let wrong = |built_for: &str, reason: &str| {
        Err(RuntimeError::WrongTarget {
            built_for: built_for.to_owned(),
            device: card.id,
            kind: DeviceKind::Kmd.name(),
            reason: reason.to_owned(),
        })
    };
    match plan {
        Some(plan) if !card.runs_host_programs() => wrong(
            &plan.target,
            "its graph is run by virtual and emulated cards only; cards need programs of the vendor's compiler",
        ),
        _ if image.container().is_multi_device() => {
            wrong("several cards", "how its parts work together is not public")
        }
        _ => Ok(()),
    }
}

/// The control buffer of the plan exists and has room.
fn check_control(image: &Image, control: Option<usize>) -> Result<(), RuntimeError> {
    let Some(control) = control else { return Ok(()) };
    let bytes = image.network().dma_buffers.get(control).map(|buffer| buffer.size as usize);
    if bytes.is_some_and(|bytes| bytes >= super::exec::CONTROL_BYTES) {
        return Ok(());
    }
    let found = bytes.map_or("which does not exist".to_owned(), |bytes| format!("which has {bytes} bytes"));
    Err(RuntimeError::Transfers {
        what: format!(
            "its control buffer is DMA buffer {control}, {found}; {} bytes are needed",
            super::exec::CONTROL_BYTES
        ),
    })
}

/// Compares what the CRC segments cover with them.
fn check_crcs(image: &Image) -> Result<(), RuntimeError> {
    for segment in CrcSegment::ALL {
        let Some(stored) = segment.stored(image.container(), image.bytes())? else { continue };
        let computed = segment.compute(image.container(), image.bytes())?;
        if let Some(computed) = computed.filter(|&computed| computed != stored) {
            return Err(RuntimeError::Transfers {
                what: format!(
                    "segment {} says {stored:#010x}, and the CRC of what it covers is {computed:#010x}",
                    segment.name()
                ),
            });
        }
    }
    Ok(())
}

/// CRC of the metadata that the firmware is told, 0 where the container has none.
fn metadata_crc(image: &Image, section: &str) -> Result<u32, RuntimeError> {
    let segment =
        if section == elf::METADATA_FB_SECTION { CrcSegment::MetadataFb } else { CrcSegment::Metadata };
    Ok(segment.stored(image.container(), image.bytes())?.unwrap_or_default())
}

/// Of a program with several permitted shapes, the entry that is the shapes of its bindings. A card is not told of others:
/// how is not public.
fn own_shapes(image: &Image) -> Option<usize> {
    let network = image.network();
    let inputs = network.inputs.iter().map(|binding| &binding.io_initial.dims);
    let outputs = network.outputs.iter().map(|binding| &binding.io_transformed.dims);
    let own: Vec<_> = inputs.chain(outputs).collect();
    let is_own = |shapes: &[qaic_qpc::network_desc::TensorShape]| {
        shapes.len() == own.len() && shapes.iter().zip(&own).all(|(shape, own)| shape.dims == **own)
    };
    network.allowed_shapes.iter().position(|entry| is_own(&entry.shapes))
}

/// The hardware family of a major version (device-kmd §4.1).
const fn family(major: u32) -> &'static str {
    match major {
        1 => "1",
        2 => "ai100",
        3 => "ai200",
        _ => "unknown",
    }
}
