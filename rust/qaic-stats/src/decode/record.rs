//! The records of a stats model: fixed size, little-endian, no padding.
//!
//! One table of fields defines each record type, its reader, its writer and its numpy type.

use std::fmt::Debug;
use std::marker::PhantomData;

use bitflags::bitflags;

use crate::model::RunFlags;
use crate::number::codes;

/// Defines the kinds of records with their numbers, their names in the specification, and their types.
macro_rules! kinds {
    ($($kind:ident = $code:literal $name:literal, $bytes:expr, $fields:expr;)*) => {
        /// Kind of a section's records; the numbers are those of the section directory.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        #[allow(missing_docs)] // the record types of the same names have the docs
        pub enum Kind {
            $($kind = $code,)*
        }

        impl Kind {
            /// All kinds, in the order of their numbers.
            pub const ALL: [Self; 9] = [$(Self::$kind),*];

            /// Name of the kind in the specification.
            pub(crate) const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }

            /// Bytes of a record.
            pub const fn record_bytes(self) -> usize {
                match self {
                    $(Self::$kind => $bytes,)*
                }
            }

            /// Fields of a record, in order.
            pub const fn fields(self) -> &'static [FieldType] {
                match self {
                    $(Self::$kind => $fields,)*
                }
            }
        }
    };
}

kinds! {
    Core = 1 "CORE", Core::SIZE, Core::FIELDS;
    Thread = 2 "THREAD", Thread::SIZE, Thread::FIELDS;
    Port = 3 "PORT", Port::SIZE, Port::FIELDS;
    Ring = 4 "RING", Ring::SIZE, Ring::FIELDS;
    PmuEvents = 5 "PMU_EVENTS", PmuEvents::SIZE, PmuEvents::FIELDS;
    Pmu = 6 "PMU", Pmu::SIZE, Pmu::FIELDS;
    Op = 7 "OP", Op::SIZE, Op::FIELDS;
    OpPmu = 8 "OP_PMU", OpPmu::SIZE, OpPmu::FIELDS;
    // UTF-8 JSON, one byte per record.
    Meta = 9 "META", 1, &[];
}

impl Kind {
    /// Returns the kind with this number; `None` if it is unknown.
    pub(crate) fn from_code(code: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// Number of the kind.
    #[allow(clippy::as_conversions)] // of a fieldless enum
    pub(crate) const fn code(self) -> u32 {
        self as u32
    }

    /// Returns the kind with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// One field, described as in numpy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldType {
    /// Name.
    pub name: &'static str,
    /// Type code, explicitly little-endian.
    pub code: &'static str,
    /// Number of elements; 1 for a scalar.
    pub count: usize,
}

/// A type of field values.
pub trait Field: Copy + Default {
    /// Type code of numpy.
    const CODE: &'static str;
    /// Elements.
    const COUNT: usize;

    /// Reads the value at `offset`.
    fn get(bytes: &[u8], offset: usize) -> Self;

    /// Writes the value at `offset`.
    fn put(self, bytes: &mut [u8], offset: usize);
}

macro_rules! scalar_field {
    ($($type:ty => $code:literal),*) => {$(
        impl Field for $type {
            const CODE: &'static str = $code;
            const COUNT: usize = 1;

            fn get(bytes: &[u8], offset: usize) -> Self {
                let bytes = bytes.get(offset..).and_then(|rest| rest.first_chunk());
                bytes.map_or(0, |bytes| Self::from_le_bytes(*bytes))
            }

            fn put(self, bytes: &mut [u8], offset: usize) {
                let place = bytes.get_mut(offset..).and_then(|rest| rest.first_chunk_mut());
                if let Some(place) = place {
                    *place = self.to_le_bytes();
                }
            }
        }
    )*};
}

scalar_field!(u8 => "u1", u16 => "<u2", u32 => "<u4", u64 => "<u8");

macro_rules! flags_field {
    ($($type:ty => $bits:ty),*) => {$(
        impl Field for $type {
            const CODE: &'static str = <$bits>::CODE;
            const COUNT: usize = 1;

            fn get(bytes: &[u8], offset: usize) -> Self {
                Self::from_bits_retain(<$bits>::get(bytes, offset))
            }

            fn put(self, bytes: &mut [u8], offset: usize) {
                self.bits().put(bytes, offset);
            }
        }
    )*};
}

flags_field!(CoreFlags => u32, ThreadFlags => u32, OpKindFlags => u8, OpFlags => u16, RunFlags => u32);

impl<T: Field> Field for [T; 8] {
    const CODE: &'static str = T::CODE;
    const COUNT: usize = 8;

    fn get(bytes: &[u8], offset: usize) -> Self {
        std::array::from_fn(|index| {
            T::get(bytes, offset.saturating_add(index.saturating_mul(size_of::<T>())))
        })
    }

