//! Facts of the PCI bus about a card.

use rustix::fd::AsFd;

use crate::driver::attribute::{hexadecimal, read_attribute};
use crate::kmd::{PciAddress, PciInfo};

/// Vendor of the cards.
const VENDOR_ID: u16 = 0x17CB;
const VENDOR_NAME: &str = "Qualcomm Technologies, Inc";
/// Device ids of the cards, and their names.
const CARDS: [(u16, &str); 3] =
    [(0xA080, "AIC080 [Cloud AI 080]"), (0xA100, "AIC100 [Cloud AI 100]"), (0xA110, "AIC200 [Cloud AI 200]")];
/// Class and subclass of most cards.
const PROCESSING_ACCELERATORS: u64 = 0x1200;
/// Link speeds as text of the kernel, in the order of their codes, starting at 1.
const LINK_SPEEDS: [&str; 6] = ["2.5", "5.0", "8.0", "16.0", "32.0", "64.0"];
/// Maximum number of lanes of a card's link. The kernel writes 255 for an unknown number, and a dead link reads as
/// 63.
const MOST_LANES: u32 = 32;

impl PciAddress {
    /// Parses an address in the kernel's format; `None` if `name` is not exactly one.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (domain, rest) = name.split_once(':')?;
        let (bus, rest) = rest.split_once(':')?;
        let (device, function) = rest.split_once('.')?;
        let number = |digits: &str| u16::from_str_radix(digits, 16).ok();
        let byte = |digits: &str| u8::from_str_radix(digits, 16).ok();
        let address = Self {
            domain: number(domain)?,
            bus: byte(bus)?,
            device: byte(device)?,
            function: byte(function)?,
        };
        (address.to_string() == name).then_some(address)
    }
}

/// Returns the device id if the function called `name` in a folder of PCI devices is a card.
pub(crate) fn card_id(devices: impl AsFd, name: &str) -> Option<u16> {
    // Almost all functions of a machine are excluded here, after one small file each.
    id(&devices, name, "vendor").filter(|vendor_id| *vendor_id == VENDOR_ID)?;
    let device_id = id(&devices, name, "device")?;
    CARDS.iter().any(|(card, _)| *card == device_id).then_some(device_id)
}

/// Returns the readable facts about a card; other facts are zero.
pub(crate) fn info(devices: impl AsFd, name: &str, device_id: u16) -> PciInfo {
    let value = |file: &str| format!("{name}/{file}");
    let speed = |file| read_attribute(&devices, value(file), link_speed_code).unwrap_or(0);
    let width = |file| {
        let lanes = read_attribute(&devices, value(file), |text| text.parse().ok());
        lanes.filter(|lanes| *lanes <= MOST_LANES).unwrap_or(0)
    };
    let class = read_attribute(&devices, value("class"), hexadecimal).map(|class| class >> 8);
    let bars = read_attribute(&devices, value("resource"), |text| Some([bar(text, 2), bar(text, 4)]));
    let [bar2_address, bar4_address] = bars.unwrap_or_default();
    let device_name = CARDS.iter().find(|(card, _)| *card == device_id).map_or("", |(_, name)| name);
    PciInfo {
        vendor_id: VENDOR_ID,
        device_id,
        class_name: match class {
            Some(PROCESSING_ACCELERATORS) => "Processing accelerators".to_owned(),
            Some(class) => format!("Class {class:04x}"),
            None => String::new(),
        },
        vendor_name: VENDOR_NAME.to_owned(),
        device_name: device_name.to_owned(),
        max_link_speed: speed("max_link_speed"),
        max_link_width: width("max_link_width"),
        current_link_speed: speed("current_link_speed"),
        current_link_width: width("current_link_width"),
        bar2_address,
        bar4_address,
    }
}

fn id(devices: impl AsFd, name: &str, file: &str) -> Option<u16> {
    read_attribute(devices, format!("{name}/{file}"), hexadecimal)?.try_into().ok()
}

/// Returns the code of a link speed, from `8.0 GT/s PCIe` or, with old kernels, `8 GT/s`.
fn link_speed_code(text: &str) -> Option<u32> {
    let speed = text.split(' ').next()?;
    let code = LINK_SPEEDS
        .iter()
        .zip(1..)
        .find(|(name, _)| **name == speed || name.strip_suffix(".0") == Some(speed));
    code.map(|(_, code)| code)
}

/// Returns the address of a BAR, from lines of start, end and flags; 0 if it does not exist.
fn bar(resources: &str, index: usize) -> u64 {
    let line = resources.lines().nth(index);
    line.and_then(|line| line.split(' ').next()).and_then(hexadecimal).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn link_speed_of_each_generation_has_its_code() {
        for (text, code) in [
            ("2.5 GT/s PCIe", 1),
            ("5.0 GT/s PCIe", 2),
            ("5 GT/s", 2),
            ("8.0 GT/s PCIe", 3),
            ("16.0 GT/s PCIe", 4),
            ("32.0 GT/s PCIe", 5),
            ("64.0 GT/s PCIe", 6),
        ] {
            assert_eq!(link_speed_code(text), Some(code), "{text}");
        }
        for text in ["Unknown", "Unknown speed", "", "1 GT/s", "1.0"] {
            assert_eq!(link_speed_code(text), None, "{text}");
        }
    }

    #[test]
    fn bar_of_a_resource_file_has_its_address() {
        let resources = "0x00000000a0000000 0x00000000a0000fff 0x0000000000140204\n\
                         0x0000000000000000 0x0000000000000000 0x0000000000000000\n\
                         0x000004a000000000 0x000004a0001fffff 0x000000000014220c";
        assert_eq!(bar(resources, 2), 0x4a0_0000_0000);
        assert_eq!(bar(resources, 1), 0);
        assert_eq!(bar(resources, 4), 0);
        assert_eq!(bar("rubbish\n\nrubbish", 2), 0);
    }

    proptest! {
        #[test]
        fn address_of_any_card_round_trips(domain: u16, bus: u8, device in 0_u8..32, function in 0_u8..8) {
            let address = PciAddress { domain, bus, device, function };
            prop_assert_eq!(PciAddress::parse(&address.to_string()), Some(address));
        }

        #[test]
        fn name_of_another_form_is_no_address(name in "[0-9a-fA-F:.+ ]{0,14}") {
            if let Some(address) = PciAddress::parse(&name) {
                prop_assert_eq!(address.to_string(), name);
            }
        }
    }

    #[test]
    fn damaged_address_is_no_address() {
        for name in [
            "10000:01:00.0",
            "000:01:00.0",
            "0000:1:00.0",
            "0000:01:00.00",
            "0000:0A:00.0",
            "+000:01:00.0",
            "0000:01:00",
        ] {
            assert_eq!(PciAddress::parse(name), None, "{name}");
        }
    }
}
