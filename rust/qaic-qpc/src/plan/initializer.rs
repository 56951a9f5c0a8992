//! Size, position and storage format of an initializer.

use std::ops::Range;

use qaic_quant::mx::MxFormat;
use qaic_quant::stored::{Form, Layout, UNIT};

use super::{INITIALIZER_ALIGNMENT, Initializer, PlanError};
use crate::bytes::{range_within, to_u64};
use crate::error::QpcError;

/// Shape and storage format of an initializer with a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredMatrix {
    /// Storage format.
    pub form: Form,
    /// Order of the units.
    pub layout: Layout,
    /// Number of rows.
    pub rows: usize,
    /// Number of elements of a row.
    pub len: usize,
}

impl Initializer {
    /// Returns the range of the tensor in `len` bytes of constants, which begin at `start` of a mapping or
    /// file. The engine uses the bytes in place, so an element must be aligned for its type.
    pub fn range(&self, len: usize, start: u64) -> Result<Range<usize>, PlanError> {
        let range = range_within(len, self.offset, self.size).ok_or_else(|| PlanError::Initializer {
            name: self.name.clone(),
            size: self.size,
            offset: self.offset,
            constants: len,
        })?;
        self.check_size()?;
        if !self.offset.is_multiple_of(INITIALIZER_ALIGNMENT) {
            return Err(QpcError::InitializerAlignment {
                name: self.name.clone(),
                offset: self.offset,
                needed: INITIALIZER_ALIGNMENT,
            }
            .into());
        }
        // Blocks are decoded into separate memory, and kernels for a layout read bytes.
        let is_used_as_elements = self.encoding.is_none() && self.layout.is_none();
        let needed = if is_used_as_elements { self.dtype.size_bytes() } else { 1 };
        if start.is_multiple_of(needed) {
            Ok(range)
        } else {
            Err(QpcError::ConstantsAlignment { name: self.name.clone(), start, needed }.into())
        }
    }

    /// Returns the matrix of an initializer with a layout; `None` for a tensor of the graph.
    pub fn matrix(&self) -> Result<Option<StoredMatrix>, PlanError> {
        let Some(layout) = &self.layout else { return Ok(None) };
        let layout = Layout::from_name(layout).ok_or_else(|| {
            self.unreadable(format!("the layout `{layout}`, which this release does not support"))
        })?;
        let dims: Result<Vec<usize>, _> = self.dims.iter().map(|&dim| dim.try_into()).collect();
        let Ok(&[rows, len]) = dims.as_deref() else {
            return Err(self.unreadable(format!(
                "stored rows of dims {:?}; rows and their length are expected",
                self.dims
            )));
        };
        let name = self.format();
        let form = Form::from_name(name, self.group)
            .ok_or_else(|| self.unreadable(format!("the form `{name}`, which no kernel reads")))?;
        match form.wrong_group() {
            Some(group) => Err(self.unreadable(format!(
                "groups of {group} elements; a power of two of at least {UNIT}, or 0 for one group per row, is expected"
            ))),
            None => Ok(Some(StoredMatrix { form, layout, rows, len })),
        }
    }

    /// Name of the storage format.
    fn format(&self) -> &str {
        self.encoding.as_deref().unwrap_or(self.dtype.name())
    }

    fn unreadable(&self, found: String) -> PlanError {
        PlanError::Unreadable { name: self.name.clone(), found }
    }

    /// Checks that the size is that of the type, the dims, the blocks and the layout.
    fn check_size(&self) -> Result<(), PlanError> {
        let expected = match (self.matrix()?, &self.encoding) {
            (Some(StoredMatrix { form, layout, rows, len }), _) => form.bytes(layout, rows, len).map(to_u64),
            (None, Some(encoding)) => {
                let format = MxFormat::from_name(encoding).ok_or_else(|| {
                    self.unreadable(format!("the encoding `{encoding}`, which this release does not support"))
                })?;
                if self.axis >= self.dims.len() {
                    let found = format!("blocks along dimension {} of dims {:?}", self.axis, self.dims);
                    return Err(self.unreadable(found));
                }
                self.block_bytes(format)
            }
            (None, None) => self.dtype.dense_bytes(&self.dims),
        };
        if expected == Some(self.size) {
            return Ok(());
        }
        Err(PlanError::Size {
            name: self.name.clone(),
            size: self.size,
            format: self.format().to_owned(),
            dims: self.dims.clone(),
            expected: expected.map_or_else(
                || "dims of a tensor that fits memory".to_owned(),
                |bytes| format!("{bytes} bytes"),
            ),
        })
    }

    /// Bytes of blocks along a dimension; `None` if they exceed the address space.
    fn block_bytes(&self, format: MxFormat) -> Option<u64> {
        let dims: Option<Vec<usize>> = self.dims.iter().map(|&dim| usize::try_from(dim).ok()).collect();
        let mut rows = dims?;
        let len = (self.axis < rows.len()).then(|| rows.remove(self.axis))?;
        let rows = rows.into_iter().try_fold(1_usize, usize::checked_mul)?;
        format.stored_bytes(rows, len).map(to_u64)
    }

    /// Returns the initializer's bytes in the constants.
    pub fn bytes<'a>(&self, constants: &'a [u8]) -> Result<&'a [u8], PlanError> {
        let range = self.range(constants.len(), to_u64(constants.as_ptr().addr()))?;
        Ok(constants.get(range).unwrap_or_default())
    }
}
