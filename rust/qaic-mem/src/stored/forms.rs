//! The storage formats of weights and caches, and a reader for each.

use std::ops::Range;

use super::simd::{LANES, MX_BYTES, MX_FACTORS, MXINT8_BYTES, Simd, Task, run};
use super::{StoredError, TILE_ROWS, UNIT};
use crate::convert::Isa;

/// Size of a cache line in bytes.
const LINE: usize = 64;
/// Distance in bytes from the unit that is read to the memory that is prefetched.
const AHEAD: usize = 4096;

/// Storage format of stored rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Little-endian float32.
    Float32,
    /// Little-endian float16.
    Float16,
    /// Little-endian bfloat16.
    Bfloat16,
    /// Blocks of [`UNIT`] elements with a common exponent ([`qaic_quant::mx`]).
    Mxfp6,
    /// Blocks of [`UNIT`] signed bytes with a common exponent, used by caches.
    Mxint8,
    /// Signed bytes. After the rows follow a float32 scale for each group, then a signed zero point for each.
    Int8 {
        /// Number of elements of a group; 0 if a row is one group.
        group: usize,
    },
    /// Unsigned numbers of four bits, the lower four bits of a byte first; scales and zero points as for `Int8`.
    Uint4 {
        /// Number of elements of a group; 0 if a row is one group.
        group: usize,
    },
}

impl Form {
    /// Returns the format with this name in plans; `group` applies to quantized weights.
    pub fn from_name(name: &str, group: usize) -> Option<Self> {
        Some(match name {
            "float32" => Self::Float32,
            "float16" => Self::Float16,
            "bfloat16" => Self::Bfloat16,
            "mxfp6_e2m3" => Self::Mxfp6,
            "mxint8" => Self::Mxint8,
            "int8" => Self::Int8 { group },
            "uint4" => Self::Uint4 { group },
            _ => return None,
        })
    }

    /// Returns the name of the format in plans.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Float16 => "float16",
            Self::Bfloat16 => "bfloat16",
            Self::Mxfp6 => "mxfp6_e2m3",
            Self::Mxint8 => "mxint8",
            Self::Int8 { .. } => "int8",
            Self::Uint4 { .. } => "uint4",
        }
    }

    /// Number of bytes of a unit, without separately stored scales.
    const fn unit_bytes(self) -> usize {
        match self {
            Self::Float32 => 4 * UNIT,
            Self::Float16 | Self::Bfloat16 => 2 * UNIT,
            Self::Mxfp6 => MX_BYTES,
            Self::Mxint8 => MXINT8_BYTES,
            Self::Int8 { .. } => UNIT,
            Self::Uint4 { .. } => UNIT / 2,
        }
    }

    /// Number of groups in a row of `units`; `None` for a format without groups.
    fn groups(self, units: usize) -> Option<usize> {
        match self {
            Self::Int8 { group: 0 } | Self::Uint4 { group: 0 } => Some(units.min(1)),
            Self::Int8 { group } | Self::Uint4 { group } => Some(units.div_ceil((group / UNIT).max(1))),
            _ => None,
        }
    }

    /// Number of bytes of `rows` rows of `len` elements; `None` if it exceeds the address space.
    pub fn bytes(self, layout: Layout, rows: usize, len: usize) -> Option<usize> {
        let rows = rows.checked_next_multiple_of(layout.together())?;
        let units = len.div_ceil(UNIT);
        let codes = units.checked_mul(self.unit_bytes())?.checked_mul(rows)?;
        match self.groups(units) {
            // Four bytes for the scale and one for the zero point of a group.
            Some(groups) => codes.checked_add(groups.checked_mul(rows)?.checked_mul(5)?),
            None => Some(codes),
        }
    }
}

/// Order of the units of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Row after row.
    Rows,
    /// [`TILE_ROWS`] rows interleaved by unit, so that a product reads one stream. The last tile is padded with rows
    /// of zeros.
    Tiles,
}

impl Layout {
    /// Returns the layout of this name in plans.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Rows, Self::Tiles].into_iter().find(|layout| layout.name() == name)
    }

    /// Returns the name of the layout in plans.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::Tiles => "tiles",
        }
    }

    /// Number of rows whose units are interleaved.
    const fn together(self) -> usize {
        match self {
            Self::Rows => 1,
            Self::Tiles => TILE_ROWS,
        }
    }
}

