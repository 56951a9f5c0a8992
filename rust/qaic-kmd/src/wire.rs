//! Structures as they cross the kernel's interface: plain bytes, with a table of their fields for transcripts.
//!
//! Each structure is declared once, by [`wire!`]. The sender, the emulator and the transcript use that declaration.

use std::fmt;

use bytemuck::{Pod, Zeroable, bytes_of_mut, pod_read_unaligned};

const _: () =
    assert!(cfg!(target_endian = "little"), "the interface is little-endian, as all hosts of cards are");

/// A structure whose bytes are what is sent.
pub trait Layout: Pod + fmt::Debug {
    /// Its fields, without those that mean nothing.
    const FIELDS: &'static [Field];
}

/// A field of a [`Layout`].
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Bytes before it.
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
    /// A number with a sign.
    I32,
    /// Text in so many bytes.
    Text(usize),
    /// So many bytes that say something about one process only: its id, its addresses, its descriptors.
    Volatile(usize),
    /// Nothing: padding.
    Reserved,
    /// The fields of a structure, as if they were fields of the outer one.
    Flat(&'static [Field]),
    /// `count` structures of `bytes` bytes, each a field of its own: this name and its number.
    Numbered {
        /// The name.
        name: &'static str,
        /// Fields of each.
        fields: &'static [Field],
        /// Bytes of each.
        bytes: usize,
        /// How many.
        count: usize,
    },
}

/// A type of which fields are.
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
    ProcessId: Kind::Volatile(4),
    Descriptor: Kind::Volatile(4),
    HostAddress: Kind::Volatile(8),
}

/// Id of the process that asks.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct ProcessId(pub u32);

/// A file descriptor of the process that asks.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct Descriptor(pub i32);

/// An address in the process that asks.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct HostAddress(pub u64);

/// A number that does not lie on a multiple of its size.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct UnalignedU32([u8; 4]);

impl UnalignedU32 {
    /// The number.
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

/// Text in a field of fixed size, up to the first 0, or all of it when there is none.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct Text<const BYTES: usize>([u8; BYTES]);

impl<const BYTES: usize> Text<BYTES> {
    /// The text, cut so that a 0 is behind it.
    pub fn new(text: &str) -> Self {
        let mut bytes = [0; BYTES];
        let kept = text.len().min(BYTES - 1);
        bytes[..kept].copy_from_slice(&text.as_bytes()[..kept]);
        Self(bytes)
    }

    /// Returns whether a 0 ends the text.
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

/// Text of a field in its bytes; what is no UTF-8 is replaced.
pub(crate) fn text_of(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// The structure at the begin of bytes; `None`: they are fewer than it has.
pub fn read<T: Layout>(bytes: &[u8]) -> Option<T> {
    bytes.get(..size_of::<T>()).map(pod_read_unaligned)
}

/// The structure at the begin of bytes that may lack its end, which is zeros then; `None`: they are fewer than `least`.
pub(crate) fn read_at_least<T: Layout>(bytes: &[u8], least: usize) -> Option<T> {
    if bytes.len() < least {
        return None;
    }
    let mut value = T::zeroed();
    let there = bytes.len().min(size_of::<T>());
    bytes_of_mut(&mut value)[..there].copy_from_slice(&bytes[..there]);
    Some(value)
}

/// Declares structures of so many bytes whose bytes are what is sent. One with a number has that in front, where
/// [`crate::protocol::Numbered`] finds it; the number is no field of the table.
macro_rules! wire {
    ($(
        $(#[$meta:meta])*
        pub struct $name:ident: $bytes:literal $(= $number:literal $label:literal)? {
            $($(#[$field_meta:meta])* $field:ident: $type:ty,)*
        }
    )*) => {$(
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
        pub struct $name {
            $(#[doc = concat!("Number of `", $label, "`.")] pub number: u32,)?
            $($(#[$field_meta])* pub $field: $type,)*
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
