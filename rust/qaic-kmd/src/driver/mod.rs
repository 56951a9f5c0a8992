//! The driver of the running kernel: its system calls without repetition, and the cards in its file system.

mod attribute;
mod netlink;
mod pci;
mod permissions;
mod signals;
mod sysfs;
#[cfg(test)]
mod sysfs_fixture;
mod telemetry;

use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::ioctl::{IoctlOutput, Opcode, ioctl};

use crate::Errno;
use crate::clock::{Clock, SystemClock};
use crate::driver::netlink::KernelEvents;
use crate::driver::permissions::NodePermissions;
use crate::driver::signals::HeldSignals;
use crate::driver::sysfs::Sysfs;
use crate::ioctl::{DriverInterface, Ioctl};
use crate::kmd::{AccelFile, EventSource, Kmd, MemoryErrors, NodeInfo, Telemetry};
use qaic_mem::Mapping;

/// The running kernel and the cards of this machine.
#[derive(Debug)]
pub struct SysKmd {
    sysfs: Sysfs,
    permissions: NodePermissions,
    clock: Arc<SystemClock>,
}

impl Default for SysKmd {
    fn default() -> Self {
        Self::at(Path::new("/"))
    }
}

impl SysKmd {
    /// Returns the kernel whose `sys`, `dev` and `etc` folders are in `root`.
    pub fn at(root: &Path) -> Self {
        Self { sysfs: Sysfs::at(root), permissions: NodePermissions::at(root), clock: Arc::default() }
    }
}

impl Kmd for SysKmd {
    fn name(&self) -> &'static str {
        "sys"
    }

    fn enumerate(&self) -> Result<Vec<NodeInfo>, Errno> {
        Ok(self.sysfs.cards())
    }

    /// Opens a card. Fails with `ENOENT` if it has no node, `ENODEV` if it is not online, `ENOTTY` if its node
    /// belongs to another driver, and `EPROTONOSUPPORT` if its driver has another interface.
    fn open(&self, node: &NodeInfo) -> Result<Arc<dyn AccelFile>, Errno> {
        let path = self.sysfs.path(node).ok_or(Errno::NOENT)?;
        let fd = openat(CWD, &path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        known(SysFile { fd })
    }

    fn events(&self) -> Result<Box<dyn EventSource>, Errno> {
        Ok(Box::new(KernelEvents::listen()?))
    }

    fn telemetry(&self, node: &NodeInfo) -> Telemetry {
        self.sysfs.telemetry(node)
    }

    /// Resets a card. Fails with `EOPNOTSUPP` if the device is derived from a card, or if the driver does not support
    /// resets.
    fn reset(&self, node: &NodeInfo) -> Result<(), Errno> {
        self.sysfs.reset(node)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.clock.clone()
    }

    fn memory_errors(&self, node: &NodeInfo) -> MemoryErrors {
        self.sysfs.memory_errors(node)
    }

    fn explain(&self, node: &NodeInfo, errno: Errno) -> Option<String> {
        let now = NodeInfo { path: self.sysfs.path(node), ..node.clone() };
        self.permissions.explain(&now, self.sysfs.driver(node).as_deref(), errno)
    }
}

/// Returns the file if its driver and interface are supported.
fn known(file: impl AccelFile + 'static) -> Result<Arc<dyn AccelFile>, Errno> {
    match file.driver_interface()? {
        DriverInterface::Mainline => Ok(Arc::new(file)),
        DriverInterface::Other { .. } => Err(Errno::PROTONOSUPPORT),
        DriverInterface::OtherDriver(_) => Err(Errno::NOTTY),
    }
}

/// An open node.
#[derive(Debug)]
struct SysFile {
    fd: OwnedFd,
}

impl AccelFile for SysFile {
    fn ioctl(&self, call: &mut Ioctl<'_, '_>) -> Result<(), Errno> {
        prepared(call, |request| {
            // SAFETY: the argument has the size of its code, and its addresses are of memory that `call` borrows, with
            // their sizes (`Ioctl::argument`); a control message that was not answered holds no other addresses than those of
            // data that it borrows (`ManageBuffer::push`).
            unsafe { ioctl(&self.fd, request) }
        })
    }

