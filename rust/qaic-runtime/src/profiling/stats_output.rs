//! Summary and trace of stats buffers, in memory or as files.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use qaic_mem::reserve_large;
use qaic_stats::decode::Op;
use qaic_stats::decode::descriptor::OpsDescriptor;
use qaic_stats::report::{SummaryOptions, write_summary};
use qaic_stats::{
    FrozenBytes, HostSample, HostSide, HostTrace, Part, ProgressObserver, StatsBuffer, TraceOptions,
    push_trace, write_trace,
};

use crate::error::{ErrorDetail, RuntimeError};
use crate::process::{WaitScope, clock};

/// Estimated bytes of an operation in a trace that includes its shape and operands. The estimate only reserves
/// memory.
const TRACE_BYTES_PER_OP: usize = 768;

/// Measurements of one device.
#[derive(Debug)]
pub struct DevicePart<'a, B> {
    /// The checked records.
    pub buffer: &'a StatsBuffer<B>,
    /// Operations of the program.
    pub ops: Arc<OpsDescriptor>,
    /// Name of the network.
    pub network: &'a str,
    /// Index of the device among those of the program.
    pub slice: Option<u16>,
}

/// Returns the summary of an inference.
///
/// Blocking: reads every record. Ends early if `scope` ends the wait.
pub fn stats_summary<B: FrozenBytes>(
    buffer: &StatsBuffer<B>,
    ops: &OpsDescriptor,
    cores: Option<Vec<u16>>,
    scope: &mut WaitScope<'_>,
) -> Result<Vec<u8>, RuntimeError> {
    let reading = Reading::new(vec![buffer], scope);
    let options = SummaryOptions { cores, observer: Some(&reading) };
    let mut bytes = Vec::new();
    written(write_summary(&mut bytes, &buffer.model(), ops, &options), None)?;
    Ok(bytes)
}

