//! Tables of the schema. One declaration defines the structure, its reader, its writer and the names of its fields.

use super::flat_read::Table;
use super::flat_write::{self, Value};
use super::types::PortEntry;
use crate::bytes::{u8_at, u16_at};
use crate::error::QpcError;
use crate::limits::Budget;

/// Value of `transactionId` that means none.
const NO_TRANSACTION: u32 = u32::MAX;

type Read<T> = Result<T, QpcError>;

/// A table of the schema.
pub(super) trait FlatTable: Default {
    /// Name for errors.
    const NAME: &'static str;
    /// Names of the fields, in the order of their ids.
    const FIELDS: &'static [&'static str];

    /// Reads the fields.
    fn read(table: &Table<'_>, budget: &mut Budget) -> Read<Self>;

    /// Returns the fields to write.
    fn fields(&self) -> flat_write::Table;
}

/// A field type.
pub(super) trait FlatField: Sized {
    /// Reads the field with an id; an absent field has its default in the schema.
    fn read(table: &Table<'_>, id: u16, budget: &mut Budget) -> Read<Self>;

    /// Returns the value to write; `None` omits the field.
    fn value(&self) -> Option<Value>;
}

macro_rules! fields {
    ($($type:ty: |$table:ident, $id:ident, $budget:ident| $read:expr, |$value:ident| $written:expr;)*) => {
        $(impl FlatField for $type {
            #[inline]
            fn read($table: &Table<'_>, $id: u16, $budget: &mut Budget) -> Read<Self> {
                $read
            }

            #[inline]
            fn value(&self) -> Option<Value> {
                let $value = self;
                $written
            }
        })*
    };
}

fields! {
    u8: |table, id, _budget| table.u8(id), |value| Some(Value::U8(*value));
    // Both fields of this type have the default 1.
    i8: |table, id, _budget| table.i8(id, 1), |value| Some(Value::I8(*value));
    u16: |table, id, _budget| table.u16(id), |value| Some(Value::U16(*value));
    u32: |table, id, _budget| table.u32(id), |value| Some(Value::U32(*value));
    u64: |table, id, _budget| table.u64(id), |value| Some(Value::U64(*value));
    Option<u32>: |table, id, _budget| Ok(table.optional_u32(id)?.filter(|&id| id != NO_TRANSACTION)),
        |value| value.map(Value::U32);
    String: |table, id, budget| table.text(id, budget), |value| Some(Value::Text(value.clone()));
    Vec<String>: |table, id, budget| table.texts(id, budget), |value| Some(Value::Texts(value.clone()));
    Vec<u8>: |table, id, budget| table.bytes(id, budget), |value| Some(Value::Bytes(value.clone()));
    Vec<u32>: |table, id, budget| table.words(id, budget), |value| Some(Value::Words(value.clone()));
    Vec<PortEntry>: |table, id, budget| table.structs(id, budget, read_port),
        |value| Some(Value::Structs(value.iter().map(write_port).collect()));
}

impl<T: FlatTable> FlatField for T {
    fn read(table: &Table<'_>, id: u16, budget: &mut Budget) -> Read<Self> {
        Ok(Option::<T>::read(table, id, budget)?.unwrap_or_default())
    }

    fn value(&self) -> Option<Value> {
        Some(Value::Table(self.fields()))
    }
}

impl<T: FlatTable> FlatField for Option<T> {
    fn read(table: &Table<'_>, id: u16, budget: &mut Budget) -> Read<Self> {
        table.table(id, T::NAME)?.map(|table| FlatTable::read(&table, budget)).transpose()
    }

    fn value(&self) -> Option<Value> {
        self.as_ref().and_then(FlatField::value)
    }
}

impl<T: FlatTable> FlatField for Vec<T> {
    fn read(table: &Table<'_>, id: u16, budget: &mut Budget) -> Read<Self> {
        table.tables(id, T::NAME, budget, <T as FlatTable>::read)
    }

    fn value(&self) -> Option<Value> {
        Some(Value::Tables(self.iter().map(FlatTable::fields).collect()))
    }
}

fn read_port(bytes: &[u8], slot: u64) -> PortEntry {
    PortEntry {
        port_id: u16_at(bytes, slot).unwrap_or_default(),
        port_type: u8_at(bytes, slot.saturating_add(2)).unwrap_or_default().cast_signed(),
    }
}

fn write_port(port: &PortEntry) -> [u8; 4] {
    let [low, high] = port.port_id.to_le_bytes();
    [low, high, port.port_type.cast_unsigned(), 0]
}

/// Declares tables: name, name for errors, and for each field its id, its name in the format, its type, and a default
/// that is not zero. Fields that older readers do not support are `newer`: they are written only if they are not
/// empty.
macro_rules! tables {
    ($(
        $(#[$of_table:meta])*
        $name:ident $label:literal {
            $($(#[$of_field:meta])* $id:literal $shown:tt => $($newer:ident)? [$field:ident: $type:ty $(= $default:expr)?],)*
        }
    )*) => {$(
        $(#[$of_table])*
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $($(#[$of_field])* #[serde(rename = $shown)] pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: tables!(@default $($default)?),)* }
            }
        }

        impl $crate::metadata::table::FlatTable for $name {
            const NAME: &'static str = $label;
            const FIELDS: &'static [&'static str] = &[$($shown),*];

            fn read(
                table: &$crate::metadata::flat_read::Table<'_>,
                budget: &mut $crate::limits::Budget,
            ) -> Result<Self, $crate::QpcError> {
                Ok(Self { $($field: $crate::metadata::table::FlatField::read(table, $id, budget)?,)* })
            }

            fn fields(&self) -> $crate::metadata::flat_write::Table {
                let mut fields = $crate::metadata::flat_write::Table::with_capacity(Self::FIELDS.len());
                $(if tables!(@is_written self.$field, $type $(, $newer)?) {
                    let value = $crate::metadata::table::FlatField::value(&self.$field);
                    fields.extend(value.map(|value| ($id, value)));
                })*
                fields
            }
        }
    )*};
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
    (@is_written $field:expr, $type:ty) => { true };
    (@is_written $field:expr, $type:ty, $newer:ident) => { $field != <$type>::default() };
}
pub(super) use tables;
