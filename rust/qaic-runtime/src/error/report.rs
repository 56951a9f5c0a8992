//! Class, figures and advice of every error.

use std::io;

use qaic_qpc::error::ErrorReport;

use super::{CardError, DeviceError, EngineError, ErrorDetail, InputError, RuntimeError, StateError};
use crate::binding::{ArgumentError, ShapeError};

impl RuntimeError {
    /// Returns the error's details other than its code and its message.
    pub fn report(&self) -> ErrorReport {
        match self.detail() {
            ErrorDetail::Qpc(source) => source.report(),
            ErrorDetail::Device(source) => device(source),
            ErrorDetail::Card(source) => card(source),
            ErrorDetail::Engine(source) => engine(source),
            ErrorDetail::Input(source) => input(source),
            ErrorDetail::State(source) => state(source),
            ErrorDetail::Io { .. } => ErrorReport::of("OSError"),
            ErrorDetail::Timeout { timeout_ms, .. } => {
                ErrorReport::of("DeviceTimeoutError").with("timeout_ms", timeout_ms)
            }
            ErrorDetail::Interrupted => ErrorReport::of("KeyboardInterrupt"),
            ErrorDetail::Cancelled => ErrorReport::of("InferenceError"),
            ErrorDetail::Internal { .. } => ErrorReport::of("InternalError"),
        }
    }
}

fn device(error: &DeviceError) -> ErrorReport {
    let of = ErrorReport::of;
    match error {
        DeviceError::WrongTarget { built_for, device, .. } => of("DeviceError")
            .with("built_for", built_for)
            .with("device", device)
            .hint("compile the ONNX model for this device, or inspect the container with qaic.Qpc"),
        DeviceError::HardwareFamily { built_for, device, family } => of("DeviceError")
            .with("built_for", built_for)
            .with("device", device)
            .with("family", *family)
            .hint("compile with aic_hw_version for the device, or load with allow_hw_mismatch=True"),
        DeviceError::NotFound { id, existing } => {
            of("DeviceNotFoundError").with("device", id).with("existing", existing).hint(if existing.is_empty() {
                "no card answers, or QAIC_VISIBLE_DEVICES hides all; without QAIC_DEVICE, or with QAIC_DEVICE=cpu, \
                 programs run on the host"
            } else {
                "QAIC_DEVICE chooses the kinds of device, QAIC_CPU_DEVICES the number of virtual and emulated cards, \
                 QAIC_VISIBLE_DEVICES which of them are shown"
            })
        }
        DeviceError::TooFew { needed, kind, existing, hidden } => of("DeviceNotFoundError")
            .with("needed", needed)
            .with("kind", *kind)
            .with("existing", existing)
            .with("hidden", hidden),
        DeviceError::Kind { kind, .. } => {
            of("DeviceNotFoundError").with("kind", kind).hint("set QAIC_DEVICE to one of them")
        }
        DeviceError::Busy { id, needed, free, total } => of("DeviceBusyError")
            .with("device", id)
            .with("needed", needed)
            .with("free", free)
            .with("total", total)
            .hint("lower num_activations or aic_num_cores, or reset a session that holds cores"),
        DeviceError::Lost { id, .. } => of("DeviceLostError")
            .with("device", id)
            .hint("once the device is back, unload and load the program, or reset the session"),
        DeviceError::Unavailable { id, .. } => of("DeviceError").with("device", id),
        DeviceError::Unsupported { .. } => of("DeviceError"),
        DeviceError::OutOfMemory { bytes, .. } => of("DeviceMemoryError").with("bytes", bytes),
    }
}

