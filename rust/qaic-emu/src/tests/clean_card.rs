//! The control of an emulated card, on which nothing may be left at the end of a test.

use std::ops::Deref;
use std::thread;

use qaic_emu::Control;

pub(crate) struct CleanCard(pub(crate) Control);

impl Deref for CleanCard {
    type Target = Control;

    fn deref(&self) -> &Control {
        &self.0
    }
}

impl Drop for CleanCard {
    fn drop(&mut self) {
        if !thread::panicking() {
            assert_eq!(self.invariants(), Vec::<String>::new());
        }
    }
}
