//! Structures of the kernel's interface: plain bytes, with a table of their fields for transcripts.
//!
//! `wire!` declares each structure once. The sender, the emulator and the transcript use that declaration.

use std::fmt;

use bytemuck::{Pod, Zeroable, bytes_of_mut, pod_read_unaligned};

const _: () =
    assert!(cfg!(target_endian = "little"), "the interface is little-endian, as all hosts of cards are");

/// A structure that is sent as its bytes.
pub trait Layout: Pod + fmt::Debug {
    /// Fields of the structure, without fields that have no meaning.
    const FIELDS: &'static [Field];
}

/// A field of a [`Layout`].
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name of the field.
    pub name: &'static str,
    /// Offset of the field in bytes.
    pub at: usize,
    /// Type of the field.
    pub kind: Kind,
}

/// Type of a field.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A number.
    U8,
    /// A number.
    U16,
    /// A number.
    U32,
    /// A number.
    U64,
    /// A signed number.
    I32,
    /// Text in this number of bytes.
    Text(usize),
    /// Process-specific data of this number of bytes: process id, addresses, descriptors.
    Volatile(usize),
    /// Padding.
    Reserved,
    /// The fields of a structure, as if they were fields of the outer one.
    Flat(&'static [Field]),
    /// An array of `count` structures of `bytes` bytes. The name of each is this name and its index.
    Numbered {
        /// The name.
        name: &'static str,
        /// Fields of each structure.
        fields: &'static [Field],
        /// Bytes of each structure.
        bytes: usize,
        /// Number of structures.
        count: usize,
    },
}

/// A field type.
pub(crate) trait Value: Pod {
    /// Type of the field.
    const KIND: Kind;
}

macro_rules! values {
    ($($type:ty: $kind:expr,)*) => {
        $(impl Value for $type {
            const KIND: Kind = $kind;
        })*
    };
}

values! {
    u8: Kind::U8,
    u16: Kind::U16,
    u32: Kind::U32,
    u64: Kind::U64,
    i32: Kind::I32,
    UnalignedU32: Kind::U32,
    Volatile<u32>: Kind::Volatile(4),
    Volatile<i32>: Kind::Volatile(4),
    Volatile<u64>: Kind::Volatile(8),
}

/// Data of the calling process that differs from run to run: its id, a file descriptor, an address.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Volatile<T>(pub T);

/// A number without alignment.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct UnalignedU32([u8; 4]);

impl UnalignedU32 {
    /// Value of the number.
    pub fn get(self) -> u32 {
        u32::from_le_bytes(self.0)
    }
}

impl From<u32> for UnalignedU32 {
    fn from(value: u32) -> Self {
        Self(value.to_le_bytes())
    }
}

/// Bytes without a meaning. They are sent as zeros.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct Reserved<const BYTES: usize>([u8; BYTES]);

impl<const BYTES: usize> Default for Reserved<BYTES> {
    fn default() -> Self {
        Self([0; BYTES])
    }
}

impl<const BYTES: usize> fmt::Debug for Reserved<BYTES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("_")
    }
}

impl<const BYTES: usize> Value for Reserved<BYTES> {
    const KIND: Kind = Kind::Reserved;
}

/// Text in a field of fixed size, up to the first 0 or the end of the field.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct Text<const BYTES: usize>([u8; BYTES]);

impl<const BYTES: usize> Text<BYTES> {
    /// Creates the field from a text, truncated so that a 0 follows it.
    pub fn new(text: &str) -> Self {
        let mut bytes = [0; BYTES];
        let kept = text.len().min(BYTES - 1);
        bytes[..kept].copy_from_slice(&text.as_bytes()[..kept]);
        Self(bytes)
    }

    /// Returns true if a 0 ends the text.
    pub fn has_end(&self) -> bool {
        self.0.contains(&0)
    }
}

impl<const BYTES: usize> fmt::Display for Text<BYTES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text_of(&self.0))
    }
}

impl<const BYTES: usize> fmt::Debug for Text<BYTES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&text_of(&self.0), f)
    }
}

impl<const BYTES: usize> Value for Text<BYTES> {
    const KIND: Kind = Kind::Text(BYTES);
}

/// Returns the text in a field's bytes; invalid UTF-8 is replaced.
pub(crate) fn text_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Reads the structure at the start of bytes; `None` if they are too short.
pub fn read<T: Layout>(bytes: &[u8]) -> Option<T> {
    bytes.get(..size_of::<T>()).map(pod_read_unaligned)
}

/// Reads the structure at the start of bytes. Missing bytes at the end are zero; `None` if there are fewer than
/// `least`.
pub(crate) fn read_at_least<T: Layout>(bytes: &[u8], least: usize) -> Option<T> {
    if bytes.len() < least {
        return None;
    }
    let mut value = T::zeroed();
    let there = bytes.len().min(size_of::<T>());
    bytes_of_mut(&mut value)[..there].copy_from_slice(&bytes[..there]);
    Some(value)
}

/// Declares structures of a given size that are sent as their bytes. A structure with a number begins with it, see
/// [`crate::protocol::Numbered`]; the number is not part of the table of fields.
macro_rules! wire {
    ($(
        $(#[$meta:meta])*
        $vis:vis struct $name:ident: $bytes:literal $(= $number:literal $label:literal)? {
            $($(#[$field_meta:meta])* $field:ident: $type:ty,)*
        }
    )*) => {$(
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
        $vis struct $name {
            $(#[doc = concat!("Number of `", $label, "`.")] pub number: u32,)?
            $(
                #[allow(missing_docs)] // of fields whose names say what they are
                $(#[$field_meta])*
                pub $field: $type,
            )*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $(number: $number,)? ..bytemuck::Zeroable::zeroed() }
            }
        }

        $(impl $crate::protocol::Numbered for $name {
            const NUMBER: u32 = $number;
            const NAME: &'static str = $label;
        })?

        impl $crate::wire::Value for $name {
            const KIND: $crate::wire::Kind = $crate::wire::Kind::Flat(<Self as $crate::wire::Layout>::FIELDS);
        }

        const _: () = assert!(size_of::<$name>() == $bytes);

        impl $crate::wire::Layout for $name {
            const FIELDS: &'static [$crate::wire::Field] = &[$($crate::wire::Field {
                name: stringify!($field),
                at: std::mem::offset_of!($name, $field),
                kind: <$type as $crate::wire::Value>::KIND,
            }),*];
        }
    )*};
}

pub(crate) use wire;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn text_of_any_length_is_cut_and_always_ends(text in "\\PC{0,100}") {
            let field = Text::<64>::new(&text);
            let kept = text.len().min(63);
            prop_assert_eq!(&field.0[..kept], &text.as_bytes()[..kept]);
            prop_assert!(field.0[kept..].iter().all(|&byte| byte == 0));
            if text.len() < 64 && !text.contains('\0') {
                prop_assert_eq!(field.to_string(), text);
            }
        }
    }

    #[test]
    fn text_without_an_end_fills_its_field() {
        let full: Text<4> = pod_read_unaligned(b"abcd");
        assert_eq!((full.to_string(), format!("{full:?}")), ("abcd".to_owned(), "\"abcd\"".to_owned()));
        assert_eq!(pod_read_unaligned::<Text<4>>(b"a\0bc").to_string(), "a");
        assert_eq!(pod_read_unaligned::<Text<2>>(&[b'a', 0xFF]).to_string(), "a\u{FFFD}");
    }
}