fn card(error: &CardError) -> ErrorReport {
    let of = ErrorReport::of;
    match error {
        CardError::ChannelLost { device, channel, .. } => of("DeviceLostError")
            .with("device", device)
            .with("channel", channel)
            .hint("reset() the session, or deactivate and activate the program"),
        CardError::Permission { id, path, .. } => {
            of("DeviceError").with("device", id).with("path", path.as_path())
        }
        CardError::FirmwareVersion { id, what, found, expected } => of("DeviceError")
            .with("device", id)
            .with("what", *what)
            .with("found", found)
            .with("expected", *expected)
            .hint("install the firmware that belongs to this version of the runtime, or use another card"),
        CardError::Firmware { id, what, status, name } => of(firmware_class(*status))
            .with("device", id)
            .with("what", *what)
            .with("status", status)
            .with("name", *name),
        CardError::FirmwareProtocol { id, what, .. } => {
            of("DeviceError").with("device", id).with("what", *what)
        }
        CardError::Driver { id, call, source } => {
            let report =
                of("DeviceError").with("device", id).with("call", *call).with("errno", source.raw_os_error());
            // The kernel takes no buffer that is queued, as one of an inference is of which a part never ended.
            if *call == "EXECUTE_BO" && source.kind() == io::ErrorKind::InvalidInput {
                report.hint(
                    "the card may still have buffers of the inference before: reset() the session, or deactivate and \
                     activate the program",
                )
            } else {
                report
            }
        }
        CardError::RingFull { device, channel, attempts, elements } => of("DeviceBusyError")
            .with("device", device)
            .with("channel", channel)
            .with("attempts", attempts)
            .with("elements", elements)
            .hint("submit fewer inferences at a time: lower set_size"),
        CardError::Transfers { .. } => of("DeviceError"),
    }
}

/// Returns the class of a refusal by a card's firmware: a resource is used up, the memory is, or another
/// failure.
const fn firmware_class(status: i32) -> &'static str {
    match status {
        -15..=-12 => "DeviceBusyError",
        -4 => "DeviceMemoryError",
        _ => "DeviceError",
    }
}

fn engine(error: &EngineError) -> ErrorReport {
    let of = ErrorReport::of;
    match error {
        EngineError::Missing { looked_at } => of("DeviceError").with("looked_at", looked_at).hint(
            "install onnxruntime (pip install onnxruntime), or set QAIC_ONNXRUNTIME_LIB to its library",
        ),
        EngineError::Unusable { path, found, .. } => {
            let report = of("DeviceError").with("path", path.as_path()).with("found", found);
            #[cfg(feature = "cpu")]
            let report = report.with("needed", crate::device::cpu::MINIMUM_VERSION);
            report.hint("pip install --upgrade onnxruntime, or set QAIC_ONNXRUNTIME_LIB to a newer library")
        }
        EngineError::Graph { .. } => of("DeviceError"),
        EngineError::Inference { status, .. } => of("InferenceError").with("status", *status),
    }
}

fn input(error: &InputError) -> ErrorReport {
    let of = ErrorReport::of;
    match error {
        InputError::Arguments(source) => arguments(source),
        InputError::UnsupportedTransform { binding, step, kind } => {
            of("DeviceError").with("binding", binding).with("step", step).with("kind", kind)
        }
        InputError::BufferSize { buffer, expected, found } => {
            of("InputShapeError").with("buffer", buffer).with("expected", expected).with("found", found)
        }
        InputError::NoMatchingShape { .. } => of("InputShapeError"),
        InputError::StateRequired { binding } => of("MissingInputError").with("binding", binding),
        InputError::IoCrc { binding, section, taken, found, .. } => of("InferenceError")
            .with("binding", binding)
            .with("section", section)
            .with("taken", taken)
            .with("found", found)
            .hint("write to the arrays of an inference only after waiting for its end"),
        InputError::VirtualCards { .. } | InputError::SharedCores { .. } | InputError::Argument { .. } => {
            of("OptionError")
        }
    }
}

