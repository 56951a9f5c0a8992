//! Plays calls on a driver and records the outcome of each, in words with the same meaning for every driver.

use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use bytemuck::bytes_of;
use qaic_kmd::abi::{
    AttachSliceEntry, CreateBo, DetachSlice, ExecuteEntry, PartialExecuteEntry, PerfStatsEntry, Sem, Wait,
};
use qaic_kmd::protocol::parse::{Transaction, transactions};
use qaic_kmd::protocol::{
    Activate, ActivateReply, ActivationState, Deactivate, Dma, Header, LoadElfReply, Reply, SetUpChannel,
    TearDownChannel, TransactionKind, WHOLE_DEVICE, message, passthrough,
};
use qaic_kmd::{AccelFile, Errno, Ioctl, ManageBuffer};
use qaic_mem::Mapping;

use crate::call::{Call, Part, Slice};
use crate::rig::Rig;

/// A number that the driver has assigned to no object.
const NOTHING: u32 = 9_999;
const ELF_TAG: u32 = 100;
const LOAD_ELF_REPLY: u32 = 4;
const ACTIVATE_REPLY: u32 = 10;
const STATUS_REPLY: u32 = 14;
const RESOURCE_INFO_REPLY: u32 = 33;

/// Makes a call on its thread.
type Blocking = Box<dyn FnOnce(&dyn AccelFile, &Sender<PathBuf>) -> String + Send>;

/// Objects that a sequence has created so far.
struct Player<'rig> {
    rig: &'rig Rig,
    files: Vec<Option<Arc<dyn AccelFile>>>,
    /// True for a file that may have given up a channel that is still in use.
    gave_up: Vec<bool>,
    images: Vec<u32>,
    /// Number, channel and file of each activation.
    activations: Vec<(u32, usize)>,
    objects: Vec<Object>,
}

struct Object {
    file: usize,
    handle: u32,
    offset: u64,
    size: usize,
    mapping: Option<Mapping>,
}

/// Returns the calls with their outcomes. Nothing is left on the card.
pub(crate) fn play(calls: &[Call], rig: &Rig) -> Vec<String> {
    let mut player =
        Player { rig, files: vec![], gave_up: vec![], images: vec![], activations: vec![], objects: vec![] };
    let mut lines = Vec::new();
    for call in calls {
        player.play(call, &mut lines);
    }
    rig.set_faults("");
    for file in 0..player.files.len() {
        player.close(file);
        player.unmap(file);
    }
    player.play(&Call::Usage, &mut lines);
    lines
}

fn outcome(result: Result<String, Errno>) -> String {
    match result {
        Ok(effect) => effect,
        Err(errno) => format!("error {}", errno.raw_os_error()),
    }
}

fn plain(result: Result<(), Errno>) -> String {
    outcome(result.map(|()| "ok".to_owned()))
}

