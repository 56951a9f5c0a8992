//! The forms in which weights are stored, and the one body that reads each.

use std::ops::Range;

use super::simd::{LANES, MX_BYTES, Simd, Task, run};
use super::{StoredError, UNIT};
use crate::convert::Isa;

/// Form of the elements of stored rows.
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
    /// Signed bytes. Behind the rows are a float32 scale for each group, then a signed zero point for each.
    Int8 {
        /// Elements of a group, 0 where a row is one.
        group: usize,
    },
    /// Numbers of four bits without a sign, the lower four of a byte first; scales and zero points as for `Int8`.
    Uint4 {
        /// Elements of a group, 0 where a row is one.
        group: usize,
    },
}

impl Form {
    /// The form of this name, as plans have it; `group` is of quantized weights.
    pub fn from_name(name: &str, group: usize) -> Option<Self> {
        Some(match name {
            "float32" => Self::Float32,
            "float16" => Self::Float16,
            "bfloat16" => Self::Bfloat16,
            "mxfp6_e2m3" => Self::Mxfp6,
            "int8" => Self::Int8 { group },
            "uint4" => Self::Uint4 { group },
            _ => return None,
        })
    }

    /// Returns the name of the form in plans.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Float16 => "float16",
            Self::Bfloat16 => "bfloat16",
            Self::Mxfp6 => "mxfp6_e2m3",
            Self::Int8 { .. } => "int8",
            Self::Uint4 { .. } => "uint4",
        }
    }

    /// Bytes of a unit, without scales that are apart.
    const fn unit_bytes(self) -> usize {
        match self {
            Self::Float32 => 4 * UNIT,
            Self::Float16 | Self::Bfloat16 => 2 * UNIT,
            Self::Mxfp6 => MX_BYTES,
            Self::Int8 { .. } => UNIT,
            Self::Uint4 { .. } => UNIT / 2,
        }
    }

    /// Groups of a row of `units`; `None` of a form without.
    fn groups(self, units: usize) -> Option<usize> {
        match self {
            Self::Int8 { group: 0 } | Self::Uint4 { group: 0 } => Some(units.min(1)),
            Self::Int8 { group } | Self::Uint4 { group } => Some(units.div_ceil((group / UNIT).max(1))),
            _ => None,
        }
    }

    /// Bytes of `rows` rows of `len` elements; `None` when that is more than the address space.
    pub fn bytes(self, rows: usize, len: usize) -> Option<usize> {
        let units = len.div_ceil(UNIT);
        let codes = units.checked_mul(self.unit_bytes())?.checked_mul(rows)?;
        match self.groups(units) {
            // Four bytes of a scale and one of a zero point.
            Some(groups) => codes.checked_add(groups.checked_mul(rows)?.checked_mul(5)?),
            None => Some(codes),
        }
    }
}

/// A matrix of stored rows.
#[derive(Clone, Copy, Debug)]
pub struct StoredRows<'a> {
    form: Form,
    rows: usize,
    len: usize,
    codes: &'a [u8],
    scales: &'a [[u8; 4]],
    zeros: &'a [u8],
}

impl<'a> StoredRows<'a> {
    /// Checks that the bytes are `rows` rows of `len` elements.
    pub fn new(form: Form, rows: usize, len: usize, bytes: &'a [u8]) -> Result<Self, StoredError> {
        if let Form::Int8 { group } | Form::Uint4 { group } = form
            && group != 0
            && !(group % UNIT == 0 && group.is_power_of_two())
        {
            return Err(StoredError::Group { found: group });
        }
        let expected = form.bytes(rows, len);
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
        let (codes, rest) = bytes.split_at(units * form.unit_bytes() * rows);
        let (scales, zeros) = rest.split_at(4 * form.groups(units).unwrap_or(0) * rows);
        let (scales, _) = scales.as_chunks::<4>();
        Ok(Self { form, rows, len, codes, scales, zeros })
    }

    /// The form of the elements.
    pub const fn form(&self) -> Form {
        self.form
    }

    /// Rows, which are columns of a product.
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row.
    pub const fn row_len(&self) -> usize {
        self.len
    }

    /// Units of a row.
    pub(super) const fn units(&self) -> usize {
        self.len.div_ceil(UNIT)
    }

    /// Bytes that reading a row reads.
    pub fn row_bytes(&self) -> usize {
        self.units() * self.form.unit_bytes() + 5 * self.form.groups(self.units()).unwrap_or(0)
    }

    /// Copies a row as float32 to `numbers`, as far as both reach.
    pub fn gather(&self, row: usize, numbers: &mut [f32]) {
        self.gather_with(Isa::best(), row, numbers);
    }