/// A matrix of stored rows.
#[derive(Clone, Copy, Debug)]
pub struct StoredRows<'a> {
    form: Form,
    together: usize,
    rows: usize,
    len: usize,
    codes: &'a [u8],
    scales: &'a [[u8; 4]],
    zeros: &'a [u8],
}

impl<'a> StoredRows<'a> {
    /// Checks that the bytes are `rows` rows of `len` elements.
    pub fn new(
        form: Form,
        layout: Layout,
        rows: usize,
        len: usize,
        bytes: &'a [u8],
    ) -> Result<Self, StoredError> {
        if let Form::Int8 { group } | Form::Uint4 { group } = form
            && group != 0
            && !(group % UNIT == 0 && group.is_power_of_two())
        {
            return Err(StoredError::Group { found: group });
        }
        let expected = form.bytes(layout, rows, len);
        if expected != Some(bytes.len()) {
            return Err(StoredError::Bytes {
                form: form.name().to_owned(),
                rows,
                len,
                found: bytes.len(),
                expected: expected
                    .map_or_else(|| "more than there can be".to_owned(), |bytes| bytes.to_string()),
            });
        }
        let units = len.div_ceil(UNIT);
        let together = layout.together();
        let held = rows.next_multiple_of(together);
        let (codes, rest) = bytes.split_at(units * form.unit_bytes() * held);
        let (scales, zeros) = rest.split_at(4 * form.groups(units).unwrap_or(0) * held);
        let (scales, _) = scales.as_chunks::<4>();
        Ok(Self { form, together, rows, len, codes, scales, zeros })
    }

    /// Number of rows, which are the columns of a product.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Number of elements of a row.
    pub const fn row_len(&self) -> usize {
        self.len
    }

    pub(super) const fn units(&self) -> usize {
        self.len.div_ceil(UNIT)
    }

    /// Number of bytes that are read for a row.
    pub(crate) fn row_bytes(&self) -> usize {
        self.units() * self.form.unit_bytes() + 5 * self.form.groups(self.units()).unwrap_or(0)
    }

    /// Decodes rows from `first` on to float32 in `numbers`, up to the end of either.
    pub fn gather(&self, first: usize, numbers: &mut [f32]) {
        self.gather_with(Isa::best(), first, numbers);
    }

    /// Decodes rows as [`Self::gather`] does, with the kernels of a family.
    pub fn gather_with(&self, isa: Isa, first: usize, numbers: &mut [f32]) {
        run(isa, Gather { rows: self, first, numbers });
    }
}

/// One stored row, unit by unit.
pub(super) trait Row: Copy {
    /// Values that the units of a group share.
    type Factors<S: Simd>: Copy;
    /// Returns a range of the row's units.
    fn part(self, units: Range<usize>) -> Self;
    /// Number of units of a group, a power of two.
    fn group_units(self) -> usize;
    /// Reads the shared values of a unit's group.
    fn factors<S: Simd>(self, simd: S, index: usize) -> Self::Factors<S>;
    /// Prefetches the memory [`AHEAD`] bytes after a unit. Does nothing for forms that become slower with prefetches.
    #[allow(clippy::inline_always)] // inlined into functions with target features
    #[inline(always)]
    fn prefetch<S: Simd>(self, _: S, _: usize) {}
    /// Decodes a unit, without the factor of [`Self::scaled`].
    fn unit<S: Simd>(self, simd: S, index: usize, factors: Self::Factors<S>) -> [S::V; 2];
    /// Multiplies the numbers of a unit by their common power of two.
    #[allow(clippy::inline_always)] // inlined into functions with target features
    #[inline(always)]
    fn scaled<S: Simd>(_: S, numbers: S::V, _: Self::Factors<S>) -> S::V {
        numbers
    }
    /// Adds a sum of products with the unit's numbers to `total`, multiplied by the common factor.
    #[allow(clippy::inline_always)] // inlined into functions with target features
    #[inline(always)]
    fn add_scaled<S: Simd>(simd: S, sum: S::V, _: Self::Factors<S>, total: S::V) -> S::V {
        simd.add(total, sum)
    }
}

/// A task that is compiled separately for each storage format.
pub(super) trait RowsTask {
    /// Runs the task; `row` returns a row of the matrix.
    fn run<S: Simd, R: Row>(self, simd: S, row: impl Fn(usize) -> R);
}

