//! Hints for a user whose card cannot be opened: the users who may open its node, and how to join them.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::{Gid, getegid, geteuid, getgroups};

use crate::Errno;
use crate::kmd::NodeInfo;

/// The driver of the cards.
const DRIVER: &str = "qaic";

/// Maximum number of bytes that are read from the lists of users and groups.
const LIST_BYTES: u64 = 4 << 20;
/// Permission bits for reading and writing, which a card requires.
const READ_WRITE: u32 = 0o6;

/// The users and groups of a system.
#[derive(Debug)]
pub(crate) struct NodePermissions {
    /// File of groups, with lines of name, password, number, members.
    groups: PathBuf,
    /// File of users, with lines of name, password, number, group.
    users: PathBuf,
}

/// Identity of a process for the file system.
#[derive(Debug)]
struct Identity {
    uid: u32,
    gids: Vec<u32>,
}

/// Owner and permissions of a file.
#[derive(Clone, Copy, Debug)]
struct Ownership {
    mode: u32,
    uid: u32,
    gid: u32,
}

impl NodePermissions {
    /// Returns the users and groups of the system below `root`.
    pub(crate) fn at(root: &Path) -> Self {
        Self { groups: root.join("etc/group"), users: root.join("etc/passwd") }
    }

    /// Explains why this process may not open `path`, and how to fix that. The text follows an error that names the
    /// path: sentences without a final full stop.
    fn explain_refusal(&self, path: &Path) -> String {
        match fs::metadata(path) {
            Ok(found) => {
                let ownership = Ownership { mode: found.mode(), uid: found.uid(), gid: found.gid() };
                self.explain_for(path, ownership, &Identity::of_this_process())
            }
            Err(error) => format!("{} cannot be examined: {error}", path.display()),
        }
    }

    fn explain_for(&self, path: &Path, ownership: Ownership, identity: &Identity) -> String {
        let Ownership { mode, uid, gid } = ownership;
        let (path, permissions) = (path.display(), mode & 0o7777);
        if identity.may_use(ownership) {
            return format!(
                "its permissions ({permissions:04o}) allow it, so a container or a security module forbids it: start the \
                 container with `--device {path}`, or find the denial in the system log"
            );
        }
        let owner = name_of(&self.users, uid).unwrap_or_else(|| uid.to_string());
        let group_name = name_of(&self.groups, gid);
        let group = group_name.clone().unwrap_or_else(|| gid.to_string());
        let facts = format!("it belongs to {owner}:{group} with permissions {permissions:04o}");

        if gid == 0 || (mode >> 3) & READ_WRITE != READ_WRITE {
            return format!(
                "{facts}, which exclude all groups of ordinary users: assign a group with the udev rule \
                 `SUBSYSTEM==\"accel\", GROUP=\"render\", MODE=\"0660\"`, then reload the driver"
            );
        }
        if identity.gids.contains(&gid) {
            // The first matching class decides; the owner comes before the group.
            return format!("{facts}, which exclude its owner: `sudo chmod u+rw {path}`");
        }
        let Some(group_name) = group_name else {
            return format!(
                "{facts}, and this process is not in group {group}, which has no name on this system: in a container, start it with \
                 `--group-add {group}`"
            );
        };
        let user = name_of(&self.users, identity.uid).unwrap_or_else(|| "$USER".to_owned());
        if self.is_member(gid, &user) {
            return format!(
                "{facts}; user `{user}` joined group `{group_name}` after this session started: log in again, or start the \
                 program with `sg {group_name}`"
            );
        }
        format!(
            "{facts}, and this process is not in group `{group_name}`: join it with `sudo usermod -aG {group_name} {user}`, \
             then log in again"
        )
    }

