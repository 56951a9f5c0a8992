//! Enumerations whose variants have names: the values of options and of entries in files.

/// Defines an enumeration with a name for each variant. The number in brackets is that of the variants.
#[macro_export]
macro_rules! named {
    ($(#[$meta:meta])* pub enum $type:ident [$count:literal] {
        $($(#[$doc:meta])* $variant:ident = $name:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type {
            $($(#[$doc])* $variant,)*
        }

        impl $type {
            /// All values, in the order of the documentation.
            pub const ALL: [Self; $count] = [$(Self::$variant),*];

            /// Returns the name of the value.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Returns the value with this name.
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|value| value.name() == name)
            }
        }
    };
}
