//! Execution of images by the cores of emulated cards, driven by a data path of a few lines: transfers in
//! their order, semaphores as in the metadata, memory at the addresses of the card.

use std::collections::VecDeque;

use crate::tests::prelude::*;
use proptest::prelude::*;
use qaic_emu::{CoreView, DeviceMemory, Images, Progress, Running, Semaphores, Workload};
use qaic_kmd::protocol::NncStatus;
use qaic_qpc::metadata::DoorbellOp;
use qaic_runtime::device::emulated_cores::{EchoWorkload, GraphWorkload};

const MEMORY_BYTES: u64 = 64 << 20;
const DDR_BASE: u64 = 0x12_3456_0000;
const MCID_BASE: u64 = 0x80_0000_0000;

/// Images of a program with these sections in addition to the metadata.
fn images(metadata: &Metadata, sections: &[(&str, &[u8])]) -> Images {
    let metadata = metadata.encode_flatbuffer();
    let all: Vec<_> = [("metadata_fb", metadata.as_slice())].iter().chain(sections).copied().collect();
    Images {
        elf: elf::build(&all).unwrap().into(),
        elf_id: 1,
        constants: Arc::from([]),
        constants_id: 0,
        ddr_base: DDR_BASE,
        mcid_base: MCID_BASE,
    }
}

/// The data path of one activation.
struct Card {
    running: Box<dyn Running>,
    semaphores: Semaphores,
    memory: DeviceMemory,
    requests: Vec<DmaRequest>,
}

impl Card {
    fn new(
        workload: &dyn Workload,
        metadata: &Metadata,
        sections: &[(&str, &[u8])],
    ) -> Result<Self, NncStatus> {
        let mut card = Self {
            running: workload.activate(&images(metadata, sections))?,
            semaphores: Semaphores::default(),
            memory: DeviceMemory::detached(MEMORY_BYTES),
            requests: metadata.dma_requests.clone(),
        };
        let mut doorbells = VecDeque::new();
        card.running.begin(&mut CoreView {
            semaphores: &mut card.semaphores,
            memory: &mut card.memory,
            doorbells: &mut doorbells,
        });
        Ok(card)
    }

    fn advance(&mut self) -> Progress {
        let mut doorbells = VecDeque::new();
        self.running.advance(&mut CoreView {
            semaphores: &mut self.semaphores,
            memory: &mut self.memory,
            doorbells: &mut doorbells,
        })
    }

    /// Executes the requests of an inference in `pieces` pieces each; returns false if one waits forever.
    fn infer(&mut self, buffers: &mut [Vec<u8>], pieces: usize) -> bool {
        let is_strict = self.running.honors_semaphores();
        let mut has_run = false;
        for request in self.requests.clone() {
            if !is_strict && request.in_out == 1 && !has_run {
                has_run = true;
                assert_eq!(self.advance(), Progress::Worked);
            }
            let before = request.semaphore_ops.iter().filter(|op| op.pre_or_post == 1);
            for op in before.cycle().take(pieces * usize::from(is_strict)) {
                let index = u8::try_from(op.sem_num).unwrap();
                let goes_on = match op.sem_op {
                    5 => self.semaphores.get(index) >= op.sem_value,
                    6 => self.semaphores.take(index),
                    other => panic!("operation {other}"),
                };
                if !goes_on {
                    return false;
                }
            }
            let window = u64::from(request.mc_id) * 0x80_0000;
            let base = if request.dev_addr_space == 1 { DDR_BASE } else { MCID_BASE + window };
            let address = base + request.dev_offset;
            let start = usize::try_from(request.host_offset).unwrap();
            let host = &mut buffers[usize::from(request.num)][start..start + request.size as usize];
            if request.in_out == 0 {
                self.memory.write(address, host).unwrap();
            } else {
                self.memory.read(address, host);
            }
            for op in request.semaphore_ops.iter().filter(|op| is_strict && op.pre_or_post == 0) {
                let index = u8::try_from(op.sem_num).unwrap();
                match op.sem_op {
                    2 => self.semaphores.increment(index),
                    3 => self.semaphores.decrement(index),
                    other => panic!("operation {other}"),
                }
            }
            if is_strict {
                while self.advance() == Progress::Worked {}
            }
        }
        true
    }
}

/// A program whose buffers are moved in one or two requests each.
#[derive(Clone, Debug)]
struct Shape {
    inputs: Vec<(usize, usize)>,
    outputs: Vec<(usize, usize)>,
    numbers: (u16, u16),
    is_strict: bool,
    is_multicast: bool,
}

fn shape() -> impl Strategy<Value = Shape> {
    // Number of bytes, and the position at which the buffer is divided.
    let buffer = || (1..5000_usize, 0..5000_usize);
    let numbers = (0..32_u16, 0..32_u16).prop_filter("one for each side", |(first, second)| first != second);
    (
        prop::collection::vec(buffer(), 0..4),
        prop::collection::vec(buffer(), 1..4),
        numbers,
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(inputs, outputs, numbers, is_strict, is_multicast)| Shape {
            inputs,
            outputs,
            numbers,
            is_strict,
            is_multicast,
        })
}