    /// Explains why opening a card failed with `errno`. `driver` is the driver of the card; `None` for a card without
    /// a driver or a derived device.
    pub(crate) fn explain(&self, node: &NodeInfo, driver: Option<&str>, errno: Errno) -> Option<String> {
        let place =
            if node.pci.is_some() { format!("card {}", node.address) } else { "this device".to_owned() };
        match (errno, &node.path, driver) {
            (Errno::ACCESS | Errno::PERM, Some(path), _) => Some(self.explain_refusal(path)),
            (Errno::NOENT, Some(path), _) => Some(format!(
                "the kernel offers {place} as {0}, but that file does not exist: in a container, start it with \
                 `--device {0}`",
                path.display()
            )),
            (Errno::NOENT, None, None) => Some(format!(
                "no driver is bound to {place}: load the driver with `sudo modprobe {DRIVER}`; if the kernel has no such driver, use \
                 a kernel that is built with CONFIG_DRM_ACCEL_QAIC"
            )),
            (Errno::NOENT, None, Some(DRIVER)) => Some(format!(
                "the driver is bound to {place} but offers no node: the firmware is still starting, or did not start; the \
                 kernel log contains the reason (`sudo dmesg | grep {DRIVER}`)"
            )),
            (Errno::NOENT, None, Some(driver)) => Some(format!(
                "driver `{driver}` is bound to {place}, instead of `{DRIVER}`: release the card, for example from a virtual machine"
            )),
            (Errno::NODEV | Errno::NXIO, _, _) => Some(format!(
                "{place} is not online: it is starting or in reset; if it stays offline, the kernel log contains the \
                 reason (`sudo dmesg | grep {DRIVER}`)"
            )),
            (Errno::NOTTY, Some(path), _) => {
                Some(format!("{} is not a node of driver `{DRIVER}`", path.display()))
            }
            (Errno::PROTONOSUPPORT, Some(path), _) => Some(format!(
                "driver `{DRIVER}` of {} has another interface, as in the vendor's kit before the mainline driver: remove it, \
                 and load the driver of Linux 6.4 or newer",
                path.display()
            )),
            _ => None,
        }
    }

    fn is_member(&self, gid: u32, user: &str) -> bool {
        let groups = list(&self.groups);
        entries(&groups)
            .any(|entry| entry.number == gid && entry.fourth.split(',').any(|member| member == user))
    }
}

/// A line of a list of users or groups.
struct AccountEntry<'list> {
    name: &'list str,
    number: u32,
    fourth: &'list str,
}

/// Returns the readable part of a list.
fn list(path: &Path) -> String {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(path) {
        // Names are optional: without one, the message contains the number.
        let _ = file.take(LIST_BYTES).read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn entries(list: &str) -> impl Iterator<Item = AccountEntry<'_>> {
    list.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let (name, _password, number) = (fields.next()?, fields.next()?, fields.next()?);
        Some(AccountEntry { name, number: number.parse().ok()?, fourth: fields.next().unwrap_or("") })
    })
}

fn name_of(path: &Path, number: u32) -> Option<String> {
    let list = list(path);
    entries(&list).find(|entry| entry.number == number).map(|entry| entry.name.to_owned())
}

impl Identity {
    fn of_this_process() -> Self {
        let mut gids: Vec<u32> = getgroups().unwrap_or_default().into_iter().map(Gid::as_raw).collect();
        gids.push(getegid().as_raw());
        Self { uid: geteuid().as_raw(), gids }
    }

