//! Scheduling policy of threads that compute.

/// Changes the scheduling of the calling thread so that its wakeup does not preempt the waking thread. The
/// calling thread runs on an idle CPU, or when there is time for it; its share of the CPUs does not change.
/// Has no effect if the process uses a policy other than the default, or if the system allows no change.
pub(crate) fn give_way_when_woken() {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: takes no memory; 0 is the calling thread.
        let policy = unsafe { libc::sched_getscheduler(0) };
        if policy != libc::SCHED_OTHER {
            return;
        }
        // SAFETY: a structure of numbers, for which zeros are valid; the batch policy requires a priority of
        // 0.
        let parameter: libc::sched_param = unsafe { std::mem::zeroed() };
        // A refusal leaves the thread unchanged and only costs speed.
        // SAFETY: `parameter` is read during the call only; 0 is the calling thread.
        let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_BATCH, &raw const parameter) };
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn only_the_calling_thread_gives_way() {
        // SAFETY: as above.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        let before = policy();
        let after = std::thread::spawn(move || {
            give_way_when_woken();
            policy()
        });
        let expected = if before == libc::SCHED_OTHER { libc::SCHED_BATCH } else { before };
        assert_eq!(after.join().ok(), Some(expected));
        assert_eq!(policy(), before);
    }
}
