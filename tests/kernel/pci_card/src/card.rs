//! A card as a device of the PCI bus for guests, as the mainline driver of a kernel sees it.
//!
//! A user mode kernel accesses its devices through a socket (`CONFIG_UML_PCI_OVER_VIRTIO`): one queue has the accesses to the configuration
//! space and to the memory windows, another queue has the interrupts, and the guest's memory is shared. This module implements the card's
//! message interface and DMA bridge, and uses the same firmware, cores and faults as the emulated driver. Therefore a real driver in the
//! guest can be compared with the emulated one.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fs;
use std::io::{self, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use qaic_emu::fault::{Action, FaultCounter, FaultPlan, Target, Trigger};
use qaic_emu::{Channel, Firmware, FirmwareConfig, ResourceUsage, Step, Workload};
use qaic_kmd::abi::DBC_COUNT;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::config_space::{ConfigSpace, InterruptWrite, MSIX_BAR, VECTORS};
use crate::control_link::{ControlLink, Gather, RingPlaces};
use crate::dma_bridge::DmaChannel;
use crate::mhi::{CONTROL_CHANNEL, Effects, Mhi};
use crate::vhost_user::{self, Guest, QUEUES};

/// Offset of the channels' registers in their window, and bytes per channel.
const CHANNEL_REGISTERS: u64 = 0x2_0000;
const CHANNEL_REGISTER_BYTES: u64 = 0x1000;
const MHI_BAR: u8 = 0;
const DMA_BRIDGE_BAR: u8 = 2;

const CONFIG_READ: u8 = 1;
const CONFIG_WRITE: u8 = 2;
const WINDOW_READ: u8 = 3;
const WINDOW_WRITE: u8 = 4;
const WINDOW_FILL: u8 = 5;
const INTERRUPT: u8 = 7;
const ACCESS_HEADER_BYTES: usize = 16;
const MAX_ACCESS_BYTES: usize = 1 << 16;
/// Interrupts that wait for a buffer of the guest. An interrupt only reports that there is work, so a few are enough.
const MAX_PENDING_INTERRUPTS: usize = 256;
/// The card's clock has 19.2 million ticks per second.
const CLOCK_TICKS_PER_10_MICROSECONDS: u128 = 192;

/// A card that a guest can have.
#[derive(Debug)]
pub(crate) struct PciCard {
    firmware: Firmware,
    status_flags: u64,
    bus: Mutex<Bus>,
    /// A channel has work, or no longer exists.
    changed: Condvar,
    begin: Instant,
}

/// The part of the card that the guest accesses. Cores and firmware work without it.
#[derive(Debug)]
struct Bus {
    guest: Guest,
    config: ConfigSpace,
    mhi: Mhi,
    channels: Vec<Option<DmaChannel>>,
    interrupts: VecDeque<InterruptWrite>,
    /// Accesses since the last read.
    unnoticed_writes: u16,
    faults: FaultCounter,
    /// Time of the next fault that the clock triggers.
    timed_faults: Vec<(Instant, Action)>,
    fault_file: Option<FaultFile>,
    /// Number of resets.
    resets: u64,
    /// True if the card has disappeared from the bus.
    is_gone: bool,
    is_over: bool,
}

/// A file whose first line is the plan of faults. Other lines only distinguish it from an earlier file.
#[derive(Debug)]
struct FaultFile {
    path: PathBuf,
    content: Vec<u8>,
}

/// A task for the firmware's thread.
#[derive(Debug)]
enum Work {
    Message(Vec<u8>),
    Reset,
}

impl PciCard {
    /// An unused card.
    ///
    /// Faults of control messages, of inferences and of times are supported. Calls are those of the guest's driver, which fail for their
    /// own reasons. Cores that fail make no progress, as a driver without restarts of cores sees them. A dead card disappears from the bus
    /// until the guest ends.
    pub(crate) fn new(config: FirmwareConfig, workload: Arc<dyn Workload>, faults: FaultPlan) -> Self {
        let mut bus = Bus {
            guest: Guest::default(),
            config: ConfigSpace::new(&config),
            mhi: Mhi::new(),
            channels: (0..DBC_COUNT).map(|_| None).collect(),
            interrupts: VecDeque::new(),
            unnoticed_writes: 0,
            faults: FaultCounter::default(),
            timed_faults: Vec::new(),
            fault_file: None,
            resets: 0,
            is_gone: false,
            is_over: false,
        };
        bus.set_faults(faults);
        Self {
            status_flags: config.status_flags,
            firmware: Firmware::new(config.of_card(0), workload),
            bus: Mutex::new(bus),
            changed: Condvar::new(),
            begin: Instant::now(),
        }
    }

    /// Reads the plan of faults from a file whenever the file changes. A guest that shares the folder of the file sets faults in this way
    /// before its next access.
    pub(crate) fn read_faults_from(&self, path: PathBuf) {
        self.bus().fault_file = Some(FaultFile { path, content: Vec::new() });
    }

    /// Serves the first guest that connects, until it disconnects.
    ///
    /// Blocking: until the guest ends.
    pub(crate) fn serve(&self, listener: &UnixListener) -> io::Result<()> {
        let (socket, _) = listener.accept()?;
        let (sender, receiver) = channel();
        thread::scope(|scope| {
            thread::Builder::new()
                .name("card-firmware".into())
                .spawn_scoped(scope, move || self.run_firmware(scope, &receiver))?;
            let outcome = self.serve_guest(&socket, &sender);
            // Ends the threads.
            drop(sender);
            let mut bus = self.bus();
            bus.is_over = true;
            for dma in bus.channels.iter_mut().filter_map(Option::take) {
                dma.channel.stop();
            }
            drop(bus);
            self.changed.notify_all();
            outcome
        })
    }

    /// Returns the resources that the firmware has allocated.
    pub(crate) fn resource_usage(&self) -> ResourceUsage {
        self.firmware.resource_usage()
    }

    fn bus(&self) -> MutexGuard<'_, Bus> {
        self.bus.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve_guest(&self, socket: &UnixStream, work: &Sender<Work>) -> io::Result<()> {
        loop {
            let (is_message, kicked) = self.await_guest(socket)?;
            self.bus().apply_timed_faults(work);
            for (index, is_kicked) in kicked.into_iter().enumerate() {
                if is_kicked {
                    self.take_kick(index, work)?;
                }
            }
            if !is_message {
                continue;
            }
            let Some(message) = vhost_user::receive(socket)? else { return Ok(()) };
            let answer = self.bus().guest.handle(message)?;
            if let Some(answer) = answer {
                (&mut &*socket).write_all(&answer)?;
            }
            // Work from before the queue was known.
            (0..QUEUES).try_for_each(|index| self.take_kick(index, work))?;
        }
    }

    /// Waits for a message or a kick, at most until the clock triggers a fault.
    fn await_guest(&self, socket: &UnixStream) -> io::Result<(bool, [bool; QUEUES])> {
        let kicks = self.bus().guest.kicks.each_ref().map(|kick| kick.as_ref().map(rustix::io::dup));
        let kicks = kicks.map(Option::transpose);
        let mut open = Vec::new();
        for kick in kicks {
            open.push(kick?);
        }
        let mut polled = vec![PollFd::new(socket, PollFlags::IN)];
        polled.extend(open.iter().flatten().map(|kick| PollFd::new(kick, PollFlags::IN)));
        let due = self.bus().timed_faults.iter().map(|(due, _)| *due).min();
        loop {
            let left = due.map(|due| due.saturating_duration_since(Instant::now()));
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut polled, left.as_ref()) {
                Err(rustix::io::Errno::INTR) => {}
                outcome => {
                    outcome?;
                    break;
                }
            }
        }
        let mut ready = polled.iter().map(|polled| !polled.revents().is_empty());
        let is_message = ready.next().unwrap_or(false);
        let mut kicked = [false; QUEUES];
        for (index, kick) in open.iter().enumerate() {
            if let Some(kick) = kick
                && ready.next().unwrap_or(false)
            {
                rustix::io::read(kick, &mut [0; 8])?;
                kicked[index] = true;
            }
        }
        Ok((is_message, kicked))
    }

    fn take_kick(&self, index: usize, work: &Sender<Work>) -> io::Result<()> {
        let mut bus = self.bus();
        if index == 1 {
            bus.send_interrupts();
            return Ok(());
        }
        let mut is_changed = false;
        loop {
            let Bus { guest, .. } = &mut *bus;
            let Some(chain) = guest.queues[0].pop(&guest.memory) else { break };
            let access = chain.read(&guest.memory, MAX_ACCESS_BYTES).unwrap_or_default();
            bus.look_for_faults(&access)?;
            let (answer, effects) = bus.access(&access, self.begin);
            is_changed = true;
            let Bus { guest, .. } = &mut *bus;
            let written = chain.write(&guest.memory, &answer).unwrap_or(0);
            // A guest without memory for the answer gets no notification.
            let _ = guest.queues[0].push(&guest.memory, &chain, written);
            bus.notify_of_access(&access);
            bus.settle(effects, work);
        }
        bus.send_interrupts();
        drop(bus);
        if is_changed {
            self.changed.notify_all();
        }
        Ok(())
    }

    /// Answers messages one after another, like the card's processor, and drives the channels that they open.
    fn run_firmware<'scope>(&'scope self, scope: &'scope thread::Scope<'scope, '_>, work: &Receiver<Work>) {
        let mut link = ControlLink::new(self.status_flags);
        let next_fault = |trigger| self.bus().faults.next_action(trigger);
        while let Ok(work) = work.recv() {
            let message = match work {
                Work::Message(_) if self.bus().is_gone => continue,
                Work::Message(message) => message,
                Work::Reset => {
                    self.forget_all(&mut link);
                    continue;
                }
            };
            let fetch = |gather: &Gather<'_>| gather(&self.bus().guest.memory);
            let answer = link.answer(&message, &self.firmware, &fetch, &next_fault);
            self.drop_ended();
            match answer.fault {
                Some(Action::Reset) => {
                    let effects = self.bus().reset();
                    self.forget_all(&mut link);
                    self.bus().interrupt(&effects.interrupts);
                    continue;
                }
                Some(Action::Dead) => {
                    self.bus().fall_off();
                    self.forget_all(&mut link);
                    continue;
                }
                Some(Action::Restart { dbc_id: Some(dbc_id), .. }) => self.bus().hang(dbc_id),
                _ => {}
            }
            for (dbc_id, places) in answer.activated {
                if !self.open_channel(scope, dbc_id, places) {
                    return;
                }
            }
            if let Some(Action::Slow(time)) = answer.fault
                && !self.delay(time)
            {
                continue;
            }
            if let Some(reply) = answer.reply {
                let mut effects = Effects::default();
                let mut bus = self.bus();
                let Bus { mhi, guest, .. } = &mut *bus;
                mhi.send(CONTROL_CHANNEL + 1, reply, &guest.memory, &mut effects);
                bus.interrupt(&effects.interrupts);
            }
        }
    }

    /// Waits this long with a reply. `false`: no thread waits for it any more.
    fn delay(&self, time: Duration) -> bool {
        let bus = self.bus();
        let resets = bus.resets;
        let is_awaited = |bus: &mut Bus| !bus.is_over && bus.resets == resets;
        let mut wait = self.changed.wait_timeout_while(bus, time, is_awaited);
        is_awaited(&mut wait.as_mut().unwrap_or_else(PoisonError::get_mut).0)
    }

    fn forget_all(&self, link: &mut ControlLink) {
        link.reset();
        self.firmware.reset();
        self.drop_ended();
    }

    /// Drives an activated channel from now on. `false`: the guest has disconnected.
    fn open_channel<'scope>(
        &'scope self,
        scope: &'scope thread::Scope<'scope, '_>,
        dbc_id: u32,
        places: RingPlaces,
    ) -> bool {
        let Some(channel) = self.firmware.channel(dbc_id) else { return true };
        let Some(dma) = DmaChannel::new(Arc::clone(&channel), places) else { return true };
        let mut bus = self.bus();
        if bus.is_over {
            return false;
        }
        if let Some(place) = bus.channels.get_mut(dbc_id as usize) {
            *place = Some(dma);
        }
        drop(bus);
        let builder = thread::Builder::new().name(format!("card-{dbc_id}"));
        if builder.spawn_scoped(scope, move || self.drive(dbc_id, &channel)).is_err() {
            self.bus().channels[dbc_id as usize] = None;
        }
        true
    }

    /// Removes the channels whose activations have ended.
    fn drop_ended(&self) {
        let mut bus = self.bus();
        for (dbc_id, place) in (0..).zip(&mut bus.channels) {
            let is_there = |dma: &DmaChannel| {
                self.firmware.channel(dbc_id).is_some_and(|channel| Arc::ptr_eq(&channel, &dma.channel))
            };
            if !place.as_ref().is_none_or(is_there) {
                *place = None;
            }
        }
        drop(bus);
        self.changed.notify_all();
    }

    /// Runs the steps of a channel until its activation ends.
    fn drive(&self, dbc_id: u32, channel: &Arc<Channel>) {
        let index = dbc_id as usize;
        loop {
            let Some((pushes, is_moving)) =
                self.bus().mine(index, channel).map(|dma| (dma.pushes, dma.is_moving()))
            else {
                return;
            };
            match if is_moving { channel.step() } else { Step::Idle } {
                Step::Completed { element_id, dma_status } => {
                    let mut bus = self.bus();
                    let Bus { channels, guest, .. } = &mut *bus;
                    let mine = channels[index].as_mut().filter(|dma| Arc::ptr_eq(&dma.channel, channel));
                    let Some(dma) = mine else { return };
                    if dma.complete(element_id, dma_status, &guest.memory) {
                        bus.interrupt(&[index + 1]);
                    }
                }
                Step::Worked => {}
                Step::Blocked | Step::Idle => {
                    let is_idle = |bus: &mut Bus| {
                        bus.mine(index, channel).is_some_and(|dma| dma.pushes == pushes || !dma.is_moving())
                    };
                    let wait = self.changed.wait_while(self.bus(), is_idle);
                    drop(wait.unwrap_or_else(PoisonError::into_inner));
                }
                // A driver without restarts of cores sees these as cores that make no progress.
                Step::Crashed => return,
            }
        }
    }
}

