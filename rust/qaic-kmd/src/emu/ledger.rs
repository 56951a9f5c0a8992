//! Books of what a card has: what is free, and what was taken from where.
//!
//! Whatever is taken is a [`Stock`] of its own, and is given back by adding it to where it came from. Stocks are neither
//! copied nor made up, so nothing is lost or doubled.

use super::firmware::Totals;

/// NNC statuses of things that are used up (device-kmd §2.7).
pub(crate) mod used_up {
    pub(crate) const MEMORY: i32 = -4;
    pub(crate) const MULTICAST_IDS: i32 = -12;
    pub(crate) const CORES: i32 = -13;
    pub(crate) const CHANNELS: i32 = -14;
    pub(crate) const SEMAPHORES: i32 = -15;
}

/// How much is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    pub(crate) cores: u32,
    pub(crate) multicast_ids: u32,
    pub(crate) semaphores: u32,
    pub(crate) channels: u32,
    pub(crate) ddr_bytes: u64,
}

/// Things that are held together. Cores are told apart, a bit each.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Stock {
    cores: u64,
    multicast_ids: u32,
    semaphores: u32,
    channels: u32,
    ddr_bytes: u64,
}

impl Stock {
    /// All that a card has.
    pub(crate) fn of(totals: &Totals) -> Self {
        Self {
            cores: 1_u64.checked_shl(totals.cores).unwrap_or(0).wrapping_sub(1),
            multicast_ids: totals.multicast_ids,
            semaphores: totals.semaphores,
            channels: totals.channels,
            ddr_bytes: totals.ddr_bytes,
        }
    }

    /// Takes what is needed, the lowest cores, or nothing; the status says what is used up.
    pub(crate) fn take(&mut self, need: Need) -> Result<Self, i32> {
        let refuse = |is_enough: bool, status| if is_enough { Ok(()) } else { Err(status) };
        refuse(need.cores <= self.cores.count_ones(), used_up::CORES)?;
        refuse(need.multicast_ids <= self.multicast_ids, used_up::MULTICAST_IDS)?;
        refuse(need.semaphores <= self.semaphores, used_up::SEMAPHORES)?;
        refuse(need.channels <= self.channels, used_up::CHANNELS)?;
        refuse(need.ddr_bytes <= self.ddr_bytes, used_up::MEMORY)?;
        let cores = (0..need.cores).fold(0, |taken, _| taken | lowest(self.cores & !taken));
        self.cores &= !cores;
        self.multicast_ids -= need.multicast_ids;
        self.semaphores -= need.semaphores;
        self.channels -= need.channels;
        self.ddr_bytes -= need.ddr_bytes;
        let Need { multicast_ids, semaphores, channels, ddr_bytes, .. } = need;
        Ok(Self { cores, multicast_ids, semaphores, channels, ddr_bytes })
    }

    /// Puts back what was taken from here.
    #[allow(clippy::needless_pass_by_value)] // who gives it back has it no more
    pub(crate) fn give_back(&mut self, stock: Self) {
        let Self { cores, multicast_ids, semaphores, channels, ddr_bytes } = stock;
        debug_assert_eq!(self.cores & cores, 0, "given back twice");
        self.cores |= cores;
        self.multicast_ids += multicast_ids;
        self.semaphores += semaphores;
        self.channels += channels;
        self.ddr_bytes += ddr_bytes;
    }

    /// How much it is.
    pub(crate) fn amount(&self) -> Need {
        Need {
            cores: self.cores.count_ones(),
            multicast_ids: self.multicast_ids,
            semaphores: self.semaphores,
            channels: self.channels,
            ddr_bytes: self.ddr_bytes,
        }
    }

    /// Its cores, a bit each.
    pub(crate) fn cores(&self) -> u64 {
        self.cores
    }
}

fn lowest(mask: u64) -> u64 {
    mask & mask.wrapping_neg()
}

/// What a card has and what of it is free, and what is loaded on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ledger {
    /// What there is.
    pub totals: Totals,
    /// What nobody has taken.
    pub free: Totals,
    /// Loaded programs.
    pub elves: usize,
    /// Constants that are loaded or announced.
    pub constants: usize,
    /// Of these, those that activations use.
    pub constants_in_use: usize,
    /// Activations.
    pub activations: usize,
    /// Resource groups and reservations.
    pub reservations: usize,
    /// Channels that are taken.
    pub channels: Vec<u32>,
    /// The channel whose cores are being restarted.
    pub restarting: Option<u32>,
}

impl Ledger {
    /// Whether it is that of a card that nobody has touched.
    pub fn is_untouched(&self) -> bool {
        self.free == self.totals
            && [self.elves, self.constants, self.activations, self.reservations] == [0; 4]
            && self.channels.is_empty()
            && self.restarting.is_none()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn need() -> impl Strategy<Value = Need> {
        (0..20_u32, 0..4000_u32, 0..40_u32, 0..20_u32, 0..40_000_u64).prop_map(
            |(cores, multicast_ids, semaphores, channels, megabytes)| Need {
                cores,
                multicast_ids,
                semaphores,
                channels,
                ddr_bytes: megabytes << 20,
            },
        )
    }

    proptest! {
        /// What is taken is what was wanted, no core is in two hands, and all that was taken makes the whole again.
        #[test]
        fn nothing_is_lost_or_doubled(needs in prop::collection::vec(need(), 1..12), order in any::<u64>()) {
            let whole = Stock::of(&Totals::default());
            let mut card = Stock::of(&Totals::default());
            let mut held: Vec<Stock> = Vec::new();
            for need in needs {
                let before = card.amount();
                match card.take(need) {
                    Ok(stock) => {
                        prop_assert_eq!(stock.amount(), need);
                        prop_assert!(held.iter().all(|other| other.cores & stock.cores == 0));
                        prop_assert_eq!(card.cores & stock.cores, 0);
                        held.push(stock);
                    }
                    Err(status) => {
                        let is_short = match status {
                            -13 => need.cores > before.cores,
                            -12 => need.multicast_ids > before.multicast_ids,
                            -15 => need.semaphores > before.semaphores,
                            -14 => need.channels > before.channels,
                            -4 => need.ddr_bytes > before.ddr_bytes,
                            _ => false,
                        };
                        prop_assert!(is_short, "{status} of {before:?} for {need:?}");
                        prop_assert_eq!(card.amount(), before);
                    }
                }
            }
            while !held.is_empty() {
                let which = usize::try_from(order % held.len() as u64).unwrap();
                card.give_back(held.swap_remove(which));
            }
            prop_assert_eq!(card, whole);
        }
    }

    #[test]
    fn a_card_has_what_its_totals_say() {
        for cores in [0, 1, 16, 63, 64] {
            let totals = Totals { cores, ..Totals::default() };
            assert_eq!(Stock::of(&totals).amount().cores, cores);
        }
        assert_eq!(Stock::of(&Totals::default()).cores(), 0xFFFF);
    }
}
