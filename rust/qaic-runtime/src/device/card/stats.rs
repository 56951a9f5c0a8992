//! Adds measurements of the host to a card's statistics: the time until the inputs were ready, and the time to fetch
//! the outputs.
//!
//! A card writes its statistics before the outputs are fetched. The host adds its records to statistics in the open
//! layout, and leaves other layouts unchanged.

use qaic_mem::HostSliceMut;
use qaic_stats::StatsError;
use qaic_stats::decode::DecodeOptions;
use qaic_stats::decode::oqstats::{self, MAGIC};

use crate::device::stats_records;
use crate::profiling::Stages;

/// Adds the waits of the host to the statistics in `memory`.
pub(super) fn add_host_waits(mut memory: HostSliceMut<'_>, stages: &Stages) -> Result<(), StatsError> {
    let mut magic = [0; MAGIC.len()];
    if memory.as_const().read_into(0, &mut magic).is_none() || magic != MAGIC {
        return Ok(());
    }
    let written = memory.as_const().to_vec();
    let options = DecodeOptions { any_program: true, ..DecodeOptions::default() };
    let mut model = oqstats::decode(&written, None, options)?;
    if stats_records::set_waits(&mut model, stages) {
        let mut encoded = vec![0; written.len()];
        oqstats::encode(&model, oqstats::fingerprint_of(&written)?, &mut encoded)?;
        // The message has the size of the memory.
        let _ = memory.write_from(0, &encoded);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use qaic_mem::Storage;
    use qaic_stats::decode::{Core, Op, Port};
    use qaic_stats::{Run, StatsModel};

    use super::*;

    fn buffer(level: u16) -> Storage {
        let run = Run { stats_level: level, ucycle_hz: 19_200_000, cores: 1, ..Run::default() };
        let mut model = StatsModel::new(run);
        model.set_records([Core { start_u: 7, end_u: 9, ..Core::default() }]);
        model.set_records([Op { oc: 3, ..Op::default() }; 4]);
        let mut bytes = vec![0; 4096];
        oqstats::encode(&model, [5; 16], &mut bytes).unwrap();
        Storage::of(&bytes).unwrap()
    }

    const STAGES: Stages = Stages {
        enqueued_ns: 500_000,
        begun_ns: 1_000_000,
        inputs_ready_ns: 2_000_000,
        executed_ns: 5_000_000,
        outputs_ready_ns: 9_000_000,
        completed_ns: 0,
    };

    #[test]
    fn stats_with_host_waits_change_nothing_else() {
        let mut storage = buffer(50);
        add_host_waits(storage.memory_mut(), &STAGES).unwrap();
        let bytes = storage.memory().to_vec();
        let model =
            oqstats::decode(&bytes, None, DecodeOptions { any_program: true, ..Default::default() }).unwrap();
        let waits: Vec<_> =
            model.records::<Port>().iter().map(|port| (port.port, port.direction, port.wait_u)).collect();
        assert_eq!(waits, [(100, 0, 19_200), (101, 1, 4 * 19_200)]);
        assert_eq!(model.records::<Op>().iter().map(|op| op.oc).collect::<Vec<_>>(), [3; 4]);
        assert_eq!(
            model.records::<Core>().iter().map(|core| (core.start_u, core.end_u)).collect::<Vec<_>>(),
            [(7, 9)]
        );
        assert_eq!(oqstats::fingerprint_of(&bytes).unwrap(), [5; 16]);
    }

    #[test]
    fn stats_of_other_levels_and_layouts_are_unchanged() {
        let low = buffer(49);
        let other = Storage::of(&[0xEE_u8; 64]).unwrap();
        for mut storage in [low, other, Storage::new(0).unwrap()] {
            let before = storage.memory().to_vec();
            add_host_waits(storage.memory_mut(), &STAGES).unwrap();
            assert_eq!(storage.memory().to_vec(), before);
        }
        let mut broken = buffer(70);
        broken.memory_mut().write_from(40, &[0xFF_u8; 60]).unwrap();
        assert!(add_host_waits(broken.memory_mut(), &STAGES).is_err());
    }
}
