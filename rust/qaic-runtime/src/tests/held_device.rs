//! Devices that hold inferences until their test releases them.

use crate::tests::prelude::*;

/// A device of one test: a `noop` device, which computes on the thread of its caller, or a card, which takes
/// inferences before a thread waits for them.
pub(crate) trait HeldDevice: Sync {
    fn context(&self) -> &Arc<Context>;

    /// Limits of waits for an inference.
    fn wait_limits(&self) -> WaitLimits;

    /// Holds the inferences that begin from now on.
    fn hold(&self);

    /// Releases held inferences.
    fn release(&self);

    /// Waits until the device executes `count` inferences.
    fn await_executing(&self, count: u32);

    /// Makes the next inference fail.
    fn fail_next(&self);

    /// Loses the device, and all that is loaded on it.
    fn lose(&self);

    fn recover(&self);

    /// Options of a program with this number of threads.
    fn options(&self, threads: u32) -> ProgramOptions {
        let wait = self.wait_limits();
        ProgramOptions { threads_per_queue: threads, wait, ..ProgramOptions::default() }
    }

    /// Creates a set with the options that nearly all tests use.
    fn set(&self, image: &Arc<Image>, size: u32, activations: u32) -> Arc<InferenceSet> {
        let options = ProgramOptions { wait: self.wait_limits(), ..ProgramOptions::default() };
        try_set(self.context(), image, size, activations, options).unwrap()
    }
}

/// One device of each kind.
pub(crate) fn of_each_kind() -> impl Iterator<Item = Box<dyn HeldDevice>> {
    static KINDS: &[fn() -> Box<dyn HeldDevice>] = &[
        || Box::new(HeldNoop::default()),
        #[cfg(feature = "emu")]
        || Box::new(EchoCard::default()),
    ];
    KINDS.iter().map(|create| create())
}

pub(crate) struct HeldNoop {
    context: Arc<Context>,
    control: Arc<Control>,
}

impl Default for HeldNoop {
    fn default() -> Self {
        let context = noop(RegistryOptions::default());
        let control = control(&context);
        Self { context, control }
    }
}

impl HeldDevice for HeldNoop {
    fn context(&self) -> &Arc<Context> {
        &self.context
    }

    fn wait_limits(&self) -> WaitLimits {
        WaitLimits::default()
    }

    fn hold(&self) {
        self.control.hold().unwrap();
    }

    fn release(&self) {
        self.control.release().unwrap();
    }

    fn await_executing(&self, count: u32) {
        await_executing(&self.control, count);
    }

    fn fail_next(&self) {
        self.control.plan("execute@1=fail").unwrap();
    }

    fn lose(&self) {
        self.control.lose().unwrap();
    }

    fn recover(&self) {
        self.control.recover().unwrap();
    }
}
