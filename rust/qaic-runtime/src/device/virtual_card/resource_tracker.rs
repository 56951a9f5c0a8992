//! Resource usage of a virtual card. The firmware of a real card counts its resources; this module counts those of a
//! virtual card.
//!
//! Each loaded program has one reservation. All numbers are computed from the reservations, so they cannot become
//! inconsistent. Programs of the same group share cores: the group holds as many cores as its largest member, and its
//! members take turns, which is only accounting on the CPU. With [`SharedCores`], the cores of a process are also
//! taken from the cores of all processes.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use qaic_qpc::metadata::LocatedMetadata;
use qaic_qpc::{Limits, names};

use super::shared_cores::{ClaimOutcome, SharedCores};
use crate::device::{DeviceId, Resources};
use crate::error::{DeviceError, RuntimeError};
use crate::image::Image;
use crate::process::ForkGuard;
use crate::sync::{Mutex, MutexGuard};

/// Cores, memory in MB, and other resources of a card; the values are those of a real card.
pub(crate) const CORES: u32 = 16;
const DRAM_MB: u64 = 32_692;
const VIRTUAL_CHANNELS: u32 = 16;
const MULTICAST_IDS: u32 = 3072;
const SEMAPHORES: u32 = 32;

/// Resources that a program needs on one card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Requirements {
    pub(crate) cores: u32,
    pub(crate) multicast_ids: u32,
    /// Semaphores per activation.
    pub(crate) semaphores: u32,
    /// Bytes of constants, loaded once.
    pub(crate) constant_bytes: u64,
}

impl Requirements {
    /// Returns the needs from a container's descriptors, on each of `cards` cards.
    pub(crate) fn of(image: &Image, cards: usize) -> Self {
        let file = image.segment(names::NETWORK_ELF).unwrap_or_default();
        // The metadata is only informative, so a container with unreadable metadata is accepted.
        let located = LocatedMetadata::from_elf(file, &Limits::default());
        let metadata = located.map(|located| located.metadata).unwrap_or_default();
        let constants = image.segment(names::CONSTANTS).map_or(0, <[u8]>::len) as u64;
        Self {
            cores: image.network.num_cores.max(1),
            multicast_ids: u32::try_from(metadata.num_mc_id()).unwrap_or(u32::MAX),
            semaphores: metadata.num_semaphores.into(),
            constant_bytes: constants.div_ceil((cards as u64).max(1)),
        }
    }
}

/// Resource usage of one card.
#[derive(Debug)]
pub(crate) struct ResourceTracker {
    pub(crate) card: DeviceId,
    cores: u32,
    fork_guard: ForkGuard,
    shared: Option<SharedCores>,
    reservations: Mutex<Reservations>,
}

#[derive(Debug, Default)]
struct Reservations {
    next: u64,
    programs: BTreeMap<u64, Reservation>,
}

/// One loaded program.
#[derive(Debug)]
struct Reservation {
    requirements: Requirements,
    group: Option<String>,
    activations: u32,
}

impl Reservation {
    fn cores(&self) -> u32 {
        self.requirements.cores.saturating_mul(self.activations)
    }
}

impl Reservations {
    /// Number of cores that all programs hold.
    fn cores_held(&self) -> u32 {
        let mut groups: HashMap<&str, u32> = HashMap::new();
        let mut held = 0_u32;
        for reservation in self.programs.values() {
            match &reservation.group {
                None => held = held.saturating_add(reservation.cores()),
                Some(name) => {
                    let most = groups.entry(name).or_default();
                    *most = reservation.cores().max(*most);
                }
            }
        }
        groups.values().fold(held, |held, most| held.saturating_add(*most))
    }

    /// Number of additional cores for `more` activations of program `key`.
    fn cores_for(&mut self, key: u64, more: u32) -> u32 {
        let before = self.cores_held();
        let Some(reservation) = self.programs.get_mut(&key) else { return 0 };
        let activations = reservation.activations;
        reservation.activations = activations.saturating_add(more);
        let after = self.cores_held();
        if let Some(reservation) = self.programs.get_mut(&key) {
            reservation.activations = activations;
        }
        after.saturating_sub(before)
    }

