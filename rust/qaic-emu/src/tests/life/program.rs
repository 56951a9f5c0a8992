//! A program for emulated cards, and the host's side of it: all steps of a runtime from load to unload, with
//! only the calls and the control protocol.

use std::collections::VecDeque;
use std::sync::Mutex;

use crate::tests::prelude::*;
use qaic_emu::Requirements;

/// Bytes of an inference's input and output.
const LEN: usize = 5000;
const IN_OFFSET: u64 = 0x40;
const OUT_OFFSET: u64 = 0x8040;
const PROCESS: u32 = 4711;
pub(crate) const ELF: &[u8] = b"\x7fELF, or so";
/// Static, then dynamic constants.
pub(crate) const CONSTANTS: (&[u8], &[u8]) = (&[7, 1], &[30]);

/// Cores that add the first and the last byte of the constants to each byte.
#[derive(Debug, Default)]
pub(crate) struct Adders {
    /// Data of doorbells that rang.
    pub(crate) rang: Arc<Mutex<Vec<u32>>>,
}

impl Workload for Adders {
    fn requirements(&self, elf: &[u8]) -> Result<Requirements, NncStatus> {
        if elf != ELF {
            return Err(NncStatus::METADATA);
        }
        let ddr_bytes = 64 << 20;
        Ok(Requirements {
            cores: 6,
            multicast_ids: 10,
            semaphores: 2,
            ddr_bytes,
            image_bytes: elf.len() as u64,
        })
    }

    fn activate(&self, images: &Images) -> Result<Box<dyn Running>, NncStatus> {
        assert_eq!(*images.elf, *ELF);
        let [first, .., last] = *images.constants else { return Err(NncStatus::DYNAMIC_CONSTANTS) };
        Ok(Box::new(Adder {
            addend: first.wrapping_add(last),
            base: images.ddr_base,
            rang: Arc::clone(&self.rang),
        }))
    }
}

#[derive(Debug)]
struct Adder {
    addend: u8,
    base: u64,
    rang: Arc<Mutex<Vec<u32>>>,
}

impl Running for Adder {
    fn advance(&mut self, card: &mut CoreView<'_>) -> Progress {
        let rang: VecDeque<_> = std::mem::take(card.doorbells);
        self.rang.lock().unwrap().extend(rang.iter().map(|doorbell| doorbell.data));
        if !card.semaphores.take(0) {
            return Progress::Idle;
        }
        let mut bytes = vec![0; LEN];
        card.memory.read(self.base + IN_OFFSET, &mut bytes);
        for byte in &mut bytes {
            *byte = byte.wrapping_add(self.addend);
        }
        card.memory.write(self.base + OUT_OFFSET, &bytes).unwrap();
        card.semaphores.increment(1);
        Progress::Worked
    }
}

pub(crate) fn open(kmd: &EmuKmd) -> Arc<dyn AccelFile> {
    kmd.open(&kmd.enumerate().unwrap()[0]).unwrap()
}

/// The loaded parts of a program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loaded {
    pub(crate) constants_id: u32,
    pub(crate) elf_id: u32,
}

pub(crate) fn load(file: &dyn AccelFile) -> Loaded {
    let (fixed, dynamic) = CONSTANTS;
    let mut descriptor = [0; 24];
    descriptor[..8].copy_from_slice(&(fixed.len() as u64).to_le_bytes());
    descriptor[8..16].copy_from_slice(&(dynamic.len() as u64).to_le_bytes());
    let mut message = message::load_constants(PROCESS, &descriptor).unwrap();
    file.manage(&mut message).unwrap();
    let LoadConstantsReply { constants_id, status, .. } = LoadConstantsReply::of(&message).unwrap();
    assert_eq!(status, NncStatus::SUCCESS);
    for (offset, part) in [(0, fixed), (fixed.len() as u64, dynamic)] {
        let mut message = message::load_constants_payload(PROCESS, constants_id, offset, part);
        file.manage(&mut message).unwrap();
        assert_eq!(LoadConstantsReply::of(&message).unwrap().status, NncStatus::SUCCESS);
    }
    let mut message = message::load_elf(PROCESS, 0, ELF);
    file.manage(&mut message).unwrap();
    let LoadElfReply { elf_id, status, .. } = LoadElfReply::of(&message).unwrap();
    assert_eq!(status, NncStatus::SUCCESS);
    Loaded { constants_id, elf_id }
}

pub(crate) fn activate(file: &dyn AccelFile, loaded: Loaded) -> ActivateReply {
    let Loaded { elf_id, constants_id } = loaded;
    let initial_state = ActivationState::Ready;
    let request = ActivateRequest { elf_id, constants_id, initial_state, queue_size: 512 };
    let mut message = message::activate(PROCESS, request);
    file.manage(&mut message).unwrap();
    let reply = ActivateReply::of(&message).unwrap();
    assert_eq!(reply.status, NncStatus::SUCCESS);
    reply
}

