//! A card, an open file of the card, and calls on this file.

use crate::tests::clean_card::CleanCard;
use crate::tests::prelude::*;
use qaic_kmd::{Event, EventSource, NodeInfo};

/// The image that a rig loads; its cores need none.
pub(crate) const ELF: &[u8] = b"any image will do for cores that are not there";

pub(crate) struct Rig {
    // The file is closed before the control checks that nothing is left.
    pub(crate) file: Arc<dyn AccelFile>,
    pub(crate) node: NodeInfo,
    pub(crate) control: CleanCard,
    pub(crate) kmd: Arc<EmuKmd>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Active {
    pub(crate) elf_id: u32,
    pub(crate) activation_id: u32,
    pub(crate) dbc_id: u32,
    pub(crate) ddr_base: u64,
}

impl Rig {
    pub(crate) fn new(options: EmuOptions) -> Self {
        let kmd = EmuKmd::new(options).unwrap();
        let node = kmd.enumerate().unwrap().remove(0);
        let control = CleanCard(kmd.control(0).unwrap());
        let file = kmd.open(&node).unwrap();
        Self { file, node, control, kmd }
    }

    pub(crate) fn of(profile: Profile) -> Self {
        Self::new(EmuOptions { profile, ..EmuOptions::default() })
    }

    /// Time of the system, and a thread for each channel.
    pub(crate) fn threaded() -> Self {
        Self::new(EmuOptions {
            clock: EmuClock::System(qaic_kmd::SystemClock::default()),
            execution_mode: ExecutionMode::Threads,
            boot: Duration::from_hours(1),
            core_restart: Duration::from_hours(1),
            ..EmuOptions::default()
        })
    }

    pub(crate) fn file(&self) -> &dyn AccelFile {
        &*self.file
    }

    pub(crate) fn open(&self) -> Result<Arc<dyn AccelFile>, Errno> {
        self.kmd.open(&self.node)
    }

    pub(crate) fn plan(&self, text: &str) {
        self.control.set_faults(FaultPlan::parse(text, Target::Card).unwrap());
    }

    pub(crate) fn activate(&self, queue_size: u32) -> Active {
        self.try_activate(queue_size).unwrap()
    }

    pub(crate) fn active_with_output(&self) -> (Active, u32) {
        let active = self.activate(16);
        (active, self.output(active))
    }

    pub(crate) fn try_activate(&self, queue_size: u32) -> Result<Active, Errno> {
        activate(self.file(), queue_size)
    }

    pub(crate) fn deactivate(&self, active: Active) -> Result<(), Errno> {
        self.file().manage(&mut message::deactivate(active.activation_id, Some(active.dbc_id)))
    }

    /// A buffer object with one slice of all of it, at an offset in the activation's memory.
    pub(crate) fn slice(&self, active: Active, dir: u32, size: u64, offset: u64) -> u32 {
        let handle = self.file().create_bo(size).unwrap();
        let entry =
            AttachSliceEntry { size, dev_addr: active.ddr_base + offset, ..AttachSliceEntry::default() };
        self.file().attach_slices(active.dbc_id, handle, dir, size, &[entry]).unwrap();
        handle
    }

    pub(crate) fn input(&self, active: Active) -> u32 {
        self.slice(active, DIR_TO_DEVICE, 4096, 0)
    }

    pub(crate) fn output(&self, active: Active) -> u32 {
        self.slice(active, DIR_FROM_DEVICE, 4096, 0)
    }

    pub(crate) fn map(&self, handle: u32, len: usize) -> Mapping {
        let offset = self.file().mmap_offset(handle).unwrap();
        self.file.map(offset, len).unwrap()
    }

    pub(crate) fn execute(&self, active: Active, handles: &[u32]) -> Result<(), Errno> {
        let entries: Vec<_> = handles.iter().map(|handle| ExecuteEntry { handle: *handle, dir: 0 }).collect();
        self.file().execute(active.dbc_id, &entries)
    }

    pub(crate) fn partial_execute(&self, active: Active, entries: &[(u32, u64)]) -> Result<(), Errno> {
        let entry = |&(handle, resize): &(u32, u64)| PartialExecuteEntry { handle, dir: 0, resize };
        let entries: Vec<_> = entries.iter().map(entry).collect();
        self.file().partial_execute(active.dbc_id, &entries)
    }

    pub(crate) fn wait(&self, active: Active, handle: u32) -> Result<(), Errno> {
        self.file().wait(active.dbc_id, handle, 0)
    }

    /// Closes the file, and resets the card if channels were given up, which only a reset frees.
    pub(crate) fn close_with_given_up_channels(self) {
        let Self { file, control, .. } = self;
        drop(file);
        if control.invariants().iter().any(|left| left.ends_with("is in use and has no owner")) {
            control.reset();
            control.hurry();
        }
    }
}

pub(crate) fn load(file: &dyn AccelFile) -> Result<u32, Errno> {
    let mut message = message::load_elf(1, 0, ELF);
    file.manage(&mut message)?;
    // A plan may have corrupted the reply.
    LoadElfReply::of(&message).map(|reply| reply.elf_id).map_err(|_| Errno::PROTO)
}

pub(crate) fn activate_message(elf_id: u32, queue_size: u32) -> ManageBuffer<'static> {
    let request =
        ActivateRequest { elf_id, constants_id: 0, initial_state: ActivationState::Ready, queue_size };
    message::activate(1, request)
}

pub(crate) fn activate(file: &dyn AccelFile, queue_size: u32) -> Result<Active, Errno> {
    let elf_id = load(file)?;
    let mut message = activate_message(elf_id, queue_size);
    let answer = file.manage(&mut message);
    let reply = answer.and_then(|()| ActivateReply::with_channel(&message).map_err(|_| Errno::PROTO));
    let Ok(reply) =
        reply.and_then(|reply| if reply.status.is_success() { Ok(reply) } else { Err(Errno::PROTO) })
    else {
        // A card holds at most 255 images.
        let _ = file.manage(&mut message::unload_elf(elf_id));
        return Err(Errno::PROTO);
    };
    let (activation_id, dbc_id) = (reply.activation_id, reply.virtual_channel_id);
    Ok(Active { elf_id, activation_id, dbc_id, ddr_base: reply.ddr_base })
}

pub(crate) fn events(source: &mut dyn EventSource) -> Vec<Event> {
    std::iter::from_fn(|| source.next(Duration::ZERO).unwrap()).collect()
}
