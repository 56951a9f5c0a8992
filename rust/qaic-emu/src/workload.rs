//! The work of an emulated card's cores: the emulator's plug-in interface.
//!
//! Firmware and driver know nothing of what a program computes. A [`Workload`] makes, of the images that are activated,
//! something [`Running`]; the data path of the channel then moves data to and from the memory of the device, works the
//! semaphores, and advances the cores.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::sync::Arc;

use qaic_kmd::protocol::NncStatus;

pub use crate::data_path::device_memory::{DeviceMemory, MemoryFull};
pub use crate::data_path::semaphores::Semaphores;

/// Execution of programs by the cores. All cards share one workload.
pub trait Workload: Debug + Send + Sync {
    /// Returns the needs of a program when its ELF is loaded; a status refuses the program.
    fn requirements(&self, elf: &[u8]) -> Result<Requirements, NncStatus> {
        let _ = elf;
        Ok(Requirements::default())
    }

    /// Makes of images that are activated what runs; a status refuses them.
    ///
    /// Blocking: as long as it takes. No lock is held meanwhile.
    fn activate(&self, images: &Images) -> Result<Box<dyn Running>, NncStatus>;
}

/// Needs of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requirements {
    /// Cores of an activation.
    pub cores: u32,
    /// Multicast ids of an activation.
    pub multicast_ids: u32,
    /// Semaphores of an activation, for the firmware's tables: every channel has all of [`Semaphores::COUNT`].
    pub semaphores: u32,
    /// Bytes of memory of an activation, from [`Images::ddr_base`] on.
    pub ddr_bytes: u64,
    /// Bytes of memory that the loaded ELF takes.
    pub image_bytes: u64,
}

impl Default for Requirements {
    fn default() -> Self {
        Self { cores: 1, multicast_ids: 0, semaphores: 0, ddr_bytes: 0, image_bytes: 0 }
    }
}

/// Images of an activation.
#[derive(Clone, Debug)]
pub struct Images {
    /// The program.
    pub elf: Arc<[u8]>,
    /// Its id, never given to another one on the same card.
    pub elf_id: u32,
    /// The constants: the static ones, then the dynamic ones at the size that the descriptor says for the static ones. Up
    /// to the last byte that was loaded; empty when the activation has none.
    pub constants: Arc<[u8]>,
    /// Their id, 0 for none.
    pub constants_id: u32,
    /// Begin of the activation's memory.
    pub ddr_base: u64,
    /// Begin of the activation's multicast windows, one every `0x80_0000` bytes.
    pub mcid_base: u64,
}

/// The cores of one activation at work.
pub trait Running: Debug + Send {
    /// Returns whether the data path honors the semaphores. If not, elements run in the order of the ring,
    /// and [`Self::advance`] is called once, when the first element from the device follows elements to it:
    /// all inputs of an inference have arrived then.
    fn honors_semaphores(&self) -> bool {
        true
    }

    /// Called once, before the first element: sets the semaphores' initial values.
    fn begin(&mut self, card: &mut CoreView<'_>) {
        let _ = card;
    }

    /// Gets on as far as it can. Called after each element of the ring, and again as long as it works, where the data path
    /// honors the semaphores.
    ///
    /// Blocking: as long as it computes.
    fn advance(&mut self, card: &mut CoreView<'_>) -> Progress;

    /// Makes a running [`Self::advance`] end soon, from another thread. Nothing to do where it is short.
    fn stopper(&self) -> Arc<dyn Fn() + Send + Sync> {
        Arc::new(|| ())
    }
}

/// The outcome of an attempt to make progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There was nothing to do.
    Idle,
    /// The cores did something, so that others may make progress.
    Worked,
    /// The cores failed: the channel is lost, its cores are restarted.
    Crashed,
}

/// Memory and semaphores that the cores of an activation reach.
#[derive(Debug)]
pub struct CoreView<'a> {
    /// Semaphores of the channel.
    pub semaphores: &'a mut Semaphores,
    /// Memory of the device.
    pub memory: &'a mut DeviceMemory,
    /// Doorbells that rang, oldest first; those that are not taken are dropped when there are too many.
    pub doorbells: &'a mut VecDeque<Doorbell>,
}

/// A word that an element writes to the cores when all else of it is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doorbell {
    /// Destination address.
    pub address: u64,
    /// The word.
    pub data: u32,
    /// Bits of it: 8, 16 or 32.
    pub bits: u32,
}

/// No cores: what the host writes to the device's memory it reads back.
#[derive(Clone, Copy, Debug, Default)]
pub struct Loopback;

impl Workload for Loopback {
    fn activate(&self, _images: &Images) -> Result<Box<dyn Running>, NncStatus> {
        Ok(Box::new(NoCores))
    }
}

#[derive(Debug)]
pub(crate) struct NoCores;

impl Running for NoCores {
    fn advance(&mut self, card: &mut CoreView<'_>) -> Progress {
        card.doorbells.clear();
        Progress::Idle
    }
}