impl Bus {
    fn set_faults(&mut self, plan: FaultPlan) {
        let now = Instant::now();
        self.timed_faults = plan.timed().map(|(after, action)| (now + after, action)).collect();
        self.faults = FaultCounter::new(plan);
    }

    /// Notifies the guest of completed accesses as rarely as possible. The guest polls for the answers of reads, and at a read also for
    /// those of writes; virt-pci of Linux 6.12 loses the answer of a read if the notification comes before it polls.
    fn notify_of_access(&mut self, access: &[u8]) {
        let is_read = matches!(access.first(), Some(&(CONFIG_READ | WINDOW_READ)));
        self.unnoticed_writes = if is_read { 0 } else { self.unnoticed_writes + 1 };
        if self.unnoticed_writes >= self.guest.queues[0].size / 2 {
            self.unnoticed_writes = 0;
            let _ = self.guest.queues[0].notify(&self.guest.memory);
        }
    }

    /// Reads a new plan of faults before an access that can start something.
    fn look_for_faults(&mut self, access: &[u8]) -> io::Result<()> {
        let Some(file) = &mut self.fault_file else { return Ok(()) };
        if access.first() != Some(&WINDOW_WRITE) {
            return Ok(());
        }
        let content = match fs::read(&file.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            content => content?,
        };
        if content == file.content {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&content).into_owned();
        file.content = content;
        let plan = FaultPlan::parse(text.lines().next().unwrap_or_default(), Target::Card);
        self.set_faults(plan.map_err(io::Error::other)?);
        Ok(())
    }

