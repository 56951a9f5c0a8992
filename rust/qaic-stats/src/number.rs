//! Conversion of numbers to text, without floating point for frequent numbers.

use std::fmt;

/// Declares an enumeration of codes with their names, which also represents unknown codes.
macro_rules! codes {
    (
        $(#[$of_enum:meta])*
        pub enum $kind:ident: $code_type:ty, $unknown:literal {
            $($(#[$of_variant:meta])* $variant:ident = $code:literal $name:literal,)*
        }
    ) => {
        $(#[$of_enum])*
        #[allow(missing_docs)]
        pub enum $kind {
            $($(#[$of_variant])* $variant,)*
            /// An unknown number.
            Other($code_type),
        }

        impl $kind {
            /// The variant with this number.
            pub const fn from_code(code: $code_type) -> Self {
                match code {
                    $($code => Self::$variant,)*
                    other => Self::Other(other),
                }
            }

            /// Number of the variant.
            pub const fn code(self) -> $code_type {
                match self {
                    $(Self::$variant => $code,)*
                    Self::Other(code) => code,
                }
            }

            /// Text for readers.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                    Self::Other(_) => $unknown,
                }
            }
        }
    };
}
pub(crate) use codes;

/// Nanoseconds that are formatted as microseconds, with all digits.
pub(crate) struct Us(pub(crate) u64);

impl fmt::Display for Us {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

/// Appends a number.
#[inline]
pub(crate) fn push_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Appends `value / 10^decimals` with that many decimals, at most 18.
#[inline]
pub(crate) fn push_fixed(out: &mut Vec<u8>, value: u64, decimals: usize) {
    const ZEROS: [u8; 20] = [b'0'; 20];
    let mut buffer = itoa::Buffer::new();
    let digits = buffer.format(value).as_bytes();
    if let Some((whole, fraction)) =
        digits.len().checked_sub(decimals).and_then(|at| digits.split_at_checked(at))
        && !whole.is_empty()
    {
        out.extend_from_slice(whole);
        out.push(b'.');
        out.extend_from_slice(fraction);
    } else {
        out.extend_from_slice(b"0.");
        out.extend_from_slice(ZEROS.get(digits.len()..decimals).unwrap_or_default());
        out.extend_from_slice(digits);
    }
}

/// Computes `numerator * factor / denominator`, rounded to nearest; `None` if the denominator is zero.
#[inline]
pub(crate) fn ratio(numerator: u64, factor: u64, denominator: u64) -> Option<u64> {
    let half = denominator / 2;
    if let Some(product) = numerator.checked_mul(factor).and_then(|product| product.checked_add(half)) {
        return product.checked_div(denominator);
    }
    let product = u128::from(numerator).wrapping_mul(u128::from(factor)).wrapping_add(u128::from(half));
    let quotient = product.checked_div(u128::from(denominator))?;
    Some(u64::try_from(quotient).unwrap_or(u64::MAX))
}

/// Formats a number with six significant digits, like `%g` in C.
pub(crate) fn general(value: f64) -> String {
    let scientific = format!("{value:.5e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trimmed = |text: &str| {
        let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { text };
        text.to_owned()
    };
    if (-4..6).contains(&exponent) {
        let decimals = usize::try_from(5_i32.saturating_sub(exponent)).unwrap_or(0);
        return trimmed(&format!("{value:.decimals$}"));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trimmed(digits), exponent.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fixed(value: u64, decimals: usize) -> String {
        let mut out = Vec::new();
        push_fixed(&mut out, value, decimals);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn general_follows_c() {
        for (value, text) in [
            (43.177_4, "43.1774"),
            (345.419_02, "345.419"),
            (0.023_160_260_4, "0.0231603"),
            (0.000_012_345, "1.2345e-05"),
            (0.0001, "0.0001"),
            (1_234_567.0, "1.23457e+06"),
            (999_999.5, "1e+06"),
            (100_000.0, "100000"),
            (0.0, "0"),
            (1.0, "1"),
        ] {
            assert_eq!(general(value), text);
        }
    }

    proptest! {
        #[test]
        fn digits_are_those_of_the_formatter(value: u64) {
            let mut out = Vec::new();
            push_u64(&mut out, value);
            prop_assert_eq!(String::from_utf8(out).unwrap(), value.to_string());
        }

        #[test]
        fn decimals_shift_the_point(value: u64, decimals in 1_usize..10, bits in 0_u32..64) {
            let value = value >> bits;
            let one = 10_u64.pow(u32::try_from(decimals).unwrap());
            prop_assert_eq!(fixed(value, decimals), format!("{}.{:0decimals$}", value / one, value % one));
        }

        #[test]
        fn ratios_are_rounded(numerator: u64, factor: u64, denominator in 1_u64.., shift in 0_u32..64) {
            let numerator = numerator >> shift;
            let exact = (u128::from(numerator) * u128::from(factor) + u128::from(denominator / 2))
                / u128::from(denominator);
            let expected = u64::try_from(exact).unwrap_or(u64::MAX);
            prop_assert_eq!(ratio(numerator, factor, denominator), Some(expected));
        }
    }
}
