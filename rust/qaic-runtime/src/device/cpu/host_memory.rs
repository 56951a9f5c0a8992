//! Private memory that a program needs, compared with the free memory before the program is loaded.
//!
//! Weights do not count. Kernels read them from the mapped container, whose pages the system can drop. The engine's
//! copies of other weights are unknown before it loads the program.

use std::path::Path;

use qaic_qpc::plan::Plan;

use super::free_memory::free_bytes;
use crate::error::{DeviceError, RuntimeError};

/// Minimum need that is compared; smaller needs are within normal fluctuations of free memory.
const LEAST_BYTES: u64 = 64 << 20;
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
    /// Parses `any`, or a size such as `500M` or `20G` in powers of 1,024.
    pub(crate) fn parse(text: &str) -> Result<Self, RuntimeError> {
        let size = || {
            let upper = text.to_ascii_uppercase();
            let size = upper.strip_suffix("IB").or_else(|| upper.strip_suffix('B')).unwrap_or(&upper);
            let units = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];
            let (digits, shift) = units
                .iter()
                .find_map(|&(unit, shift)| Some((size.strip_suffix(unit)?, shift)))
                .unwrap_or((size, 0));
            let digits = digits.trim_end();
            let number = digits.parse::<u64>().ok().filter(|_| !digits.starts_with('+'))?;
            Some(Self::Bytes(number.saturating_mul(1 << shift)))
        };
        match text {
            "" => Ok(Self::Free),
            "any" => Ok(Self::Any),
            _ => size().ok_or_else(|| {
                RuntimeError::argument(format!(
                    "QAIC_CPU_MEMORY is {text:?}; expected a size such as 20G, or any"
                ))
            }),
        }
    }

    /// Fails if a program with `activations` activations needs more than this limit, or more than the free memory
    /// according to the files below `root`.
    pub(super) fn check(self, plan: &Plan, activations: u32, root: &Path) -> Result<(), RuntimeError> {
        let need = PrivateMemory::of(plan);
        let activations = activations.max(1);
        let total = need.of_activation().saturating_mul(activations.into());
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
                states: need.states,
                outputs: need.outputs,
                activations,
                fitting: free
                    .checked_div(need.of_activation())
                    .map_or(0, |fitting| u32::try_from(fitting).unwrap_or(u32::MAX)),
            }
            .into()),
        }
    }
}

/// Sizes of memory of one activation without a backing file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PrivateMemory {
    /// States.
    states: u64,
    /// Other outputs of one inference.
    outputs: u64,
}

impl PrivateMemory {
    fn of(plan: &Plan) -> Self {
        let mut need = Self::default();
        let updates = plan.state_rows.as_ref().map_or(&[][..], |rows| &rows.updates);
        for (at, output) in plan.outputs.iter().enumerate() {
            let bytes = output.dtype.dense_bytes(&output.dims).unwrap_or(0);
            if plan.retained_state && output.name.ends_with(STATE) {
                // A state that the graph computes completely has a second buffer.
                let copies = if updates.iter().any(|update| update.output == at) { 1 } else { 2 };
                need.states = need.states.saturating_add(bytes.saturating_mul(copies));
            } else {
                need.outputs = need.outputs.saturating_add(bytes);
            }
        }
        need
    }

    fn of_activation(self) -> u64 {
        self.states.saturating_add(self.outputs)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::device::cpu::free_memory::tests::{System, meminfo};

    const MIB: u64 = 1 << 20;

    /// A program with a state of 100 MiB that is written by rows, one of 10 MiB that is not, and outputs of 1 MiB.
    fn plan() -> Plan {
        let tensor = |name: &str, mib: u64| json!({"name": name, "dtype": "uint8", "dims": [mib, MIB]});
        let text = json!({
            "version": 4, "target": "cpu", "retained_state": true,
            "inputs": [tensor("k", 100), tensor("v", 10)],
            "outputs": [tensor("k_RetainedState", 100), tensor("v_RetainedState", 10), tensor("y", 1)],
            "initializers": [],
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
        for text in ["4t", "4 TiB", "4TB", "4096G"] {
            assert_eq!(parse(text), Some(MemoryLimit::Bytes(4 << 40)), "{text}");
        }
        for text in ["G", "-1", "+1", "1.5G", "none", "é", "iB", " 4"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_state_that_is_computed_whole_counts_twice() {
        assert_eq!(PrivateMemory::of(&plan()), PrivateMemory { states: 120 * MIB, outputs: MIB });
    }

    #[test]
    fn too_little_memory_is_an_error_with_what_fits() {
        let plan = plan();
        let root = System::with(&[meminfo(300, 0)]);
        let check = |limit: MemoryLimit, activations| limit.check(&plan, activations, root.path());
        assert!(check(MemoryLimit::Free, 2).is_ok());
        let refusal = check(MemoryLimit::Free, 4).unwrap_err();
        assert_eq!(refusal.code(), "device.host_memory");
        let text = refusal.to_string();
        assert!(text.contains("needs 484 MiB") && text.contains("at most 300 MiB"), "{text}");
        assert!(text.contains("there is room for 2 of 4 activations"), "{text}");
        assert!(check(MemoryLimit::Any, 4).is_ok());
        assert!(check(MemoryLimit::Bytes(484 * MIB), 4).is_ok());
        let text = check(MemoryLimit::Bytes(100 * MIB), 1).unwrap_err().to_string();
        assert!(text.contains("there is room for no activation"), "{text}");
        // Without memory figures, no program is refused.
        assert!(MemoryLimit::Free.check(&plan, 1000, Path::new("/does/not/exist")).is_ok());
    }
}
