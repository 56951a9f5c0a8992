//! What of a virtual card is in use. A real card's firmware keeps these books; for a virtual one this module does.
//!
//! The book has one line per loaded program, and every figure is computed from the lines, so none can drift. Programs
//! that name the same group share cores: the group holds as many as its largest member and its members take turns
//! (python-api §A.1.1; on the CPU that is accounting only). With [`SharedCores`], the cores that a process holds in its
//! own book are taken from all processes' cores as well.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use qaic_qpc::container::names;
use qaic_qpc::limits::Limits;
use qaic_qpc::metadata::Metadata;

use super::shared_cores::{Claim, SharedCores};
use super::{DeviceId, Resources};
use crate::error::RuntimeError;
use crate::fork::Origin;
use crate::image::Image;
use crate::sync::{Mutex, MutexGuard};

/// Cores of a card, its memory in MB, and what else one has (python-api §B.13).
pub const CORES: u32 = 16;
const DRAM_MB: u64 = 32_692;
const VIRTUAL_CHANNELS: u32 = 16;
const MULTICAST_IDS: u32 = 3072;
const SEMAPHORES: u32 = 32;

/// What a program needs of one card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Demand {
    /// Cores of one activation.
    pub(crate) cores: u32,
    /// Multicast ids of one activation.
    pub(crate) multicast_ids: u32,
    /// Semaphores of one activation.
    pub(crate) semaphores: u32,
    /// Bytes of constants, loaded once.
    pub(crate) constant_bytes: u64,
}

impl Demand {
    /// What the descriptors of a container say, on each of `cards` cards.
    pub(crate) fn of(image: &Image, cards: usize) -> Self {
        let file = image.segment(names::NETWORK_ELF).unwrap_or_default();
        // A container without metadata that can be read is used as far as it goes; these figures only inform.
        let metadata = Metadata::from_elf(file, &Limits::default()).unwrap_or_default();
        let constants = image.segment(names::CONSTANTS).map_or(0, <[u8]>::len) as u64;
        Self {
            cores: image.network().num_cores.max(1),
            multicast_ids: u32::try_from(metadata.num_mc_id()).unwrap_or(u32::MAX),
            semaphores: metadata.num_semaphores.into(),
            constant_bytes: constants.div_ceil((cards as u64).max(1)),
        }
    }
}

/// The books of one card.
#[derive(Debug)]
pub struct Ledger {
    card: DeviceId,
    cores: u32,
    origin: Origin,
    shared: Option<SharedCores>,
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    next: u64,
    programs: BTreeMap<u64, Line>,
}

/// One loaded program.
#[derive(Debug)]
struct Line {
    demand: Demand,
    group: Option<String>,
    activations: u32,
}

impl Line {
    fn cores(&self) -> u32 {
        self.demand.cores.saturating_mul(self.activations)
    }
}

impl Lines {
    fn cores_held(&self) -> u32 {
        let mut groups: HashMap<&str, u32> = HashMap::new();
        let mut held = 0_u32;
        for line in self.programs.values() {
            match &line.group {
                None => held = held.saturating_add(line.cores()),
                Some(name) => {
                    let most = groups.entry(name).or_default();
                    *most = line.cores().max(*most);
                }
            }
        }
        groups.values().fold(held, |held, most| held.saturating_add(*most))
    }

    /// Cores that would have to be taken for `more` activations of program `key`.
    fn cores_for(&mut self, key: u64, more: u32) -> u32 {
        let before = self.cores_held();
        let Some(line) = self.programs.get_mut(&key) else { return 0 };
        let activations = line.activations;
        line.activations = activations.saturating_add(more);
        let after = self.cores_held();
        if let Some(line) = self.programs.get_mut(&key) {
            line.activations = activations;
        }
        after.saturating_sub(before)
    }

    fn insert(&mut self, demand: Demand, group: Option<String>) -> u64 {
        let key = self.next;
        self.next += 1;
        self.programs.insert(key, Line { demand, group, activations: 0 });
        key
    }
}

impl Ledger {
    /// Books of a card with this many cores, all free as far as this process is concerned.
    pub(crate) fn new(card: DeviceId, cores: u32, shared: Option<SharedCores>) -> Arc<Self> {
        Arc::new(Self { card, cores, origin: Origin::here(), shared, lines: Mutex::default() })
    }

    /// The card.
    pub fn card(&self) -> DeviceId {
        self.card
    }

    /// The figures of the card. In a forked process, whose parent keeps these books, those of an unused card.
    ///
    /// Blocking: where cores are counted across processes, until it is this process's turn.
    pub fn resources(&self) -> Resources {
        if !self.origin.is_here() {
            return self.summary(&Lines::default());
        }
        let mut resources = self.summary(&self.lines.lock());
        // Without an answer, what this process knows by itself.
        if let Some(Ok(free)) = self.shared.as_ref().map(SharedCores::free) {
            resources.nsp_free = free;
        }
        resources
    }