impl StoredRows<'_> {
    /// Runs a task with the reader of this format.
    #[allow(clippy::inline_always)] // inlined into functions with target features
    #[inline(always)]
    pub(super) fn with<S: Simd>(&self, simd: S, task: impl RowsTask) {
        match self.form {
            Form::Float32 => task.run(simd, |row| Float32Row(self.units_of(row))),
            Form::Float16 => task.run(simd, |row| Float16Row(self.units_of(row))),
            Form::Bfloat16 => task.run(simd, |row| Bfloat16Row(self.units_of(row))),
            Form::Mxfp6 => task.run(simd, |row| Mxfp6Row(self.units_of(row))),
            Form::Mxint8 => task.run(simd, |row| Mxint8Row(self.units_of(row))),
            Form::Int8 { .. } => task.run(simd, |row| Int8Row(self.units_of(row), self.groups_of(row))),
            Form::Uint4 { .. } => task.run(simd, |row| Uint4Row(self.units_of(row), self.groups_of(row))),
        }
    }

    fn units_of<const N: usize>(&self, row: usize) -> Units<'_, N> {
        let (units, _) = self.codes.as_chunks::<N>();
        Units { units: units.get(self.first(row, self.units())..).unwrap_or_default(), step: self.together }
    }

    fn groups_of(&self, row: usize) -> Groups<'_> {
        let first = self.first(row, self.form.groups(self.units()).unwrap_or(0));
        let shift = match self.form {
            Form::Int8 { group } | Form::Uint4 { group } if group != 0 => (group / UNIT).trailing_zeros(),
            // One group, regardless of the length of the row.
            _ => usize::BITS - 1,
        };
        Groups {
            scales: self.scales.get(first..).unwrap_or_default(),
            zeros: self.zeros.get(first..).unwrap_or_default(),
            step: self.together,
            first: 0,
            shift,
        }
    }

    /// Index of a row's first element, if each row has `count` elements.
    const fn first(&self, row: usize, count: usize) -> usize {
        let (tile, at) = (row / self.together, row % self.together);
        tile * self.together * count + at
    }
}

#[derive(Clone, Copy)]
struct Units<'a, const N: usize> {
    // Starts at the first unit.
    units: &'a [[u8; N]],
    // Distance to the next unit.
    step: usize,
}

#[allow(clippy::inline_always)] // inlined into functions with target features
impl<'a, const N: usize> Units<'a, N> {
    #[inline(always)]
    fn part(self, units: Range<usize>) -> Self {
        let behind = units.end.saturating_sub(1) * self.step + 1;
        Self { units: self.units.get(units.start * self.step..behind).unwrap_or_default(), ..self }
    }

    #[inline(always)]
    fn at(self, index: usize) -> &'a [u8; N] {
        &self.units[index * self.step]
    }

    #[inline(always)]
    fn prefetch<S: Simd>(self, simd: S, index: usize) {
        let ahead = self.at(index).as_ptr().wrapping_add(AHEAD);
        for line in 0..(TILE_ROWS * N).div_ceil(LINE) {
            simd.prefetch(ahead.wrapping_add(line * LINE));
        }
    }
}

#[derive(Clone, Copy)]
struct Float32Row<'a>(Units<'a, { 4 * UNIT }>);
#[derive(Clone, Copy)]
struct Float16Row<'a>(Units<'a, { 2 * UNIT }>);
#[derive(Clone, Copy)]
struct Bfloat16Row<'a>(Units<'a, { 2 * UNIT }>);
#[derive(Clone, Copy)]
struct Mxfp6Row<'a>(Units<'a, MX_BYTES>);
#[derive(Clone, Copy)]
struct Mxint8Row<'a>(Units<'a, MXINT8_BYTES>);
#[derive(Clone, Copy)]
struct Int8Row<'a>(Units<'a, UNIT>, Groups<'a>);
#[derive(Clone, Copy)]
struct Uint4Row<'a>(Units<'a, { UNIT / 2 }>, Groups<'a>);
/// A row of float32 numbers, which need no decoding.
#[derive(Clone, Copy)]
pub(super) struct PlainRow<'a>(pub(super) &'a [[f32; UNIT]]);

