//! Conversion of device ticks to nanoseconds of the trace.

use crate::decode::record::{Core, Thread};
use crate::model::StatsModel;

const NS_PER_S: u64 = 1_000_000_000;

/// Converts ticks of one device to nanoseconds since the start of the trace. The conversion is monotonic, so that
/// order and nesting are preserved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    first_tick: u64,
    at_first_ns: i64,
    // A tick is `numerator / denominator` nanoseconds, in lowest terms: products stay below 64 bits for months of ticks.
    numerator: u64,
    denominator: u64,
}

impl Clock {
    /// Nanoseconds of a tick, rounded down.
    #[inline]
    pub(super) fn ns(&self, tick: u64) -> i64 {
        if tick >= self.first_tick {
            self.at_first_ns.saturating_add(self.span(tick.wrapping_sub(self.first_tick)))
        } else {
            let before = self.span(self.first_tick.wrapping_sub(tick));
            self.at_first_ns.saturating_sub(before).saturating_sub(1)
        }
    }

    #[inline]
    fn span(&self, ticks: u64) -> i64 {
        let ns = if let Some(product) = ticks.checked_mul(self.numerator) {
            product.checked_div(self.denominator).unwrap_or(0)
        } else {
            let product = u128::from(ticks).wrapping_mul(u128::from(self.numerator));
            let ns = product.checked_div(u128::from(self.denominator)).unwrap_or(0);
            u64::try_from(ns).unwrap_or(u64::MAX)
        };
        i64::try_from(ns).unwrap_or(i64::MAX)
    }
}

/// Start of the trace on the wall clock, if any part has wall-clock times, and the clock of each device.
#[derive(Clone, Debug)]
pub(super) struct Timeline {
    pub(super) origin_utc_ns: Option<i128>,
    pub(super) clocks: Vec<Clock>,
}

impl Timeline {
    /// Creates the clocks. The trace starts with the earliest of the devices and of `others`. A device without
    /// wall-clock times starts with the trace. If no device has wall-clock times, all are assumed to count the same
    /// ticks.
    pub(super) fn of<'a>(
        models: impl Iterator<Item = &'a StatsModel<'a>>,
        others: impl Iterator<Item = i128>,
    ) -> Self {
        let starts: Vec<Start> = models.map(Start::of).collect();
        let origin_utc_ns = starts.iter().filter_map(|start| start.utc_ns).chain(others).min();
        let lone = starts.iter().all(|start| start.utc_ns.is_none());
        let shared = lone && starts.windows(2).all(|pair| matches!(pair, [a, b] if a.hz == b.hz));
        let earliest = starts.iter().map(|start| start.tick).min().unwrap_or(0);
        let clocks = starts.iter().map(|start| {
            let divisor = greatest_common_divisor(NS_PER_S, start.hz).max(1);
            let mut clock = Clock {
                first_tick: start.tick,
                at_first_ns: 0,
                numerator: NS_PER_S.checked_div(divisor).unwrap_or(1),
                denominator: start.hz.checked_div(divisor).unwrap_or(1).max(1),
            };
            clock.at_first_ns = match (start.utc_ns, origin_utc_ns) {
                (Some(at), Some(origin)) => i64::try_from(at.saturating_sub(origin)).unwrap_or(i64::MAX),
                _ if shared => clock.span(start.tick.saturating_sub(earliest)),
                _ => 0,
            };
            clock
        });
        Self { origin_utc_ns, clocks: clocks.collect() }
    }

    /// Converts wall-clock time to nanoseconds of the trace. A part without wall-clock time starts with the trace.
    pub(super) fn at_utc(&self, utc_ns: Option<i128>) -> i64 {
        match (utc_ns, self.origin_utc_ns) {
            (Some(at), Some(origin)) => i64::try_from(at.saturating_sub(origin)).unwrap_or(0),
            _ => 0,
        }
    }
}

struct Start {
    tick: u64,
    hz: u64,
    utc_ns: Option<i128>,
}

impl Start {
    fn of(model: &StatsModel<'_>) -> Self {
        let hz = model.run.ucycle_hz.max(1);
        let cores = model.records::<Core>().iter().map(|core| core.start_u);
        let tick =
            cores.chain(model.records::<Thread>().iter().map(|thread| thread.start_u)).min().unwrap_or(0);
        let epoch = Some(model.run.epoch_utc_ns).filter(|&epoch| epoch != 0);
        let utc_ns = epoch.map(|epoch| {
            let since = u128::from(tick).wrapping_mul(u128::from(NS_PER_S)).checked_div(u128::from(hz));
            i128::from(epoch).saturating_add(since.and_then(|ns| i128::try_from(ns).ok()).unwrap_or(0))
        });
        Self { tick, hz, utc_ns }
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while let Some(rest) = a.checked_rem(b) {
        (a, b) = (b, rest);
    }
    a
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::Run;

    fn model(hz: u64, epoch_utc_ns: u64, start_u: u64) -> StatsModel<'static> {
        let mut model = StatsModel::new(Run { ucycle_hz: hz, epoch_utc_ns, ..Run::default() });
        model.set_records([Core { start_u, ..Core::default() }]);
        model
    }

    fn timeline(models: &[StatsModel<'static>]) -> Timeline {
        Timeline::of(models.iter(), std::iter::empty())
    }

    #[test]
    fn devices_are_put_side_by_side_on_the_wall_clock() {
        let found = timeline(&[model(19_200_000, 1_000_000, 19_200), model(1_000_000_000, 500_000, 700_000)]);
        assert_eq!(found.origin_utc_ns, Some(1_200_000));
        assert_eq!(found.clocks.iter().map(|clock| clock.at_first_ns).collect::<Vec<_>>(), [800_000, 0]);
        assert_eq!(found.clocks[0].ns(38_400), 1_800_000);
    }

    #[test]
    fn devices_without_a_wall_clock_share_their_ticks() {
        let found = timeline(&[model(19_200_000, 0, 19_200), model(19_200_000, 0, 38_400)]);
        assert_eq!(found.origin_utc_ns, None);
        assert_eq!(found.clocks[1].ns(38_400), 1_000_000);
    }

    proptest! {
        #[test]
        fn ticks_are_rounded_down_and_in_order(
            hz in prop::sample::select(vec![19_200_000_u64, 1_000_000_000, 1, 7, 3_333_333]),
            first in 0_u64..1 << 45,
            ticks: u64,
        ) {
            let clock = timeline(&[model(hz, 0, first)]).clocks[0];
            let tick = first.saturating_add(ticks);
            let exact = u128::from(tick - first) * 1_000_000_000 / u128::from(hz);
            prop_assert_eq!(clock.ns(tick), i64::try_from(exact).unwrap_or(i64::MAX));
            prop_assert!(clock.ns(first.saturating_sub(ticks)) <= 0);
            prop_assert!(clock.ns(tick.saturating_sub(1)) <= clock.ns(tick));
        }
    }
}
