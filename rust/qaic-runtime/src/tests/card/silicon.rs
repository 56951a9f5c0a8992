//! Differences between cards of silicon and emulated cards.

use crate::tests::prelude::*;
use qaic_qpc::{IoDescriptor, IoShapes, TensorShape};
use qaic_runtime::profiling::Identity;

/// First word of a control buffer.
const MAGIC: u32 = 0x5143_4F43;

/// An emulated kernel that reports its cards as real, and has no events.
#[derive(Debug)]
struct Silicon(Arc<EmuKmd>);

impl Kmd for Silicon {
    fn name(&self) -> &'static str {
        "silicon"
    }

    fn enumerate(&self) -> Result<Vec<NodeInfo>, Errno> {
        self.0.enumerate()
    }

    fn open(&self, node: &NodeInfo) -> Result<Arc<dyn AccelFile>, Errno> {
        self.0.open(node)
    }

    fn events(&self) -> Result<Box<dyn EventSource>, Errno> {
        Err(Errno::ACCESS)
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }
}

fn silicon(spec: &CardProgramSpec) -> Rig {
    let firmware = FirmwareConfig { qc_image: "AIC.1.20".into(), ..FirmwareConfig::default() };
    behind_the_mainline_driver(EmuOptions { firmware, ..EmuOptions::default() }, spec)
}

/// A card whose driver does not report the kind of the card.
fn behind_the_mainline_driver(options: EmuOptions, spec: &CardProgramSpec) -> Rig {
    let mut rig = Rig::with(options, spec);
    let kernel: Arc<dyn Kmd> = Arc::new(Silicon(Arc::clone(&rig.kmd)));
    rig.device = CardDevice::enumerate(&kernel).unwrap().remove(0);
    rig
}

/// A plan with these entries.
fn planned(entries: &str) -> String {
    let rest = r#""version": 1, "target": "cpu", "inputs": [], "outputs": [], "initializers": []"#;
    format!("{{{rest}{entries}}}")
}

#[test]
fn program_for_a_host_is_refused() {
    let spec = CardProgramSpec { plan: Some(planned("")), ..CardProgramSpec::default() };
    let rig = silicon(&spec);
    let error = rig.load().unwrap_err();
    assert_eq!((error.code(), rig.device.id()), ("device.wrong_target", DeviceId(0)));
    // A card accepts the program if its driver or its firmware reports that the card is emulated.
    for make in [Rig::with, behind_the_mainline_driver] {
        let emulated = make(EmuOptions::default(), &spec);
        emulated.load().map(drop).unwrap();
    }
}

#[test]
fn loss_without_an_event_is_noticed() {
    let rig = silicon(&CardProgramSpec::default());
    let program = rig.load().unwrap();
    let activation = program.activate().unwrap();
    let mut exec = activation.create_exec().unwrap();
    run(&mut *exec, 1).unwrap();
    rig.card.reset();
    assert_eq!(run(&mut *exec, 2).unwrap_err().code(), "device.lost");
    rig.card.hurry();
    assert_eq!(program.activate().unwrap_err().code(), "device.lost");
    drop((exec, activation, program));
    run(&mut *rig.exec(), 3).unwrap();
}

/// A program with two permitted combinations of shapes, the second of which is that of its bindings.
fn shaped() -> CardProgramSpec {
    let mut spec = CardProgramSpec::default();
    let dims = |count: i32| vec![1, count];
    let tensor =
        |count| IoDescriptor { dtype: ElementType::Float32, dims: dims(count), ..IoDescriptor::default() };
    let binding = IoBinding { io_initial: tensor(16), io_transformed: tensor(16), ..IoBinding::default() };
    spec.network.inputs = vec![binding.clone()];
    spec.network.outputs = vec![binding];
    let shape = |count| TensorShape { dtype: ElementType::Float32, dims: dims(count) };
    let entry = |count| IoShapes { shapes: vec![shape(count), shape(count)] };
    spec.network.allowed_shapes = vec![entry(8), entry(16)];
    spec
}

#[test]
fn card_with_other_shapes_than_the_bindings_refuses() {
    let rig = silicon(&shaped());
    let mut exec = rig.exec();
    assert_eq!(run(&mut *exec, 1).unwrap_err().code(), "input.no_matching_shape");
    exec.select_shapes(1).unwrap();
    run(&mut *exec, 2).unwrap();
    exec.select_shapes(0).unwrap();
    assert_eq!(run(&mut *exec, 3).unwrap_err().code(), "input.no_matching_shape");
}

#[test]
fn control_buffer_has_shapes_and_measuring() {
    let mut spec = shaped();
    spec.plan = Some(planned(r#", "control_buffer": 2"#));
    // The output is read from this address, which contains the data of the cores.
    let control = DmaRequest { num: 2, ..spec.metadata.dma_requests[0].clone() };
    spec.metadata.dma_requests.insert(1, control);
    spec.network.dma_buffers.push(DmaBuffer { size: 64, dir: Direction::In });
    let rig = Rig::with(EmuOptions::default(), &spec);
    let activation = rig.activation();
    let mut exec = activation.create_exec().unwrap();
    let received = |exec: &mut dyn Exec| {
        exec.execute().unwrap();
        let bytes = exec.dma_buffer(1).unwrap().as_const().to_vec();
        let (words, _) = bytes.as_chunks::<4>();
        words[..8].iter().map(|word| u32::from_le_bytes(*word)).collect::<Vec<_>>()
    };
    assert_eq!(received(&mut *exec), [MAGIC, 0, 0, 0, 0, 0, 0, 0]);
    exec.select_shapes(1).unwrap();
    exec.identify(Identity { program: 3, activation: 4, inference: 5 << 32 | 6 });
    exec.measure(&mut qaic_runtime::device::HostTensors::none()).unwrap();
    assert_eq!(received(&mut *exec), [MAGIC, 1, 1, 3, 4, 0, 6, 5]);
    // Only one inference is measured.
    assert_eq!(received(&mut *exec)[..3], [MAGIC, 1, 0]);
}

#[test]
fn bad_control_buffer_is_refused() {
    let numbers = [r#", "control_buffer": 2"#, r#", "control_buffer": "2""#].map(planned);
    for plan in numbers.into_iter().chain(["no plan".to_owned()]) {
        let spec = CardProgramSpec { plan: Some(plan.clone()), ..CardProgramSpec::default() };
        let rig = Rig::with(EmuOptions::default(), &spec);
        let error = rig.device.load(&rig.image, &LoadOptions::default()).unwrap_err();
        assert_eq!(error.code(), "program.transfers", "{plan}");
    }
}

#[test]
fn program_of_several_devices_is_refused() {
    let spec = CardProgramSpec { plan: Some(planned(r#", "devices": 2"#)), ..CardProgramSpec::default() };
    let rig = Rig::with(EmuOptions::default(), &spec);
    assert_eq!(rig.device.partitions(&rig.image).unwrap_err().code(), "device.wrong_target");
    let rig = Rig::new();
    assert_eq!(rig.device.partitions(&rig.image).unwrap(), Some(1));
}
