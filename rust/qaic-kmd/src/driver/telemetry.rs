//! Sensors, counters and reset of a card through files of the kernel.

use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::write;

use crate::Errno;
use crate::driver::attribute::read_attribute;
use crate::driver::sysfs::{Sysfs, numbered};
use crate::kmd::{MemoryErrors, NodeInfo, Telemetry};

impl Sysfs {
    /// Temperature and power.
    pub(crate) fn telemetry(&self, node: &NodeInfo) -> Telemetry {
        let Some(folder) = self.folder(node) else { return Telemetry::default() };
        let monitors = numbered(&folder.join("hwmon"), "hwmon");
        Telemetry {
            soc_temperature_millicelsius: monitors.iter().find_map(|monitor| number(monitor, "temp2_input")),
            board_power_microwatts: monitors.iter().find_map(|monitor| number(monitor, "power1_input")),
            tdp_cap_microwatts: monitors.iter().find_map(|monitor| number(monitor, "power1_max")),
        }
    }

    pub(crate) fn memory_errors(&self, node: &NodeInfo) -> MemoryErrors {
        let Some(folder) = self.folder(node) else { return MemoryErrors::default() };
        MemoryErrors {
            correctable: number(&folder, "ce_count"),
            uncorrectable: number(&folder, "ue_count"),
            uncorrectable_nonfatal: number(&folder, "ue_nonfatal_count"),
        }
    }

    /// Resets a card. Fails with `EOPNOTSUPP` if resets are not supported, and with `EACCES` for users other than
    /// root.
    pub(crate) fn reset(&self, node: &NodeInfo) -> Result<(), Errno> {
        let folder = self.folder(node).ok_or(Errno::OPNOTSUPP)?;
        // The number of the controller is unrelated to the card's, so it is searched below the card.
        for controller in numbered(&folder, "mhi") {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
            match openat(CWD, controller.join("soc_reset"), flags, Mode::empty()) {
                Ok(file) => return write(&file, b"1").map(drop),
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        Err(Errno::OPNOTSUPP)
    }
}

fn number<T: std::str::FromStr>(folder: &Path, file: &str) -> Option<T> {
    read_attribute(CWD, folder.join(file), |text| text.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::driver::sysfs_fixture::SysfsFixture;

    const CARD: &str = "0000:01:00.0";

    fn machine() -> (SysfsFixture, Sysfs, NodeInfo) {
        let tree = SysfsFixture::new();
        tree.function(CARD, 0x17CB, 0xA100);
        let found = Sysfs::at(&tree.root);
        let node = found.cards().remove(0);
        (tree, found, node)
    }

    #[test]
    fn telemetry_of_a_card_without_sensors_is_none() {
        let (_tree, found, node) = machine();
        assert_eq!(found.telemetry(&node), Telemetry::default());
        assert_eq!(found.memory_errors(&node), MemoryErrors::default());
    }

    #[test]
    fn sensors_of_any_hwmon_are_read() {
        let (tree, found, node) = machine();
        tree.write_attribute(CARD, "hwmon/hwmon10/temp2_input", "99000");
        tree.write_attribute(CARD, "hwmon/hwmon9/temp2_input", "-3500");
        tree.write_attribute(CARD, "hwmon/hwmon10/power1_input", "31250000");
        tree.write_attribute(CARD, "hwmon/hwmon9/power1_input", "no number");
        let telemetry = found.telemetry(&node);
        assert_eq!(telemetry.soc_temperature_millicelsius, Some(-3500));
        assert_eq!(telemetry.board_power_microwatts, Some(31_250_000));
        assert_eq!(telemetry.tdp_cap_microwatts, None);
        tree.write_attribute(CARD, "hwmon/hwmon9/power1_max", "75000000");
        assert_eq!(found.telemetry(&node).tdp_cap_microwatts, Some(75_000_000));
    }

    #[test]
    fn memory_errors_are_counted() {
        let (tree, found, node) = machine();
        tree.write_attribute(CARD, "ce_count", "7");
        tree.write_attribute(CARD, "ue_count", "0");
        let errors = found.memory_errors(&node);
        assert_eq!(
            (errors.correctable, errors.uncorrectable, errors.uncorrectable_nonfatal),
            (Some(7), Some(0), None)
        );
    }

    #[test]
    fn reset_of_a_card_writes_to_its_controller() {
        let (tree, found, node) = machine();
        assert_eq!(found.reset(&node), Err(Errno::OPNOTSUPP));
        tree.write_attribute(CARD, "mhi3/serial_number", "");
        tree.write_attribute(CARD, "mhi3_QAIC_CONTROL/soc_reset", "");
        assert_eq!(found.reset(&node), Err(Errno::OPNOTSUPP));
        tree.write_attribute(CARD, "mhi4/soc_reset", "");
        assert_eq!(found.reset(&node), Ok(()));
        let written =
            |file: &str| fs::read_to_string(tree.root.join("sys/bus/pci/devices").join(CARD).join(file));
        assert_eq!(written("mhi4/soc_reset").unwrap(), "1");
        assert_eq!(written("mhi3_QAIC_CONTROL/soc_reset").unwrap(), "");
    }

    #[test]
    fn derived_device_has_no_telemetry() {
        let (tree, found, _) = machine();
        tree.derived_node("accel5", CARD, "part0");
        tree.write_attribute(CARD, "hwmon/hwmon0/temp2_input", "41000");
        let derived = found.cards().remove(1);
        assert_eq!(found.telemetry(&derived), Telemetry::default());
        assert_eq!(found.reset(&derived), Err(Errno::OPNOTSUPP));
    }
}
