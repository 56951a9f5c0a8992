//! Tables of what is where in system calls, transactions, commands and replies (device-kmd §2.2, §2.4-2.6), for people who
//! read a transcript and for whoever compares two.
//!
//! The encoders have the same knowledge once more, as code: what they write and what is read here by table has to agree.

use serde_json::{Map, Value};

use super::hex;
use crate::abi::request;

/// A name, an offset and what is there.
pub(super) type Field = (&'static str, usize, Kind);

/// What a field holds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    U8,
    U16,
    U32,
    U64,
    I32,
    /// Text in so many bytes.
    Text(usize),
    /// So many bytes that say something about this process only: its id, its addresses, its descriptors. They are not kept.
    Volatile(usize),
    /// A semaphore operation.
    Sem,
    /// Pairs of an activation and its state, so many.
    States(usize),
    /// All bytes from here on.
    Rest,
}

use Kind::{I32, Rest, Sem, States, Text, U8, U16, U32, U64, Volatile};

/// What stands for a volatile value.
const VOLATILE: &str = "*";

/// The fields of `bytes`, those that lie inside.
pub(super) fn decode(fields: &[Field], bytes: &[u8]) -> Map<String, Value> {
    let found =
        fields.iter().filter_map(|&(name, at, kind)| Some((name.to_owned(), value(bytes, at, kind)?)));
    found.collect()
}

fn value(bytes: &[u8], at: usize, kind: Kind) -> Option<Value> {
    let rest = bytes.get(at..)?;
    Some(match kind {
        U8 => rest.first().copied()?.into(),
        U16 => u16::from_le_bytes(*rest.first_chunk()?).into(),
        U32 => u32::from_le_bytes(*rest.first_chunk()?).into(),
        U64 => u64::from_le_bytes(*rest.first_chunk()?).into(),
        I32 => i32::from_le_bytes(*rest.first_chunk()?).into(),
        Text(len) => {
            let text = rest.get(..len)?;
            let end = text.iter().position(|&byte| byte == 0).unwrap_or(len);
            String::from_utf8_lossy(&text[..end]).into()
        }
        Volatile(_) => VOLATILE.into(),
        Sem => Value::Object(decode(SEM, rest.get(..8)?)),
        States(count) => {
            let pairs = rest.get(..8 * count)?.chunks_exact(8);
            pairs.map(|pair| Value::Object(decode(STATE, pair))).collect()
        }
        Rest => hex::encode(rest).into(),
    })
}

/// Puts zeros where bytes are volatile.
pub(super) fn blank(fields: &[Field], bytes: &mut [u8]) {
    for (at, len) in volatile(fields) {
        if let Some(bytes) = bytes.get_mut(at..at + len) {
            bytes.fill(0);
        }
    }
}

/// Offsets and sizes of volatile bytes.
pub(super) fn volatile(fields: &[Field]) -> impl Iterator<Item = (usize, usize)> {
    fields.iter().filter_map(|&(_, at, kind)| match kind {
        Volatile(len) => Some((at, len)),
        _ => None,
    })
}

/// A system call of the driver.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) request: u32,
    pub(super) name: &'static str,
    pub(super) fields: &'static [Field],
    pub(super) pointed: Pointed,
}

/// Memory that an argument points to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Pointed {
    Nothing,
    /// Entries, as many as the first word says, or as many as its lower half does.
    Entries {
        address_at: usize,
        bytes: usize,
        fields: &'static [Field],
        count_is_half: bool,
        answered: bool,
    },
    /// Transactions and those of the reply.
    Transactions,
    /// Room for a name.
    Name,
}

/// What is known of a request.
pub(super) fn call(request: u32) -> Option<&'static Call> {
    CALLS.iter().find(|call| call.request == request)
}

const fn plain(request: u32, name: &'static str, fields: &'static [Field]) -> Call {
    Call { request, name, fields, pointed: Pointed::Nothing }
}

