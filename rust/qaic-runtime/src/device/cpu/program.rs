//! A loaded program of a virtual card.

use std::sync::Arc;

use super::activation::CpuActivation;
use super::executable::Executable;
use crate::device::{Activation, LoadedProgram};
use crate::error::RuntimeError;
use crate::image::Image;

#[derive(Debug)]
pub(super) struct CpuProgram {
    image: Arc<Image>,
    executable: Executable,
}

impl CpuProgram {
    pub(super) fn new(image: &Arc<Image>, executable: Executable) -> Self {
        Self { image: Arc::clone(image), executable }
    }
}

impl LoadedProgram for CpuProgram {
    fn activate(&self) -> Result<Arc<dyn Activation>, RuntimeError> {
        Ok(Arc::new(CpuActivation::new(&self.image, &self.executable)))
    }
}