fn arguments(error: &ArgumentError) -> ErrorReport {
    let of = ErrorReport::of;
    match error {
        ArgumentError::UnknownName { name, known, .. } | ArgumentError::UnknownOutput { name, known } => {
            of("InputError").with("name", name).with("known", known)
        }
        ArgumentError::Missing { missing, .. } => of("MissingInputError").with("missing", missing),
        ArgumentError::Shapes(ShapeError { passed, allowed, .. }) => {
            let passed: Vec<_> = passed.iter().map(|(name, _, dims)| (name.clone(), dims.clone())).collect();
            of("InputShapeError")
                .with("passed", passed)
                .with("allowed", allowed)
                .hint("pass arrays of exactly one of these combinations")
        }
        ArgumentError::OutputArray { name, .. } => of("InputError").with("name", name),
        ArgumentError::OutputOverlap { name } => {
            of("InputError").with("name", name).hint("give every output its own memory")
        }
        ArgumentError::StateNotSplit => {
            of("StateError").hint("compile it with retained_state=True and split_retained_state_io=True")
        }
        ArgumentError::UnknownState { known, .. } => of("InputError").with("known", known),
        ArgumentError::StateSequence { name, shape, .. } => of("InputError")
            .with("name", name)
            .with("shape", shape)
            .hint("sequences are counted from 0 along the first dimension"),
        ArgumentError::StatePerActivation { .. } => of("OptionError")
            .hint("use num_activations=1, or choose the activation of every inference with qaicrt"),
        ArgumentError::TensorTooLarge { .. } => of("QpcLimitError"),
        ArgumentError::NotConverted { .. } => of("InternalError"),
    }
}

fn state(error: &StateError) -> ErrorReport {
    let report = ErrorReport::of("StateError");
    match error {
        StateError::Forked => report
            .hint("make sessions and programs after the fork, or use the start method spawn or forkserver"),
        _ => report,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use qaic_qpc::error::Figure;

    use super::*;

    fn driver(call: &'static str, errno: i32) -> RuntimeError {
        CardError::Driver { id: 1, call, source: Arc::new(io::Error::from_raw_os_error(errno)) }.into()
    }

    #[test]
    fn only_what_a_bug_of_ours_causes_is_internal() {
        let errors = ErrorDetail::examples().into_iter();
        let arguments = ArgumentError::examples().into_iter().map(ErrorDetail::from);
        for error in errors.chain(arguments).map(RuntimeError::from) {
            let is_internal = error.report().class == "InternalError";
            assert_eq!(is_internal, error.code().starts_with("internal"), "{}", error.code());
        }
    }

    #[test]
    fn figures_of_an_error_are_those_of_its_variant() {
        let busy = RuntimeError::from(DeviceError::Busy { id: 3, needed: 4, free: 2, total: 16 }).report();
        let numbers = busy.figures.iter().map(|(name, value)| match value {
            Figure::Number(number) => (*name, *number),
            other => panic!("{other:?} is no number"),
        });
        assert_eq!(numbers.collect::<Vec<_>>(), [("device", 3), ("needed", 4), ("free", 2), ("total", 16)]);
        assert!(busy.hint.is_some());
    }

    #[test]
    fn firmware_status_decides_the_class() {
        for (status, class) in [(-4, "DeviceMemoryError"), (-11, "DeviceError"), (-36, "DeviceError")]
            .into_iter()
            .chain((12..=15).map(|status| (-status, "DeviceBusyError")))
        {
            let error = CardError::Firmware { id: 0, what: "activate", status, name: "name" };
            assert_eq!(RuntimeError::from(error).report().class, class, "{status}");
        }
    }

    #[test]
    fn only_a_buffer_that_is_still_queued_is_explained() {
        let hint = |error: RuntimeError| error.report().hint;
        assert!(hint(driver("EXECUTE_BO", 22)).is_some_and(|hint| hint.contains("reset()")));
        assert_eq!(hint(driver("EXECUTE_BO", 12)), None);
        assert_eq!(hint(driver("CREATE_BO", 22)), None);
        assert!(driver("MANAGE", 5).report().figures.contains(&("errno", 5.into())));
    }
}
