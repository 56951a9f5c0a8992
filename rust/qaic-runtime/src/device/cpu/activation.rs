//! An activation of a virtual card: a program that holds cores. Only its resource tracker counts the cores.

use std::sync::Arc;

use super::exec::CpuExec;
use super::executable::Executable;
use crate::device::{Activation, Exec};
use crate::error::RuntimeError;
use crate::image::Image;

#[derive(Debug)]
pub(super) struct CpuActivation {
    image: Arc<Image>,
    executable: Executable,
}

impl CpuActivation {
    pub(super) fn new(image: &Arc<Image>, executable: &Executable) -> Self {
        Self { image: Arc::clone(image), executable: executable.clone() }
    }
}

impl Activation for CpuActivation {
    fn create_exec(&self) -> Result<Box<dyn Exec>, RuntimeError> {
        Ok(Box::new(CpuExec::new(&self.image, &self.executable)?))
    }

    fn updates_state(&self, output: usize) -> bool {
        self.executable.updates_state(output)
    }
}