    fn put(self, bytes: &mut [u8], offset: usize) {
        for (index, value) in self.into_iter().enumerate() {
            value.put(bytes, offset.saturating_add(index.saturating_mul(size_of::<T>())));
        }
    }
}

/// A record type.
pub trait Record: Copy + Debug + Default {
    /// Kind of the section that contains the records.
    const KIND: Kind;
    /// Bytes of a record.
    const SIZE: usize;
    /// Fields in order.
    const FIELDS: &'static [FieldType];

    /// Reads the record at the start of `bytes`; zeros if they are too short.
    fn read(bytes: &[u8]) -> Self;

    /// Writes the record to the start of `bytes`, which must have room for it.
    fn write(&self, bytes: &mut [u8]);
}

macro_rules! record {
    ($(#[$doc:meta])* $name:ident, $size:literal bytes, {
        $($(#[$field_doc:meta])* $field:ident $(as $shown:literal)?: $type:ty = $offset:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $(
                #[allow(missing_docs)] // of fields whose names say what they are
                $(#[$field_doc])*
                pub $field: $type,
            )*
        }

        impl $name {
            /// Bytes of a record.
            pub(crate) const SIZE: usize = $size;
            /// Fields in order.
            pub(crate) const FIELDS: &'static [FieldType] = &[$(FieldType {
                name: record!(@name $field $($shown)?),
                code: <$type as Field>::CODE,
                count: <$type as Field>::COUNT,
            }),*];
        }

        impl Record for $name {
            const KIND: Kind = Kind::$name;
            const SIZE: usize = $size;
            const FIELDS: &'static [FieldType] = Self::FIELDS;

            #[inline]
            fn read(bytes: &[u8]) -> Self {
                let Some(bytes) = bytes.first_chunk::<$size>() else { return Self::default() };
                Self { $($field: <$type as Field>::get(bytes, $offset),)* }
            }

            #[inline]
            fn write(&self, bytes: &mut [u8]) {
                if let Some(bytes) = bytes.first_chunk_mut::<$size>() {
                    $(self.$field.put(bytes, $offset);)*
                }
            }
        }
    };
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $shown:literal) => { $shown };
}

bitflags! {
    /// Flags of [`Core`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct CoreFlags: u32 {
        /// DDR bytes are valid.
        const DDR = 1;
        /// Multicast bytes are valid.
        const MULTICAST = 2;
        /// `PCycles` are valid.
        const PCYCLES = 4;
    }
}

record! {
    /// Measurements of one core.
    Core, 64 bytes, {
        core: u16 = 0,
        /// Device of the program, in program order.
        slice: u16 = 2,
        flags: CoreFlags = 4,
        /// First tick of the inference on this core.
        start_u: u64 = 8,
        /// Tick after the last.
        end_u: u64 = 16,
        /// Processor cycles in between.
        pcycles: u64 = 24,
        ddr_read_bytes: u64 = 32,
        ddr_write_bytes: u64 = 40,
        /// Bytes received by multicast.
        mc_read_bytes: u64 = 48,
        /// Bytes sent by multicast.
        mc_write_bytes: u64 = 56,
    }
}

bitflags! {
    /// Flags of [`Thread`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ThreadFlags: u32 {
        /// The activation interval is valid.
        const ACTIVATION = 1;
        /// `PCycles` are valid.
        const PCYCLES = 2;
    }
}

codes! {
    /// Engine that a thread issues to; the numbers of [`Thread::engine`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub enum EngineKind: u8, "Unknown" {
        Hvx = 0 "HVX",
        Hmx = 1 "HMX",
        DmaIssue = 2 "DMAIssue",
        Scalar = 3 "Scalar",
        Cpu = 16 "CPU",
    }
}

record! {
    /// Measurements of one thread of a core.
    Thread, 64 bytes, {
        core: u16 = 0,
        thread: u8 = 2,
        /// [`EngineKind`].
        engine: u8 = 3,
        flags: ThreadFlags = 4,
        /// First tick of the inference on this thread.
        start_u: u64 = 8,
        /// Tick after the last.
        end_u: u64 = 16,
        /// Processor cycles in between.
        pcycles: u64 = 24,
        /// First tick of the activation.
        act_start_u: u64 = 32,
        /// Tick after its last.
        act_end_u: u64 = 40,
        /// Processor cycles of the activation.
        act_pcycles: u64 = 48,
        /// Index of the thread's first operation.
        first_op: u32 = 56,
        /// Number of the thread's operations, which are contiguous and ordered by start.
        op_count: u32 = 60,
    }
}

impl Port {
    /// Direction to the device.
    pub const IN: u8 = 0;
    /// Direction from the device.
    pub const OUT: u8 = 1;
}

record! {
    /// Wait of a thread for an input or output port.
    Port, 32 bytes, {
        core: u16 = 0,
        thread: u8 = 2,
        /// [`Port::IN`] or [`Port::OUT`].
        direction: u8 = 3,
        /// Number of the port: 100 is the host's input, 101 its output.
        port: u16 = 4,
        /// Flags; none are defined.
        flags: u16 = 6,
        /// Ticks waited.
        wait_u: u64 = 8,
        /// Tick of the first doorbell ring; 0 if it never rang.
        first_ring_u: u64 = 16,
        /// Tick of the last doorbell ring.
        last_ring_u: u64 = 24,
    }
}

