//! Resources of a card. Taken resources are a separate [`Resources`] value, which is later returned to the card.
//! Resources are never copied or created, so none is lost or duplicated.

use qaic_kmd::protocol::NncStatus;

use super::firmware::Totals;

/// Amount of each resource.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amounts {
    pub(crate) cores: u32,
    pub(crate) multicast_ids: u32,
    pub(crate) semaphores: u32,
    pub(crate) channels: u32,
    pub(crate) ddr_bytes: u64,
}

/// Resources that are held together, with one bit per core.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Resources {
    /// Cores, as a bit mask.
    pub(crate) cores: u64,
    multicast_ids: u32,
    semaphores: u32,
    channels: u32,
    ddr_bytes: u64,
}

impl Resources {
    /// Returns all resources of a card.
    pub(crate) fn of(totals: &Totals) -> Self {
        Self {
            cores: 1_u64.checked_shl(totals.cores).unwrap_or(0).wrapping_sub(1),
            multicast_ids: totals.multicast_ids,
            semaphores: totals.semaphores,
            channels: totals.channels,
            ddr_bytes: totals.ddr_bytes,
        }
    }

    /// Takes these amounts, with the lowest cores, or nothing. The status identifies the exhausted resource.
    pub(crate) fn take(&mut self, amounts: Amounts) -> Result<Self, NncStatus> {
        let refuse = |is_enough: bool, status| if is_enough { Ok(()) } else { Err(status) };
        refuse(amounts.cores <= self.cores.count_ones(), NncStatus::NSP_ALLOC)?;
        refuse(amounts.multicast_ids <= self.multicast_ids, NncStatus::MCID_ALLOC)?;
        refuse(amounts.semaphores <= self.semaphores, NncStatus::SEMAPHORE_ALLOC)?;
        refuse(amounts.channels <= self.channels, NncStatus::VC_ALLOC)?;
        refuse(amounts.ddr_bytes <= self.ddr_bytes, NncStatus::MEMORY_EXHAUSTED)?;
        let cores = (0..amounts.cores).fold(0, |taken, _| taken | lowest(self.cores & !taken));
        self.cores &= !cores;
        self.multicast_ids -= amounts.multicast_ids;
        self.semaphores -= amounts.semaphores;
        self.channels -= amounts.channels;
        self.ddr_bytes -= amounts.ddr_bytes;
        let Amounts { multicast_ids, semaphores, channels, ddr_bytes, .. } = amounts;
        Ok(Self { cores, multicast_ids, semaphores, channels, ddr_bytes })
    }

    /// Returns resources that were taken from this value.
    #[allow(clippy::needless_pass_by_value)] // the call consumes the resource
    pub(crate) fn give_back(&mut self, resources: Self) {
        let Self { cores, multicast_ids, semaphores, channels, ddr_bytes } = resources;
        debug_assert_eq!(self.cores & cores, 0, "given back twice");
        self.cores |= cores;
        self.multicast_ids += multicast_ids;
        self.semaphores += semaphores;
        self.channels += channels;
        self.ddr_bytes += ddr_bytes;
    }

    pub(crate) fn amount(&self) -> Amounts {
        Amounts {
            cores: self.cores.count_ones(),
            multicast_ids: self.multicast_ids,
            semaphores: self.semaphores,
            channels: self.channels,
            ddr_bytes: self.ddr_bytes,
        }
    }
}

fn lowest(mask: u64) -> u64 {
    mask & mask.wrapping_neg()
}

/// Total and free resources of a card, and its loaded programs.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ResourceUsage {
    /// All resources of the card.
    #[serde(rename = "total")]
    pub totals: Totals,
    /// Free resources.
    pub free: Totals,
    /// Loaded programs.
    pub elves: usize,
    /// Constants that are loaded or announced.
    pub constants: usize,
    /// Constants in use by activations.
    pub constants_in_use: usize,
    /// Activations.
    pub activations: usize,
    /// Channels that are taken.
    pub channels: Vec<u32>,
    /// The channel whose cores are being restarted.
    pub restarting: Option<u32>,
}

impl ResourceUsage {
    /// Returns true if the usage is that of an unused card.
    #[cfg(test)]
    pub(crate) fn is_untouched(&self) -> bool {
        self.free == self.totals
            && [self.elves, self.constants, self.activations] == [0; 3]
            && self.channels.is_empty()
            && self.restarting.is_none()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn amounts() -> impl Strategy<Value = Amounts> {
        (0..20_u32, 0..4000_u32, 0..40_u32, 0..20_u32, 0..40_000_u64).prop_map(
            |(cores, multicast_ids, semaphores, channels, megabytes)| Amounts {
                cores,
                multicast_ids,
                semaphores,
                channels,
                ddr_bytes: megabytes << 20,
            },
        )
    }

    proptest! {
        /// Taken amounts equal the requested ones, no core has two owners, and returned amounts restore the
        /// whole.
        #[test]
        fn resources_taken_and_returned_in_any_order_add_up(wanted in prop::collection::vec(amounts(), 1..12), order in any::<u64>()) {
            let whole = Resources::of(&Totals::default());
            let mut card = Resources::of(&Totals::default());
            let mut held: Vec<Resources> = Vec::new();
            for amounts in wanted {
                let before = card.amount();
                match card.take(amounts) {
                    Ok(resources) => {
                        prop_assert_eq!(resources.amount(), amounts);
                        prop_assert!(held.iter().all(|other| other.cores & resources.cores == 0));
                        prop_assert_eq!(card.cores & resources.cores, 0);
                        held.push(resources);
                    }
                    Err(status) => {
                        let is_short = match status.0 {
                            -13 => amounts.cores > before.cores,
                            -12 => amounts.multicast_ids > before.multicast_ids,
                            -15 => amounts.semaphores > before.semaphores,
                            -14 => amounts.channels > before.channels,
                            -4 => amounts.ddr_bytes > before.ddr_bytes,
                            _ => false,
                        };
                        prop_assert!(is_short, "{status} of {before:?} for {amounts:?}");
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
    fn resources_of_a_new_card_are_its_totals() {
        for cores in [0, 1, 16, 63, 64] {
            let totals = Totals { cores, ..Totals::default() };
            assert_eq!(Resources::of(&totals).amount().cores, cores);
        }
        assert_eq!(Resources::of(&Totals::default()).cores, 0xFFFF);
    }
}
