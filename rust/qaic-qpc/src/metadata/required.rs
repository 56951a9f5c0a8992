//! The field paths that metadata may require of its readers.

use super::table::FlatTable;
use super::types::{
    ConstantMapping, DmaRequest, DoorbellOp, HostMulticastEntry, HostMulticastTable, Metadata,
    NetworkHeapBehavior, NonZeroRegion, NspMulticastEntry, NspMulticastTable, QnnConfig, SemaphoreOp,
    ThreadDescriptor,
};

/// First element of every path.
const ROOT: &str = "AicMetadataFlat_Metadata";

/// Fields of nested tables: path of each table, and its fields.
const NESTED_FIELDS: [(&str, &[&str]); 13] = [
    ("dmaRequests", DmaRequest::FIELDS),
    ("dmaRequests->semaphoreOps", SemaphoreOp::FIELDS),
    ("dmaRequests->doorbellOps", DoorbellOp::FIELDS),
    ("nspMulticastTables", NspMulticastTable::FIELDS),
    ("nspMulticastTables->multicastEntries", NspMulticastEntry::FIELDS),
    ("hostMulticastTable", HostMulticastTable::FIELDS),
    ("hostMulticastTable->multicastEntries", HostMulticastEntry::FIELDS),
    ("threadDescriptors", ThreadDescriptor::FIELDS),
    ("constantMappings", ConstantMapping::FIELDS),
    ("portTable", &["portId", "portType"]),
    ("QNNConfig", QnnConfig::FIELDS),
    ("networkHeapBehavior", NetworkHeapBehavior::FIELDS),
    ("L2TCMInitStateNonZeroRegions", NonZeroRegion::FIELDS),
];

/// Returns true if a path of `requiredFields` names a known field. The comparison is exact.
pub(crate) fn is_known_field(path: &str) -> bool {
    let Some(path) = path.strip_prefix(ROOT).and_then(|rest| rest.strip_prefix("->")) else { return false };
    match path.rsplit_once("->") {
        None => Metadata::FIELDS.contains(&path),
        Some((table, field)) => {
            NESTED_FIELDS.iter().any(|(name, fields)| *name == table && fields.contains(&field))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_82_paths() {
        let nested: usize = NESTED_FIELDS.iter().map(|(_, fields)| fields.len()).sum();
        assert_eq!(Metadata::FIELDS.len() + nested, 82);
    }

    #[test]
    fn paths_are_compared_whole() {
        assert!(is_known_field("AicMetadataFlat_Metadata->networkName"));
        assert!(is_known_field("AicMetadataFlat_Metadata->dmaRequests->semaphoreOps->semOp"));
        for unknown in [
            "",
            "AicMetadataFlat_Metadata",
            "AicMetadataFlat_Metadata->",
            "AicMetadataFlat_Metadata->networkname",
            "AicMetadataFlat_Metadata->networkName ",
            "AicMetadataFlat_Metadata->semaphoreOps->semOp",
            "AicMetadataFlat_MetadatanetworkName",
        ] {
            assert!(!is_known_field(unknown), "{unknown}");
        }
    }
}