    fn insert(&mut self, requirements: Requirements, group: Option<String>) -> u64 {
        let key = self.next;
        self.next += 1;
        self.programs.insert(key, Reservation { requirements, group, activations: 0 });
        key
    }
}

impl ResourceTracker {
    /// Creates a card with this many cores. No core is in use by this process.
    pub(crate) fn new(card: DeviceId, cores: u32, shared: Option<SharedCores>) -> Arc<Self> {
        Arc::new(Self { card, cores, fork_guard: ForkGuard::new(), shared, reservations: Mutex::default() })
    }

    /// Resources of the card. A forked process, whose resources the parent counts, gets those of an unused card.
    ///
    /// Blocking: if cores are counted across processes, until the lock is acquired.
    pub(crate) fn resources(&self) -> Resources {
        if !self.fork_guard.is_current() {
            return self.summary(&Reservations::default());
        }
        let mut resources = self.summary(&self.reservations.lock());
        // On an error, this process counts only its own reservations.
        if let Some(Ok(free)) = self.shared.as_ref().map(SharedCores::free) {
            resources.nsp_free = free;
        }
        resources
    }

    fn summary(&self, reservations: &Reservations) -> Resources {
        let programs = reservations.programs.values();
        let in_use = |figure: fn(&Requirements) -> u32| {
            let sum = |sum: u32, reservation: &Reservation| {
                sum.saturating_add(figure(&reservation.requirements).saturating_mul(reservation.activations))
            };
            programs.clone().fold(0, sum)
        };
        let count = |wanted: fn(&Reservation) -> bool| {
            u32::try_from(programs.clone().filter(|reservation| wanted(reservation)).count())
                .unwrap_or(u32::MAX)
        };
        let activations = in_use(|_| 1);
        let bytes = programs
            .clone()
            .fold(0, |sum: u64, reservation| sum.saturating_add(reservation.requirements.constant_bytes));
        Resources {
            dram_total_mb: DRAM_MB,
            dram_free_mb: DRAM_MB.saturating_sub(bytes.div_ceil(1 << 20)),
            nsp_total: self.cores,
            nsp_free: self.cores.saturating_sub(reservations.cores_held()),
            vc_total: VIRTUAL_CHANNELS,
            vc_free: VIRTUAL_CHANNELS.saturating_sub(activations),
            mcid_total: MULTICAST_IDS,
            mcid_free: MULTICAST_IDS.saturating_sub(in_use(|requirements| requirements.multicast_ids)),
            semaphore_total: SEMAPHORES,
            semaphore_free: SEMAPHORES.saturating_sub(in_use(|requirements| requirements.semaphores)),
            programs_loaded: count(|_| true),
            programs_active: activations,
            constants_loaded: count(|reservation| reservation.requirements.constant_bytes > 0),
            constants_in_use: count(|reservation| {
                reservation.requirements.constant_bytes > 0 && reservation.activations > 0
            }),
        }
    }

    /// Returns a "busy" error if `activations` of `cores` cores each would not fit, as a new member of `group` if
    /// given. Reserves nothing.
    pub(crate) fn check_free(
        &self,
        cores: u32,
        activations: u32,
        group: Option<&str>,
    ) -> Result<(), RuntimeError> {
        self.fork_guard.check()?;
        let mut reservations = self.reservations.lock();
        let key =
            reservations.insert(Requirements { cores, ..Requirements::default() }, group.map(str::to_owned));
        let needed = reservations.cores_for(key, activations);
        reservations.programs.remove(&key);
        let free = match &self.shared {
            Some(shared) => shared.free()?,
            None => self.free(&reservations),
        };
        if needed <= free { Ok(()) } else { Err(self.busy(needed, free)) }
    }

    /// Takes `needed` cores from the cores of all processes, in addition to those that this process holds.
    fn claim(&self, reservations: &Reservations, needed: u32) -> Result<(), RuntimeError> {
        match &self.shared {
            Some(shared) => match shared.claim(needed)? {
                ClaimOutcome::Taken => Ok(()),
                ClaimOutcome::Refused { free } => Err(self.busy(needed, free)),
            },
            None if needed <= self.free(reservations) => Ok(()),
            None => Err(self.busy(needed, self.free(reservations))),
        }
    }

