//! An emulated card, a program that returns its input, and a record of the calls.

use super::clean_card::CleanCard;
use crate::tests::prelude::*;
use qaic_qpc::writer::{SegmentData, build_file};
use qaic_runtime::device::{Activation, Device, LoadedProgram};

pub(crate) const BYTES: u32 = 64;

/// A program with one DMA buffer in and one out, at the same address of the card's memory.
#[derive(Clone)]
pub(crate) struct CardProgramSpec {
    pub(crate) metadata: Metadata,
    pub(crate) network: NetworkDesc,
    pub(crate) constants: Vec<u8>,
    pub(crate) desc: ConstantsDesc,
    pub(crate) extra: Vec<(String, Vec<u8>)>,
    /// Plan of a program compiled for a host.
    pub(crate) plan: Option<String>,
}

impl Default for CardProgramSpec {
    fn default() -> Self {
        let request = |num, in_out| DmaRequest {
            num,
            in_out,
            size: BYTES,
            dev_addr_space: 1,
            port_id: 100 + num,
            ..DmaRequest::default()
        };
        let buffer = |dir| DmaBuffer { size: BYTES, dir };
        Self {
            metadata: Metadata {
                network_name: "handed back".to_owned(),
                dma_requests: vec![request(0, 0), request(1, 1)],
                hw_version_major: 2,
                num_nsps: 1,
                vtcm_size: 1,
                l2tcm_size: 1,
                static_shared_ddr_size: BYTES.into(),
                ..Metadata::default()
            },
            network: NetworkDesc {
                major_version: 9,
                dma_buffers: vec![buffer(Direction::In), buffer(Direction::Out)],
                num_cores: 1,
                ..NetworkDesc::default()
            },
            constants: vec![7; 256],
            desc: ConstantsDesc {
                static_constants_size: 128,
                dynamic_constants_size: 192,
                ..ConstantsDesc::default()
            },
            extra: Vec::new(),
            plan: None,
        }
    }
}

impl CardProgramSpec {
    /// A program whose output waits forever, for a semaphore that nothing increments.
    pub(crate) fn stuck() -> Self {
        let mut spec = Self::default();
        spec.metadata.num_semaphores = 1;
        spec.metadata.semaphore_init_state = vec![0];
        spec.metadata.dma_requests[1].semaphore_ops =
            vec![SemaphoreOp { sem_op: 6, pre_or_post: 1, ..SemaphoreOp::default() }];
        spec
    }

    pub(crate) fn image(&self) -> Arc<Image> {
        let metadata = self.metadata.encode_flatbuffer();
        let mut sections = vec![("metadata", &metadata[..])];
        sections.extend(self.plan.as_ref().map(|plan| ("openqaic_plan", plan.as_bytes())));
        let elf = elf::build(&sections).unwrap();
        let (network, desc) = (self.network.encode(), self.desc.encode());
        let segment = |name, offset, payload| SegmentData { name, offset, payload };
        let mut segments = vec![
            segment("constants.bin", self.desc.static_constants_size.min(96), &self.constants),
            segment("constantsdesc.bin", 0, &desc),
            segment("network.elf", 0, &elf),
            segment("networkdesc.bin", 0, &network),
        ];
        segments.extend(self.extra.iter().map(|(name, payload)| segment(name, 0, payload)));
        Image::from_bytes(build_file(&segments).unwrap()).unwrap()
    }
}

pub(crate) struct Rig {
    pub(crate) kmd: Arc<EmuKmd>,
    pub(crate) device: Arc<dyn Device>,
    // The card is dropped after the device, which keeps a file open.
    pub(crate) card: CleanCard,
    pub(crate) image: Arc<Image>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(EmuOptions::default(), &CardProgramSpec::default())
    }

    pub(crate) fn with(options: EmuOptions, spec: &CardProgramSpec) -> Self {
        let kmd = EmuKmd::new(options).unwrap();
        let mut devices = CardDevice::enumerate(&(Arc::clone(&kmd) as Arc<dyn Kmd>)).unwrap();
        let device = devices.remove(0);
        Self { card: CleanCard(kmd.control(0).unwrap()), kmd, device, image: spec.image() }
    }

    pub(crate) fn faulty(plan: &str) -> Self {
        let faults = FaultPlan::parse(plan, Target::Card).unwrap();
        Self::with(EmuOptions { faults, ..EmuOptions::default() }, &CardProgramSpec::default())
    }

    pub(crate) fn plan(&self, plan: &str) {
        self.card.set_faults(FaultPlan::parse(plan, Target::Card).unwrap());
    }

    pub(crate) fn load(&self) -> Result<Arc<dyn LoadedProgram>, RuntimeError> {
        self.device.load(&self.image, &LoadOptions::default())
    }

    pub(crate) fn activation(&self) -> Arc<dyn Activation> {
        self.load().unwrap().activate().unwrap()
    }

    /// An exec, which keeps its activation.
    pub(crate) fn exec(&self) -> Box<dyn Exec> {
        self.activation().create_exec().unwrap()
    }

    pub(crate) fn now(&self) -> Duration {
        self.kmd.clock().now()
    }
}

/// Runs an inference and compares its output.
#[track_caller]
pub(crate) fn run(exec: &mut dyn Exec, value: u8) -> Result<(), RuntimeError> {
    exec.reclaim(&mut || false)?;
    exec.dma_buffer(0).unwrap().fill(value);
    exec.execute()?;
    assert_eq!(exec.dma_buffer(1).unwrap().as_const().to_vec(), [value; BYTES as usize]);
    Ok(())
}
