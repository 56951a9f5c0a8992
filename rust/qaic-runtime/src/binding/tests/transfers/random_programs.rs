//! Compares transferred data byte by byte: converted, transposed, truncated, padded, retained, in boxes, at any
//! address, and in the memory of another tensor.

use std::sync::Arc;

use super::super::echo_model::model::Call;
use super::super::echo_model::{Echo, Model, calls, programs};
use crate::echo::noop;
use proptest::prelude::*;
use qaic_runtime::device::{DeviceId, Placement, RegistryOptions};
use qaic_runtime::process::WaitScope;
use qaic_runtime::request::ExecObj;
use qaic_runtime::{Context, Image, Program, ProgramOptions};

/// Runs the inferences one after the other on one exec object, or one on each of several.
fn check(
    context: &Arc<Context>,
    image: &Arc<Image>,
    model: &mut Model,
    calls: &[Call],
) -> Result<(), TestCaseError> {
    let place = Placement::one(DeviceId(0));
    let program = Program::new(context, image, &place, &ProgramOptions::default()).unwrap();
    let exec = ExecObj::new(&program, true).unwrap();
    for call in calls {
        let expected = exec.bind(|bindings| model.bind(call, bindings)).unwrap();
        exec.run(&mut WaitScope::default()).unwrap();
        for array in expected {
            array.check()?;
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn data_on_a_device_that_computes_on_the_calling_thread_arrive(program in programs(), calls in calls()) {
        let mut model = Model::new(&program, Echo::DmaBuffers);
        check(&noop(RegistryOptions::default()), &program.image(), &mut model, &calls)?;
    }
}

#[cfg(all(feature = "cpu", feature = "emu"))]
proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn data_on_a_card_arrive(program in programs(), calls in calls()) {
        use qaic_emu::{EmuKmd, EmuOptions};
        use qaic_kmd::Kmd;
        use qaic_runtime::device::emulated_cores::EchoWorkload;

        let options = EmuOptions { workload: Arc::new(EchoWorkload), ..EmuOptions::default() };
        let emulator = EmuKmd::new(options).unwrap();
        let context = Context::of_cards(&(Arc::clone(&emulator) as Arc<dyn Kmd>)).unwrap();
        let mut model = Model::new(&program, Echo::DmaBuffers);
        check(&context, &program.card_image(), &mut model, &calls)?;
    }
}