    fn apply_timed_faults(&mut self, work: &Sender<Work>) {
        let now = Instant::now();
        let due: Vec<_> = self.timed_faults.extract_if(.., |(due, _)| *due <= now).collect();
        for (_, action) in due {
            self.perform(action, None, work);
        }
    }

    /// Applies a fault to the card or to its channel.
    fn perform(&mut self, action: Action, about: Option<u32>, work: &Sender<Work>) {
        match action {
            Action::Reset => {
                let effects = self.reset();
                self.settle(effects, work);
            }
            Action::Dead => {
                self.fall_off();
                let _ = work.send(Work::Reset);
            }
            Action::Restart { dbc_id, .. } => {
                if let Some(dbc_id) = dbc_id.or(about) {
                    self.hang(dbc_id);
                }
            }
            _ => {}
        }
    }

    /// The card stops, and reads return ones.
    fn fall_off(&mut self) {
        self.is_gone = true;
        self.resets += 1;
        self.channels.iter_mut().for_each(|place| *place = None);
        self.interrupts.clear();
    }

    /// Restarts the whole card; returns the actions that follow.
    fn reset(&mut self) -> Effects {
        self.resets += 1;
        let mut effects = Effects::default();
        self.mhi.reset_all(&mut effects);
        self.channels.iter_mut().for_each(|place| *place = None);
        effects
    }

