//! The monotonic clock of deadlines and measured times.
//!
//! The clock starts at its first use in the process. A forked child continues the clock of its parent. Under `--cfg
//! loom` no time passes, so that every run of a model is the same.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

#[derive(Clone, Copy)]
struct Epoch {
    begin: Instant,
    utc_ns: u64,
}

static EPOCH: OnceLock<Epoch> = OnceLock::new();

fn epoch() -> Epoch {
    *EPOCH.get_or_init(|| {
        let utc = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Epoch { begin: Instant::now(), utc_ns: u64::try_from(utc.as_nanos()).unwrap_or(0) }
    })
}

/// Nanoseconds since the start of the clock.
pub fn now_ns() -> u64 {
    let elapsed = if cfg!(loom) { Duration::from_nanos(1) } else { epoch().begin.elapsed() };
    // Sufficient for 584 years.
    u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX)
}

/// Clock time `after` from now.
pub fn after(after: Duration) -> u64 {
    now_ns().saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX))
}

/// UTC nanoseconds at the start of the clock; 0 if the system's date is before 1970. Later changes of the system's
/// date have no effect.
pub fn epoch_utc_ns() -> u64 {
    epoch().utc_ns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_forward_from_a_date_that_is_today() {
        let before = now_ns();
        let utc = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let later = after(Duration::from_secs(1));
        assert!(before + 1_000_000_000 <= later);
        let shown = u128::from(epoch_utc_ns()) + u128::from(now_ns());
        assert!(shown.abs_diff(utc) < 60_000_000_000, "{shown} and {utc}");
        assert_eq!(after(Duration::MAX), u64::MAX);
    }
}
