//! Validation of containers: a list of all defects (`qaic-qpc validate`).
//!
//! Parsing stops at the first defect and reads only the necessary parts. Validation reads every byte, continues after
//! a defect, and also reports suspicious properties that are valid. Related checks are in one file each.

mod cpu_plan;
mod network;
mod program;

use std::fmt;

use crate::constants::ConstantsDesc;
use crate::container::{Container, MAGIC, Warning, names};
use crate::crc::{CrcSegment, verify_checksums};
use crate::error::QpcError;
use crate::limits::Limits;
use crate::network_desc::NetworkDesc;

/// Maximum depth of containers inside containers.
const MAX_NESTING: u32 = 2;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Valid, but unknown to writers or a problem for some readers.
    Warning,
    /// The container is damaged or cannot be used.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// One defect or suspicious property.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Stable name; equals the code of the [`QpcError`] if there is one.
    pub code: &'static str,
    /// Severity of the finding.
    pub severity: Severity,
    /// Segment with the defect; `outer/inner` for a container inside a container.
    pub segment: Option<String>,
    /// Description of the defect, for messages.
    pub message: String,
}

/// Examines a container. Blocking: reads every byte.
pub fn validate(bytes: &[u8]) -> Vec<Finding> {
    let mut report = Report { findings: Vec::new(), prefix: String::new() };
    validate_nested(bytes, &mut report, 0);
    report.findings
}

/// Collects findings.
struct Report {
    findings: Vec<Finding>,
    /// Path of the container inside its outer ones, with a slash after each.
    prefix: String,
}

impl Report {
    fn push(&mut self, severity: Severity, code: &'static str, segment: Option<&str>, message: String) {
        let segment = match segment {
            Some(segment) => Some(format!("{}{segment}", self.prefix)),
            None => self.prefix.strip_suffix('/').map(ToOwned::to_owned),
        };
        self.findings.push(Finding { code, severity, segment, message });
    }

    fn error(&mut self, segment: Option<&str>, error: &QpcError) {
        self.push(Severity::Error, error.code(), segment, error.to_string());
    }

    fn add_error(&mut self, code: &'static str, segment: &str, message: String) {
        self.push(Severity::Error, code, Some(segment), message);
    }

    fn add_warning(&mut self, code: &'static str, segment: &str, message: String) {
        self.push(Severity::Warning, code, Some(segment), message);
    }

    /// Returns the value, or adds a finding for the error.
    fn take<T>(&mut self, segment: &str, result: Result<T, QpcError>) -> Option<T> {
        result.map_err(|error| self.error(Some(segment), &error)).ok()
    }
}

/// A container with its bytes.
#[derive(Clone, Copy)]
struct Image<'a> {
    bytes: &'a [u8],
    container: &'a Container,
}

impl<'a> Image<'a> {
    fn payload(&self, name: &str) -> Option<&'a [u8]> {
        self.container.segment(name).map(|segment| segment.payload(self.bytes))
    }
}

fn validate_nested(bytes: &[u8], report: &mut Report, depth: u32) {
    let container = match Container::parse(bytes, &Limits::default()) {
        Ok(container) => container,
        Err(error) => return report.error(None, &error),
    };
    container.warnings.iter().for_each(|warning| report_warning(warning, report));
    let image = Image { bytes, container: &container };
    // A payload of a program may begin with any bytes.
    if container.require_program().is_err() {
        let has_inner = validate_inner(image, report, depth);
        if has_inner || container.is_multi_device() {
            return;
        }
    }
    for name in names::REQUIRED {
        if let Err(error) = container.required(name) {
            report.error(Some(name), &error);
        }
    }
    validate_constants(image, report);
    validate_crcs(image, report);
    if let Err(error) = verify_checksums(image.container, image.bytes, "the container") {
        report.error(Some(names::CHECKSUMS), &error);
    }
    let network = image.payload(names::NETWORK_DESC).and_then(|payload| {
        let network = NetworkDesc::decode(payload, &Limits::default());
        report.take(names::NETWORK_DESC, network)
    });
    if let Some(network) = &network {
        network::validate(network, report);
    }
    program::validate(image, network.as_ref(), report);
}

/// Validates inner containers. They are recognized by the first bytes of their payload, because the format has no
/// other mark.
fn validate_inner(image: Image<'_>, report: &mut Report, depth: u32) -> bool {
    let mut found = false;
    for segment in &image.container.segments {
        let payload = segment.payload(image.bytes);
        if !payload.starts_with(&MAGIC.to_le_bytes()) {
            continue;
        }
        found = true;
        if depth >= MAX_NESTING {
            let message =
                format!("containers are nested more than {MAX_NESTING} deep; this one is not examined");
            report.add_warning("qpc.nesting", &segment.name, message);
            continue;
        }
        let outer = report.prefix.len();
        report.prefix.push_str(&segment.name);
        report.prefix.push('/');
        validate_nested(payload, report, depth.saturating_add(1));
        report.prefix.truncate(outer);
    }
    found
}

fn report_warning(warning: &Warning, report: &mut Report) {
    let (code, segment, message) = match warning {
        Warning::Version { major } => {
            ("qpc.container_version", None, format!("container version {major} is unknown; 0 is expected"))
        }
        Warning::TableAlignment { offset } => {
            ("qpc.table_alignment", None, format!("the segment table at {offset} is not aligned to 8 bytes"))
        }
        Warning::UnusedOffset { segment, offset } => {
            let message =
                format!("the offset field {offset} has no meaning here; some readers cut the payload there");
            ("qpc.unused_offset", Some(segment.as_str()), message)
        }
    };
    report.push(Severity::Warning, code, segment, message);
}

fn validate_constants(image: Image<'_>, report: &mut Report) {
    let Some(descriptor) = image.payload(names::CONSTANTS_DESC) else { return };
    let Some(descriptor) = report.take(names::CONSTANTS_DESC, ConstantsDesc::decode(descriptor)) else {
        return;
    };
    let Some(ranges) = image.container.constants() else { return };
    let parts = [
        ("static", ranges.static_part.len(), descriptor.static_constants_size),
        ("dynamic", ranges.dynamic_part.len(), descriptor.dynamic_constants_size),
    ];
    for (what, found, reserved) in parts {
        if u64::try_from(found).is_ok_and(|found| found > reserved) {
            let message = format!("the {what} part has {found} bytes; the descriptor reserves {reserved}");
            report.add_error("qpc.constants_size", names::CONSTANTS, message);
        }
    }
}

fn validate_crcs(image: Image<'_>, report: &mut Report) {
    for crc in CrcSegment::ALL {
        let Some(Some(stored)) = report.take(crc.name(), crc.stored(image.container, image.bytes)) else {
            continue;
        };
        match crc.compute(image.container, image.bytes) {
            Ok(Some(computed)) if computed == stored => {}
            Ok(Some(computed)) => {
                let message =
                    format!("the stored CRC is {stored:#010x}, but the CRC of the data is {computed:#010x}");
                report.add_error("qpc.crc_mismatch", crc.name(), message);
            }
            Ok(None) => {
                report.add_warning(
                    "qpc.crc_without_data",
                    crc.name(),
                    "the section that this CRC covers is missing".to_owned(),
                );
            }
            Err(error) => report.error(Some(crc.name()), &error),
        }
    }
}