impl Player<'_> {
    fn file(&self, file: usize) -> Option<Arc<dyn AccelFile>> {
        self.files.get(file).cloned().flatten()
    }

    fn handle(&self, object: usize) -> u32 {
        self.objects.get(object).map_or(NOTHING, |object| object.handle)
    }

    fn play(&mut self, call: &Call, lines: &mut Vec<String>) {
        let came = match call {
            Call::While(blocking, meanwhile) => {
                self.play_while(blocking, meanwhile, lines);
                return;
            }
            Call::Open(file) => self.open(*file),
            Call::Close(file) => self.close(*file),
            Call::CloseMapped(file) => {
                drop(self.files[*file].take());
                "ok".to_owned()
            }
            Call::CloseGivenUp(file) => {
                self.gave_up[*file] = false;
                self.close(*file)
            }
            Call::Faults(plan) => {
                self.rig.set_faults(plan);
                "ok".to_owned()
            }
            Call::Reset => {
                let result = self.rig.reset();
                if result.is_ok() {
                    self.rig.await_online();
                }
                plain(result)
            }
            Call::Stop => {
                self.rig.stop_and_continue();
                "ok".to_owned()
            }
            Call::AwaitOnline => {
                self.rig.await_online();
                "ok".to_owned()
            }
            Call::Usage => match self.rig.open() {
                Ok(file) => manage(&*file, &self.message(&[Part::ResourceInfo, Part::Status])).0,
                Err(errno) => outcome(Err(errno)),
            },
            Call::Write { object, begin } => self.write(*object, *begin),
            Call::Read { object } => self.read(*object),
            _ => match self.file_of(call) {
                Some(file) => self.on_file(call, &*file),
                None => "no file".to_owned(),
            },
        };
        lines.push(format!("{call:?} -> {came}"));
    }

    fn file_of(&self, call: &Call) -> Option<Arc<dyn AccelFile>> {
        match call {
            Call::Manage(file, _)
            | Call::CreateBo { file, .. }
            | Call::MmapBo { file, .. }
            | Call::Map { file, .. }
            | Call::CloseHandle { file, .. }
            | Call::Attach { file, .. }
            | Call::Detach { file, .. }
            | Call::Execute { file, .. }
            | Call::PartialExecute { file, .. }
            | Call::Wait { file, .. }
            | Call::PerfStats { file, .. }
            | Call::Version(file) => self.file(*file),
            _ => None,
        }
    }

    fn open(&mut self, file: usize) -> String {
        self.close(file);
        if self.files.len() <= file {
            self.files.resize(file + 1, None);
            self.gave_up.resize(file + 1, false);
        }
        let opened = self.rig.open();
        let came = plain(opened.as_ref().map(|_| ()).map_err(|errno| *errno));
        self.files[file] = opened.ok();
        came
    }

    fn close(&mut self, file: usize) -> String {
        let Some(open) = self.files.get_mut(file).and_then(Option::take) else { return "no file".to_owned() };
        if std::mem::take(&mut self.gave_up[file]) {
            // The driver would keep such a channel, and an activation that gets it would hang.
            for &(activation, _) in self.activations.iter().filter(|(_, of)| *of == file) {
                let _ = manage(&*open, &command(&deactivation(activation, true)));
            }
        }
        self.unmap(file);
        drop(open);
        "ok".to_owned()
    }

    fn unmap(&mut self, file: usize) {
        for object in self.objects.iter_mut().filter(|object| object.file == file) {
            object.mapping = None;
        }
    }

    fn play_while(&mut self, blocking: &Call, meanwhile: &[Call], lines: &mut Vec<String>) {
        let Some(file) = self.file_of(blocking) else { return };
        let (sender, receiver) = channel();
        let came = thread::scope(|scope| {
            let blocked = self.blocking(blocking);
            let made = scope.spawn(move || blocked(&*file, &sender));
            let task: PathBuf = receiver.recv().unwrap();
            self.rig.await_blocked(&task, &|| made.is_finished());
            lines.push(format!("{blocking:?} blocks: {}", !made.is_finished()));
            for call in meanwhile {
                self.play(call, lines);
            }
            made.join().unwrap()
        });
        lines.push(format!("{blocking:?} -> {came}"));
    }

    /// Returns a call that another thread makes, after that thread has sent its own path in `/proc`.
    fn blocking(&self, call: &Call) -> Blocking {
        let begin = |sender: &Sender<PathBuf>| {
            let task = fs::read_link("/proc/thread-self").unwrap();
            sender.send(PathBuf::from("/proc").join(task)).unwrap();
        };
        match call {
            Call::Wait { dbc_id, object, timeout_ms, pad, .. } => {
                let wait =
                    Wait { handle: self.handle(*object), timeout: *timeout_ms, dbc_id: *dbc_id, pad: *pad };
                Box::new(move |file, sender| {
                    begin(sender);
                    plain(file.ioctl(&mut Ioctl::Wait(wait)))
                })
            }
            Call::Manage(_, parts) => {
                let pieces = self.message(parts);
                Box::new(move |file, sender| {
                    begin(sender);
                    manage(file, &pieces).0
                })
            }
            other => panic!("{other:?} does not block"),
        }
    }

    fn on_file(&mut self, call: &Call, file: &dyn AccelFile) -> String {
        match call {
            Call::Manage(of, parts) => self.manage(*of, parts, file),
            Call::CreateBo { file: of, size, pad } => outcome(self.create(*of, file, *size, *pad)),
            Call::MmapBo { object, .. } => plain(file.mmap_offset(self.handle(*object)).map(|_| ())),
            Call::Map { object, len, .. } => {
                let offset = self.objects.get(*object).map_or(1 << 50, |object| object.offset);
                plain(file.map(offset, *len).map(|_| ()))
            }
            Call::CloseHandle { object, .. } => plain(file.close_handle(self.handle(*object))),
            Call::Attach { dbc_id, object, dir, slices, .. } => {
                let size = self.objects.get(*object).map_or(4096, |object| object.size as u64);
                let entries: Vec<_> = slices.iter().map(entry).collect();
                plain(file.attach_slices(*dbc_id, self.handle(*object), *dir, size, &entries))
            }
            Call::Detach { object, pad, .. } => {
                let arg = DetachSlice { handle: self.handle(*object), pad: *pad };
                plain(file.ioctl(&mut Ioctl::DetachSlices(arg)))
            }
            Call::Execute { dbc_id, objects, .. } => {
                let entry = |object: &usize| ExecuteEntry { handle: self.handle(*object), dir: 0 };
                let entries: Vec<_> = objects.iter().map(entry).collect();
                plain(file.execute(*dbc_id, &entries))
            }
            Call::PartialExecute { dbc_id, objects, .. } => {
                let entry = |&(object, resize): &(usize, u64)| PartialExecuteEntry {
                    handle: self.handle(object),
                    dir: 0,
                    resize,
                };
                let entries: Vec<_> = objects.iter().map(entry).collect();
                plain(file.partial_execute(*dbc_id, &entries))
            }
            Call::Wait { dbc_id, object, timeout_ms, pad, .. } => {
                let handle = self.handle(*object);
                let arg = Wait { handle, timeout: *timeout_ms, dbc_id: *dbc_id, pad: *pad };
                plain(file.ioctl(&mut Ioctl::Wait(arg)))
            }
            Call::PerfStats { dbc_id, objects, .. } => {
                let entry =
                    |object: &usize| PerfStatsEntry { handle: self.handle(*object), ..Default::default() };
                let mut entries: Vec<_> = objects.iter().map(entry).collect();
                // Levels and latencies vary.
                outcome(file.perf_stats(*dbc_id, &mut entries).map(|()| {
                    let elements: Vec<_> = entries.iter().map(|entry| entry.num_queue_element).collect();
                    format!("elements {elements:?}")
                }))
            }
            Call::Version(_) => outcome(file.driver_interface().map(|found| format!("{found:?}"))),
            other => panic!("{other:?} is of no file"),
        }
    }

    fn create(&mut self, of: usize, file: &dyn AccelFile, size: u64, pad: u32) -> Result<String, Errno> {
        let mut arg = CreateBo { size, pad, ..CreateBo::default() };
        file.ioctl(&mut Ioctl::CreateBo(&mut arg))?;
        let size = usize::try_from(size.next_multiple_of(4096)).unwrap();
        let offset = file.mmap_offset(arg.handle)?;
        let mapping = file.map(offset, size).ok();
        self.objects.push(Object { file: of, handle: arg.handle, offset, size, mapping });
        Ok(format!("handle {}", arg.handle))
    }

    fn write(&self, object: usize, begin: u8) -> String {
        let Some(Object { mapping: Some(mapping), size, .. }) = self.objects.get(object) else {
            return "no object".to_owned();
        };
        let bytes: Vec<u8> =
            (0..*size).map(|at| begin.wrapping_add(u8::try_from(at % 251).unwrap())).collect();
        mapping.write_from(0, &bytes).unwrap();
        "ok".to_owned()
    }

    fn read(&self, object: usize) -> String {
        let Some(Object { mapping: Some(mapping), size, .. }) = self.objects.get(object) else {
            return "no object".to_owned();
        };
        let mut bytes = vec![0; *size];
        mapping.read_into(0, &mut bytes).unwrap();
        let sum = bytes.iter().fold(0_u64, |sum, byte| sum.wrapping_mul(257).wrapping_add(u64::from(*byte)));
        format!("{:02x?}, sum {sum:016x}", &bytes[..4])
    }

    fn manage(&mut self, of: usize, parts: &[Part], file: &dyn AccelFile) -> String {
        let (came, found) = manage(file, &self.message(parts));
        self.images.extend(found.images);
        self.activations.extend(found.activations.into_iter().map(|activation| (activation, of)));
        if parts.iter().any(|part| matches!(part, Part::TearDown { .. })) {
            self.gave_up[of] = true;
        }
        came
    }

    /// The transactions of a message.
    fn message(&self, parts: &[Part]) -> Vec<Piece> {
        let image = |image: &usize| self.images.get(*image).copied().unwrap_or(NOTHING);
        let activation =
            |index: &usize| self.activations.get(*index).map_or(NOTHING, |(activation, _)| *activation);
        let part = |part: &Part| match part {
            Part::Features => of_message(&message::status_features()),
            Part::Status => of_message(&message::status_query()),
            Part::ResourceInfo => of_message(&message::resource_info(0, WHOLE_DEVICE)),
            Part::Unload { image: index } => of_message(&message::unload_elf(image(index))),
            Part::Load(bytes) => {
                let data = vec![0x5A; *bytes];
                let mut pieces = of_message(&message::load_elf(0, 0, &data));
                pieces.push(Piece::Data { tag: ELF_TAG, data });
                pieces
            }
            Part::Activate { image: index } => command(&activation_of(image(index))),
            Part::Deactivate { activation: index, tears_down } => {
                command(&deactivation(activation(index), *tears_down))
            }
            Part::SetUp { queue_size, pad } => {
                let channel = SetUpChannel { queue_size: *queue_size, pad: *pad, ..SetUpChannel::default() };
                vec![Piece::Plain(TransactionKind::ActivateFromUser.transaction(bytes_of(&channel)))]
            }
            Part::TearDown { dbc_id, pad } => {
                let channel = TearDownChannel { dbc_id: *dbc_id, pad: *pad };
                vec![Piece::Plain(TransactionKind::DeactivateFromUser.transaction(bytes_of(&channel)))]
            }
            Part::Command(number) => {
                vec![Piece::Plain(
                    TransactionKind::PassthroughFromUser.transaction(&u64::from(*number).to_le_bytes()),
                )]
            }
            Part::Odd => {
                vec![Piece::Plain(TransactionKind::PassthroughFromUser.transaction(&13_u32.to_le_bytes()))]
            }
            Part::Unknown(kind) => {
                let header = Header { kind: *kind, len: 16 };
                vec![Piece::Plain([bytes_of(&header), &[0; 8]].concat())]
            }
        };
        parts.iter().flat_map(part).collect()
    }
}