    fn unclaim(&self, count: u32) {
        if let Some(shared) = &self.shared {
            shared.release(count);
        }
    }

    fn free(&self, reservations: &Reservations) -> u32 {
        self.cores.saturating_sub(reservations.cores_held())
    }

    fn busy(&self, needed: u32, free: u32) -> RuntimeError {
        DeviceError::Busy { id: self.card.0, needed, free, total: self.cores }.into()
    }
}

/// Reservations of a program on all of its cards, released on drop.
#[derive(Debug)]
pub(crate) struct ProgramReservation {
    // In order of the cards, which is the lock order of their reservations.
    reservations: Vec<(Arc<ResourceTracker>, u64)>,
}

impl ProgramReservation {
    /// Reserves the resources on these cards that all activations of a program share.
    pub(crate) fn new(
        cards: impl IntoIterator<Item = Arc<ResourceTracker>>,
        requirements: Requirements,
        group: Option<&str>,
    ) -> Result<Self, RuntimeError> {
        let mut this = Self { reservations: Vec::new() };
        for tracker in cards {
            tracker.fork_guard.check()?;
            let key = tracker.reservations.lock().insert(requirements, group.map(str::to_owned));
            this.reservations.push((tracker, key));
        }
        this.reservations.sort_by_key(|(tracker, _)| tracker.card);
        Ok(this)
    }

    /// Takes the cores of one activation on every card, or on none.
    pub(crate) fn activate(self: &Arc<Self>) -> Result<CoreLease, RuntimeError> {
        for (tracker, _) in &self.reservations {
            tracker.fork_guard.check()?;
        }
        let mut guards: Vec<MutexGuard<'_, Reservations>> =
            self.reservations.iter().map(|(tracker, _)| tracker.reservations.lock()).collect();
        let mut claimed: Vec<(&ResourceTracker, u32)> = Vec::new();
        for ((tracker, key), reservations) in self.reservations.iter().zip(&mut guards) {
            let needed = reservations.cores_for(*key, 1);
            if let Err(error) = tracker.claim(reservations, needed) {
                for (tracker, count) in claimed {
                    tracker.unclaim(count);
                }
                return Err(error);
            }
            claimed.push((tracker, needed));
        }
        for ((_, key), reservations) in self.reservations.iter().zip(&mut guards) {
            if let Some(reservation) = reservations.programs.get_mut(key) {
                reservation.activations += 1;
            }
        }
        Ok(CoreLease { program: Arc::clone(self) })
    }
}

impl Drop for ProgramReservation {
    fn drop(&mut self) {
        // A forked process has no reservations of its parent.
        for (tracker, key) in self.reservations.iter().filter(|(tracker, _)| tracker.fork_guard.is_current())
        {
            tracker.reservations.lock().programs.remove(key);
        }
    }
}

/// The cores of one activation, returned on drop.
#[derive(Debug)]
pub(crate) struct CoreLease {
    program: Arc<ProgramReservation>,
}