/// Scales and zero points of a row.
#[derive(Clone, Copy)]
struct Groups<'a> {
    // Starts at the scales of the first group.
    scales: &'a [[u8; 4]],
    zeros: &'a [u8],
    // Distance to the next group.
    step: usize,
    // Index of the first unit.
    first: usize,
    // Binary logarithm of the number of units in a group.
    shift: u32,
}

impl Groups<'_> {
    fn from(self, first: usize) -> Self {
        Self { first: self.first + first, ..self }
    }

    /// Number of units of a group, or the maximum number of units in a row.
    #[allow(clippy::inline_always)] // inlined into functions with target features
    #[inline(always)]
    fn units(self) -> usize {
        1 << self.shift
    }

    /// Zero point and scale of a unit.
    #[allow(clippy::inline_always)] // inlined into functions with target features
    #[inline(always)]
    fn factors<S: Simd>(self, simd: S, index: usize) -> [S::V; 2] {
        let group = ((self.first + index) >> self.shift) * self.step;
        let zero = f32::from(self.zeros[group].cast_signed());
        [simd.splat(zero), simd.splat(f32::from_le_bytes(self.scales[group]))]
    }
}

#[allow(clippy::inline_always)] // inlined into functions with target features
#[inline(always)]
fn halves<const N: usize, const HALF: usize>(unit: &[u8; N]) -> [&[u8; HALF]; 2] {
    let (halves, _) = unit.as_chunks::<HALF>();
    [&halves[0], &halves[1]]
}

/// Defines a row whose units `$unit` reads.
macro_rules! row {
    ($name:ident, |$simd:ident, $bytes:ident| $unit:expr) => {
        #[allow(clippy::inline_always)] // inlined into functions with target features
        impl Row for $name<'_> {
            type Factors<S: Simd> = ();

            #[inline(always)]
            fn part(self, units: Range<usize>) -> Self {
                Self(self.0.part(units))
            }

            #[inline(always)]
            fn group_units(self) -> usize {
                usize::MAX / 2 + 1
            }

            #[inline(always)]
            fn factors<S: Simd>(self, _: S, _: usize) {}

            #[inline(always)]
            fn unit<S: Simd>(self, $simd: S, index: usize, (): ()) -> [S::V; 2] {
                let $bytes = self.0.at(index);
                $unit
            }
        }
    };
}

row!(Float32Row, |simd, unit| {
    let [first, second] = halves(unit);
    [simd.float32(first), simd.float32(second)]
});
row!(Float16Row, |simd, unit| {
    let [first, second] = halves(unit);
    [simd.float16(first), simd.float16(second)]
});
row!(Bfloat16Row, |simd, unit| {
    let [first, second] = halves(unit);
    [simd.bfloat16(first), simd.bfloat16(second)]
});

/// Defines a row of blocks whose units `$unit` reads without their exponents. A group is one unit, and its factor is
/// applied to a sum.
macro_rules! mx_row {
    ($name:ident, |$simd:ident, $block:ident| $unit:expr) => {
        #[allow(clippy::inline_always)] // inlined into functions with target features
        impl Row for $name<'_> {
            type Factors<S: Simd> = S::V;

            #[inline(always)]
            fn part(self, units: Range<usize>) -> Self {
                Self(self.0.part(units))
            }

            #[inline(always)]
            fn group_units(self) -> usize {
                1
            }

            #[inline(always)]
            fn factors<S: Simd>(self, simd: S, index: usize) -> S::V {
                simd.splat(MX_FACTORS[usize::from(self.0.at(index)[0])])
            }

            #[inline(always)]
            fn prefetch<S: Simd>(self, simd: S, index: usize) {
                self.0.prefetch(simd, index);
            }

            #[inline(always)]
            fn unit<S: Simd>(self, $simd: S, index: usize, _: S::V) -> [S::V; 2] {
                let $block = self.0.at(index);
                $unit
            }

            #[inline(always)]
            fn scaled<S: Simd>(simd: S, numbers: S::V, factor: S::V) -> S::V {
                simd.mul(numbers, factor)
            }

            #[inline(always)]
            fn add_scaled<S: Simd>(simd: S, sum: S::V, factor: S::V, total: S::V) -> S::V {
                simd.mul_add(sum, factor, total)
            }
        }
    };
}