fn op(sem_num: u16, sem_op: u8, pre_or_post: u8) -> SemaphoreOp {
    SemaphoreOp { sem_num, sem_op, pre_or_post, sem_value: 1, ..SemaphoreOp::default() }
}

impl Shape {
    fn metadata(&self) -> Metadata {
        let mut end = 0;
        let mut requests = Vec::new();
        let sides = [(0, &self.inputs, 0), (1, &self.outputs, self.inputs.len())];
        for (in_out, buffers, first) in sides {
            let begin = requests.len();
            for (number, (bytes, cut)) in (first..).zip(buffers) {
                let cut = cut % bytes;
                for (start, size) in [(0, cut), (cut, bytes - cut)].into_iter().filter(|(_, size)| *size > 0)
                {
                    requests.push(DmaRequest {
                        num: u16::try_from(number).unwrap(),
                        host_offset: start as u64,
                        dev_offset: end,
                        size: u32::try_from(size).unwrap(),
                        in_out,
                        dev_addr_space: u8::from(!self.is_multicast),
                        mc_id: if self.is_multicast { 2 } else { 0 },
                        ..DmaRequest::default()
                    });
                    end += size as u64 + 13;
                }
            }
            if requests.len() == begin {
                requests.push(DmaRequest { in_out, ..DmaRequest::default() });
            }
            let (arrival, release) = self.numbers;
            if in_out == 0 {
                requests.last_mut().unwrap().semaphore_ops = vec![op(arrival, 2, 0)];
            } else {
                requests[begin].semaphore_ops = vec![op(release, 5, 1), op(release, 3, 0)];
            }
        }
        if !self.is_strict {
            // Nothing outside of the program uses this value.
            requests[0].doorbell_ops = vec![DoorbellOp::default()];
        }
        Metadata { network_name: "n".into(), dma_requests: requests, num_nsps: 1, ..Metadata::default() }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Compares several consecutive inferences with the rule of the `noop` device.
    #[test]
    fn echo_of_any_program_repeats_the_input_bytes(
        shape in shape(), seeds in prop::collection::vec(any::<u8>(), 1..4), pieces in 1..4_usize,
    ) {
        let metadata = shape.metadata();
        // Without a plan, the other workload treats the program as one for silicon.
        let workloads: [&dyn Workload; 2] = [&EchoWorkload, &GraphWorkload::new(Vec::new())];
        for workload in workloads {
            let mut card = Card::new(workload, &metadata, &[]).unwrap();
            prop_assert_eq!(card.running.honors_semaphores(), shape.is_strict);
            let mut buffers: Vec<Vec<u8>> =
                shape.inputs.iter().chain(&shape.outputs).map(|(bytes, _)| vec![0; *bytes]).collect();
            for seed in &seeds {
                let (inputs, outputs) = buffers.split_at_mut(shape.inputs.len());
                inputs.iter_mut().flatten().zip(0_u32..).for_each(|(byte, at)| *byte = at.to_le_bytes()[0] ^ seed);
                for output in outputs {
                    output.fill(0xEE);
                }
                let source: Vec<u8> = inputs.concat();
                prop_assert!(card.infer(&mut buffers, pieces));
                let found = buffers[shape.inputs.len()..].concat();
                let repeated = source.iter().copied().cycle().chain(std::iter::repeat(0)).take(found.len());
                let expected: Vec<u8> = if source.is_empty() { vec![0; found.len()] } else { repeated.collect() };
                prop_assert_eq!(found, expected);
            }
            prop_assert_eq!(&card.semaphores, &Semaphores::default());
        }
    }

    /// Any plan with any metadata is refused or runs to an end, without a panic.
    #[test]
    fn program_of_any_plan_and_metadata_is_refused_or_ends(
        shape in shape(), plan in "\\PC{0,40}", places in prop::collection::vec((0..6_usize, any::<u64>()), 0..3),
        control in prop::option::of(0..9_usize), space in 0..3_u8, number in any::<u16>(),
    ) {
        let mut metadata = shape.metadata();
        metadata.dma_requests[0].dev_addr_space = space;
        metadata.dma_requests[0].semaphore_ops.push(op(number, space % 9, space % 2));
        let edges = r#"[{"name":"x","dtype":"float32","dims":[-1,9223372036854775807]}]"#;
        let stats = r#"{"level":18446744073709551615,"buffer":3,"fingerprint":"-"}"#;
        let text = format!(
            r#"{{"version":1,"target":"cpu","inputs":{edges},"outputs":[],"initializers":[],"stats":{stats},
            "places":{{"inputs":{places:?},"outputs":[]}},"control_buffer":{}}}"#,
            control.map_or("null".to_owned(), |number| number.to_string())
        ).replace('(', "[").replace(')', "]");
        for json in [plan, text] {
            let sections = [("openqaic_plan", json.as_bytes()), ("openqaic_graph", b"g".as_slice())];
            prop_assert!(Card::new(&GraphWorkload::new(Vec::new()), &metadata, &sections).is_err());
            if let Ok(mut card) = Card::new(&EchoWorkload, &metadata, &sections) {
                card.advance();
            }
        }
    }
}

