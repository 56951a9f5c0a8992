//! Class, figures and advice of an error of statistics.

use qaic_qpc::error::ErrorReport;

use super::{ErrorKind, StatsError};

impl StatsError {
    /// Returns the error's details other than its code and its message.
    pub fn report(&self) -> ErrorReport {
        if let Self::Container(source) = self {
            return source.report();
        }
        let report = ErrorReport::of(match self.kind() {
            ErrorKind::UnknownLayout => "UnknownStatsLayoutError",
            ErrorKind::Version => "StatsVersionError",
            ErrorKind::Mismatch => "StatsMismatchError",
            ErrorKind::Misuse => "StatsError",
            ErrorKind::Malformed => "StatsFormatError",
        });
        match self {
            Self::UnknownLayout { bytes, level, cores, threads, ops } => report
                .with("bytes", bytes)
                .with("level", level)
                .with("cores", cores)
                .with("threads", threads)
                .with("ops", ops)
                .hint("qaic.stats.register_layout adds a layout"),
            Self::OtherProgram { .. } => {
                report.hint("give the container of the buffer, or force=True to read the buffer anyway")
            }
            Self::Version { .. } => report.hint("a newer openqaic may read it"),
            _ => report,
        }
    }
}

#[cfg(test)]
mod tests {
    use qaic_qpc::error::QpcError;

    use super::*;

    #[test]
    fn report_of_an_unknown_layout_has_its_figures() {
        let report =
            StatsError::UnknownLayout { bytes: 64, level: 70, cores: 2, threads: 6, ops: vec![3, 4] }
                .report();
        let names: Vec<_> = report.figures.iter().map(|(name, _)| *name).collect();
        assert_eq!(
            (report.class, names),
            ("UnknownStatsLayoutError", vec!["bytes", "level", "cores", "threads", "ops"])
        );
        assert!(report.hint.is_some_and(|hint| hint.contains("register_layout")));
    }

    #[test]
    fn report_of_a_container_is_the_container_error_s() {
        let container = QpcError::MetadataMissing;
        assert_eq!(StatsError::Container(container.clone()).report(), container.report());
    }

    #[test]
    fn classes_follow_the_kind() {
        for (error, class) in [
            (StatsError::Version { major: 2, minor: 0 }, "StatsVersionError"),
            (StatsError::OtherProgram { found: [1; 16], expected: [2; 16] }, "StatsMismatchError"),
            (StatsError::Truncated { needed: 2, bytes: 1 }, "StatsFormatError"),
            (StatsError::BufferTooSmall { needed: 2, bytes: 1 }, "StatsError"),
        ] {
            assert_eq!(error.report().class, class, "{error}");
        }
    }
}
