//! Enumerations of codes that also represent unknown codes.

/// Declares an enumeration: each variant with its code.
macro_rules! open_enum {
    ($(#[$of_enum:meta])* pub enum $name:ident { $($(#[$of_variant:meta])* $variant:ident = $code:literal,)* }) => {
        $(#[$of_enum])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(from = "i32", into = "i32")]
        pub enum $name {
            $(
                $(#[$of_variant])*
                #[doc = concat!(" Code ", $code, ".")]
                $variant,
            )*
            /// Any other code.
            Unknown(i32),
        }

        impl $name {
            /// The code on the wire.
            pub const fn code(self) -> i32 {
                match self {
                    $(Self::$variant => $code,)*
                    Self::Unknown(code) => code,
                }
            }
        }

        impl From<i32> for $name {
            fn from(code: i32) -> Self {
                match code {
                    $($code => Self::$variant,)*
                    other => Self::Unknown(other),
                }
            }
        }

        impl From<$name> for i32 {
            fn from(value: $name) -> Self {
                value.code()
            }
        }
    };
}
pub(crate) use open_enum;
