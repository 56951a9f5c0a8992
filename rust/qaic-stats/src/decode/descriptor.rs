//! The compiler's description of a program's operations: names, kinds, sizes, dependencies.
//!
//! A container of this compiler contains the description as JSON in segment [`SEGMENT`]. Every container with
//! statistics contains the part that `networkdesc.bin` can represent.

use qaic_qpc::{Container, Limits, NetworkDesc, Stats, names};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::StatsError;

/// Segment with this descriptor as JSON.
pub const SEGMENT: &str = "opstatsdesc.open";
/// Version of the JSON that this library reads and writes.
pub const VERSION: u32 = 1;
/// Default number of ticks per millisecond.
pub(crate) const UCYCLES_PER_MS: u32 = 19_200;

/// First 16 bytes of the SHA-256 of the descriptor's segment. A stats buffer contains the same value, which proves
/// that both belong together.
pub type Fingerprint = [u8; 16];

/// The operations of a program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OpsDescriptor {
    /// Version of the descriptor: [`VERSION`].
    pub version: u32,
    /// Name of the network.
    pub network: String,
    /// Number of samples of an inference, which rates refer to.
    pub batch_size: u32,
    /// Ticks per millisecond.
    pub ucycles_per_ms: u32,
    /// Stats level.
    pub stats_level: u32,
    /// Level of the statistics of operations.
    pub op_stats_level: u32,
    /// Events that the PMU counts.
    pub pmu_events: Vec<u32>,
    /// Names of the thread groups.
    pub groups: Vec<String>,
    /// Index of the group of each thread of a core.
    pub thread_groups: Vec<u32>,
    /// Operations of each core.
    pub cores: Vec<CoreOps>,
}

/// Fields that every version of the JSON has.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// The operations of one core.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CoreOps {
    /// Device of the program, in program order.
    pub slice: u32,
    /// Operations; the index of an operation is its number (`oc`).
    pub ops: Vec<OpDesc>,
}

/// One operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OpDesc {
    /// Path of the operation's node, with the suffix `/__<number>`.
    pub name: String,
    /// Name of the operation in its engine; empty if it is the same.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub engine_name: String,
    /// Nodes of the user's model that the operation computes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// Program values that the operation produces, without values that its engine created.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
    /// Kind of operation.
    pub kind: String,
    /// Thread group that issues the operation.
    pub group: u32,
    /// Memory that contains the operands.
    pub memory: String,
    /// Types of the operands without duplicates, separated by a comma and a space.
    pub types: String,
    /// Precision of the operation's results on a card; empty if unknown.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub precision: String,
    /// Shape of the output.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub shape: String,
    /// Operands, each as text.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub operands: Vec<String>,
    /// Bytes of the outputs; 0 if the shapes are unknown before execution.
    pub output_bytes: u64,
    /// Number of multiply-add operations; 0 if unknown.
    #[serde(skip_serializing_if = "is_zero")]
    pub macs: u64,
    /// Bytes of the constants that the operation reads.
    #[serde(skip_serializing_if = "is_zero")]
    pub constant_bytes: u64,
    /// Attributes in the format `{Key: value, ...}`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub attributes: String,
    /// Operations that must end before this one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deps: Vec<Dependency>,
    /// Transfer between devices that the operation belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transfer: Option<Transfer>,
}

/// An operation that must end before another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dependency {
    /// Core of the producer.
    pub core: u32,
    /// Number of the producer on its core.
    pub oc: u32,
    /// True for a data dependency; false if only the order matters.
    pub data: bool,
}

/// One side of a transfer between devices.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Transfer {
    /// `P2P`.
    pub port_type: String,
    /// `<src>-><dst>[,<dst>]` or `<dst><-<src>`, by device numbers.
    pub port_description: String,
    /// Key that both sides share.
    pub transaction: String,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // the signature that serde requires
fn is_zero(value: &u64) -> bool {
    *value == 0
}

impl OpsDescriptor {
    /// Returns the descriptor of a container's program and its fingerprint; `None` for a program without statistics.
    pub(crate) fn of_container(
        container: &Container,
        bytes: &[u8],
    ) -> Result<Option<(Self, Fingerprint)>, StatsError> {
        if let Some(segment) = container.segment(SEGMENT) {
            let json = segment.payload(bytes);
            return Ok(Some((Self::from_json(json)?, fingerprint(json))));
        }
        let Some(segment) = container.segment(names::NETWORK_DESC) else { return Ok(None) };
        let payload = segment.payload(bytes);
        let network = NetworkDesc::decode(payload, &Limits::default())?;
        Ok(Self::of_network(&network).map(|descriptor| (descriptor, fingerprint(payload))))
    }

