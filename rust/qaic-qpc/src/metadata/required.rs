//! The field paths that metadata may require of its readers.

/// First element of every path.
const ROOT: &str = "AicMetadataFlat_Metadata";

/// Fields of the root table, by id.
const ROOT_FIELDS: [&str; 40] = [
    "versionMajor",
    "versionMinor",
    "networkName",
    "requiredFields",
    "semaphoreInitState",
    "L2TCMInitState",
    "dmaRequests",
    "nspMulticastTables",
    "hostMulticastTable",
    "threadDescriptors",
    "constantMappings",
    "staticSharedDDRSize",
    "dynamicSharedDDRSize",
    "staticConstantsSize",
    "dynamicConstantsSize",
    "exitDoorbellOffset",
    "l2CachedDDRSize",
    "L2TCMInitSize",
    "execContextMajorVersion",
    "numNSPs",
    "numSemaphores",
    "hwVersionMajor",
    "hwVersionMinor",
    "staticSharedDDRECCEnabled",
    "dynamicSharedDDRECCEnabled",
    "staticConstantsECCEnabled",
    "dynamicConstantsECCEnabled",
    "singleVTCMPage",
    "hasHvxFP",
    "hasHmxFP",
    "VTCMSize",
    "L2TCMSize",
    "networkHeapSize",
    "raw_struct_version_length",
    "QNNConfig",
    "portTable",
    "execContext",
    "L2TCMInitStateNonZeroRegions",
    "dynamicSharedDDRSupported",
    "networkHeapBehavior",
];

/// Fields of nested tables: path of the table, its fields.
const NESTED_FIELDS: [(&str, &[&str]); 13] = [
    (
        "dmaRequests",
        &[
            "num",
            "size",
            "mcId",
            "inOut",
            "portId",
            "devOffset",
            "hostOffset",
            "devAddrSpace",
            "transactionId",
            "semaphoreOps",
            "doorbellOps",
        ],
    ),
    (
        "dmaRequests->semaphoreOps",
        &["semOp", "semNum", "semValue", "preOrPost", "inSyncFence", "outSyncFence"],
    ),
    ("dmaRequests->doorbellOps", &["offset", "data", "mcId", "size"]),
    ("nspMulticastTables", &["multicastEntries"]),
    ("nspMulticastTables->multicastEntries", &["mask", "size", "dynamic", "addrSpace", "baseAddrOffset"]),
    ("hostMulticastTable", &["multicastEntries"]),
    ("hostMulticastTable->multicastEntries", &["mask", "size"]),
    ("threadDescriptors", &["entryPoint", "typeMask"]),
    ("constantMappings", &["coreMask", "size", "constantDataBaseOffset"]),
    ("portTable", &["portId", "portType"]),
    ("QNNConfig", &["Constants"]),
    ("networkHeapBehavior", &["onNetworkDeactivate"]),
    ("L2TCMInitStateNonZeroRegions", &["start", "end", "size"]),
];

/// Returns whether a path of `requiredFields` names a known field. The comparison is exact.
pub(crate) fn is_known_field(path: &str) -> bool {
    let Some(path) = path.strip_prefix(ROOT).and_then(|rest| rest.strip_prefix("->")) else { return false };
    match path.rsplit_once("->") {
        None => ROOT_FIELDS.contains(&path),
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
        assert_eq!(ROOT_FIELDS.len() + nested, 82);
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
