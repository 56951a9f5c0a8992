//! An opened container: its bytes and what was parsed of them. Shared by everything made from it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use qaic_qpc::container::{Container, names};
use qaic_qpc::limits::Limits;
use qaic_qpc::network_desc::NetworkDesc;

use crate::buffer::FileBytes;
use crate::error::RuntimeError;

/// A container. Opening one reads its header, tables and descriptors, never its constants, so the cost does not depend
/// on the size of the file.
#[derive(Debug)]
pub struct Image {
    path: Option<PathBuf>,
    bytes: FileBytes,
    container: Container,
    network: NetworkDesc,
}

impl Image {
    /// Opens a file; see [`FileBytes::open`] for what `mmap` decides.
    ///
    /// Blocking: reads the file's descriptors.
    pub fn open(path: &Path, mmap: bool) -> Result<Arc<Self>, RuntimeError> {
        Self::parse(FileBytes::open(path, mmap)?, Some(path.to_owned()))
    }

    /// Takes a container that is in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Arc<Self>, RuntimeError> {
        Self::parse(FileBytes::Owned(bytes.into_boxed_slice()), None)
    }

    fn parse(bytes: FileBytes, path: Option<PathBuf>) -> Result<Arc<Self>, RuntimeError> {
        let limits = Limits::default();
        let container = Container::parse(&bytes, &limits)?;
        container.require_program()?;
        let descriptor = container.required(names::NETWORK_DESC)?.payload(&bytes);
        let network = NetworkDesc::decode(descriptor, &limits)?;
        Ok(Arc::new(Self { path, bytes, container, network }))
    }

    /// The file, if it came from one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Header and segment table.
    pub fn container(&self) -> &Container {
        &self.container
    }

    /// The network descriptor.
    pub fn network(&self) -> &NetworkDesc {
        &self.network
    }

    /// Payload of a segment.
    pub fn segment(&self, name: &str) -> Option<&[u8]> {
        self.container.segment(name).map(|segment| segment.payload(&self.bytes))
    }
}