fn small() -> Metadata {
    let shape = Shape {
        inputs: vec![(64, 0)],
        outputs: vec![(64, 0)],
        numbers: (0, 1),
        is_strict: true,
        is_multicast: false,
    };
    shape.metadata()
}

#[test]
fn requirements_of_a_program_are_those_of_its_metadata() {
    let metadata = Metadata {
        num_nsps: 4,
        num_semaphores: 7,
        static_shared_ddr_size: 100,
        dynamic_shared_ddr_size: 20,
        network_heap_size: 3,
        ..small()
    };
    let demand = EchoWorkload.requirements(&images(&metadata, &[]).elf).unwrap();
    assert_eq!(GraphWorkload::new(Vec::new()).requirements(&images(&metadata, &[]).elf), Ok(demand));
    assert_eq!((demand.cores, demand.semaphores, demand.multicast_ids), (4, 7, 0));
    assert_eq!((demand.ddr_bytes, demand.image_bytes), (132, 0));
    assert_eq!(EchoWorkload.requirements(b"no ELF"), Err(NncStatus(-5)));
}

#[test]
fn program_of_an_older_compiler_is_refused() {
    let metadata = Metadata { dma_requests: Vec::new(), ..small() };
    assert_eq!(Card::new(&EchoWorkload, &metadata, &[]).err(), Some(NncStatus::METADATA));
    let plan = br#"{"version":1,"target":"cpu","inputs":[],"outputs":[],"initializers":[]}"#;
    let sections = [("openqaic_plan", plan.as_slice())];
    assert_eq!(
        Card::new(&GraphWorkload::new(Vec::new()), &metadata, &sections).err(),
        Some(NncStatus::METADATA)
    );
    assert_eq!(
        Card::new(&GraphWorkload::new(Vec::new()), &small(), &sections).err(),
        Some(NncStatus::PROGRAM_ELF)
    );
}

#[test]
fn cores_without_memory_crash() {
    let mut card = Card::new(&EchoWorkload, &small(), &[]).unwrap();
    card.memory.write(DDR_BASE, &[1; 64]).unwrap();
    let written = card.memory;
    card.memory = DeviceMemory::detached(0);
    card.semaphores.increment(0);
    assert_eq!(card.advance(), Progress::Crashed);
    card.memory = written;
    assert_eq!(card.advance(), Progress::Idle);
}

#[test]
fn echo_with_statistics_leaves_out_the_control_buffer() {
    let mut metadata = small();
    let in_request = metadata.dma_requests[0].clone();
    // Buffer 2 contains the statistics; buffer 3 is the control buffer.
    let stats_bytes = 4480;
    metadata.dma_requests.push(DmaRequest {
        num: 2,
        size: stats_bytes,
        dev_offset: 1000,
        semaphore_ops: Vec::new(),
        ..metadata.dma_requests[1].clone()
    });
    metadata.dma_requests[0].semaphore_ops.clear();
    metadata.dma_requests.insert(1, DmaRequest { num: 3, dev_offset: 6000, ..in_request });
    let plan = br#"{"version":1,"target":"cpu","inputs":[],"outputs":[],"initializers":[],"control_buffer":3,"stats":{"level":40,"buffer":2,"batch_size":2,
        "fingerprint":"00112233445566778899aabbccddeeff"}}"#;
    let mut card = Card::new(&EchoWorkload, &metadata, &[("openqaic_plan", plan)]).unwrap();
    let mut control = vec![0; 64];
    control[..4].copy_from_slice(&0x5143_4F43_u32.to_le_bytes());
    control[12] = 9;
    let mut buffers = vec![vec![7; 64], vec![0; 64], vec![0; stats_bytes as usize], control];
    assert!(card.infer(&mut buffers, 1));
    assert_eq!(buffers[1], [7; 64]);
    assert_eq!(buffers[2], vec![7; stats_bytes as usize]);
    buffers[3][8] = 1;
    assert!(card.infer(&mut buffers, 1));
    assert_eq!(&buffers[2][..8], b"OQSTATS1");
    let fingerprint = qaic_stats::decode::oqstats::fingerprint_of(&buffers[2]).unwrap();
    assert_eq!(fingerprint[..3], [0x00, 0x11, 0x22]);
    buffers[3][0] ^= 1;
    buffers[2].fill(7);
    assert!(card.infer(&mut buffers, 1));
    assert_eq!(buffers[2], vec![7; stats_bytes as usize]);
}