    /// The cores of a channel stop. A driver without restarts of cores does not notice this in any other way.
    fn hang(&mut self, dbc_id: u32) {
        if let Some(Some(dma)) = self.channels.get_mut(dbc_id as usize) {
            dma.hang();
        }
    }

    /// The channel, while its activation has it.
    fn mine(&self, index: usize, channel: &Arc<Channel>) -> Option<&DmaChannel> {
        self.channels[index].as_ref().filter(|dma| Arc::ptr_eq(&dma.channel, channel))
    }

    /// Answers an access.
    fn access(&mut self, access: &[u8], begin: Instant) -> (Vec<u8>, Effects) {
        let Some((header, data)) = access.split_at_checked(ACCESS_HEADER_BYTES) else {
            return Default::default();
        };
        let (operation, window) = (header[0], header[1]);
        let size = header[4..].first_chunk().copied().map_or(0, u32::from_le_bytes) as usize;
        let address = header[8..].first_chunk().copied().map_or(0, u64::from_le_bytes);
        let size = size.min(MAX_ACCESS_BYTES);
        let mut effects = Effects::default();
        let mut answer = Vec::new();
        if self.is_gone {
            if matches!(operation, CONFIG_READ | WINDOW_READ) {
                answer.resize(size, 0xFF);
            }
            return (answer, effects);
        }
        match operation {
            CONFIG_READ => {
                answer.resize(size, 0);
                self.config.read(address, &mut answer);
            }
            CONFIG_WRITE => self.config.write(address, &data[..size.min(data.len())]),
            WINDOW_READ => {
                answer.resize(size, 0);
                self.read_window(window, address, &mut answer, begin);
            }
            WINDOW_WRITE => effects = self.write_window(window, address, &data[..size.min(data.len())]),
            WINDOW_FILL => {
                let bytes = vec![data.first().copied().unwrap_or(0); size];
                effects = self.write_window(window, address, &bytes);
            }
            _ => {}
        }
        (answer, effects)
    }

