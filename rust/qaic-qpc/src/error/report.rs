//! Details of an error in addition to its code and its message, for interfaces with error objects.

use std::path::PathBuf;

/// Class, values and hint of an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorReport {
    /// Name of the error's exception class (docs/reference/errors.md).
    pub class: &'static str,
    /// Values in the message, by name.
    pub figures: Vec<(&'static str, Figure)>,
    /// A possible fix.
    pub hint: Option<&'static str>,
}

/// A value in a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Figure {
    /// The value is not known.
    Unknown,
    /// A number.
    Number(i128),
    /// A name.
    Text(String),
    /// A file.
    Path(PathBuf),
    /// Several values of one kind.
    List(Vec<Self>),
    /// Several related values.
    Tuple(Vec<Self>),
}

impl ErrorReport {
    /// Returns a report about an error of `class`, without figures.
    pub const fn of(class: &'static str) -> Self {
        Self { class, figures: Vec::new(), hint: None }
    }

    /// Adds a figure.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: impl Into<Figure>) -> Self {
        self.figures.push((name, value.into()));
        self
    }

    /// Adds a hint.
    #[must_use]
    pub const fn hint(mut self, hint: &'static str) -> Self {
        self.hint = Some(hint);
        self
    }
}

macro_rules! number_is_figure {
    ($($number:ty)*) => {$(
        impl From<$number> for Figure {
            fn from(number: $number) -> Self {
                Self::Number(i128::try_from(number).unwrap_or_default())
            }
        }

        impl From<&$number> for Figure {
            fn from(number: &$number) -> Self {
                Self::from(*number)
            }
        }
    )*};
}

number_is_figure!(i32 u32 u64 usize);

impl From<&str> for Figure {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<&&str> for Figure {
    fn from(text: &&str) -> Self {
        Self::from(*text)
    }
}

impl From<String> for Figure {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&String> for Figure {
    fn from(text: &String) -> Self {
        Self::Text(text.clone())
    }
}

impl From<&PathBuf> for Figure {
    fn from(path: &PathBuf) -> Self {
        Self::Path(path.clone())
    }
}

impl<T: Into<Self>> From<Option<T>> for Figure {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Unknown, Into::into)
    }
}

impl<A: Into<Self>, B: Into<Self>> From<(A, B)> for Figure {
    fn from((first, second): (A, B)) -> Self {
        Self::Tuple(vec![first.into(), second.into()])
    }
}

impl<T: Into<Self>> From<Vec<T>> for Figure {
    fn from(values: Vec<T>) -> Self {
        Self::List(values.into_iter().map(Into::into).collect())
    }
}

impl<T: Into<Self> + Clone> From<&Vec<T>> for Figure {
    fn from(values: &Vec<T>) -> Self {
        values.clone().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_keep_what_they_were_made_of() {
        let report = ErrorReport::of("QpcError")
            .with("bytes", u64::MAX)
            .with("shapes", vec![("x".to_owned(), vec![1_u64, 8])])
            .with("errno", None::<i32>)
            .hint("read it");
        let shape = Figure::List(vec![Figure::Number(1), Figure::Number(8)]);
        let pair = Figure::Tuple(vec![Figure::Text("x".to_owned()), shape]);
        assert_eq!(
            report.figures,
            [
                ("bytes", Figure::Number(u64::MAX.into())),
                ("shapes", Figure::List(vec![pair])),
                ("errno", Figure::Unknown),
            ]
        );
        assert_eq!(report.hint, Some("read it"));
    }
}
