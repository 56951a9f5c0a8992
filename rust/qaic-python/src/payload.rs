//! `_core.Payload`: the bytes of a weight in its stored form, computed from its numbers when they are needed.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use qaic_mem::FilePart;
use qaic_mem::convert::packing::{Code, FoundInBlocks, Matrices, Number, Packing};
use qaic_quant::stored::Layout;
use qaic_runtime::request::{ArrayId, Arrays};

use crate::buffers::Exports;
use crate::errors::{Raise, os_error};
use crate::gil::Detach;
use crate::writer::source_error;

/// The place of the numbers.
enum Source {
    File(FilePart),
    Memory(Exports, ArrayId),
}

impl Source {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        match self {
            Self::File(part) => part.read_at(offset, into),
            Self::Memory(exports, id) => usize::try_from(offset)
                .ok()
                .and_then(|offset| exports.memory(*id).read_into(offset, into))
                .ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Order of the stored numbers: the attributes of a Python object.
#[derive(FromPyObject)]
struct Described {
    count: usize,
    rows: usize,
    columns: usize,
    is_turned: bool,
    layout: String,
    unit: usize,
}

/// Bytes in blocks that can be computed in any order, by any thread.
#[pyclass(frozen, name = "Payload", module = "qaic._core")]
pub(crate) struct PyPayload {
    source: Source,
    packing: Packing,
    found: FoundInBlocks,
}

impl PyPayload {
    pub(crate) fn block_bytes(&self, index: usize) -> usize {
        self.packing.block_bytes(index)
    }

    pub(crate) fn fill(&self, index: usize, block: &mut [u8]) -> std::io::Result<()> {
        let found = self.packing.fill(index, &|offset, into| self.source.read_at(offset, into), block)?;
        self.found.record(index, found);
        Ok(())
    }
}

#[pymethods]
impl PyPayload {
    /// Describes the conversion of a source: a bytes-like object, or the descriptor of a file, an offset and a size.
    ///
    /// `numbers` are the types of the numbers before and after their conversion. `code` is the stored form of the
    /// results. `matrices` describes their order; without it, the order does not change.
    #[new]
    #[pyo3(signature = (source, numbers, *, clip = false, code = "plain", matrices = None))]
    #[allow(clippy::needless_pass_by_value)] // the binding extracts owned values
    fn new(
        py: Python<'_>,
        source: &Bound<'_, PyAny>,
        numbers: (String, String),
        clip: bool,
        code: &str,
        matrices: Option<Described>,
    ) -> PyResult<Self> {
        let refused = |text: String| Raise::new(py, "InputError", "quant.parameters", text).build();
        let number = |name: &str| Number::from_name(name).ok_or_else(|| refused(format!("no type {name:?}")));
        let numbers = (number(&numbers.0)?, number(&numbers.1)?);
        let code = Code::from_name(code).ok_or_else(|| refused(format!("no stored form {code:?}")))?;
        let matrices = matrices.map(|given| {
            let Described { count, rows, columns, is_turned, layout, unit } = given;
            let layout =
                Layout::from_name(&layout).ok_or_else(|| refused(format!("no layout {layout:?}")))?;
            Ok::<_, PyErr>(Matrices { count, rows, columns, is_turned, layout, unit })
        });
        let (source, bytes) = opened(py, source)?;
        let packing = Packing::new(bytes, numbers, clip, code, matrices.transpose()?)
            .map_err(|error| refused(error.to_string()))?;
        let found = FoundInBlocks::new(packing.blocks);
        Ok(Self { source, packing, found })
    }

    /// Size in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.packing.bytes
    }

    /// Number of blocks.
    #[getter]
    fn blocks(&self) -> usize {
        self.packing.blocks
    }

    /// Computes a block; empty if there is no such block.
    fn read<'py>(&self, py: Python<'py>, index: usize) -> PyResult<Bound<'py, PyBytes>> {
        PyBytes::new_with(py, self.block_bytes(index), |block| {
            py.detached(|_| Ok(self.fill(index, block)))?.map_err(|error| source_error(py, &error))
        })
    }

    /// Returns facts about the blocks that were computed: the number of finite values that float16 makes infinite and
    /// the farthest of them; the largest value that it turns into zero, and true if another value is not zero; and the
    /// numbers of NaN and infinities that a code cannot represent.
    fn found(&self) -> (u64, f64, f64, bool, u64, u64) {
        let all = self.found.total();
        let not_finite = all.not_finite;
        (all.beyond, all.farthest, all.lost, all.has_survivors, not_finite.nan, not_finite.infinite)
    }
}

fn opened(py: Python<'_>, source: &Bound<'_, PyAny>) -> PyResult<(Source, usize)> {
    if let Ok((descriptor, start, bytes)) = source.extract::<(i32, u64, usize)>() {
        let part = FilePart::open(descriptor, start, bytes as u64);
        let part = part.map_err(|error| os_error(py, "the source of a payload", &error))?;
        return Ok((Source::File(part), bytes));
    }
    let mut exports = Exports::with_capacity(1);
    let found = exports.take(source, false).map(|exported| (exported.id, exported.memory.len()));
    let Some((id, bytes)) = found else {
        let text = "a contiguous bytes-like object or a part of a file is expected";
        return Err(Raise::new(py, "InputTypeError", "quant.array", text).build());
    };
    Ok((Source::Memory(exports, id), bytes))
}
