//! Private memory that a program needs, compared with the free memory before the program is loaded.
//!
//! Weights that kernels read from the mapped container do not count, because the system can drop their pages.

use std::fs;
use std::path::Path;

use qaic_qpc::plan::{Dtype, Plan};

use crate::error::{DeviceError, InputError, RuntimeError};

/// Minimum need that is compared; smaller needs are within normal fluctuations of free memory.
const LEAST_BYTES: u64 = 64 << 20;
/// Bytes per element of weights that the engine copies for a kernel.
const COPIED_BYTES: u64 = 4;
/// Suffix of the name of an output that is a state.
const STATE: &str = "_RetainedState";

/// `QAIC_CPU_MEMORY`: the private memory that a program may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryLimit {
    /// The free memory.
    Free,
    /// This number of bytes.
    Bytes(u64),
    /// No limit.
    Any,
}

impl MemoryLimit {
    /// Parses `any`, or a size such as `500M` or `20G`.
    pub(crate) fn parse(text: &str) -> Result<Self, InputError> {
        let units = [('K', 10), ('M', 20), ('G', 30)];
        let (digits, shift) = units
            .iter()
            .find_map(|&(unit, shift)| Some((text.strip_suffix(unit)?, shift)))
            .unwrap_or((text, 0));
        match (text, digits.parse::<u64>()) {
            ("", _) => Ok(Self::Free),
            ("any", _) => Ok(Self::Any),
            (_, Ok(number)) => Ok(Self::Bytes(number.saturating_mul(1 << shift))),
            (_, Err(_)) => Err(InputError::Argument {
                what: format!("QAIC_CPU_MEMORY is {text:?}; a size such as 500M or 20G, or any is expected"),
            }),
        }
    }

    /// Fails if a program with `activations` activations needs more than this limit, or more than the free memory
    /// according to the files below `root`.
    pub(super) fn check(self, plan: &Plan, activations: u32, root: &Path) -> Result<(), RuntimeError> {
        let need = PrivateMemory::of(plan);
        let activations = activations.max(1);
        let total = need.weights.saturating_add(need.of_activation().saturating_mul(activations.into()));
        let free = match self {
            Self::Any => return Ok(()),
            Self::Free if total < LEAST_BYTES => return Ok(()),
            Self::Free => free_bytes(root),
            Self::Bytes(bytes) => Some(bytes),
        };
        match free.filter(|&free| free < total) {
            None => Ok(()),
            Some(free) => Err(DeviceError::HostMemory {
                needed: total,
                free,
                weights: need.weights,
                states: need.states,
                buffers: need.buffers,
                activations,
                fitting: free
                    .checked_sub(need.weights)
                    .and_then(|left| left.checked_div(need.of_activation()))
                    .map_or(0, |fitting| u32::try_from(fitting).unwrap_or(u32::MAX)),
            }
            .into()),
        }
    }
}

/// Sizes of memory without a backing file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PrivateMemory {
    /// Weights that the engine copies once.
    weights: u64,
    /// States of one activation.
    states: u64,
    /// Other inputs and outputs of one inference of an activation.
    buffers: u64,
}

impl PrivateMemory {
    fn of(plan: &Plan) -> Self {
        let mut need = Self::default();
        for initializer in plan.initializers.iter().filter(|initializer| initializer.layout.is_none()) {
            let is_float = matches!(initializer.dtype, Dtype::Float32 | Dtype::Float16 | Dtype::Bfloat16);
            // Kernels of matrices pack them in float32; vectors are used in place.
            if is_float && initializer.dims.len() > 1 {
                let elements = Dtype::Uint8.dense_bytes(&initializer.dims).unwrap_or(0);
                let decoded = if initializer.encoding.is_some() { initializer.dtype.size_bytes() } else { 0 };
                let bytes = elements.saturating_mul(COPIED_BYTES.saturating_add(decoded));
                need.weights = need.weights.saturating_add(bytes);
            }
        }
        let updates = plan.state_rows.as_ref().map_or(&[][..], |rows| &rows.updates);
        for (at, output) in plan.outputs.iter().enumerate() {
            let bytes = output.dtype.dense_bytes(&output.dims).unwrap_or(0);
            if plan.retained_state && output.name.ends_with(STATE) {
                // A state that is computed whole has a second buffer.
                let copies = if updates.iter().any(|update| update.output == at) { 1 } else { 2 };
                need.states = need.states.saturating_add(bytes.saturating_mul(copies));
            } else {
                need.buffers = need.buffers.saturating_add(bytes);
            }
        }
        need
    }

    fn of_activation(self) -> u64 {
        self.states.saturating_add(self.buffers)
    }
}