pub(crate) fn deactivate(file: &dyn AccelFile, active: &ActivateReply) -> (Result<(), Errno>, NncStatus) {
    let mut message = message::deactivate(active.activation_id, Some(active.virtual_channel_id));
    let called = file.manage(&mut message);
    (called, DeactivateReply::of(&message).unwrap().status)
}

pub(crate) fn unload_elf(file: &dyn AccelFile, loaded: Loaded) -> NncStatus {
    let mut message = message::unload_elf(loaded.elf_id);
    file.manage(&mut message).unwrap();
    UnloadElfReply::of(&message).unwrap().status
}

pub(crate) fn unload_constants(file: &dyn AccelFile, loaded: Loaded) -> NncStatus {
    let mut message = message::unload_constants(loaded.constants_id);
    file.manage(&mut message).unwrap();
    UnloadConstantsReply::of(&message).unwrap().status
}

/// The buffer objects of one inference at a time.
pub(crate) struct Exec {
    file: Arc<dyn AccelFile>,
    channel: u32,
    handles: [u32; 2],
    input: Mapping,
    output: Mapping,
}

impl Exec {
    pub(crate) fn new(file: &Arc<dyn AccelFile>, active: &ActivateReply) -> Self {
        let raises = Sem { index: 0, cmd: 2, ..Sem::default() };
        // The driver repeats the semaphore operation before the transfer of each piece of a slice, so the operation
        // may only wait.
        let waits = Sem { index: 1, cmd: 5, val: 1, presync: 1, ..Sem::default() };
        let takes = Sem { index: 1, cmd: 3, ..Sem::default() };
        let half = LEN as u64 / 2;
        let slice = |device: u64, offset, size, first, second| AttachSliceEntry {
            size,
            sems: [first, second, Sem::default(), Sem::default()],
            dev_addr: active.ddr_base + device,
            offset,
            ..AttachSliceEntry::default()
        };
        // Two slices; the second one signals that all data has arrived.
        let mut input = [
            slice(IN_OFFSET, 0, half, Sem::default(), Sem::default()),
            AttachSliceEntry {
                db_addr: active.mcid_base + 0x100,
                db_data: 99,
                db_len: 32,
                ..slice(IN_OFFSET + half, half, LEN as u64 - half, raises, Sem::default())
            },
        ];
        let mut output = [slice(OUT_OFFSET, 0, LEN as u64, waits, takes)];
        let channel = active.virtual_channel_id;
        let bo = |dir, slices: &mut [AttachSliceEntry]| {
            let handle = file.create_bo(LEN as u64).unwrap();
            file.attach_slices(channel, handle, dir, LEN as u64, slices).unwrap();
            let offset = file.mmap_offset(handle).unwrap();
            (handle, file.map(offset, LEN.next_multiple_of(4096)).unwrap())
        };
        let (input, output) = (bo(DIR_TO_DEVICE, &mut input), bo(DIR_FROM_DEVICE, &mut output));
        Self {
            file: Arc::clone(file),
            channel,
            handles: [input.0, output.0],
            input: input.1,
            output: output.1,
        }
    }

    pub(crate) fn submit(&self, bytes: &[u8; LEN]) -> Result<(), Errno> {
        self.input.write_from(0, bytes).unwrap();
        let entries = self.handles.map(|handle| ExecuteEntry { handle, dir: 0 });
        self.file.execute(self.channel, &entries)
    }

    pub(crate) fn wait(&self, timeout_ms: u32) -> Result<[u8; LEN], Errno> {
        self.file.wait(self.channel, self.handles[1], timeout_ms)?;
        let mut bytes = [0; LEN];
        self.output.read_into(0, &mut bytes).unwrap();
        Ok(bytes)
    }

    pub(crate) fn run(&self, bytes: &[u8; LEN]) -> Result<[u8; LEN], Errno> {
        self.submit(bytes)?;
        self.wait(0)
    }

    /// Returns the result of releasing each buffer object.
    pub(crate) fn release(self) -> [Result<(), Errno>; 2] {
        let Self { file, handles, input, output, .. } = self;
        drop((input, output));
        let detached = handles.map(|handle| file.detach_slices(handle));
        for handle in handles {
            file.close_handle(handle).unwrap();
        }
        detached
    }
}

/// Bytes that differ from inference to inference.
pub(crate) fn sample(seed: u8) -> [u8; LEN] {
    let mut bytes = [seed; LEN];
    for (place, byte) in bytes.iter_mut().enumerate() {
        *byte = byte.wrapping_mul(31).wrapping_add(u8::try_from(place % 251).unwrap());
    }
    bytes
}

/// Returns the cores' result for these bytes.
pub(crate) fn expected(bytes: &[u8; LEN]) -> [u8; LEN] {
    bytes.map(|byte| byte.wrapping_add(37))
}