/// A transaction.
enum Piece {
    Plain(Vec<u8>),
    Data { tag: u32, data: Vec<u8> },
}

/// Ids that a reply returned.
#[derive(Default)]
struct ReturnedIds {
    images: Vec<u32>,
    activations: Vec<u32>,
}

fn command(command: &impl qaic_kmd::protocol::Numbered) -> Vec<Piece> {
    vec![Piece::Plain(passthrough(command, &[]))]
}

fn activation_of(elf_id: u32) -> Activate {
    Activate {
        elf_id,
        resource_res_id: WHOLE_DEVICE,
        opt_vc_setup: 1,
        vc_res_id: WHOLE_DEVICE,
        initial_state: ActivationState::Ready as i32,
        ..Activate::default()
    }
}

fn deactivation(activation_id: u32, tears_down: bool) -> Deactivate {
    Deactivate { activation_id, opt_vc_teardown: tears_down.into(), ..Deactivate::default() }
}

/// Returns the transactions of a message, except those that reference data.
fn of_message(message: &ManageBuffer<'_>) -> Vec<Piece> {
    let mut rest = message.bytes();
    let mut pieces = Vec::new();
    while rest.len() >= size_of::<Header>() {
        let len = u32::from_le_bytes(rest[4..8].try_into().unwrap()) as usize;
        let is_data = len == size_of::<Header>() + size_of::<Dma>() && rest[0] == 5;
        if !is_data {
            pieces.push(Piece::Plain(rest[..len].to_vec()));
        }
        rest = &rest[len..];
    }
    pieces
}