    /// Returns true if the permission bits let the user read and write.
    fn may_use(&self, file: Ownership) -> bool {
        let shift = match () {
            () if self.uid == 0 => return true,
            () if self.uid == file.uid => 6,
            () if self.gids.contains(&file.gid) => 3,
            () => 0,
        };
        (file.mode >> shift) & READ_WRITE == READ_WRITE
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::driver::sysfs_fixture::SysfsFixture;
    use crate::kmd::{PciAddress, PciInfo};

    const NODE: &str = "/dev/accel/accel0";

    fn permissions(tree: &SysfsFixture) -> NodePermissions {
        tree.file("etc/group", "root:x:0:\nrubbish\nrender:x:44:bob,carol\nvideo:x:nan:\n");
        tree.file(
            "etc/passwd",
            "root:x:0:0::/:/bin/sh\nalice:x:1000:1000::/:/bin/sh\nbob:x:1001:1001::/:/bin/sh\n",
        );
        NodePermissions::at(&tree.root)
    }

    fn explained(ownership: (u32, u32, u32), identity: (u32, &[u32])) -> String {
        let (mode, uid, gid) = ownership;
        let tree = SysfsFixture::new();
        let identity = Identity { uid: identity.0, gids: identity.1.to_vec() };
        permissions(&tree).explain_for(Path::new(NODE), Ownership { mode, uid, gid }, &identity)
    }

    #[test]
    fn user_outside_the_group_reads_how_to_join_it() {
        let text = explained((0o20_660, 0, 44), (1000, &[1000, 4]));
        assert!(text.starts_with("it belongs to root:render with permissions 0660, and"), "{text}");
        assert!(text.contains("not in group `render`"), "{text}");
        assert!(text.contains("`sudo usermod -aG render alice`"), "{text}");
        let nameless = explained((0o20_660, 0, 44), (4711, &[4711]));
        assert!(nameless.contains("`sudo usermod -aG render $USER`"), "{nameless}");
    }

    #[test]
    fn user_joined_after_login_reads_to_log_in_again() {
        let text = explained((0o20_660, 0, 44), (1001, &[1001]));
        assert!(
            text.contains("`bob` joined group `render` after") && text.contains("log in again"),
            "{text}"
        );
        assert!(!text.contains("usermod"), "{text}");
    }

    #[test]
    fn group_without_a_name_is_named_by_its_number() {
        let text = explained((0o20_660, 0, 989), (1000, &[1000]));
        assert!(text.contains("root:989") && text.contains("`--group-add 989`"), "{text}");
    }

    #[test]
    fn node_for_root_alone_reads_of_a_rule() {
        for ownership in [(0o20_600, 0, 0), (0o20_600, 0, 44), (0o20_640, 0, 44), (0o20_660, 0, 0)] {
            let text = explained(ownership, (1000, &[1000]));
            assert!(text.contains("udev rule") && !text.contains("usermod"), "{ownership:?}: {text}");
        }
    }

    #[test]
    fn sufficient_permissions_point_to_another_cause() {
        for (ownership, identity) in [
            ((0o20_660, 0, 44), (1000, &[1000, 44][..])),
            ((0o20_600, 1000, 0), (1000, &[1000])),
            ((0o20_666, 0, 0), (1000, &[1000])),
            ((0o20_000, 0, 0), (0, &[0])),
        ] {
            let text = explained(ownership, identity);
            assert!(text.contains("`--device /dev/accel/accel0`"), "{ownership:?}: {text}");
        }
    }

    #[test]
    fn owner_without_permission_is_not_sent_to_the_group() {
        let text = explained((0o20_060, 1000, 44), (1000, &[44]));
        assert!(text.contains("exclude its owner"), "{text}");
    }

    #[test]
    fn explanation_of_a_file_reads_its_permissions() {
        let tree = SysfsFixture::new();
        tree.file("node", "");
        let path = tree.root.join("node");
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let explained = |path: &Path| permissions(&tree).explain_refusal(path);
        assert!(explained(&path).contains("0640"), "{}", explained(&path));
        assert!(explained(&tree.root.join("none")).contains("cannot be examined"));
        // Without the lists, the message contains numbers.
        let bare = NodePermissions::at(&tree.root.join("nowhere"));
        let ownership = Ownership { mode: 0o660, uid: 0, gid: 44 };
        let text = bare.explain_for(&path, ownership, &Identity { uid: 1, gids: vec![1] });
        assert!(text.contains("belongs to 0:44"), "{text}");
    }

    #[test]
    fn explanation_of_each_error_has_its_advice() {
        let tree = SysfsFixture::new();
        let permissions = permissions(&tree);
        let address = PciAddress { bus: 1, ..PciAddress::default() };
        let card = |path: Option<&str>| NodeInfo {
            qid: 0,
            path: path.map(Into::into),
            address,
            pci: Some(PciInfo::default()),
        };
        let says = |path, driver, errno, part: &str| {
            let text = permissions.explain(&card(path), driver, errno).unwrap();
            assert!(text.contains(part), "{text}");
        };
        says(None, None, Errno::NOENT, "modprobe qaic");
        says(None, None, Errno::NOENT, "0000:01:00.0");
        says(None, Some("qaic"), Errno::NOENT, "still starting");
        says(None, Some("vfio-pci"), Errno::NOENT, "`vfio-pci`");
        says(Some(NODE), Some("qaic"), Errno::NOENT, "`--device /dev/accel/accel0`");
        says(Some(NODE), Some("qaic"), Errno::NODEV, "not online");
        says(Some("/dev/null"), Some("qaic"), Errno::NOTTY, "/dev/null is not a node");
        says(Some("/dev/null"), Some("qaic"), Errno::PROTONOSUPPORT, "has another interface");
        says(Some("/dev/null"), Some("qaic"), Errno::PERM, "`--device /dev/null`");
        assert_eq!(permissions.explain(&card(Some(NODE)), None, Errno::NOMEM), None);
    }
}