/// Files of a control group's memory limits, in one version of the interface.
struct Hierarchy {
    mount: &'static str,
    limit: &'static str,
    used: &'static str,
    /// Names in `memory.stat` of file pages, which the system can drop.
    files: [&'static str; 2],
}

const V1: Hierarchy = Hierarchy {
    mount: "sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    files: ["total_inactive_file", "total_active_file"],
};
const V2: Hierarchy = Hierarchy {
    mount: "sys/fs/cgroup",
    limit: "memory.max",
    used: "memory.current",
    files: ["inactive_file", "active_file"],
};

/// Memory that this process can still allocate: the free memory of the machine with its swap, limited by each control
/// group of the process. `None` if the system does not provide these numbers.
fn free_bytes(root: &Path) -> Option<u64> {
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
    /// Least free memory of a group and its ancestors. In a container, the path of a group can be a path outside of
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
        // A group without a limit has no number there.
        let (limit, used) = (number(self.limit)?, number(self.used)?);
        let stat = read("memory.stat").unwrap_or_default();
        let dropped: u64 = self.files.iter().filter_map(|name| field(&stat, name)).sum();
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
mod tests {
    #![allow(clippy::unwrap_used)] // a failed assumption fails the test

    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::{env, process};

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const MIB: u64 = 1 << 20;

    /// A system with these files, in a folder that is removed with it.
    struct System(PathBuf);

    impl System {
        fn with(files: &[(&str, String)]) -> Self {
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

        fn free_bytes(&self) -> Option<u64> {
            free_bytes(&self.0)
        }
    }

    impl Drop for System {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    fn meminfo(available_mib: u64, swap_mib: u64) -> (&'static str, String) {
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

    /// A program with a state of 100 MiB that is written by rows, one of 10 MiB that is not, and outputs of 1 MiB.
    fn plan(initializers: &serde_json::Value) -> Plan {
        let tensor = |name: &str, mib: u64| json!({"name": name, "dtype": "uint8", "dims": [mib, MIB]});
        let text = json!({
            "version": 4, "target": "cpu", "retained_state": true,
            "inputs": [tensor("k", 100), tensor("v", 10)],
            "outputs": [tensor("k_RetainedState", 100), tensor("v_RetainedState", 10), tensor("y", 1)],
            "initializers": initializers,
            "state_rows": {
                "tensors": [],
                "updates": [{"input": 0, "output": 0, "rows": 0, "indices": 0, "skips_outside": false}],
            },
        });
        Plan::decode(text.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn limit_is_a_size_or_any() {
        let parse = |text| MemoryLimit::parse(text).ok();
        assert_eq!(parse(""), Some(MemoryLimit::Free));
        assert_eq!(parse("any"), Some(MemoryLimit::Any));
        assert_eq!(parse("5"), Some(MemoryLimit::Bytes(5)));
        assert_eq!(parse("3M"), Some(MemoryLimit::Bytes(3 * MIB)));
        assert_eq!(parse("99999999999999G"), Some(MemoryLimit::Bytes(u64::MAX)));
        for text in ["G", "-1", "4T", "1.5G", "none", "é"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn mapped_weights_do_not_count_and_copies_of_the_engine_do() {
        let weight = |more: serde_json::Value| {
            let mut entry =
                json!({"name": "w", "dtype": "float16", "dims": [1024, 1024], "offset": 0, "size": 0});
            entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            PrivateMemory::of(&plan(&json!([entry])))
        };
        let need = PrivateMemory { weights: 0, states: 120 * MIB, buffers: MIB };
        assert_eq!(weight(json!({"layout": "tiles", "encoding": "mxfp6_e2m3"})), need);
        assert_eq!(weight(json!({"dims": [1 << 20]})), need);
        assert_eq!(weight(json!({"dtype": "int8"})), need);
        assert_eq!(weight(json!({})).weights, 4 * MIB);
        assert_eq!(weight(json!({"encoding": "mxfp6_e2m3"})).weights, 6 * MIB);
        // Lies saturate, and are refused elsewhere.
        assert_eq!(weight(json!({"dims": [i64::MAX, 2]})).weights, u64::MAX);
        assert_eq!(weight(json!({"dims": [-1, 2]})).weights, 0);
    }

    #[test]
    fn too_little_memory_is_an_error_with_what_fits() {
        let plan = plan(&json!([]));
        let root = System::with(&[meminfo(300, 0)]);
        let check = |limit: MemoryLimit, activations| limit.check(&plan, activations, &root.0);
        assert!(check(MemoryLimit::Free, 2).is_ok());
        let refusal = check(MemoryLimit::Free, 4).unwrap_err();
        assert_eq!(refusal.code(), "device.host_memory");
        let text = refusal.to_string();
        assert!(text.contains("takes 0.51 GB") && text.contains("0.31 GB are free"), "{text}");
        assert!(text.contains("2 of 4 activations fit"), "{text}");
        assert!(check(MemoryLimit::Any, 4).is_ok());
        assert!(check(MemoryLimit::Bytes(484 * MIB), 4).is_ok());
        let text = check(MemoryLimit::Bytes(100 * MIB), 1).unwrap_err().to_string();
        assert!(text.contains("no activation fits"), "{text}");
        // Without figures nothing is refused.
        assert!(MemoryLimit::Free.check(&plan, 1000, Path::new("/does/not/exist")).is_ok());
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
            ("sys/fs/cgroup/a/memory.current", mib(40)),
            ("sys/fs/cgroup/a/memory.stat", stat("")),
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
        fn any_text_of_the_system_is_read(meminfo in ".*", groups in ".*", number in ".*", stat in ".*") {
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