/// Sends a message. Returns the reply in words, and the ids in it.
fn manage(file: &dyn AccelFile, pieces: &[Piece]) -> (String, ReturnedIds) {
    let mut buffer = ManageBuffer::default();
    for piece in pieces {
        let fits = match piece {
            Piece::Plain(bytes) => buffer.push(bytes),
            Piece::Data { tag, data } => buffer.push_dma(*tag, data),
        };
        fits.unwrap();
    }
    let result = file.manage(&mut buffer);
    let (mut came, mut given) = (plain(result), ReturnedIds::default());
    if !buffer.is_reply() {
        return (came, given);
    }
    write!(came, ", {} transactions in {} bytes:", buffer.count(), buffer.bytes().len()).unwrap();
    for transaction in transactions(buffer.bytes()) {
        match transaction.unwrap() {
            Transaction::Passthrough(bytes) => came += &describe(bytes, &mut given),
            Transaction::Channel(channel) => {
                write!(came, " channel {} status {:#x}", channel.dbc_id, channel.status).unwrap();
            }
            Transaction::Features(features) => write!(came, " {features:?}").unwrap(),
            Transaction::Other { kind, body } => write!(came, " type {kind} {body:02x?}").unwrap(),
        }
    }
    (came, given)
}

/// Describes a reply to a command in words, without the values of ids.
fn describe(bytes: &[u8], given: &mut ReturnedIds) -> String {
    let word =
        |at: usize| bytes.get(at..at + 4).map_or(0, |word| u32::from_le_bytes(word.try_into().unwrap()));
    match word(0) {
        LOAD_ELF_REPLY => {
            let Ok(reply) = LoadElfReply::decode(bytes) else { return " short".to_owned() };
            if reply.status.is_success() {
                given.images.push(reply.elf_id);
            }
            format!(" image, status {}", reply.status.0)
        }
        ACTIVATE_REPLY => {
            let Ok(reply) = ActivateReply::decode(bytes) else { return " short".to_owned() };
            if reply.status.is_success() {
                given.activations.push(reply.activation_id);
            }
            let (channel, status) = (reply.virtual_channel_id, reply.status.0);
            format!(" activation on channel {channel}, status {status}")
        }
        STATUS_REPLY | RESOURCE_INFO_REPLY => {
            let hash =
                bytes.iter().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()));
            format!(" reply {} of {} bytes, {hash:08x}", word(0), bytes.len())
        }
        // The number of an unknown reply, whose words can have any value.
        50 => " no reply".to_owned(),
        number => format!(" reply {number}, status {}", word(4).cast_signed()),
    }
}

fn entry(slice: &Slice) -> AttachSliceEntry {
    let mut sems = [Sem::default(); 4];
    for (sem, &(val, index, presync, cmd, flags)) in sems.iter_mut().zip(&slice.semaphores) {
        *sem = Sem { val, index, presync, cmd, flags, pad: 0 };
    }
    let (db_addr, db_len) = slice.doorbell.unwrap_or_default();
    AttachSliceEntry {
        size: slice.size,
        offset: slice.offset,
        dev_addr: 0x1_0000 + slice.to,
        sems,
        db_addr,
        db_len,
        db_data: 7,
    }
}