    fn read_window(&mut self, window: u8, at: u64, into: &mut [u8], begin: Instant) {
        match window {
            MHI_BAR => {
                let ticks = begin.elapsed().as_micros() * CLOCK_TICKS_PER_10_MICROSECONDS / 10;
                self.mhi.read(at, into, u64::try_from(ticks).unwrap_or(u64::MAX));
            }
            DMA_BRIDGE_BAR => {
                let value = self.channel_at(at).map_or(0, |(index, register)| {
                    self.channels[index].as_ref().map_or(0, |dma| dma.register(register))
                });
                into.iter_mut().zip(value.to_le_bytes()).for_each(|(byte, found)| *byte = found);
            }
            MSIX_BAR => self.config.read_vectors(at, into),
            _ => into.fill(0xFF),
        }
    }

    fn write_window(&mut self, window: u8, at: u64, from: &[u8]) -> Effects {
        let Self { guest, mhi, channels, faults, .. } = self;
        match window {
            MHI_BAR => return mhi.write(at, from, &guest.memory),
            DMA_BRIDGE_BAR => {
                let value = from.first_chunk().copied().map(u32::from_le_bytes);
                if let (Some((index, register)), Some(value)) = (channel_at(at, channels.len()), value)
                    && let Some(dma) = &mut channels[index]
                {
                    let mut found = None;
                    let mut fault = || {
                        found = faults.next_action(Trigger::Inference);
                        found
                    };
                    let interrupts = dma.write(register, value, &guest.memory, &mut fault);
                    match found {
                        Some(Action::Reset) => return self.reset(),
                        Some(Action::Dead) => {
                            self.fall_off();
                            return Effects { is_reset: true, ..Effects::default() };
                        }
                        Some(Action::Restart { dbc_id, .. }) => {
                            self.hang(dbc_id.or(u32::try_from(index).ok()).unwrap_or(u32::MAX));
                        }
                        _ => {}
                    }
                    return Effects {
                        interrupts: if interrupts { vec![index + 1] } else { Vec::new() },
                        ..Effects::default()
                    };
                }
            }
            MSIX_BAR => self.config.write_vectors(at, from),
            _ => {}
        }
        Effects::default()
    }