record! {
    /// One ring of a pipelined input.
    Ring, 16 bytes, {
        core: u16 = 0,
        /// Number of the port.
        port: u16 = 2,
        sequence: u32 = 4,
        /// Tick of the ring.
        ts_u: u64 = 8,
    }
}

record! {
    /// Events of the PMU values; an unused entry is 0.
    PmuEvents, 32 bytes, {
        event: [u32; 8] = 0,
    }
}

record! {
    /// PMU values of one thread.
    Pmu, 80 bytes, {
        core: u16 = 0,
        thread: u8 = 2,
        valid_count: u8 = 3,
        /// Flags of the values: bit i is set if value i wrapped or is saturated.
        flags: u32 = 4,
        reserved: u64 = 8,
        /// Values, in the order of the events.
        value: [u64; 8] = 16,
    }
}

bitflags! {
    /// Kind flags of [`Op`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OpKindFlags: u8 {
        /// The operation was executed.
        const EXECUTED = 1;
        /// The record describes the asynchronous part of a transfer.
        const ASYNC_TRANSFER = 4;
        /// The operation ran inside another one.
        const NESTED = 8;
    }
}

bitflags! {
    /// Flags of [`Op`].
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OpFlags: u16 {
        /// The duration exceeded its field.
        const DUR_SATURATED = 1;
        /// The wait before exceeded its field.
        const SYNC_SATURATED = 2;
        /// The wait after exceeded its field.
        const BARRIER_SATURATED = 4;
        /// `PCycles` are valid.
        const PCYCLES = 8;
        /// The wait before is valid.
        const SYNC = 16;
        /// The wait after is valid.
        const BARRIER = 32;
        /// The output bytes are valid.
        const OUT_BYTES = 64;
    }
}

record! {
    /// One execution of an operation on one thread. The thread waited in `[start_u - sync_u, start_u)`, worked for
    /// `dur_u`, and then waited for the other threads of its group for `barrier_u`.
    Op, 48 bytes, {
        /// Number of the operation in the descriptor, unique within its core.
        oc: u32 = 0,
        core: u16 = 4,
        thread: u8 = 6,
        kflags: OpKindFlags = 7,
        /// First tick.
        start_u: u64 = 8,
        /// Ticks of the execution.
        dur_u: u32 = 16,
        /// Ticks of the wait before the execution.
        sync_u: u32 = 20,
        /// Ticks of the wait after the execution.
        barrier_u: u32 = 24,
        flags: OpFlags = 28,
        /// Index of the iteration of a loop or ring.
        iteration as "iter": u16 = 30,
        /// Processor cycles of the execution.
        pcycles: u64 = 32,
        out_bytes: u64 = 40,
    }
}

record! {
    /// PMU values of one execution of an operation.
    OpPmu, 72 bytes, {
        /// Index of the operation's record.
        op as "op_index": u32 = 0,
        reserved: u32 = 4,
        /// Values, in the order of the events.
        value: [u64; 8] = 8,
    }
}

/// Equally spaced records, one in every `stride` bytes. This is a view: reading a record copies its fields.
#[derive(Clone, Copy, Debug)]
pub struct Records<'a, R> {
    bytes: &'a [u8],
    stride: usize,
    record: PhantomData<R>,
}

impl<'a, R: Record> Records<'a, R> {
    /// Creates a view with as many records as `bytes` has whole strides. A stride below the record's size results in
    /// no records.
    pub(crate) fn new(bytes: &'a [u8], stride: usize) -> Self {
        let bytes = if stride < R::SIZE { &[] } else { bytes };
        Self { bytes, stride: stride.max(1), record: PhantomData }
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.bytes.len().checked_div(self.stride).unwrap_or(0)
    }

    /// Returns true if there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns record `index`.
    pub(crate) fn get(&self, index: usize) -> Option<R> {
        let start = index.checked_mul(self.stride)?;
        let end = start.checked_add(self.stride)?;
        self.bytes.get(start..end).map(R::read)
    }

    /// Returns the existing records of `range`.
    #[must_use]
    pub fn slice(&self, range: std::ops::Range<usize>) -> Self {
        let end = range.end.min(self.len()).saturating_mul(self.stride);
        let start = range.start.saturating_mul(self.stride).min(end);
        Self { bytes: self.bytes.get(start..end).unwrap_or_default(), ..*self }
    }

    /// Iterates over all records in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = R> + Clone + use<'a, R> {
        self.bytes.chunks_exact(self.stride).map(R::read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_found_by_its_name() {
        for kind in Kind::ALL {
            assert_eq!(Kind::from_name(kind.name()), Some(kind));
        }
        assert_eq!(Kind::from_name("core"), None);
    }
}
