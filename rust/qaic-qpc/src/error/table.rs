//! Declaration of errors as tables. Each row contains an error with its code, its class, its values, and an example.

/// Defines an enum of errors, with their codes and reports, and an example of each.
///
/// A row has the attributes of its variant, then each field with its type and its value in the example, then the code. The
/// class of the exception follows where it is not that of the enum, then the fields in its context, and a hint.
/// `sources` are variants that hold an error of another table, which has their codes, reports and examples.
///
/// ```
/// qaic_qpc::errors! {
///     /// Reasons not to read a file.
///     #[derive(Debug, thiserror::Error)]
///     pub enum ReadError: "ValueError" {
///         /// The file is too short.
///         #[error("expected {needed} bytes, found {found}")]
///         TooShort { needed: u64 = 64, found: u64 = 10 } => "read.too_short" [found as "bytes"] hint "read it again",
///     }
/// }
/// let (example, report) = (&ReadError::examples()[0], ReadError::examples()[0].report());
/// assert_eq!((example.code(), example.to_string().as_str()), ("read.too_short", "expected 64 bytes, found 10"));
/// assert_eq!((report.class, report.hint), ("ValueError", Some("read it again")));
/// assert_eq!(report.figures, [("bytes", 10_u64.into())]);
/// ```
#[macro_export]
macro_rules! errors {
    (
        $(#[$of_enum:meta])*
        pub enum $name:ident: $class_of_enum:literal {
            $(
                $(#[$of_variant:meta])*
                $variant:ident
                $({ $($field:ident: $type:ty = $example:expr),* $(,)? })?
                $((#[from] $inner:ty = $inner_example:expr))?
                => $code:literal $($class:literal)? $([$($figure:ident $(as $shown:literal)?),*])? $(hint $hint:expr)?,
            )*
        }
        $(sources {
            $($(#[$of_source:meta])* $source:ident($error:ty),)*
        })?
    ) => {
        $(#[$of_enum])*
        #[non_exhaustive]
        pub enum $name {
            $(
                $(#[$of_variant])*
                #[allow(missing_docs)] // the message describes the fields
                $variant $({ $($field: $type),* })? $((#[from] $inner))?,
            )*
            $($($(#[$of_source])* $source(#[from] $error),)*)?
        }

        impl $name {
            /// Stable name of the error for programs. Codes do not change; texts may.
            pub const fn code(&self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => $code,)*
                    $($(Self::$source(source) => source.code(),)*)?
                }
            }

            /// Returns the error's details other than its code and its message.
            pub fn report(&self) -> $crate::ErrorReport {
                match self {
                    $(Self::$variant { $($($figure,)*)? .. } => {
                        $crate::ErrorReport::of($crate::errors!(@last $class_of_enum $($class)?))
                            $($(.with($crate::errors!(@last (stringify!($figure)) $($shown)?), $figure))*)?
                            $(.hint($hint))?
                    })*
                    $($(Self::$source(source) => source.report(),)*)?
                }
            }

            /// Returns one example of each variant in the order of the variants, except variants with errors of
            /// another table.
            pub fn examples() -> Vec<Self> {
                vec![$(Self::$variant $({ $($field: $example),* })? $(($inner_example))?),*]
            }
        }
    };
    (@last $first:tt) => { $first };
    (@last $first:tt $second:literal) => { $second };
}
