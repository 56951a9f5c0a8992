//! Stats buffers as large as real ones: what the benches of decoding, summary and trace read.
#![allow(clippy::cast_possible_truncation)] // of numbers that are small by construction

use qaic_stats::decode::descriptor::{CoreOps, Dependency, Fingerprint, OpDesc, OpsDescriptor, VERSION};
use qaic_stats::decode::{
    Core, CoreFlags, Kind, Op, OpFlags, OpKindFlags, Port, Thread, ThreadFlags, oqstats,
};
use qaic_stats::{DeviceKind, Run, RunFlags, StatsError, StatsModel};

/// Operations of the buffer that budgets are stated for.
pub const REAL_OPS: usize = 1_300_000;

/// A card's core: four threads, and one for each of two other engines.
const THREADS: u8 = 6;
const THREAD_GROUPS: [u32; 6] = [0, 0, 0, 0, 1, 2];
const GROUPS: [&str; 3] = ["HVX", "HMX", "DMAIssue"];
const START_U: u64 = 9_803_252_406_782;

const KINDS: [(&str, u32, &str, &str); 8] = [
    ("aicconvolutiond32", 1, "TCM", "float16"),
    ("aicconverttod32", 0, "TCM", "float16"),
    ("elementadd ", 0, "TCM", "float16"),
    ("aicsoftmax", 0, "TCM", "float16, i8"),
    ("blockdequantize_mxfp6", 0, "TCM", "float16, ui8"),
    ("aiccopytovtcm", 2, "TCM", "float16"),
    ("aiccopyddr", 2, "DDR", "float16"),
    ("aicmulticastvtcm", 2, "TCM", "float16"),
];

/// The operations of a network with `ops` of them on each core, of names and shapes like those of a transformer.
pub fn descriptor(cores: u32, ops: u32) -> OpsDescriptor {
    let op = |core: u32, oc: u32| {
        let (kind, group, memory, types) = KINDS[oc as usize % KINDS.len()];
        let node = format!("/model/layers.{}/self_attn/q_proj/MatMul_{}", oc / 64, oc % 64);
        OpDesc {
            name: format!("{node}/__{oc}"),
            nodes: vec![node],
            kind: kind.to_owned(),
            group,
            memory: memory.to_owned(),
            types: types.to_owned(),
            shape: "[1 x 128 x 64]".to_owned(),
            output_bytes: u64::from(1 + oc % 96) * 1024,
            deps: (oc > 0).then(|| Dependency { core, oc: oc - 1, data: true }).into_iter().collect(),
            ..OpDesc::default()
        }
    };
    OpsDescriptor {
        version: VERSION,
        network: "QAicGraph".to_owned(),
        batch_size: 1,
        ucycles_per_ms: 19_200,
        stats_level: 70,
        op_stats_level: 70,
        groups: GROUPS.map(str::to_owned).to_vec(),
        thread_groups: THREAD_GROUPS.to_vec(),
        cores: (0..cores)
            .map(|core| CoreOps { slice: 0, ops: (0..ops).map(|oc| op(core, oc)).collect() })
            .collect(),
        ..OpsDescriptor::default()
    }
}

/// One inference with about `ops` executions of the operations of `descriptor`, on all of its threads.
pub fn model(descriptor: &OpsDescriptor, ops: usize) -> StatsModel<'static> {
    let cores = descriptor.cores.len();
    let per_thread = ops / (cores * usize::from(THREADS));
    let span = per_thread as u64 * 40 + 40;
    let mut model = StatsModel::new(Run {
        stats_level: 70,
        op_stats_level: 70,
        cores: cores as u16,
        threads_per_core: THREADS.into(),
        batch_size: 1,
        ucycle_hz: 19_200_000,
        flags: RunFlags::COMPLETE,
        device: DeviceKind::Test,
        ..Run::default()
    });
    model.set_records((0..cores as u16).map(|core| Core {
        core,
        flags: CoreFlags::PCYCLES,
        start_u: START_U,
        end_u: START_U + span,
        pcycles: span * 70,
        ..Core::default()
    }));
    let threads = || (0..cores as u16).flat_map(|core| (0..THREADS).map(move |thread| (core, thread)));
    model.set_records(threads().zip(0_u32..).map(|((core, thread), index)| Thread {
        core,
        thread,
        engine: THREAD_GROUPS[usize::from(thread)] as u8,
        flags: ThreadFlags::PCYCLES | ThreadFlags::ACTIVATION,
        start_u: START_U,
        end_u: START_U + span,
        pcycles: span * 70,
        act_start_u: START_U - 1000,
        act_end_u: START_U - 10,
        act_pcycles: 70_000,
        first_op: index * per_thread as u32,
        op_count: per_thread as u32,
    }));
    model.set_records(threads().map(|(core, thread)| Port {
        core,
        thread,
        direction: Port::IN,
        port: 100,
        wait_u: 17,
        ..Port::default()
    }));
    model.set_records(threads().flat_map(|(core, thread)| {
        let group = THREAD_GROUPS[usize::from(thread)];
        let listed = &descriptor.cores[usize::from(core)].ops;
        let mine: Vec<u32> =
            (0..).zip(listed).filter(|(_, op)| op.group == group).map(|(oc, _)| oc).collect();
        (0..per_thread).map(move |index| Op {
            oc: mine[index % mine.len()],
            core,
            thread,
            kflags: OpKindFlags::EXECUTED,
            start_u: START_U + index as u64 * 40 + 10,
            dur_u: 5 + (index as u32 * 7919) % 25,
            sync_u: 1 + index as u32 % 5,
            barrier_u: if group == 0 { 1 + index as u32 % 3 } else { 0 },
            flags: OpFlags::PCYCLES
                | OpFlags::SYNC
                | OpFlags::OUT_BYTES
                | if group == 0 { OpFlags::BARRIER } else { OpFlags::empty() },
            pcycles: (5 + (index as u64 * 7919) % 25) * 70,
            out_bytes: 1024,
            ..Op::default()
        })
    }));
    model.set(Kind::Meta, br#"{"producer":"benches"}"#.as_slice(), 1);
    model
}

/// The bytes of [`model`].
pub fn buffer(
    descriptor: &OpsDescriptor,
    fingerprint: Fingerprint,
    ops: usize,
) -> Result<Vec<u8>, StatsError> {
    oqstats::encode_to_vec(&model(descriptor, ops), fingerprint)
}