    /// As [`Self::gather`], with the kernels of a family.
    pub fn gather_with(&self, isa: Isa, row: usize, numbers: &mut [f32]) {
        if row < self.rows {
            run(isa, Gather { rows: self, row, numbers });
        }
    }
}

/// One stored row, unit by unit.
pub(super) trait Row: Copy {
    /// True if reading half a unit costs nothing extra.
    const IS_PLAIN: bool = false;
    /// Numbers that the units of a group have in common.
    type Factors<S: Simd>: Copy;
    /// Some of its units.
    fn part(self, units: Range<usize>) -> Self;
    /// Units of a group, a power of two.
    fn group_units(self) -> usize;
    /// Reads the numbers of the group that a unit is in.
    fn factors<S: Simd>(self, simd: S, index: usize) -> Self::Factors<S>;
    /// Reads a unit.
    fn unit<S: Simd>(self, simd: S, index: usize, factors: Self::Factors<S>) -> [S::V; 2];
    /// Reads half a unit.
    #[allow(clippy::inline_always)] // it is part of what is compiled for a machine
    #[inline(always)]
    fn half<S: Simd>(self, simd: S, index: usize, half: usize, factors: Self::Factors<S>) -> S::V {
        self.unit(simd, index, factors)[half]
    }
}

/// A task for which it makes a difference what rows are made of.
pub(super) trait RowsTask {
    /// Runs it; `row` gives a row of the matrix.
    fn run<S: Simd, R: Row>(self, simd: S, row: impl Fn(usize) -> R);
}

impl StoredRows<'_> {
    /// Runs a task with the reader of this form.
    #[allow(clippy::inline_always)] // it is part of what is compiled for a machine
    #[inline(always)]
    pub(super) fn with<S: Simd>(&self, simd: S, task: impl RowsTask) {
        match self.form {
            Form::Float32 => task.run(simd, |row| Float32Row(self.units_of(row))),
            Form::Float16 => task.run(simd, |row| Float16Row(self.units_of(row))),
            Form::Bfloat16 => task.run(simd, |row| Bfloat16Row(self.units_of(row))),
            Form::Mxfp6 => task.run(simd, |row| MxRow(self.units_of(row))),
            Form::Int8 { .. } => task.run(simd, |row| Int8Row(self.units_of(row), self.groups_of(row))),
            Form::Uint4 { .. } => task.run(simd, |row| Uint4Row(self.units_of(row), self.groups_of(row))),
        }
    }

    fn units_of<const N: usize>(&self, row: usize) -> &[[u8; N]] {
        let bytes = self.units() * N;
        self.codes.get(row * bytes..(row + 1) * bytes).unwrap_or_default().as_chunks::<N>().0
    }

    fn groups_of(&self, row: usize) -> Groups<'_> {
        let groups = self.form.groups(self.units()).unwrap_or(0);
        let range = row * groups..(row + 1) * groups;
        let shift = match self.form {
            Form::Int8 { group } | Form::Uint4 { group } if group != 0 => (group / UNIT).trailing_zeros(),
            // One group, however long the row is.
            _ => usize::BITS - 1,
        };
        let scales = self.scales.get(range.clone()).unwrap_or_default();
        Groups { scales, zeros: self.zeros.get(range).unwrap_or_default(), first: 0, shift }
    }
}

#[derive(Clone, Copy)]
struct Float32Row<'a>(&'a [[u8; 4 * UNIT]]);
#[derive(Clone, Copy)]
struct Float16Row<'a>(&'a [[u8; 2 * UNIT]]);
#[derive(Clone, Copy)]
struct Bfloat16Row<'a>(&'a [[u8; 2 * UNIT]]);
#[derive(Clone, Copy)]
struct MxRow<'a>(&'a [[u8; MX_BYTES]]);
#[derive(Clone, Copy)]
struct Int8Row<'a>(&'a [[u8; UNIT]], Groups<'a>);
#[derive(Clone, Copy)]
struct Uint4Row<'a>(&'a [[u8; UNIT / 2]], Groups<'a>);
/// Numbers that are float32 already.
#[derive(Clone, Copy)]
pub(super) struct PlainRow<'a>(pub(super) &'a [[f32; UNIT]]);

/// Scales and zero points of a row.
#[derive(Clone, Copy)]
struct Groups<'a> {
    scales: &'a [[u8; 4]],
    zeros: &'a [u8],
    // Of the first unit.
    first: usize,
    // Binary logarithm of the units of a group.
    shift: u32,
}

