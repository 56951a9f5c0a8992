//! Programs in the form of the compiler, from the container through the driver's calls and the data path to the cores and
//! back: every buffer is complete, in any order of inferences and at any host address.
//!
//! The cores echo. The Python tests, which have the engine, compare the results of graphs with those of
//! virtual cards.

use crate::echo::{container, synchronized_metadata};
use crate::tests::prelude::*;
use proptest::prelude::*;
use qaic_emu::{EmuClock, ExecutionMode, Totals};
use qaic_qpc::Stats;
use qaic_runtime::device::emulated_cores::GraphWorkload;
use qaic_runtime::device::{Device, HostTensors};
use qaic_runtime::profiling::{Identity, Stages};

/// Buffers of a program: the sizes of each side, and whether it has statistics and a control buffer.
#[derive(Clone, Debug)]
struct Shape {
    inputs: Vec<u32>,
    outputs: Vec<u32>,
    has_stats: bool,
}

const STATS_BYTES: u32 = 4480;
const CONTROL_BYTES: u32 = 64;

fn shape() -> impl Strategy<Value = Shape> {
    let sizes = |range| prop::collection::vec((1..40_u32).prop_map(|blocks| blocks * 64 * 7), range);
    (sizes(1..4), sizes(1..4), any::<bool>()).prop_map(|(inputs, outputs, has_stats)| Shape {
        inputs,
        outputs,
        has_stats,
    })
}

impl Shape {
    /// Sizes and directions by number: inputs, outputs, statistics, control.
    fn buffers(&self) -> Vec<DmaBuffer> {
        let side =
            |sizes: &[u32], dir| sizes.iter().map(move |&size| DmaBuffer { size, dir }).collect::<Vec<_>>();
        let mut buffers = side(&self.inputs, Direction::In);
        buffers.extend(side(&self.outputs, Direction::Out));
        if self.has_stats {
            buffers.push(DmaBuffer { size: STATS_BYTES, dir: Direction::Out });
            buffers.push(DmaBuffer { size: CONTROL_BYTES, dir: Direction::In });
        }
        buffers
    }

    fn stats(&self) -> usize {
        self.inputs.len() + self.outputs.len()
    }

    fn image(&self) -> Arc<Image> {
        self.image_with(|_| ())
    }

    fn image_with(&self, change: impl FnOnce(&mut Metadata)) -> Arc<Image> {
        let buffers = self.buffers();
        let mut metadata = Metadata { num_nsps: 2, ..synchronized_metadata(&buffers) };
        change(&mut metadata);
        let plan = format!(
            r#"{{"version":1,"target":"cpu","inputs":[],"outputs":[],"initializers":[],"control_buffer":{},"stats":{{"level":50,"buffer":{},"fingerprint":"{}"}}}}"#,
            self.stats() + 1,
            self.stats(),
            "5a".repeat(16)
        );
        let mut sections = vec![("metadata_fb", metadata.encode_flatbuffer())];
        if self.has_stats {
            sections.push(("openqaic_plan", plan.into_bytes()));
        }
        let sections: Vec<_> = sections.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
        let stats = self.has_stats.then(|| Stats {
            buff_num: u32::try_from(self.stats()).unwrap(),
            stats_level: 50,
            ..Stats::default()
        });
        let network = NetworkDesc {
            network_name: "n".into(),
            num_cores: 2,
            dma_buffers: buffers,
            stats,
            ..NetworkDesc::default()
        };
        container(&network, &sections)
    }
}

/// All data is transferred as late as its fences permit.
fn late_dma() -> FaultPlan {
    FaultPlan::parse("inference@1=late_dma*all", Target::Card).unwrap()
}

struct Cards {
    emulator: Arc<EmuKmd>,
    device: Arc<dyn Device>,
}

impl Cards {
    fn new(options: EmuOptions) -> Self {
        let workload = Arc::new(qaic_runtime::device::emulated_cores::EchoWorkload);
        let emulator = EmuKmd::new(EmuOptions { workload, ..options }).unwrap();
        Self::of(emulator)
    }

    fn of(emulator: Arc<EmuKmd>) -> Self {
        let kmd: Arc<dyn Kmd> = emulator.clone();
        let device = CardDevice::enumerate(&kmd).unwrap().remove(0);
        Self { emulator, device }
    }

    /// Checks the card after everything was dropped.
    fn check(self) {
        drop(self.device);
        assert_eq!(self.emulator.control(0).unwrap().invariants(), Vec::<String>::new());
    }
}