    /// Decodes the JSON of segment [`SEGMENT`].
    pub(crate) fn from_json(json: &[u8]) -> Result<Self, StatsError> {
        let refuse = |what: String| StatsError::Descriptor { what: format!("segment {SEGMENT} {what}") };
        let version =
            |version: u32| refuse(format!("has version {version}, this library reads version {VERSION}"));
        match serde_json::from_slice::<Self>(json) {
            Ok(descriptor) if descriptor.version == VERSION => Ok(descriptor),
            Ok(descriptor) => Err(version(descriptor.version)),
            // Another version has other fields, so the error names the version.
            Err(error) => Err(match serde_json::from_slice::<Version>(json) {
                Ok(found) if found.version != VERSION => version(found.version),
                _ => refuse(format!("cannot be read: {error}")),
            }),
        }
    }

    /// Returns the description in `networkdesc.bin`; `None` without statistics.
    pub(crate) fn of_network(network: &NetworkDesc) -> Option<Self> {
        let stats = network.stats.as_ref()?;
        let positive = |value: i32| u32::try_from(value).unwrap_or(0);
        Some(Self {
            version: VERSION,
            network: network.network_name.clone(),
            batch_size: positive(stats.batch_size).max(1),
            ucycles_per_ms: match positive(stats.utimer_freq_ms) {
                0 => UCYCLES_PER_MS,
                rate => rate,
            },
            stats_level: positive(stats.stats_level),
            op_stats_level: positive(stats.op_stats_level),
            pmu_events: stats.pmu_events.iter().map(|&event| event.cast_unsigned()).collect(),
            groups: network.thread_group_names.clone(),
            thread_groups: network.thread_groups.clone(),
            cores: cores_of(stats),
        })
    }

    /// Operation `oc` of a core.
    pub(crate) fn op(&self, core: u16, oc: u32) -> Option<&OpDesc> {
        self.cores.get(usize::from(core))?.ops.get(usize::try_from(oc).ok()?)
    }

    /// Name of a thread's group.
    pub(crate) fn group_of_thread(&self, thread: u8) -> Option<&str> {
        let group = self.thread_groups.get(usize::from(thread))?;
        self.groups.get(usize::try_from(*group).ok()?).map(String::as_str)
    }
}

/// Returns the operations by core. The number `oc` counts through the groups of a core in order.
fn cores_of(stats: &Stats) -> Vec<CoreOps> {
    let core = |core: &qaic_qpc::CoreOpNameKinds| {
        let groups = core.tg_op_name_kinds.iter().zip(0_u32..);
        let ops = groups.flat_map(|(ops, group)| {
            ops.op_name_kinds.iter().map(move |op| OpDesc {
                name: op.name.clone(),
                kind: op.kind.clone(),
                group,
                memory: op.memory.clone(),
                types: op.op_type.clone(),
                shape: op.shape.clone(),
                operands: if op.operands.is_empty() && !op.operand.is_empty() {
                    vec![op.operand.clone()]
                } else {
                    op.operands.clone()
                },
                output_bytes: op.output_size,
                attributes: op.attributes.clone(),
                ..OpDesc::default()
            })
        });
        CoreOps { slice: 0, ops: ops.collect() }
    };
    stats.core_op_name_kinds.iter().map(core).collect()
}

/// Computes the fingerprint of a descriptor's segment.
pub fn fingerprint(segment: &[u8]) -> Fingerprint {
    let digest = Sha256::digest(segment);
    digest.first_chunk().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_of_another_version_is_refused_with_the_version() {
        let what = |json: &str| match OpsDescriptor::from_json(json.as_bytes()) {
            Err(error) => error.to_string(),
            Ok(descriptor) => format!("{descriptor:?}"),
        };
        let other = "segment opstatsdesc.open has version 2, this library reads version 1";
        assert_eq!(what(r#"{"version": 2}"#), other);
        assert_eq!(what(r#"{"version": 2, "lanes": []}"#), other);
        let odd = what(r#"{"version": 1, "lanes": []}"#);
        assert!(odd.starts_with("segment opstatsdesc.open cannot be read: unknown field `lanes`"), "{odd}");
        assert!(what("{").starts_with("segment opstatsdesc.open cannot be read: "));
    }
}
