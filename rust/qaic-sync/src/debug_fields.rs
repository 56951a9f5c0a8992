//! `Debug` for structures with fields that have none.

/// Implements `Debug` for a structure: its name, and the listed values.
#[macro_export]
macro_rules! debug_fields {
    ($type:ident $(<$($parameter:tt),*>)? $(, |$this:ident| $($name:ident: $value:expr),*)?) => {
        impl $(<$($parameter),*>)? ::std::fmt::Debug for $type $(<$($parameter),*>)? {
            fn fmt(&self, formatter: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                $(let $this = self;)?
                formatter
                    .debug_struct(stringify!($type))
                    $($(.field(stringify!($name), &$value))*)?
                    .finish_non_exhaustive()
            }
        }
    };
}
