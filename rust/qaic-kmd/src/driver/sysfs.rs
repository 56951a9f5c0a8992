//! The cards of a machine and their numbers.
//!
//! Cards are searched on the PCI bus and not among the device nodes, so that a card that is starting, or has no
//! driver, keeps its number. Unreadable entries are skipped and cause no error.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::driver::pci;
use crate::kmd::{NodeInfo, PciAddress};
use crate::uevent;

/// First number of devices that are derived from cards.
const FIRST_DERIVED: u32 = 100;

/// The folders in which the kernel lists its devices.
#[derive(Debug)]
pub(crate) struct Sysfs {
    /// Functions of the PCI bus.
    pub(crate) pci: PathBuf,
    /// Nodes of accelerators of all drivers, as the kernel lists them.
    class: PathBuf,
    /// Device files of the nodes.
    nodes: PathBuf,
}

/// A node of some accelerator.
struct ClassEntry {
    number: u32,
    name: String,
    /// Name of the parent device.
    parent: String,
    /// Path in the device tree.
    place: PathBuf,
}

impl Sysfs {
    /// Returns the devices below `root`.
    pub(crate) fn at(root: &Path) -> Self {
        Self {
            pci: root.join("sys/bus/pci/devices"),
            class: root.join("sys/class/accel"),
            nodes: root.join("dev/accel"),
        }
    }

    /// Returns cards ordered by bus address, then derived devices ordered by node.
    pub(crate) fn cards(&self) -> Vec<NodeInfo> {
        let Some(devices) = self.devices() else { return Vec::new() };
        let mut cards: Vec<(PciAddress, String, u16)> = names(&self.pci)
            .filter_map(|name| {
                let address = PciAddress::parse(&name)?;
                let device_id = pci::card_id(&devices, &name)?;
                Some((address, name, device_id))
            })
            .collect();
        if cards.is_empty() {
            return Vec::new();
        }
        cards.sort_unstable();

        let entries = self.class_entries();
        let path = |entry: &ClassEntry| self.nodes.join(&entry.name);
        let on_the_bus = (0..).zip(&cards).map(|(qid, (address, name, device_id))| NodeInfo {
            qid,
            path: entries.iter().find(|entry| entry.parent == *name).map(path),
            address: *address,
            pci: Some(pci::info(&devices, name, *device_id)),
        });
        let is_card = |part: &str| cards.iter().any(|(_, name, _)| name == part);
        // Nodes of other drivers are not below a card.
        let derived = entries
            .iter()
            .filter(|entry| !is_card(&entry.parent))
            .filter(|entry| entry.place.iter().any(|part| part.to_str().is_some_and(is_card)));
        let first = u32::try_from(cards.len()).unwrap_or(u32::MAX).max(FIRST_DERIVED);
        let derived = (first..).zip(derived).map(|(qid, entry)| NodeInfo {
            qid,
            path: Some(path(entry)),
            address: PciAddress::default(),
            pci: None,
        });
        on_the_bus.chain(derived).collect()
    }

    /// Folder of a card on the PCI bus; `None` for a derived device.
    pub(crate) fn folder(&self, node: &NodeInfo) -> Option<PathBuf> {
        node.pci.as_ref().map(|_| self.pci.join(node.address.to_string()))
    }

    /// Current node of a card. With old drivers, a reset removes the node, and the card returns with another number.
    /// The old number may then belong to another card.
    pub(crate) fn path(&self, node: &NodeInfo) -> Option<PathBuf> {
        if node.pci.is_none() {
            return node.path.clone();
        }
        let name = node.address.to_string();
        let entry = self.class_entries().into_iter().find(|entry| entry.parent == name)?;
        Some(self.nodes.join(entry.name))
    }

    /// Name of a card's driver; `None` if it has none.
    pub(crate) fn driver(&self, node: &NodeInfo) -> Option<String> {
        link_name(&self.folder(node)?.join("driver"))
    }