mx_row!(Mxfp6Row, |simd, block| simd.mxfp6(block));
mx_row!(Mxint8Row, |simd, block| {
    let [_, elements @ ..] = block;
    let step = simd.splat(1.0 / 64.0);
    halves(elements).map(|half| simd.mul(simd.int8(half), step))
});

#[allow(clippy::inline_always)] // inlined into functions with target features
impl Row for PlainRow<'_> {
    type Factors<S: Simd> = ();

    #[inline(always)]
    fn part(self, units: Range<usize>) -> Self {
        Self(&self.0[units])
    }

    fn group_units(self) -> usize {
        usize::MAX / 2 + 1
    }

    #[inline(always)]
    fn factors<S: Simd>(self, _: S, _: usize) {}

    #[inline(always)]
    fn unit<S: Simd>(self, simd: S, index: usize, (): ()) -> [S::V; 2] {
        let (halves, _) = self.0[index].as_chunks::<LANES>();
        [simd.load(&halves[0]), simd.load(&halves[1])]
    }
}

/// Defines a quantized row whose units `$numbers` reads with a zero point and a scale.
macro_rules! quantized_row {
    ($name:ident, $factors:ty, |$simd:ident, $zero:ident, $scale:ident| $made:expr, |$unit:ident, $used:ident| $numbers:expr) => {
        #[allow(clippy::inline_always)] // inlined into functions with target features
        impl Row for $name<'_> {
            type Factors<S: Simd> = $factors;

            #[inline(always)]
            fn part(self, units: Range<usize>) -> Self {
                let groups = self.1.from(units.start);
                Self(self.0.part(units), groups)
            }

            #[inline(always)]
            fn group_units(self) -> usize {
                self.1.units()
            }

            #[inline(always)]
            fn factors<S: Simd>(self, $simd: S, index: usize) -> Self::Factors<S> {
                let [$zero, $scale] = self.1.factors($simd, index);
                $made
            }

            #[inline(always)]
            fn prefetch<S: Simd>(self, simd: S, index: usize) {
                self.0.prefetch(simd, index);
            }

            #[inline(always)]
            fn unit<S: Simd>(self, $simd: S, index: usize, $used: Self::Factors<S>) -> [S::V; 2] {
                let $unit = self.0.at(index);
                $numbers
            }
        }
    };
}

quantized_row!(Int8Row, [S::V; 2], |simd, zero, scale| [zero, scale], |unit, factors| {
    let ([first, second], [zero, scale]) = (halves(unit), factors);
    [simd.sub_mul(simd.int8(first), zero, scale), simd.sub_mul(simd.int8(second), zero, scale)]
});
quantized_row!(Uint4Row, S::Numbers4, |simd, zero, scale| simd.numbers4(zero, scale), |unit, numbers| {
    simd.uint4(unit, numbers)
});

/// Task that decodes rows.
struct Gather<'a> {
    rows: &'a StoredRows<'a>,
    first: usize,
    numbers: &'a mut [f32],
}

impl Task for Gather<'_> {
    #[allow(clippy::inline_always)] // inlined into functions with target features
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let rows = *self.rows;
        rows.with(simd, self);
    }
}

impl RowsTask for Gather<'_> {
    #[allow(clippy::inline_always)] // inlined into functions with target features
    #[inline(always)]
    fn run<S: Simd, R: Row>(self, simd: S, row: impl Fn(usize) -> R) {
        let mut number = [0.0; UNIT];
        let rows = self.numbers.chunks_mut(self.rows.len.max(1));
        for (numbers, at) in rows.zip(self.first..self.rows.rows) {
            let row = row(at);
            for (index, numbers) in numbers.chunks_mut(UNIT).enumerate().take(self.rows.units()) {
                widen(simd, row, index, &mut number);
                numbers.copy_from_slice(&number[..numbers.len()]);
            }
        }
    }
}

/// Writes the numbers of a unit.
#[allow(clippy::inline_always)] // inlined into functions with target features
#[inline(always)]
pub(super) fn widen<S: Simd, R: Row>(simd: S, row: R, index: usize, numbers: &mut [f32; UNIT]) {
    let factors = row.factors(simd, index);
    let [first, second] = row.unit(simd, index, factors);
    let (halves, _) = numbers.as_chunks_mut::<LANES>();
    simd.store(R::scaled(simd, first, factors), &mut halves[0]);
    simd.store(R::scaled(simd, second, factors), &mut halves[1]);
}