    fn map(&self, offset: u64, len: usize) -> Result<Mapping, Errno> {
        // The driver's memory keeps its length while it is mapped.
        Mapping::of_file(&self.fd, offset, len)
    }
}

/// Makes a call with `make`, which receives the request and its argument, and reads the result from the argument.
fn prepared(
    call: &mut Ioctl<'_, '_>,
    make: impl FnOnce(Request<'_>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    // A reply may contain any addresses.
    if let Ioctl::Manage(message) = call
        && message.is_reply()
    {
        return Err(Errno::INVAL);
    }
    // The driver sends an interrupted message again, although the firmware may already have executed it.
    let _held = matches!(call, Ioctl::Manage(_)).then(HeldSignals::hold).transpose()?;
    let request = call.request().code();
    let mut argument = call.argument()?;
    let result = make(Request { request, argument: argument.bytes_mut() });
    call.complete(&argument, result);
    result
}

/// A request and its argument.
struct Request<'arg> {
    request: u32,
    argument: &'arg mut [u8],
}

// SAFETY: the kernel reads and writes `argument`, which has the size of the code (`Ioctl::argument`).
unsafe impl rustix::ioctl::Ioctl for Request<'_> {
    type Output = ();

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.request as Opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.argument.as_mut_ptr().cast()
    }

    unsafe fn output_from_ptr(_: IoctlOutput, _: *mut c_void) -> Result<(), Errno> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use nix::sys::signal::{SigSet, Signal};
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::*;
    use crate::abi::CreateBo;
    use crate::driver::sysfs_fixture::SysfsFixture;
    use crate::manage::ManageBuffer;
    use crate::protocol::message;

    fn node(path: &str) -> NodeInfo {
        NodeInfo { qid: 0, path: Some(path.into()), address: crate::kmd::PciAddress::default(), pci: None }
    }

    fn opened(path: &str) -> Result<(), Errno> {
        SysKmd::default().open(&node(path)).map(drop)
    }

    #[test]
    fn cards_are_found_opened_and_explained_below_a_folder() {
        let tree = SysfsFixture::new();
        tree.function("0000:01:00.0", 0x17CB, 0xA100);
        tree.function("0000:02:00.0", 0x17CB, 0xA100);
        tree.node("accel0", "0000:02:00.0");
        let kmd: Arc<dyn Kmd> = Arc::new(SysKmd::at(&tree.root));
        assert_eq!(kmd.name(), "sys");
        let cards = kmd.enumerate().unwrap();
        assert_eq!(cards.len(), 2);
        let answer = |card| kmd.open(card).map(drop).unwrap_err();
        let advice = |card| kmd.explain(card, answer(card)).unwrap();
        assert_eq!((answer(&cards[0]), answer(&cards[1])), (Errno::NOENT, Errno::NOTTY));
        assert!(advice(&cards[0]).contains("modprobe"), "{}", advice(&cards[0]));
        assert!(advice(&cards[1]).contains("accel0 is not a node of"), "{}", advice(&cards[1]));
        tree.remove("dev/accel/accel0");
        assert_eq!(answer(&cards[1]), Errno::NOENT);
        assert!(advice(&cards[1]).contains("--device"), "{}", advice(&cards[1]));
    }

    #[test]
    fn node_of_another_driver_is_refused() {
        assert_eq!(opened("/dev/null"), Err(Errno::NOTTY));
    }

    /// A node whose driver reports this name and version.
    #[derive(Debug)]
    struct Named(&'static str, i32, i32);

    impl AccelFile for Named {
        fn ioctl(&self, call: &mut Ioctl<'_, '_>) -> Result<(), Errno> {
            let Ioctl::Version(query) = call else { return Err(Errno::INVAL) };
            (query.version.major, query.version.minor) = (self.1, self.2);
            query.set_name(self.0);
            Ok(())
        }

        fn map(&self, _: u64, _: usize) -> Result<Mapping, Errno> {
            Err(Errno::INVAL)
        }
    }

    #[test]
    fn interface_of_before_the_mainline_driver_is_refused_by_name() {
        assert!(known(Named("qaic", 0, 0)).is_ok());
        assert_eq!(known(Named("qaic", 1, 0)).unwrap_err(), Errno::PROTONOSUPPORT);
        assert_eq!(known(Named("habanalabs", 0, 0)).unwrap_err(), Errno::NOTTY);
        let tree = SysfsFixture::new();
        tree.function("0000:01:00.0", 0x17CB, 0xA100);
        tree.node("accel0", "0000:01:00.0");
        let kmd = SysKmd::at(&tree.root);
        let card = kmd.enumerate().unwrap().remove(0);
        let advice = kmd.explain(&card, Errno::PROTONOSUPPORT).unwrap();
        assert!(advice.contains("interface") && advice.contains("Linux"), "{advice}");
    }

    #[test]
    fn missing_and_forbidden_nodes_have_different_errors() {
        assert_eq!(opened("/dev/accel/no-such-card"), Err(Errno::NOENT));
        assert_eq!(SysKmd::default().open(&NodeInfo { path: None, ..node("") }).map(drop), Err(Errno::NOENT));
        let tree = SysfsFixture::new();
        tree.file("accel0", "");
        let path = tree.root.join("accel0");
        fs::set_permissions(&path, Permissions::from_mode(0o000)).unwrap();
        let answer = opened(path.to_str().unwrap());
        if rustix::process::geteuid().is_root() {
            // Root can open any file, but a regular file is not a node.
            assert_eq!(answer, Err(Errno::NOTTY));
        } else {
            assert_eq!(answer, Err(Errno::ACCESS));
        }
    }

    #[test]
    fn calls_are_made_once_with_the_argument_as_it_is() {
        let file = SysFile { fd: openat(CWD, "/dev/null", OFlags::RDWR, Mode::empty()).unwrap() };
        assert_eq!(file.create_bo(4096), Err(Errno::NOTTY));
        assert_eq!(file.wait(0, 1, 1), Err(Errno::NOTTY));
        let mut reply = ManageBuffer::default();
        reply.set_reply(&[5, 0, 0, 0, 32, 0, 0, 0], 1);
        assert_eq!(file.ioctl(&mut Ioctl::Manage(&mut reply)), Err(Errno::INVAL));
        // Every file supports this call; its argument receives the number of bytes from here to the end.
        let content = memfd_create("content", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&content, 5).unwrap();
        let mut unread = [0; 4];
        // SAFETY: FIONREAD writes an int, and the argument has room for one.
        unsafe { ioctl(&content, Request { request: 0x541B, argument: &mut unread }) }.unwrap();
        assert_eq!(u32::from_ne_bytes(unread), 5);
    }

    #[test]
    fn control_calls_and_no_others_are_made_with_signals_held_back() {
        let is_held = || SigSet::thread_get_mask().unwrap().contains(Signal::SIGINT);
        let mut seen = Vec::new();
        let mut message = message::status_query();
        prepared(&mut Ioctl::Manage(&mut message), |_| {
            seen.push(is_held());
            Err(Errno::TIMEDOUT)
        })
        .unwrap_err();
        let mut object = CreateBo { size: 4096, ..CreateBo::default() };
        prepared(&mut Ioctl::CreateBo(&mut object), |_| {
            seen.push(is_held());
            Ok(())
        })
        .unwrap();
        seen.push(is_held());
        assert_eq!(seen, [true, false, false]);
    }

    #[test]
    fn mapping_of_a_closed_file_is_shared_and_valid() {
        let fd = memfd_create("bo", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, 3 * 4096).unwrap();
        let file = SysFile { fd };
        let (all, part) = (file.map(0, 3 * 4096).unwrap(), file.map(4096, 4096).unwrap());
        assert_eq!((all.len(), part.len()), (3 * 4096, 4096));
        assert_eq!(file.map(1, 4096).map(drop), Err(Errno::INVAL));
        assert_eq!(file.map(0, 0).map(drop), Err(Errno::INVAL));
        drop(file);
        part.write_from(0, b"card").unwrap();
        let mut seen = [0; 4];
        all.read_into(4096, &mut seen).unwrap();
        assert_eq!(&seen, b"card");
        drop(all);
        part.read_into(0, &mut seen).unwrap();
        assert_eq!(&seen, b"card");
    }
}