    fn summary(&self, lines: &Lines) -> Resources {
        let programs = lines.programs.values();
        let in_use = |figure: fn(&Demand) -> u32| {
            let sum = |sum: u32, line: &Line| {
                sum.saturating_add(figure(&line.demand).saturating_mul(line.activations))
            };
            programs.clone().fold(0, sum)
        };
        let count = |wanted: fn(&Line) -> bool| {
            u32::try_from(programs.clone().filter(|line| wanted(line)).count()).unwrap_or(u32::MAX)
        };
        let activations = in_use(|_| 1);
        let bytes = programs.clone().fold(0, |sum: u64, line| sum.saturating_add(line.demand.constant_bytes));
        Resources {
            dram_total_mb: DRAM_MB,
            dram_free_mb: DRAM_MB.saturating_sub(bytes.div_ceil(1 << 20)),
            nsp_total: self.cores,
            nsp_free: self.cores.saturating_sub(lines.cores_held()),
            vc_total: VIRTUAL_CHANNELS,
            vc_free: VIRTUAL_CHANNELS.saturating_sub(activations),
            mcid_total: MULTICAST_IDS,
            mcid_free: MULTICAST_IDS.saturating_sub(in_use(|demand| demand.multicast_ids)),
            semaphore_total: SEMAPHORES,
            semaphore_free: SEMAPHORES.saturating_sub(in_use(|demand| demand.semaphores)),
            programs_loaded: count(|_| true),
            programs_active: activations,
            constants_loaded: count(|line| line.demand.constant_bytes > 0),
            constants_in_use: count(|line| line.demand.constant_bytes > 0 && line.activations > 0),
        }
    }

    /// Says "busy" when `activations` of `cores` cores each, as a new member of `group` if one is named, would not fit.
    /// Takes nothing.
    pub fn check_free(&self, cores: u32, activations: u32, group: Option<&str>) -> Result<(), RuntimeError> {
        self.origin.check()?;
        let mut lines = self.lines.lock();
        let key = lines.insert(Demand { cores, ..Demand::default() }, group.map(str::to_owned));
        let needed = lines.cores_for(key, activations);
        lines.programs.remove(&key);
        let free = match &self.shared {
            Some(shared) => shared.free()?,
            None => self.free(&lines),
        };
        if needed <= free { Ok(()) } else { Err(self.busy(needed, free)) }
    }

    /// Takes `needed` cores more than the book has in use, from all processes' cores.
    fn claim(&self, lines: &Lines, needed: u32) -> Result<(), RuntimeError> {
        match &self.shared {
            Some(shared) => match shared.claim(needed)? {
                Claim::Taken => Ok(()),
                Claim::Refused { free } => Err(self.busy(needed, free)),
            },
            None if needed <= self.free(lines) => Ok(()),
            None => Err(self.busy(needed, self.free(lines))),
        }
    }

    fn unclaim(&self, count: u32) {
        if let Some(shared) = &self.shared {
            shared.release(count);
        }
    }

    fn free(&self, lines: &Lines) -> u32 {
        self.cores.saturating_sub(lines.cores_held())
    }

    fn busy(&self, needed: u32, free: u32) -> RuntimeError {
        RuntimeError::DeviceBusy { id: self.card.0, needed, free, total: self.cores }
    }
}

/// A program in the books of every card it is loaded on, until this is dropped.
#[derive(Debug)]
pub(crate) struct Entry {
    // By card, the order in which the books are locked.
    lines: Vec<(Arc<Ledger>, u64)>,
}

impl Entry {
    /// Enters a program that is loaded on these cards.
    pub(crate) fn new(
        cards: impl IntoIterator<Item = Arc<Ledger>>,
        demand: Demand,
        group: Option<&str>,
    ) -> Result<Self, RuntimeError> {
        let mut entry = Self { lines: Vec::new() };
        for ledger in cards {
            ledger.origin.check()?;
            let key = ledger.lines.lock().insert(demand, group.map(str::to_owned));
            entry.lines.push((ledger, key));
        }
        entry.lines.sort_by_key(|(ledger, _)| ledger.card);
        Ok(entry)
    }

    /// Takes the cores of one activation on every card, or none at all.
    pub(crate) fn activate(self: &Arc<Self>) -> Result<Seat, RuntimeError> {
        for (ledger, _) in &self.lines {
            ledger.origin.check()?;
        }
        let mut books: Vec<MutexGuard<'_, Lines>> =
            self.lines.iter().map(|(ledger, _)| ledger.lines.lock()).collect();
        let mut claimed: Vec<(&Ledger, u32)> = Vec::new();
        for ((ledger, key), lines) in self.lines.iter().zip(&mut books) {
            let needed = lines.cores_for(*key, 1);
            if let Err(error) = ledger.claim(lines, needed) {
                for (ledger, count) in claimed {
                    ledger.unclaim(count);
                }
                return Err(error);
            }
            claimed.push((ledger, needed));
        }
        for ((_, key), lines) in self.lines.iter().zip(&mut books) {
            if let Some(line) = lines.programs.get_mut(key) {
                line.activations += 1;
            }
        }
        Ok(Seat { entry: Arc::clone(self) })
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        // A forked process has nothing in the books of its parent.
        for (ledger, key) in self.lines.iter().filter(|(ledger, _)| ledger.origin.is_here()) {
            ledger.lines.lock().programs.remove(key);
        }
    }
}

