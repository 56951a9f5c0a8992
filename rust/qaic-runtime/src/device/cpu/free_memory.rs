//! Memory that this process can still allocate, according to the files of the system.

use std::fs;
use std::path::Path;

/// Files of a control group's memory limits, in one version of the interface.
struct Hierarchy {
    mount: &'static str,
    limit: &'static str,
    used: &'static str,
    /// Names in `memory.stat` of memory that the system can reclaim.
    reclaimable: &'static [&'static str],
}

const V1: Hierarchy = Hierarchy {
    mount: "sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    reclaimable: &["total_inactive_file", "total_active_file"],
};
const V2: Hierarchy = Hierarchy {
    mount: "sys/fs/cgroup",
    limit: "memory.max",
    used: "memory.current",
    reclaimable: &["inactive_file", "active_file", "slab_reclaimable"],
};

/// Memory that this process can still allocate: the free memory of the machine with its swap, limited by each control
/// group of the process. `None` if the system does not provide these numbers.
pub(super) fn free_bytes(root: &Path) -> Option<u64> {
    let kibibytes = fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let kibibytes = |name| field(&kibibytes, name).map(|found| found.saturating_mul(1 << 10));
    let of_machine = kibibytes("MemAvailable:")?.saturating_add(kibibytes("SwapFree:").unwrap_or(0));
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let of_groups = groups.lines().filter_map(|line| {
        let (_, (controllers, group)) =
            line.split_once(':').and_then(|(id, rest)| Some((id, rest.split_once(':')?)))?;
        match controllers {
            "" => V2.free(root, group),
            _ if controllers.split(',').any(|name| name == "memory") => V1.free(root, group),
            _ => None,
        }
    });
    Some(of_groups.fold(of_machine, u64::min))
}

impl Hierarchy {
    /// Smallest free memory of a group and its ancestors. In a container, the path of a group can be a path outside of
    /// the container, which does not exist; the mount point is then the group.
    fn free(&self, root: &Path, group: &str) -> Option<u64> {
        let mount = root.join(self.mount);
        let inner = mount.join(group.trim_start_matches('/'));
        let folders = inner.ancestors().take_while(|folder| folder.starts_with(&mount));
        folders.filter_map(|folder| self.free_in(folder)).min()
    }

    fn free_in(&self, folder: &Path) -> Option<u64> {
        let read = |name| fs::read_to_string(folder.join(name)).ok();
        let number = |name| read(name)?.trim().parse::<u64>().ok();
        // The file of a group without a limit contains no number.
        let (limit, used) = (number(self.limit)?, number(self.used)?);
        let stat = read("memory.stat")?;
        let dropped =
            self.reclaimable.iter().filter_map(|name| field(&stat, name)).fold(0, u64::saturating_add);
        Some(limit.saturating_sub(used.saturating_sub(dropped)))
    }
}

/// Returns the number after a name, in lines of names and numbers.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(name)).then(|| words.next()?.parse().ok()).flatten()
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::{env, process};

    use proptest::prelude::*;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A system with these files, in a folder that is removed on drop.
    pub(in super::super) struct System(PathBuf);

    impl System {
        pub(in super::super) fn with(files: &[(&str, String)]) -> Self {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let number = COUNT.fetch_add(1, Ordering::Relaxed);
            let root = env::temp_dir().join(format!("qaic-host-memory-{}-{number}", process::id()));
            for (name, content) in files {
                let path = root.join(name);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, content).unwrap();
            }
            Self(root)
        }

        pub(in super::super) fn path(&self) -> &Path {
            &self.0
        }

        fn free_bytes(&self) -> Option<u64> {
            free_bytes(&self.0)
        }
    }

    impl Drop for System {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    pub(in super::super) fn meminfo(available_mib: u64, swap_mib: u64) -> (&'static str, String) {
        let text = format!(
            "MemTotal: 9 kB\nMemAvailable: {} kB\nSwapFree: {} kB\n",
            available_mib << 10,
            swap_mib << 10
        );
        ("proc/meminfo", text)
    }

    fn mib(count: u64) -> String {
        format!("{}\n", count * MIB)
    }

    #[test]
    fn limits_of_control_groups_count_without_pages_of_files() {
        let stat =
            |prefix: &str| format!("anon 1\n{prefix}inactive_file {MIB}\n{prefix}active_file {}\n", 2 * MIB);
        let second = System::with(&[
            meminfo(1000, 24),
            ("proc/self/cgroup", "0::/a/b\n".to_owned()),
            ("sys/fs/cgroup/a/b/memory.max", "max\n".to_owned()),
            ("sys/fs/cgroup/a/b/memory.current", mib(5)),
            ("sys/fs/cgroup/a/memory.max", mib(100)),
            ("sys/fs/cgroup/a/memory.current", mib(44)),
            ("sys/fs/cgroup/a/memory.stat", format!("{}slab_reclaimable {}\n", stat(""), 4 * MIB)),
        ]);
        assert_eq!(second.free_bytes(), Some(63 * MIB));
        let first = System::with(&[
            meminfo(1000, 24),
            ("proc/self/cgroup", "3:cpuset:/\n2:cpu,memory:/outside/of/the/container\n0::/\n".to_owned()),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", mib(50)),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", mib(60)),
            ("sys/fs/cgroup/memory/memory.stat", stat("total_")),
        ]);
        assert_eq!(first.free_bytes(), Some(0));
        assert_eq!(System::with(&[meminfo(1000, 24)]).free_bytes(), Some(1024 * MIB));
        let none = System::with(&[("proc/meminfo", "MemTotal: 4 kB\n".to_owned())]);
        assert_eq!(none.free_bytes(), None);
    }

    proptest! {
        #[test]
        fn any_text_of_the_system_is_read(
            meminfo in ".*", groups in ".*", number in ".*", text in ".*", pages in any::<[u64; 3]>(),
        ) {
            let [inactive, active, slab] = pages;
            let stat = format!("inactive_file {inactive}\nactive_file {active}\nslab_reclaimable {slab}\n{text}");
            let group = "sys/fs/cgroup/memory.";
            let root = System::with(&[
                ("proc/meminfo", format!("MemAvailable: 7 kB\n{meminfo}")),
                ("proc/self/cgroup", format!("0::/\n{groups}")),
                (&format!("{group}max"), number.clone()),
                (&format!("{group}current"), number),
                (&format!("{group}stat"), stat),
            ]);
            prop_assert!(root.free_bytes().is_some());
        }
    }
}