const fn listed(
    request: u32,
    name: &'static str,
    fields: &'static [Field],
    address_at: usize,
    (bytes, entry): (usize, &'static [Field]),
) -> Call {
    let answered = request == request::PERF_STATS_BO;
    let pointed = Pointed::Entries { address_at, bytes, fields: entry, count_is_half: answered, answered };
    Call { request, name, fields, pointed }
}

static CALLS: [Call; 13] = [
    Call {
        request: request::MANAGE,
        name: "MANAGE",
        fields: &[("len", 0, U32), ("count", 4, U32), ("data", 8, Volatile(8))],
        pointed: Pointed::Transactions,
    },
    plain(request::CREATE_BO, "CREATE_BO", &[("size", 0, U64), ("handle", 8, U32), ("pad", 12, U32)]),
    plain(request::MMAP_BO, "MMAP_BO", &[("handle", 0, U32), ("pad", 4, U32), ("offset", 8, U64)]),
    listed(
        request::ATTACH_SLICE_BO,
        "ATTACH_SLICE_BO",
        &[
            ("count", 0, U32),
            ("dbc_id", 4, U32),
            ("handle", 8, U32),
            ("dir", 12, U32),
            ("size", 16, U64),
            ("data", 24, Volatile(8)),
        ],
        24,
        (
            72,
            &[
                ("size", 0, U64),
                ("sem0", 8, Sem),
                ("sem1", 16, Sem),
                ("sem2", 24, Sem),
                ("sem3", 32, Sem),
                ("dev_addr", 40, U64),
                ("db_addr", 48, U64),
                ("db_data", 56, U32),
                ("db_len", 60, U32),
                ("offset", 64, U64),
            ],
        ),
    ),
    listed(request::EXECUTE_BO, "EXECUTE_BO", EXECUTE, 8, (8, &[("handle", 0, U32), ("dir", 4, U32)])),
    listed(
        request::PARTIAL_EXECUTE_BO,
        "PARTIAL_EXECUTE_BO",
        EXECUTE,
        8,
        (16, &[("handle", 0, U32), ("dir", 4, U32), ("resize", 8, U64)]),
    ),
    plain(
        request::WAIT_BO,
        "WAIT_BO",
        &[("handle", 0, U32), ("timeout", 4, U32), ("dbc_id", 8, U32), ("pad", 12, U32)],
    ),
    listed(
        request::PERF_STATS_BO,
        "PERF_STATS_BO",
        &[("count", 0, U16), ("pad", 2, U16), ("dbc_id", 4, U32), ("data", 8, Volatile(8))],
        8,
        (
            24,
            &[
                ("handle", 0, U32),
                ("queue_level_before", 4, U32),
                ("num_queue_element", 8, U32),
                ("submit_latency_us", 12, U32),
                ("device_latency_us", 16, U32),
                ("pad", 20, U32),
            ],
        ),
    ),
    plain(request::DETACH_SLICE_BO, "DETACH_SLICE_BO", HANDLE),
    plain(request::GEM_CLOSE, "GEM_CLOSE", HANDLE),
    Call {
        request: request::VERSION,
        name: "VERSION",
        fields: &[
            ("major", 0, I32),
            ("minor", 4, I32),
            ("patchlevel", 8, I32),
            ("pad", 12, U32),
            ("name_len", 16, U64),
            ("name", 24, Volatile(8)),
            ("date_len", 32, U64),
            ("date", 40, Volatile(8)),
            ("desc_len", 48, U64),
            ("desc", 56, Volatile(8)),
        ],
        pointed: Pointed::Name,
    },
    plain(request::PRIME_HANDLE_TO_FD, "PRIME_HANDLE_TO_FD", PRIME),
    plain(request::PRIME_FD_TO_HANDLE, "PRIME_FD_TO_HANDLE", PRIME),
];

const EXECUTE: &[Field] = &[("count", 0, U32), ("dbc_id", 4, U32), ("data", 8, Volatile(8))];
const HANDLE: &[Field] = &[("handle", 0, U32), ("pad", 4, U32)];
const PRIME: &[Field] = &[("handle", 0, U32), ("flags", 4, U32), ("fd", 8, Volatile(4))];
const SEM: &[Field] = &[
    ("val", 0, U16),
    ("index", 2, U8),
    ("presync", 3, U8),
    ("cmd", 4, U8),
    ("flags", 5, U8),
    ("pad", 6, U16),
];
const STATE: &[Field] = &[("activation_id", 0, U32), ("cmd", 4, I32)];

/// Name of a type of transaction, and the fields behind its header.
pub(super) fn transaction(kind: u32) -> Option<(&'static str, &'static [Field])> {
    Some(match kind {
        1 => ("passthrough_from_user", &[]),
        2 => ("passthrough_to_user", &[]),
        3 => ("passthrough_from_device", &[]),
        5 => (
            "dma_from_user",
            &[("tag", 0, U32), ("pad", 4, U32), ("addr", 8, Volatile(8)), ("size", 16, U64)],
        ),
        7 => (
            "activate_from_user",
            &[("queue_size", 0, U32), ("eventfd", 4, Volatile(4)), ("options", 8, U32), ("pad", 12, U32)],
        ),
        8 => ("activate_from_device", &[("status", 0, U32), ("dbc_id", 4, U32), ("options", 8, U64)]),
        10 => ("deactivate_from_user", &[("dbc_id", 0, U32), ("pad", 4, U32)]),
        12 => ("status_from_user", &[]),
        14 => (
            "status_from_device",
            &[("major", 0, U16), ("minor", 2, U16), ("status", 4, U32), ("status_flags", 8, U64)],
        ),
        _ => return None,
    })
}

/// Whether transactions of this type carry a command or a reply to one.
pub(super) fn carries_command(kind: u32) -> bool {
    matches!(kind, 1..=3)
}

/// Name and fields of a command or reply.
pub(super) fn command(id: u32) -> Option<(&'static str, &'static [Field])> {
    Some(match id {
        1 => (
            "load_constants",
            &[
                ("process_id", 4, Volatile(4)),
                ("tag", 8, U32),
                ("constants_crc", 12, U32),
                ("data_length", 16, U64),
                ("name", 24, Text(64)),
            ],
        ),
        2 => ("load_constants_reply", &[("constants_id", 4, U32), ("status", 8, I32)]),
        3 => (
            "load_elf",
            &[
                ("tag", 4, U32),
                ("process_id", 8, Volatile(4)),
                ("metadata_crc", 12, U32),
                ("name", 16, Text(64)),
                ("data_length", 80, U64),
                ("metadata_flatbuffer_crc", 88, U32),
            ],
        ),
        4 => ("load_elf_reply", &[("elf_id", 4, U32), ("status", 8, I32)]),
        5 => ("unload_constants", &[("constants_id", 4, U32)]),
        6 => ("unload_constants_reply", STATUS),
        7 => ("unload_elf", &[("elf_id", 4, U32)]),
        8 => ("unload_elf_reply", STATUS),
        9 => ("activate", ACTIVATE),
        10 => ("activate_reply", ACTIVATE_REPLY),
        11 => ("deactivate", &[("activation_id", 4, U32), ("opt_vc_teardown", 8, U32)]),
        12 => ("deactivate_reply", STATUS),
        13 => ("status", &[("info_type", 4, U8)]),
        14 => ("status_reply", STATUS_REPLY),
        15 => (
            "load_constants_ex",
            &[
                ("process_id", 4, Volatile(4)),
                ("name", 8, Text(64)),
                ("descriptor_len", 72, U32),
                ("descriptor", 80, Rest),
            ],
        ),
        16 => (
            "load_constants_payload",
            &[
                ("process_id", 4, Volatile(4)),
                ("tag", 8, U32),
                ("constants_id", 12, U32),
                ("data_length", 16, U64),
                ("offset", 24, U64),
            ],
        ),
        28 => ("create_resource_group", RESOURCE_GROUP),
        29 => ("create_resource_group_reply", &[("status", 4, I32), ("res_grp_id", 8, I32)]),
        30 => ("release_resource_group", &[("res_grp_id", 4, I32)]),
        31 => ("release_resource_group_reply", STATUS),
        32 => ("resource_info", &[("process_id", 4, Volatile(4)), ("res_grp_id", 8, I32)]),
        33 => ("resource_info_reply", RESOURCE_INFO_REPLY),
        34 => ("performance_info", &[]),
        35 => ("performance_info_reply", PERFORMANCE_INFO_REPLY),
        36 => ("activation_state", &[("num_cmds", 4, U32), ("cmds", 8, States(8))]),
        37 => ("activation_state_reply", STATUS),
        _ => return None,
    })
}

const STATUS: &[Field] = &[("status", 4, I32)];

const ACTIVATE: &[Field] = &[
    ("process_id", 4, Volatile(4)),
    ("constants_id", 8, U32),
    ("elf_id", 12, U32),
    ("reservation_type", 16, U32),
    ("resource_res_id", 20, I32),
    ("opt_vc_setup", 24, U32),
    ("vc_res_id", 28, I32),
    ("initial_state", 32, I32),
    ("dma_type", 36, U32),
    ("opt_support_datapath_switching", 40, U8),
];

const ACTIVATE_REPLY: &[Field] = &[
    ("status", 4, I32),
    ("activation_id", 8, U32),
    ("virtual_channel_id", 12, U32),
    ("ddr_base", 16, U64),
    ("dynamic_ddr_base", 24, U64),
    ("mcid_base", 32, U64),
    ("mcid_base_dma_cmd", 40, U64),
    ("dma_type", 48, U32),
    ("pc_mask", 52, U32),
    ("cmd_nsp_base_polling_addr", 56, U64),
    ("cmd_nsp_polling_info_size", 64, U32),
    ("cmd_nsp_polling_data", 68, U32),
    ("cmd_doorbell_addr", 72, U64),
    ("cmd_doorbell_length", 80, U8),
    ("cmd_doorbell_valid", 81, U8),
    ("nsp_mask", 82, U32),
];

const RESOURCE_GROUP: &[Field] = &[
    ("process_id", 4, Volatile(4)),
    ("source_grp_id", 8, I32),
    ("num_nsp", 12, U32),
    ("num_mcid", 16, U32),
    ("num_sem", 20, U32),
    ("num_vc", 24, U32),
    ("shddr_size", 32, U64),
    ("l2region_size", 40, U64),
    ("mem_size", 48, U64),
    ("num_networks", 56, U16),
];

const RESOURCE_INFO_REPLY: &[Field] = &[
    ("res_grp_id", 4, I32),
    ("dram_total_mb", 8, U32),
    ("dram_free_mb", 12, U32),
    ("fragmentation", 16, U32),
    ("vc_total", 20, U8),
    ("vc_free", 21, U8),
    ("nsp_total", 22, U8),
    ("nsp_free", 23, U8),
    ("mcid_total", 24, U32),
    ("mcid_free", 28, U32),
    ("sem_total", 32, U32),
    ("sem_free", 36, U32),
    ("pc_total", 40, U8),
    ("pc_reserved", 41, U8),
    ("status", 48, I32),
];

const PERFORMANCE_INFO_REPLY: &[Field] = &[
    ("status", 4, I32),
    ("nsp_hz", 8, U32),
    ("ddr_hz", 12, U32),
    ("compnoc_hz", 16, U32),
    ("memnoc_hz", 20, U32),
    ("sysnoc_hz", 24, U32),
    ("peak_compute", 32, U64),
    ("dram_bw_kb_per_s", 40, U64),
];

const STATUS_REPLY: &[Field] = &[
    ("status", 4, I32),
    ("format_version", 8, U8),
    ("fw_major", 16, U8),
    ("fw_minor", 17, U8),
    ("fw_patch", 18, U8),
    ("fw_build", 19, U8),
    ("qc_image_version", 20, Text(38)),
    ("oem_image_version", 58, Text(38)),
    ("image_variant", 96, Text(16)),
    ("hw_version", 112, U32),
    ("serial", 116, Text(16)),
    ("board_serial", 132, Text(32)),
    ("compiler_version", 164, U32),
    ("dram_total_mb", 168, U32),
    ("dram_free_mb", 172, U32),
    ("fragmentation", 176, U32),
    ("vc_total", 180, U8),
    ("vc_free", 181, U8),
    ("nsp_total", 182, U8),
    ("nsp_free", 183, U8),
    ("mcid_total", 184, U32),
    ("mcid_free", 188, U32),
    ("sem_total", 192, U32),
    ("sem_free", 196, U32),
    ("pc_total", 200, U8),
    ("pc_reserved", 201, U8),
    ("nsp_hz", 208, U32),
    ("ddr_hz", 212, U32),
    ("compnoc_hz", 216, U32),
    ("memnoc_hz", 220, U32),
    ("sysnoc_hz", 224, U32),
    ("peak_compute", 232, U64),
    ("dram_bw_kb_per_s", 240, U64),
    ("num_loaded_consts", 264, U32),
    ("num_consts_in_use", 268, U32),
    ("num_loaded_nws", 272, U8),
    ("num_active_nws", 273, U8),
    ("meta_ver_maj", 274, U16),
    ("meta_ver_min", 276, U16),
    ("nnc_major", 278, U16),
    ("nnc_minor", 280, U16),
    ("sbl_image_name", 282, Text(24)),
    ("need_reset_to_retire_pages", 306, U8),
    ("pvs_image_version", 308, U32),
    ("nsp_pgmask", 312, U64),
    ("qts_time_offset_us", 320, U64),
    ("num_retired_pages", 328, U32),
    ("sku_type", 332, U8),
    ("complex_id", 333, U8),
    ("nsp_fw_major", 336, U8),
    ("nsp_fw_minor", 337, U8),
    ("nsp_fw_patch", 338, U8),
    ("nsp_fw_build", 339, U8),
    ("nsp_qc_image_version", 344, Text(64)),
    ("nsp_oem_image_version", 408, Text(48)),
    ("nsp_image_variant", 456, Text(48)),
];