/// Returns the trace of devices and host, or writes it to the file `path` and returns no bytes. `options` need no
/// observer.
///
/// Blocking: reads every record. Ends early if `scope` ends the wait.
pub fn stats_trace<B: FrozenBytes>(
    path: Option<PathBuf>,
    devices: &[DevicePart<'_, B>],
    options: TraceOptions<'_>,
    samples: &[HostSample],
    host_trace: Option<&HostTrace<'_>>,
    scope: &mut WaitScope<'_>,
) -> Result<Vec<u8>, RuntimeError> {
    let reading = Reading::new(devices.iter().map(|device| device.buffer).collect(), scope);
    let options = TraceOptions { observer: Some(&reading), ..options };
    let models: Vec<_> = devices.iter().map(|device| device.buffer.model()).collect();
    let part = |(device, model)| {
        let DevicePart { ops, network, slice, .. }: &DevicePart<'_, B> = device;
        Part { model, descriptor: ops, network, slice: *slice }
    };
    let parts: Vec<_> = devices.iter().zip(&models).map(part).collect();
    let host = HostSide { samples, epoch_utc_ns: clock::epoch_utc_ns(), trace: host_trace };
    let mut bytes = Vec::new();
    let result = if let Some(path) = &path {
        File::create(path).and_then(|file| write_trace(file, &parts, &host, &options))
    } else {
        let ops: usize = models.iter().map(|model| model.records::<Op>().len()).sum();
        reserve_large(&mut bytes, ops.saturating_mul(TRACE_BYTES_PER_OP));
        push_trace(&mut bytes, &parts, &host, &options)
    };
    written(result, path)?;
    Ok(bytes)
}

/// Converts the result of writing to memory, or to the file `path`.
fn written(result: io::Result<()>, path: Option<PathBuf>) -> Result<(), RuntimeError> {
    result.map_err(|source| match source.kind() {
        io::ErrorKind::Interrupted => ErrorDetail::Interrupted.into(),
        _ => ErrorDetail::Io { path: path.unwrap_or_default(), source: Arc::new(source) }.into(),
    })
}

/// Releases memory that was read, and periodically checks whether to continue.
struct Reading<'a, 's, B> {
    buffers: Vec<&'a StatsBuffer<B>>,
    scope: RefCell<&'a mut WaitScope<'s>>,
}

impl<'a, 's, B> Reading<'a, 's, B> {
    fn new(buffers: Vec<&'a StatsBuffer<B>>, scope: &'a mut WaitScope<'s>) -> Self {
        Self { buffers, scope: RefCell::new(scope) }
    }
}

qaic_sync::debug_fields!(Reading<'a, 's, B>, |reading| buffers: reading.buffers.len());

impl<B: FrozenBytes> ProgressObserver for Reading<'_, '_, B> {
    fn passed(&self, bytes: &[u8]) -> io::Result<()> {
        for buffer in &self.buffers {
            buffer.let_go(bytes);
        }
        let polled = self.scope.borrow_mut().poll("statistics");
        polled.map_err(|_| io::ErrorKind::Interrupted.into())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use qaic_stats::decode::{Core, Kind, Thread};
    use qaic_stats::{Run, StatsModel};

    use super::*;

    #[derive(Debug)]
    struct Bytes(Vec<u8>);

    impl From<Vec<u8>> for Bytes {
        fn from(bytes: Vec<u8>) -> Self {
            Self(bytes)
        }
    }

    impl FrozenBytes for Bytes {
        fn bytes(&self) -> &[u8] {
            &self.0
        }

        fn is_let_go(&self) -> bool {
            false
        }

        fn let_go(&self, _part: &[u8]) {}
    }

    fn buffer() -> StatsBuffer<Bytes> {
        let run =
            Run { cores: 1, threads_per_core: 1, ucycle_hz: 1_000_000, batch_size: 1, ..Run::default() };
        let mut model = StatsModel::new(run);
        model.set_records([Core { end_u: 100, ..Core::default() }]);
        model.set_records([Thread { end_u: 100, ..Thread::default() }]);
        let sections = [Kind::Core, Kind::Thread].map(|kind| {
            let (records, stride) = model.section(kind).unwrap();
            (kind, records.to_vec(), stride)
        });
        StatsBuffer::of_sections(run, sections.into(), None, false).unwrap()
    }

    fn trace(path: Option<&Path>) -> Result<Vec<u8>, RuntimeError> {
        let (one, other) = (buffer(), buffer());
        let part = |buffer, network, slice| DevicePart { buffer, ops: Arc::default(), network, slice };
        let parts = [part(&one, "first", Some(0)), part(&other, "second", Some(1))];
        let path = path.map(Path::to_owned);
        stats_trace(path, &parts, TraceOptions::default(), &[], None, &mut WaitScope::default())
    }

    #[test]
    fn a_trace_is_of_all_devices() {
        let parsed: serde_json::Value = serde_json::from_slice(&trace(None).unwrap()).unwrap();
        let text = parsed.to_string();
        assert!(text.contains("first") && text.contains("second"), "{text}");
    }

    #[test]
    fn a_file_has_what_memory_would_have() {
        let path = std::env::temp_dir().join(format!("openqaic-stats-output-{}", std::process::id()));
        assert_eq!(trace(Some(&path)).unwrap(), b"");
        let in_file = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(in_file, trace(None).unwrap());
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let path = Path::new("/nonexistent/openqaic/trace.json");
        let refusal = trace(Some(path)).unwrap_err();
        assert!(matches!(refusal.detail(), ErrorDetail::Io { path: named, .. } if named == path));
    }

    #[test]
    fn reading_ends_when_its_scope_does() {
        let buffer = buffer();
        let mut check = || true;
        let mut scope = WaitScope::default().checked_by(&mut check);
        let reading = Reading::new(vec![&buffer], &mut scope);
        assert!(reading.passed(&[]).is_ok());
        assert!(written(reading.passed(&[]), None).unwrap_err().is_interrupted());
    }
}