    fn channel_at(&self, at: u64) -> Option<(usize, u64)> {
        channel_at(at, self.channels.len())
    }

    fn settle(&mut self, effects: Effects, work: &Sender<Work>) {
        let all = effects.messages.into_iter().map(Work::Message);
        for each in all.chain(effects.is_reset.then_some(Work::Reset)) {
            // The firmware's thread lives as long as its sender.
            let _ = work.send(each);
        }
        if effects.is_reset {
            self.resets += 1;
            self.channels.iter_mut().for_each(|place| *place = None);
        }
        self.interrupt(&effects.interrupts);
    }

    fn interrupt(&mut self, vectors: &[usize]) {
        for vector in vectors {
            if let Some(write) = self.config.interrupt(vector % VECTORS)
                && self.interrupts.len() < MAX_PENDING_INTERRUPTS
            {
                self.interrupts.push_back(write);
            }
        }
        self.send_interrupts();
    }

    fn send_interrupts(&mut self) {
        let Self { guest: Guest { memory, queues, .. }, interrupts, .. } = self;
        // Guests do not expect an interrupt while they wait for the answer to an access.
        if queues[0].has_next(memory) {
            return;
        }
        while let Some(write) = interrupts.front() {
            let Some(chain) = queues[1].pop(memory) else { return };
            let mut message = vec![INTERRUPT, 0, 0, 0];
            message.extend(write.bytes.to_le_bytes());
            message.extend(write.address.to_le_bytes());
            message.extend(&write.data.to_le_bytes()[..write.bytes as usize]);
            let written = chain.write(memory, &message).unwrap_or(0);
            let _ = queues[1].push(memory, &chain, written);
            let _ = queues[1].notify(memory);
            interrupts.pop_front();
        }
    }
}

/// Channel and register of an address in the DMA bridge's window.
fn channel_at(at: u64, count: usize) -> Option<(usize, u64)> {
    let at = at.checked_sub(CHANNEL_REGISTERS)?;
    let index = usize::try_from(at / CHANNEL_REGISTER_BYTES).ok().filter(|index| *index < count)?;
    Some((index, at % CHANNEL_REGISTER_BYTES))
}
