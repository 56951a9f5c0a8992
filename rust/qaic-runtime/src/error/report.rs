//! Reports of errors whose class, data or hint depend on more than the variant.

use std::io;

use qaic_qpc::ErrorReport;

#[cfg(feature = "cpu")]
use super::EngineError;
use super::{CardError, DeviceError, ErrorDetail, InputError, RuntimeError};
use crate::binding::{ArgumentError, ShapeError};

impl RuntimeError {
    /// Returns the error's details other than its code and its message.
    pub fn report(&self) -> ErrorReport {
        let report = self.detail().report();
        match self.detail() {
            ErrorDetail::Device(DeviceError::NotFound { existing, .. }) => report.hint(if existing.is_empty() {
                "no card responds, or QAIC_VISIBLE_DEVICES hides all devices; QAIC_KMD=emu emulates a card, and \
                 QAIC_DEVICE=cpu runs programs on the host"
            } else {
                "QAIC_DEVICE selects the kinds of devices, QAIC_CPU_DEVICES the number of virtual and emulated cards, \
                 and QAIC_VISIBLE_DEVICES the visible devices"
            }),
            ErrorDetail::Card(CardError::Firmware { status, .. }) => {
                ErrorReport { class: firmware_class(*status), ..report }
            }
            ErrorDetail::Card(CardError::Driver { call, source, .. }) => {
                let report = report.with("errno", source.raw_os_error());
                // The kernel refuses a buffer that is still queued, for example after an inference that ended only
                // partially.
                if *call == "EXECUTE_BO" && source.kind() == io::ErrorKind::InvalidInput {
                    report.hint(
                        "the card may still use buffers of the previous inference: reset() the session, or deactivate and \
                         activate the program",
                    )
                } else {
                    report
                }
            }
            #[cfg(feature = "cpu")]
            ErrorDetail::Engine(EngineError::Unusable { .. }) => {
                report.with("needed", crate::device::cpu::MINIMUM_VERSION)
            }
            ErrorDetail::Input(InputError::Arguments(ArgumentError::Shapes(ShapeError { passed, allowed, .. }))) => {
                let passed: Vec<_> = passed.iter().map(|(name, _, dims)| (name.clone(), dims.clone())).collect();
                report.with("passed", passed).with("allowed", allowed)
            }
            _ => report,
        }
    }
}

/// Returns the class of a refusal by a card's firmware: a resource is exhausted, the memory is exhausted, or another
/// failure.
const fn firmware_class(status: i32) -> &'static str {
    match status {
        -15..=-12 => "DeviceBusyError",
        -4 => "DeviceMemoryError",
        _ => "DeviceError",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use qaic_qpc::Figure;

    use super::*;

    fn driver(call: &'static str, errno: i32) -> RuntimeError {
        CardError::Driver { id: 1, call, source: Arc::new(io::Error::from_raw_os_error(errno)) }.into()
    }

    #[test]
    fn only_what_a_bug_of_ours_causes_is_internal() {
        for error in RuntimeError::examples() {
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