    fn devices(&self) -> Option<OwnedFd> {
        openat(CWD, &self.pci, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
    }

    fn class_entries(&self) -> Vec<ClassEntry> {
        let mut entries: Vec<ClassEntry> = names(&self.class)
            .filter_map(|name| {
                let number = uevent::node_number(name.as_bytes())?;
                let parent = link_name(&self.class.join(&name).join("device"))?;
                let place = fs::read_link(self.class.join(&name)).ok()?;
                Some(ClassEntry { number, name, parent, place })
            })
            .collect();
        entries.sort_unstable_by_key(|entry| entry.number);
        entries
    }
}

/// Names in a folder, unordered; empty if the folder cannot be read.
pub(crate) fn names(folder: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(folder).into_iter().flatten().map_while(Result::ok);
    entries.filter_map(|entry| String::from_utf8(entry.file_name().as_bytes().to_vec()).ok())
}

/// Folders below `folder` whose names are `prefix` and a number, ordered by number.
pub(crate) fn numbered(folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let number = |name: &str| uevent::decimal(name.strip_prefix(prefix)?.as_bytes());
    let mut found: Vec<(u32, String)> =
        names(folder).filter_map(|name| Some((number(&name)?, name))).collect();
    found.sort_unstable();
    found.into_iter().map(|(_, name)| folder.join(name)).collect()
}

/// Last component of a link's target.
fn link_name(link: &Path) -> Option<String> {
    fs::read_link(link).ok()?.file_name()?.to_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::driver::sysfs_fixture::SysfsFixture;
    use crate::kmd::PciInfo;

    fn cards(tree: &SysfsFixture) -> Vec<NodeInfo> {
        Sysfs::at(&tree.root).cards()
    }

    fn places(tree: &SysfsFixture) -> Vec<(u32, String, Option<String>)> {
        let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_owned();
        cards(tree)
            .iter()
            .map(|card| (card.qid, card.address.to_string(), card.path.as_ref().map(name)))
            .collect()
    }

    #[test]
    fn machine_without_cards_lists_none() {
        assert_eq!(Sysfs::at(Path::new("/nowhere")).cards(), []);
        let tree = SysfsFixture::new();
        tree.function("0000:00:00.0", 0x8086, 0x1237);
        tree.function("0000:00:01.0", 0x17CB, 0x1107);
        tree.function("0000:00:02.0", 0x1002, 0xA100);
        tree.node("accel0", "0000:00:01.0");
        assert_eq!(cards(&tree), []);
    }

    #[test]
    fn card_on_the_bus_has_every_fact() {
        let tree = SysfsFixture::new();
        tree.function("0000:c1:00.0", 0x17CB, 0xA100);
        for (file, value) in [
            ("class", "0x120000"),
            ("max_link_speed", "16.0 GT/s PCIe"),
            ("max_link_width", "8"),
            ("current_link_speed", "8.0 GT/s PCIe"),
            ("current_link_width", "4"),
        ] {
            tree.write_attribute("0000:c1:00.0", file, value);
        }
        let bar = |start: u64, bytes: u64| {
            format!("{start:#018x} {:#018x} 0x000000000014220c\n", start + bytes - 1)
        };
        let none = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
        let resources =
            [&bar(0xA000, 0x1000), none, &bar(0x40_0000_0000, 0x20_0000), none, &bar(0x50_0000_0000, 0x1000)];
        tree.write_attribute("0000:c1:00.0", "resource", &resources.concat());
        tree.node("accel0", "0000:c1:00.0");
        let expected = NodeInfo {
            qid: 0,
            path: Some(tree.root.join("dev/accel/accel0")),
            address: PciAddress { domain: 0, bus: 0xC1, device: 0, function: 0 },
            pci: Some(PciInfo {
                vendor_id: 0x17CB,
                device_id: 0xA100,
                class_name: "Processing accelerators".to_owned(),
                vendor_name: "Qualcomm Technologies, Inc".to_owned(),
                device_name: "AIC100 [Cloud AI 100]".to_owned(),
                max_link_speed: 4,
                max_link_width: 8,
                current_link_speed: 3,
                current_link_width: 4,
                bar2_address: 0x40_0000_0000,
                bar4_address: 0x50_0000_0000,
            }),
        };
        assert_eq!(cards(&tree), [expected]);
    }

    #[test]
    fn cards_are_numbered_by_address_not_by_node() {
        let tree = SysfsFixture::new();
        tree.function("0001:00:00.0", 0x17CB, 0xA110);
        tree.function("0000:a1:00.0", 0x17CB, 0xA080);
        tree.function("0000:09:00.0", 0x17CB, 0xA100);
        tree.node("accel0", "0001:00:00.0");
        tree.node("accel10", "0000:09:00.0");
        // The second card is still starting, or has no driver.
        assert_eq!(
            places(&tree),
            [
                (0, "0000:09:00.0".to_owned(), Some("accel10".to_owned())),
                (1, "0000:a1:00.0".to_owned(), None),
                (2, "0001:00:00.0".to_owned(), Some("accel0".to_owned())),
            ]
        );
        let unknown = PciInfo { vendor_id: 0x17CB, ..PciInfo::default() };
        let bare = cards(&tree)[1].pci.clone().unwrap();
        assert_eq!((bare.max_link_speed, bare.bar2_address, bare.class_name), (0, 0, unknown.class_name));
    }

    #[test]
    fn derived_devices_count_from_100_and_other_drivers_do_not_count() {
        let tree = SysfsFixture::new();
        tree.function("0000:01:00.0", 0x17CB, 0xA100);
        tree.function("0000:02:00.0", 0x8086, 0x7D1D);
        tree.node("accel0", "0000:02:00.0");
        tree.node("accel1", "0000:01:00.0");
        tree.derived_node("accel10", "0000:01:00.0", "part1");
        tree.derived_node("accel9", "0000:01:00.0", "part0");
        tree.derived_node("accel11", "0000:02:00.0", "part0");
        tree.node("control0", "0000:01:00.0");
        let node = |qid, address: &str, name: &str| (qid, address.to_owned(), Some(name.to_owned()));
        assert_eq!(
            places(&tree),
            [
                node(0, "0000:01:00.0", "accel1"),
                node(100, "0000:00:00.0", "accel9"),
                node(101, "0000:00:00.0", "accel10"),
            ]
        );
        assert!(cards(&tree)[1..].iter().all(|derived| derived.pci.is_none()));
    }

    #[test]
    fn unreadable_attributes_are_left_out() {
        let tree = SysfsFixture::new();
        tree.function("0000:01:00.0", 0x17CB, 0xA100);
        tree.function("0000:02:00.0", 0x17CB, 0xA100);
        tree.pipe("sys/devices/pci0000:00/0000:01:00.0/current_link_speed");
        tree.write_attribute("0000:02:00.0", "max_link_speed", &"9".repeat(10_000));
        tree.write_attribute("0000:02:00.0", "max_link_width", "99999999999999");
        tree.write_attribute("0000:02:00.0", "current_link_width", "255");
        tree.file("sys/bus/pci/devices/0000:03:00.0/vendor", "rubbish");
        tree.file("sys/bus/pci/devices/0000:04:00.0/device", "0xa100");
        tree.file("sys/bus/pci/devices/0000:05:00.0", "no folder");
        tree.file("sys/bus/pci/devices/0000:06:00.0/vendor", "0x17cb");
        tree.file("sys/bus/pci/devices/10000:06:00.0/vendor", "0x17cb");
        tree.pipe("sys/bus/pci/devices/0000:07:00.0/vendor");
        tree.link("sys/bus/pci/devices/0000:08:00.0", "0000:08:00.0");
        tree.file("sys/class/accel/accel3", "no link");
        tree.link("sys/class/accel/accel4", "accel4");
        tree.link("sys/class/accel/accel5", "../../devices/gone/accel/accel5");
        let found = places(&tree);
        assert_eq!(found, [(0, "0000:01:00.0".to_owned(), None), (1, "0000:02:00.0".to_owned(), None)]);
        assert_eq!(cards(&tree)[1].pci.as_ref().unwrap().max_link_width, 0);
    }

    #[test]
    fn card_after_a_reset_has_its_new_node() {
        let tree = SysfsFixture::new();
        tree.function("0000:01:00.0", 0x17CB, 0xA100);
        tree.function("0000:02:00.0", 0x17CB, 0xA100);
        tree.node("accel0", "0000:01:00.0");
        tree.node("accel1", "0000:02:00.0");
        let found = Sysfs::at(&tree.root);
        let (first, second) = (&found.cards()[0], &found.cards()[1]);
        assert_eq!(found.path(first), first.path);
        // Both are reset, and the second one returns first.
        tree.remove("sys/class/accel/accel0");
        tree.remove("sys/class/accel/accel1");
        assert_eq!(found.path(first), None);
        tree.node("accel0", "0000:02:00.0");
        assert_eq!((found.path(first), found.path(second)), (None, Some(tree.root.join("dev/accel/accel0"))));
    }

    #[test]
    fn card_bound_to_a_driver_names_it() {
        let tree = SysfsFixture::new();
        tree.function("0000:01:00.0", 0x17CB, 0xA100);
        let found = Sysfs::at(&tree.root);
        assert_eq!(found.driver(&found.cards()[0]), None);
        tree.link("sys/devices/pci0000:00/0000:01:00.0/driver", "../../../bus/pci/drivers/vfio-pci");
        assert_eq!(found.driver(&found.cards()[0]).as_deref(), Some("vfio-pci"));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// The oracle is a map that is sorted by address.
        #[test]
        fn cards_of_any_machine_are_in_order(
            functions in prop::collection::btree_map(
                (0_u16..3, any::<u8>(), 0_u8..32, 0_u8..8),
                (prop::sample::select(vec![0x17CB_u16, 0x8086]), prop::sample::select(vec![0xA080_u16, 0xA100, 0xA110, 0xA111]), any::<bool>()),
                0..12,
            ),
        ) {
            let tree = SysfsFixture::new();
            let mut expected = Vec::new();
            for (number, (place, (vendor, device, has_node))) in functions.iter().enumerate().rev() {
                let (domain, bus, dev, function) = place;
                let address = format!("{domain:04x}:{bus:02x}:{dev:02x}.{function:x}");
                tree.function(&address, *vendor, *device);
                let name = format!("accel{}", 3 + number * 7);
                if *has_node {
                    tree.node(&name, &address);
                }
                if *vendor == 0x17CB && *device != 0xA111 {
                    expected.push((address, has_node.then_some(name)));
                }
            }
            expected.reverse();
            let expected: Vec<_> = (0..).zip(expected).map(|(qid, (address, name))| (qid, address, name)).collect();
            prop_assert_eq!(places(&tree), expected);
        }
    }
}
