//! A kernel whose own allocations do not count, because a real kernel allocates outside of the process.

use crate::tests::prelude::*;
use qaic_kmd::Ioctl;
use qaic_mem::Mapping;

use super::counting::uncounted;

#[derive(Debug)]
pub(crate) struct Uncounted<T>(T);

/// One emulated card.
pub(crate) fn card() -> Arc<dyn Kmd> {
    Arc::new(Uncounted(EmuKmd::new(EmuOptions::default()).unwrap()))
}

impl Kmd for Uncounted<Arc<EmuKmd>> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn enumerate(&self) -> Result<Vec<NodeInfo>, Errno> {
        self.0.enumerate()
    }

    fn open(&self, node: &NodeInfo) -> Result<Arc<dyn AccelFile>, Errno> {
        Ok(Arc::new(Uncounted(self.0.open(node)?)))
    }

    fn events(&self) -> Result<Box<dyn EventSource>, Errno> {
        self.0.events()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.0.clock()
    }
}

impl AccelFile for Uncounted<Arc<dyn AccelFile>> {
    fn ioctl(&self, call: &mut Ioctl<'_, '_>) -> Result<(), Errno> {
        uncounted(|| self.0.ioctl(call))
    }

    fn map(&self, offset: u64, len: usize) -> Result<Mapping, Errno> {
        self.0.map(offset, len)
    }
}