impl Groups<'_> {
    fn from(self, first: usize) -> Self {
        Self { first: self.first + first, ..self }
    }

    /// Units of a group, or of all that a row can have.
    #[allow(clippy::inline_always)] // it is part of what is compiled for a machine
    #[inline(always)]
    fn units(self) -> usize {
        1 << self.shift
    }

    /// Zero point and scale of a unit.
    #[allow(clippy::inline_always)] // it is part of what is compiled for a machine
    #[inline(always)]
    fn factors<S: Simd>(self, simd: S, index: usize) -> [S::V; 2] {
        let group = (self.first + index) >> self.shift;
        let zero = f32::from(self.zeros[group].cast_signed());
        [simd.splat(zero), simd.splat(f32::from_le_bytes(self.scales[group]))]
    }
}

/// The halves of a unit.
#[allow(clippy::inline_always)] // it is part of what is compiled for a machine
#[inline(always)]
fn halves<const N: usize, const HALF: usize>(unit: &[u8; N]) -> [&[u8; HALF]; 2] {
    let (halves, _) = unit.as_chunks::<HALF>();
    [&halves[0], &halves[1]]
}

/// A row whose units are read by `$unit`.
macro_rules! row {
    ($name:ident, |$simd:ident, $bytes:ident| $unit:expr) => {
        #[allow(clippy::inline_always)] // it is part of what is compiled for a machine
        impl Row for $name<'_> {
            type Factors<S: Simd> = ();

            fn part(self, units: Range<usize>) -> Self {
                Self(&self.0[units])
            }

            #[inline(always)]
            fn group_units(self) -> usize {
                usize::MAX / 2 + 1
            }

            #[inline(always)]
            fn factors<S: Simd>(self, _: S, _: usize) {}

            #[inline(always)]
            fn unit<S: Simd>(self, $simd: S, index: usize, (): ()) -> [S::V; 2] {
                let $bytes = &self.0[index];
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
row!(MxRow, |simd, unit| simd.mxfp6(unit));

#[allow(clippy::inline_always)] // it is part of what is compiled for a machine
impl Row for PlainRow<'_> {
    const IS_PLAIN: bool = true;
    type Factors<S: Simd> = ();

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
        [self.half(simd, index, 0, ()), self.half(simd, index, 1, ())]
    }

    #[inline(always)]
    fn half<S: Simd>(self, simd: S, index: usize, half: usize, (): ()) -> S::V {
        let (halves, _) = self.0[index].as_chunks::<LANES>();
        simd.load(&halves[half])
    }
}

/// A quantized row whose units are read by `$numbers` with a zero point and a scale.
macro_rules! quantized_row {
    ($name:ident, $factors:ty, |$simd:ident, $zero:ident, $scale:ident| $made:expr, |$unit:ident, $used:ident| $numbers:expr) => {
        #[allow(clippy::inline_always)] // it is part of what is compiled for a machine
        impl Row for $name<'_> {
            type Factors<S: Simd> = $factors;

            fn part(self, units: Range<usize>) -> Self {
                let groups = self.1.from(units.start);
                Self(&self.0[units], groups)
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
            fn unit<S: Simd>(self, $simd: S, index: usize, $used: Self::Factors<S>) -> [S::V; 2] {
                let $unit = &self.0[index];
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

/// Widens a row.
struct Gather<'a> {
    rows: &'a StoredRows<'a>,
    row: usize,
    numbers: &'a mut [f32],
}

impl Task for Gather<'_> {
    #[allow(clippy::inline_always)] // it is part of what is compiled for a machine
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let rows = *self.rows;
        rows.with(simd, self);
    }
}

impl RowsTask for Gather<'_> {
    #[allow(clippy::inline_always)] // it is part of what is compiled for a machine
    #[inline(always)]
    fn run<S: Simd, R: Row>(self, simd: S, row: impl Fn(usize) -> R) {
        let row = row(self.row);
        let units = self.rows.units();
        let mut number = [0.0; UNIT];
        let len = self.numbers.len().min(self.rows.len);
        for (index, numbers) in self.numbers[..len].chunks_mut(UNIT).enumerate().take(units) {
            widen(simd, row.unit(simd, index, row.factors(simd, index)), &mut number);
            numbers.copy_from_slice(&number[..numbers.len()]);
        }
    }
}

/// Writes a unit as numbers.
#[allow(clippy::inline_always)] // it is part of what is compiled for a machine
#[inline(always)]
pub(super) fn widen<S: Simd>(simd: S, unit: [S::V; 2], numbers: &mut [f32; UNIT]) {
    let (halves, _) = numbers.as_chunks_mut::<LANES>();
    let [first, second] = unit;
    simd.store(first, &mut halves[0]);
    simd.store(second, &mut halves[1]);
}
