//! A kernel that records the calls of inferences, so that a bench can repeat only these calls.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use qaic_kmd::abi::ExecuteEntry;
use qaic_kmd::{AccelFile, Clock, Errno, EventSource, Ioctl, Kmd, NodeInfo};
use qaic_mem::Mapping;

/// A kernel with one card, and its recorded calls.
#[derive(Debug)]
pub(crate) struct Tap {
    inner: Arc<dyn Kmd>,
    seen: Arc<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    file: OnceLock<Arc<dyn AccelFile>>,
    calls: AtomicU64,
    // Handle and direction of every buffer object in order, and the channel.
    attached: Mutex<(Vec<ExecuteEntry>, u32)>,
}

/// Buffer objects of an inference: one in, one out.
const OBJECTS: usize = 2;

impl Tap {
    pub(crate) fn new(inner: Arc<dyn Kmd>) -> Arc<Self> {
        Arc::new(Self { inner, seen: Arc::default() })
    }

    /// Number of calls so far.
    pub(crate) fn calls(&self) -> u64 {
        self.seen.calls.load(Ordering::Relaxed)
    }

    /// Repeats the calls of an inference of an exec object, which must be idle. Panics if a call fails.
    pub(crate) fn again(&self, exec: usize) {
        self.execute(exec);
        self.wait(exec);
    }

    /// Makes the execute call of [`Self::again`].
    pub(crate) fn execute(&self, exec: usize) {
        let (entries, dbc_id) = self.objects_of(exec);
        self.file().execute(dbc_id, &entries).unwrap();
    }

    /// Makes the wait call of [`Self::again`].
    pub(crate) fn wait(&self, exec: usize) {
        let (entries, dbc_id) = self.objects_of(exec);
        self.file().wait(dbc_id, entries[OBJECTS - 1].handle, 0).unwrap();
    }

    fn objects_of(&self, exec: usize) -> ([ExecuteEntry; OBJECTS], u32) {
        let attached = self.seen.attached.lock().unwrap();
        let first = exec * OBJECTS;
        ([attached.0[first], attached.0[first + 1]], attached.1)
    }

    fn file(&self) -> &dyn AccelFile {
        &**self.seen.file.get().unwrap()
    }
}

impl Kmd for Tap {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn enumerate(&self) -> Result<Vec<NodeInfo>, Errno> {
        self.inner.enumerate()
    }

    fn open(&self, node: &NodeInfo) -> Result<Arc<dyn AccelFile>, Errno> {
        let file = self.inner.open(node)?;
        // The card is opened once; the bare calls need its channel.
        let _ = self.seen.file.set(Arc::clone(&file));
        Ok(Arc::new(TappedFile { inner: file, seen: Arc::clone(&self.seen) }))
    }

    fn events(&self) -> Result<Box<dyn EventSource>, Errno> {
        self.inner.events()
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.inner.clock()
    }
}

#[derive(Debug)]
struct TappedFile {
    inner: Arc<dyn AccelFile>,
    seen: Arc<Seen>,
}

impl AccelFile for TappedFile {
    fn ioctl(&self, call: &mut Ioctl<'_, '_>) -> Result<(), Errno> {
        self.seen.calls.fetch_add(1, Ordering::Relaxed);
        if let Ioctl::AttachSlices { dbc_id, handle, dir, .. } = call {
            let mut attached = self.seen.attached.lock().unwrap();
            attached.0.push(ExecuteEntry { handle: *handle, dir: *dir });
            attached.1 = *dbc_id;
        }
        self.inner.ioctl(call)
    }

    fn map(&self, offset: u64, len: usize) -> Result<Mapping, Errno> {
        self.inner.map(offset, len)
    }
}