fn execs(device: &dyn Device, shape: &Shape, count: usize) -> Result<Vec<Box<dyn Exec>>, RuntimeError> {
    let activation = device.load(&shape.image(), &LoadOptions::default())?.activate()?;
    (0..count).map(|_| activation.create_exec()).collect()
}

fn fill(exec: &mut dyn Exec, shape: &Shape, seed: u8) -> Vec<u8> {
    let mut source = Vec::new();
    for (index, size) in shape.inputs.iter().enumerate() {
        let bytes: Vec<u8> = (0..*size).map(|at| at.to_le_bytes()[0].wrapping_mul(31) ^ seed).collect();
        exec.dma_buffer(index).unwrap().write_from(0, &bytes).unwrap();
        source.extend(bytes);
    }
    source
}

fn outputs(exec: &mut dyn Exec, shape: &Shape) -> Vec<u8> {
    let range = shape.inputs.len()..shape.stats();
    range.flat_map(|index| exec.dma_buffer(index).unwrap().as_const().to_vec()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn inferences_in_any_order_have_their_own_bytes(
        shape in shape(), seeds in prop::collection::vec(any::<u8>(), 1..5), threads in any::<bool>(),
        fragment_pages in 1..4_u64, is_late in any::<bool>(),
    ) {
        let cards = Cards::new(EmuOptions {
            execution_mode: if threads { ExecutionMode::Threads } else { ExecutionMode::Inline },
            clock: if threads { EmuClock::System(qaic_kmd::SystemClock::default()) } else { EmuClock::default() },
            fragment_bytes: fragment_pages * 4096,
            faults: if is_late { late_dma() } else { FaultPlan::default() },
            ..EmuOptions::default()
        });
        let mut execs = execs(&*cards.device, &shape, seeds.len()).unwrap();
        for round in 0..2_u8 {
            let sources: Vec<_> = execs
                .iter_mut()
                .zip(&seeds)
                .map(|(exec, seed)| {
                    let source = fill(&mut **exec, &shape, seed ^ round);
                    exec.submit().unwrap();
                    source
                })
                .collect();
            for (exec, source) in execs.iter_mut().zip(sources) {
                exec.execute().unwrap();
                let found = outputs(&mut **exec, &shape);
                let expected: Vec<u8> = source.into_iter().cycle().take(found.len()).collect();
                prop_assert!(found == expected, "round {round}");
            }
        }
        drop(execs);
        cards.check();
    }
}

/// The inputs signal their arrival after the last of them. Without a fence, the cores begin with the earlier
/// contents.
#[test]
fn late_data_shows_a_missing_or_exchanged_fence() {
    let shape = Shape { inputs: vec![448, 896], outputs: vec![1344], has_stats: false };
    for (in_sync_fence, out_sync_fence) in [(1, 0), (0, 0), (0, 1)] {
        let image = shape.image_with(|metadata| {
            let there = &mut metadata.dma_requests[1].semaphore_ops[0];
            (there.in_sync_fence, there.out_sync_fence) = (in_sync_fence, out_sync_fence);
        });
        let cards = Cards::new(EmuOptions { faults: late_dma(), ..EmuOptions::default() });
        let activation = cards.device.load(&image, &LoadOptions::default()).unwrap().activate().unwrap();
        let mut exec = activation.create_exec().unwrap();
        for seed in 1..4 {
            let source = fill(&mut *exec, &shape, seed);
            exec.execute().unwrap();
            let is_right = outputs(&mut *exec, &shape) == source;
            assert_eq!(
                is_right,
                in_sync_fence == 1,
                "fences {in_sync_fence} {out_sync_fence}, inference {seed}"
            );
        }
        drop((exec, activation));
        cards.check();
    }
}

/// The cores overwrite the outputs of the previous inference. Without a fence, the host gets the later
/// outputs twice.
#[test]
fn late_outputs_of_inferences_in_flight_show_a_missing_fence() {
    let shape = Shape { inputs: vec![448, 896], outputs: vec![448, 896], has_stats: false };
    for out_sync_fence in [0, 1] {
        let image = shape.image_with(|metadata| {
            metadata.dma_requests[1].semaphore_ops[0].out_sync_fence = out_sync_fence;
        });
        let cards = Cards::new(EmuOptions { faults: late_dma(), ..EmuOptions::default() });
        let activation = cards.device.load(&image, &LoadOptions::default()).unwrap().activate().unwrap();
        let mut execs: Vec<_> = (0..3).map(|_| activation.create_exec().unwrap()).collect();
        let mut sources = Vec::new();
        for (seed, exec) in (1..).zip(&mut execs) {
            sources.push(fill(&mut **exec, &shape, seed));
            exec.submit().unwrap();
        }
        let is_right = execs.iter_mut().zip(sources).map(|(exec, source)| {
            exec.execute().unwrap();
            outputs(&mut **exec, &shape) == source
        });
        let is_right: Vec<_> = is_right.collect();
        // No inference follows the last one.
        let is_fenced = out_sync_fence == 1;
        assert_eq!(is_right, [is_fenced, is_fenced, true], "fence {out_sync_fence}");
        drop((execs, activation));
        cards.check();
    }
}

#[test]
fn announced_inference_is_measured_and_no_other() {
    let shape = Shape { inputs: vec![64], outputs: vec![64], has_stats: true };
    let cards = Cards::new(EmuOptions::default());
    let mut execs = execs(&*cards.device, &shape, 1).unwrap();
    let exec = &mut *execs[0];
    fill(exec, &shape, 1);
    let stages = Stages { begun_ns: 1_000, inputs_ready_ns: 2_000, ..Stages::default() };
    let mut run = |identity: Option<Identity>| {
        exec.dma_buffer(shape.stats()).unwrap().fill(0);
        if let Some(identity) = identity {
            exec.identify(identity);
            exec.measure(&mut HostTensors::none()).unwrap();
        }
        exec.execute().unwrap();
        if let Some(identity) = identity {
            exec.write_stats(&stages, identity).unwrap();
        }
        exec.dma_buffer(shape.stats()).unwrap().as_const().to_vec()
    };
    let is_measured = |bytes: &[u8]| bytes.starts_with(b"OQSTATS1");
    assert!(!is_measured(&run(None)));
    let identity = Identity { program: 3, activation: 4, inference: 1 << 40 };
    let bytes = run(Some(identity));
    assert!(is_measured(&bytes));
    let header = qaic_stats::decode::oqstats::Header::read(&bytes).unwrap();
    let run_of = header.run;
    assert_eq!((run_of.program, run_of.activation, run_of.inference), (3, 4, 1 << 40));
    assert_eq!(header.fingerprint, [0x5A; 16]);
    assert!(!is_measured(&run(None)));
    drop(execs);
    cards.check();
}

#[test]
fn program_refused_by_the_cores_leaves_nothing_on_the_card() {
    // Its plan names the host as the target, but contains nothing that a host can run.
    let shape = Shape { inputs: vec![64], outputs: vec![64], has_stats: true };
    let workload = Arc::new(GraphWorkload::new(Vec::new()));
    let cards = Cards::of(EmuKmd::new(EmuOptions { workload, ..EmuOptions::default() }).unwrap());
    let refused = execs(&*cards.device, &shape, 1).unwrap_err();
    assert!(refused.to_string().contains("-46"), "{refused}");
    cards.check();
}

#[test]
fn inference_whose_cores_fail_ends_with_its_channel() {
    let shape = Shape { inputs: vec![64], outputs: vec![64], has_stats: false };
    // The output is at an address without memory, which the metadata does not show.
    let image = shape.image_with(|metadata| {
        metadata.static_shared_ddr_size = 0;
        metadata.num_nsps = 1;
        metadata.dma_requests[1].dev_offset = 1 << 24;
    });
    let firmware = FirmwareConfig {
        totals: Totals { ddr_bytes: 1 << 20, ..Totals::default() },
        ..FirmwareConfig::default()
    };
    let cards = Cards::new(EmuOptions { firmware, ..EmuOptions::default() });
    let program = cards.device.load(&image, &LoadOptions::default()).unwrap();
    // Pages of other activations leave no memory for the last one.
    let mut execs: Vec<_> = (0..10).map(|_| program.activate().unwrap().create_exec().unwrap()).collect();
    let outcomes: Vec<_> = execs.iter_mut().map(|exec| exec.execute()).collect();
    let lost = outcomes
        .iter()
        .filter(|outcome| matches!(outcome, Err(error) if matches!(error.detail(), ErrorDetail::Card(CardError::ChannelLost { .. }))))
        .count();
    assert_eq!(
        lost + outcomes.iter().filter(|outcome| outcome.is_ok()).count(),
        outcomes.len(),
        "{outcomes:?}"
    );
    assert!(lost > 0 && outcomes[0].is_ok(), "{outcomes:?}");
    drop((execs, program));
    cards.check();
}