/// The cores of one activation, until this is dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    entry: Arc<Entry>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        for (ledger, key) in self.entry.lines.iter().filter(|(ledger, _)| ledger.origin.is_here()) {
            let mut lines = ledger.lines.lock();
            if let Some(line) = lines.programs.get_mut(key) {
                line.activations = line.activations.saturating_sub(1);
            }
            let given_back = lines.cores_for(*key, 1);
            ledger.unclaim(given_back);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(cores: u32) -> Demand {
        Demand { cores, ..Demand::default() }
    }

    fn entry(cards: &[&Arc<Ledger>], demand: Demand, group: Option<&str>) -> Arc<Entry> {
        Arc::new(Entry::new(cards.iter().map(|card| Arc::clone(card)), demand, group).unwrap())
    }

    fn free(card: &Ledger) -> u32 {
        card.resources().nsp_free
    }

    #[test]
    fn activations_take_cores_or_nothing_and_give_them_back() {
        let card = Ledger::new(DeviceId(3), CORES, None);
        let large = entry(&[&card], cores(10), None);
        let other = entry(&[&card], cores(7), None);
        assert_eq!(free(&card), 16);
        let seat = large.activate().unwrap();
        match other.activate().unwrap_err() {
            RuntimeError::DeviceBusy { id: 3, needed: 7, free: 6, total: 16 } => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(card.check_free(3, 2, None).map_err(|error| error.code()), Ok(()));
        assert_eq!(card.check_free(3, 3, None).map_err(|error| error.code()), Err("device.busy"));
        assert_eq!(free(&card), 6);
        drop(large);
        assert_eq!(free(&card), 6);
        drop(seat);
        assert_eq!(free(&card), 16);
    }

    #[test]
    fn several_cards_are_taken_together_or_not_at_all() {
        let cards = [Ledger::new(DeviceId(1), CORES, None), Ledger::new(DeviceId(0), CORES, None)];
        let whole = entry(&[&cards[0]], cores(12), None).activate().unwrap();
        let both = entry(&[&cards[0], &cards[1]], cores(5), None);
        assert_eq!(both.activate().unwrap_err().code(), "device.busy");
        assert_eq!((free(&cards[0]), free(&cards[1])), (4, 16));
        drop(whole);
        let seat = both.activate().unwrap();
        assert_eq!((free(&cards[0]), free(&cards[1])), (11, 11));
        drop(seat);
        assert_eq!((free(&cards[0]), free(&cards[1])), (16, 16));
    }

    #[test]
    fn a_group_holds_as_many_cores_as_its_largest_member() {
        let card = Ledger::new(DeviceId(0), CORES, None);
        let small = entry(&[&card], cores(4), Some("group1"));
        let large = entry(&[&card], cores(10), Some("group1"));
        let apart = entry(&[&card], cores(6), Some("group2"));
        let first = small.activate().unwrap();
        assert_eq!(free(&card), 12);
        let second = large.activate().unwrap();
        assert_eq!(free(&card), 6);
        let third = apart.activate().unwrap();
        assert_eq!(free(&card), 0);
        // A member of its own that fits into what the group holds needs nothing; a second activation of the largest
        // is one program with twice the cores.
        assert!(card.check_free(10, 1, Some("group1")).is_ok());
        assert!(card.check_free(11, 1, Some("group1")).is_err());
        match large.activate().unwrap_err() {
            RuntimeError::DeviceBusy { needed: 10, free: 0, .. } => {}
            other => panic!("{other:?}"),
        }
        drop(second);
        assert_eq!(free(&card), 6);
        drop(third);
        drop(first);
        assert_eq!(free(&card), 16);
    }

    #[test]
    fn every_figure_returns_to_its_total() {
        let card = Ledger::new(DeviceId(0), CORES, None);
        let unused = card.resources();
        let demand = Demand { cores: 2, multicast_ids: 5, semaphores: 9, constant_bytes: (3 << 20) + 1 };
        let program = entry(&[&card], demand, None);
        let bare = entry(&[&card], cores(1), None);
        let loaded = card.resources();
        assert_eq!((loaded.dram_free_mb, loaded.nsp_free), (DRAM_MB - 4, 16));
        assert_eq!((loaded.programs_loaded, loaded.programs_active), (2, 0));
        assert_eq!((loaded.constants_loaded, loaded.constants_in_use), (1, 0));
        let seats = [program.activate().unwrap(), program.activate().unwrap(), bare.activate().unwrap()];
        let active = card.resources();
        assert_eq!((active.nsp_free, active.vc_free, active.mcid_free), (11, 13, 3062));
        assert_eq!((active.semaphore_free, active.dram_free_mb), (14, DRAM_MB - 4));
        assert_eq!((active.programs_active, active.constants_in_use), (3, 1));
        drop((seats, program, bare));
        assert_eq!(card.resources(), unused);
    }
}
