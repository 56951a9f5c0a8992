//! Signals of the calling thread, blocked while a system call must not be interrupted.

use std::marker::PhantomData;

use nix::sys::signal::{SigSet, SigmaskHow};

use crate::Errno;

/// Blocks all signals of the calling thread; they are delivered on drop. Other threads of the process receive their
/// signals, and signals that end or stop a process are not blocked.
///
/// The driver's control call waits for the firmware's reply. A signal would end that wait, and the later reply would
/// be discarded. Its result (an image, cores, a channel) would then belong to a caller that does not know about it.
/// With `SA_RESTART`, the kernel would even repeat the call.
#[derive(Debug)]
pub(super) struct HeldSignals {
    before: SigSet,
    // The mask belongs to the thread.
    _not_send: PhantomData<*const ()>,
}

impl HeldSignals {
    pub(super) fn hold() -> Result<Self, Errno> {
        let before = SigSet::all()
            .thread_swap_mask(SigmaskHow::SIG_SETMASK)
            .map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
        Ok(Self { before, _not_send: PhantomData })
    }
}

impl Drop for HeldSignals {
    fn drop(&mut self) {
        // Fails only for an invalid `how`.
        let _ = self.before.thread_set_mask();
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::Signal;

    use super::*;

    /// Returns the signals that the calling thread blocks.
    fn held() -> SigSet {
        SigSet::thread_get_mask().unwrap()
    }

    #[test]
    fn signals_are_held_until_the_end_and_those_held_before_after_it() {
        let mut own = SigSet::empty();
        own.add(Signal::SIGUSR2);
        own.thread_set_mask().unwrap();
        let holding = HeldSignals::hold().unwrap();
        for signal in [Signal::SIGINT, Signal::SIGALRM, Signal::SIGCHLD, Signal::SIGPROF, Signal::SIGUSR2] {
            assert!(held().contains(signal), "{signal}");
        }
        drop(holding);
        assert!(!held().contains(Signal::SIGINT) && held().contains(Signal::SIGUSR2));
        SigSet::empty().thread_set_mask().unwrap();
    }
}