impl Drop for CoreLease {
    fn drop(&mut self) {
        for (tracker, key) in
            self.program.reservations.iter().filter(|(tracker, _)| tracker.fork_guard.is_current())
        {
            let mut reservations = tracker.reservations.lock();
            if let Some(reservation) = reservations.programs.get_mut(key) {
                reservation.activations = reservation.activations.saturating_sub(1);
            }
            let given_back = reservations.cores_for(*key, 1);
            tracker.unclaim(given_back);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorDetail;

    fn cores(cores: u32) -> Requirements {
        Requirements { cores, ..Requirements::default() }
    }

    fn program(
        cards: &[&Arc<ResourceTracker>],
        requirements: Requirements,
        group: Option<&str>,
    ) -> Arc<ProgramReservation> {
        Arc::new(
            ProgramReservation::new(cards.iter().map(|card| Arc::clone(card)), requirements, group).unwrap(),
        )
    }

    fn free(card: &ResourceTracker) -> u32 {
        card.resources().nsp_free
    }

    #[test]
    fn reservation_activated_takes_its_cores_or_none() {
        let card = ResourceTracker::new(DeviceId(3), CORES, None);
        let large = program(&[&card], cores(10), None);
        let other = program(&[&card], cores(7), None);
        assert_eq!(free(&card), 16);
        let lease = large.activate().unwrap();
        match other.activate().unwrap_err().into_detail() {
            ErrorDetail::Device(DeviceError::Busy { id: 3, needed: 7, free: 6, total: 16 }) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(card.check_free(3, 2, None).map_err(|error| error.code()), Ok(()));
        assert_eq!(card.check_free(3, 3, None).map_err(|error| error.code()), Err("device.busy"));
        assert_eq!(free(&card), 6);
        drop(large);
        assert_eq!(free(&card), 6);
        drop(lease);
        assert_eq!(free(&card), 16);
    }

    #[test]
    fn reservation_on_several_cards_takes_all_or_none() {
        let cards =
            [ResourceTracker::new(DeviceId(1), CORES, None), ResourceTracker::new(DeviceId(0), CORES, None)];
        let whole = program(&[&cards[0]], cores(12), None).activate().unwrap();
        let both = program(&[&cards[0], &cards[1]], cores(5), None);
        assert_eq!(both.activate().unwrap_err().code(), "device.busy");
        assert_eq!((free(&cards[0]), free(&cards[1])), (4, 16));
        drop(whole);
        let lease = both.activate().unwrap();
        assert_eq!((free(&cards[0]), free(&cards[1])), (11, 11));
        drop(lease);
        assert_eq!((free(&cards[0]), free(&cards[1])), (16, 16));
    }

    #[test]
    fn group_holds_as_many_cores_as_its_largest_member() {
        let card = ResourceTracker::new(DeviceId(0), CORES, None);
        let small = program(&[&card], cores(4), Some("group1"));
        let large = program(&[&card], cores(10), Some("group1"));
        let apart = program(&[&card], cores(6), Some("group2"));
        let first = small.activate().unwrap();
        assert_eq!(free(&card), 12);
        let second = large.activate().unwrap();
        assert_eq!(free(&card), 6);
        let third = apart.activate().unwrap();
        assert_eq!(free(&card), 0);
        // A member that fits into the group's cores needs no more cores; a second activation of the largest member is
        // a program with twice the cores.
        assert!(card.check_free(10, 1, Some("group1")).is_ok());
        assert!(card.check_free(11, 1, Some("group1")).is_err());
        match large.activate().unwrap_err().into_detail() {
            ErrorDetail::Device(DeviceError::Busy { needed: 10, free: 0, .. }) => {}
            other => panic!("{other:?}"),
        }
        drop(second);
        assert_eq!(free(&card), 6);
        drop(third);
        drop(first);
        assert_eq!(free(&card), 16);
    }

    #[test]
    fn tracker_after_the_last_program_has_everything_free() {
        let card = ResourceTracker::new(DeviceId(0), CORES, None);
        let unused = card.resources();
        let requirements =
            Requirements { cores: 2, multicast_ids: 5, semaphores: 9, constant_bytes: (3 << 20) + 1 };
        let full = program(&[&card], requirements, None);
        let bare = program(&[&card], cores(1), None);
        let loaded = card.resources();
        assert_eq!((loaded.dram_free_mb, loaded.nsp_free), (DRAM_MB - 4, 16));
        assert_eq!((loaded.programs_loaded, loaded.programs_active), (2, 0));
        assert_eq!((loaded.constants_loaded, loaded.constants_in_use), (1, 0));
        let leases = [full.activate().unwrap(), full.activate().unwrap(), bare.activate().unwrap()];
        let active = card.resources();
        assert_eq!((active.nsp_free, active.vc_free, active.mcid_free), (11, 13, 3062));
        assert_eq!((active.semaphore_free, active.dram_free_mb), (14, DRAM_MB - 4));
        assert_eq!((active.programs_active, active.constants_in_use), (3, 1));
        drop((leases, full, bare));
        assert_eq!(card.resources(), unused);
    }
}
