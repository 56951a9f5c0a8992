//! Files of a kernel in a separate folder: machines for tests.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{CWD, FileType, Mode, mknodat};

/// A machine, whose files are removed on drop.
#[derive(Debug)]
pub(crate) struct SysfsFixture {
    pub(crate) root: PathBuf,
}

impl SysfsFixture {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("openqaic-tree-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let root = std::env::temp_dir().join(name);
        fs::create_dir(&root).unwrap();
        Self { root }
    }

    pub(crate) fn file(&self, path: &str, content: &str) {
        fs::write(self.place(path), content).unwrap();
    }

    pub(crate) fn link(&self, path: &str, target: &str) {
        symlink(target, self.place(path)).unwrap();
    }

    pub(crate) fn remove(&self, path: &str) {
        fs::remove_file(self.place(path)).unwrap();
    }

    /// A pipe without a writer, so that a read would wait forever.
    pub(crate) fn pipe(&self, path: &str) {
        mknodat(CWD, self.place(path), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    }

    /// A function of the PCI bus.
    pub(crate) fn function(&self, address: &str, vendor: u16, device: u16) {
        self.file(&format!("sys/devices/pci0000:00/{address}/vendor"), &format!("{vendor:#06x}\n"));
        self.file(&format!("sys/devices/pci0000:00/{address}/device"), &format!("{device:#06x}\n"));
        self.link(
            &format!("sys/bus/pci/devices/{address}"),
            &format!("../../../devices/pci0000:00/{address}"),
        );
    }

    /// An attribute of a function.
    pub(crate) fn write_attribute(&self, address: &str, file: &str, value: &str) {
        self.file(&format!("sys/devices/pci0000:00/{address}/{file}"), value);
    }

    /// A node of a function.
    pub(crate) fn node(&self, name: &str, address: &str) {
        self.node_at(name, &format!("devices/pci0000:00/{address}"));
    }

    /// A node of a device that itself is below a function.
    pub(crate) fn derived_node(&self, name: &str, address: &str, parent: &str) {
        self.node_at(name, &format!("devices/pci0000:00/{address}/{parent}"));
    }

    fn node_at(&self, name: &str, parent: &str) {
        self.file(&format!("sys/{parent}/accel/{name}/uevent"), "");
        let link = self.root.join("sys").join(parent).join("accel").join(name).join("device");
        if !link.exists() {
            symlink(self.root.join("sys").join(parent), link).unwrap();
        }
        self.link(&format!("sys/class/accel/{name}"), &format!("../../{parent}/accel/{name}"));
        self.file(&format!("dev/accel/{name}"), "");
    }

    fn place(&self, path: &str) -> PathBuf {
        let place = self.root.join(path);
        fs::create_dir_all(place.parent().unwrap()).unwrap();
        place
    }
}

impl Drop for SysfsFixture {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}
