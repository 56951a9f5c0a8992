//! An opened container: its bytes and their parsed descriptors. All objects made from the container share it.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use qaic_mem::FileBytes;
use qaic_qpc::metadata::LocatedMetadata;
use qaic_qpc::plan::{Plan, PlanError};
use qaic_qpc::{ConstantsDesc, Container, IoDesc, Limits, MAGIC, NetworkDesc, QpcError, QpcInfo, elf, names};

use crate::error::RuntimeError;

/// Name of the container in the directory of a compiled program.
const FILE_NAME: &str = "programqpc.bin";

/// Maximum depth of containers inside containers.
pub(crate) const MAX_NESTING: u32 = 2;

/// A container. Opening a container reads its header, tables and descriptors, but never its constants. The cost
/// therefore does not depend on the size of the file.
#[derive(Debug)]
pub struct Image {
    /// Path of the file, if the image was opened from one.
    pub path: Option<PathBuf>,
    // Shared with the container that contains this one.
    bytes: Arc<FileBytes>,
    range: Range<usize>,
    depth: u32,
    /// Header and segment table.
    pub container: Container,
    /// The network descriptor, empty if the image is not a program.
    pub network: NetworkDesc,
    plan: OnceLock<Result<Option<Plan>, PlanError>>,
}

impl Image {
    /// Opens a file; see [`FileBytes::open`] for the meaning of `mmap`.
    ///
    /// Blocking: reads the file's descriptors.
    pub fn open(path: &Path, mmap: bool) -> Result<Arc<Self>, RuntimeError> {
        Self::inspect(path, mmap)?.into_program()
    }

    /// Opens a container that is in memory.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Arc<Self>, RuntimeError> {
        Self::inspect_bytes(bytes)?.into_program()
    }

    /// Opens a file that may also hold one container per device instead of a program.
    ///
    /// Blocking: reads the file's descriptors.
    pub fn inspect(path: &Path, mmap: bool) -> Result<Arc<Self>, RuntimeError> {
        let bytes = FileBytes::open(path, mmap)?;
        let range = 0..bytes.len();
        Ok(Self::parse(Arc::new(bytes), range, Some(path.to_owned()), 0)?)
    }

    /// Returns the file that `base` selects: `name` in that directory, or the container in the directory of
    /// a compiled program, or `base` itself. Pipes and devices are refused, because opening one waits for its writer.
    pub fn locate(base: PathBuf, name: Option<PathBuf>) -> Result<PathBuf, RuntimeError> {
        let path = match name {
            Some(name) => base.join(name),
            None if base.is_dir() => base.join(FILE_NAME),
            None => base,
        };
        if path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir()) {
            let what = format!(
                "{} is not a regular file; a container, or a directory with one, is expected",
                path.display()
            );
            return Err(RuntimeError::argument(what));
        }
        Ok(path)
    }

    /// Opens bytes in memory as [`Image::inspect`] opens a file.
    pub fn inspect_bytes(bytes: Vec<u8>) -> Result<Arc<Self>, RuntimeError> {
        let range = 0..bytes.len();
        Ok(Self::parse(Arc::new(FileBytes::Owned(bytes.into_boxed_slice())), range, None, 0)?)
    }

    fn parse(
        bytes: Arc<FileBytes>,
        range: Range<usize>,
        path: Option<PathBuf>,
        depth: u32,
    ) -> Result<Arc<Self>, QpcError> {
        let limits = Limits::default();
        let view = bytes.get(range.clone()).unwrap_or_default();
        let container = Container::parse(view, &limits)?;
        let network = match container.require_program() {
            Ok(()) => NetworkDesc::decode(container.required(names::NETWORK_DESC)?.payload(view), &limits)?,
            Err(_) if holds_containers(&container, view) => NetworkDesc::default(),
            Err(missing) => return Err(missing),
        };
        let plan = OnceLock::new();
        Ok(Arc::new(Self { path, bytes, range, depth, container, network, plan }))
    }

    fn into_program(self: Arc<Self>) -> Result<Arc<Self>, RuntimeError> {
        self.container.require_program()?;
        Ok(self)
    }

    /// Returns true if the image can be loaded; otherwise it can only be opened to reach the containers
    /// inside.
    pub fn is_program(&self) -> bool {
        self.container.require_program().is_ok()
    }

    /// Returns the container in segment `name`, over the same bytes; `None` if the segment is not a container.
    pub fn inner(&self, name: &str) -> Result<Option<Arc<Self>>, QpcError> {
        let Some(segment) = self.container.segment(name) else { return Ok(None) };
        if !is_container(segment.payload(self.bytes())) {
            return Ok(None);
        }
        if self.depth >= MAX_NESTING {
            return Err(QpcError::LimitExceeded { what: "nested containers", max: MAX_NESTING.into() });
        }
        let start = self.range.start;
        let range = start + segment.range.start..start + segment.range.end;
        Self::parse(Arc::clone(&self.bytes), range, None, self.depth + 1).map(Some)
    }

    /// All bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(self.range.clone()).unwrap_or_default()
    }

    /// Returns the program's plan for the host, decoded at the first call; `None` for a program for silicon.
    pub(crate) fn plan(&self) -> Result<Option<&Plan>, PlanError> {
        let file = || self.segment(names::NETWORK_ELF).unwrap_or_default();
        self.plan.get_or_init(|| Plan::of_elf(file())).as_ref().map(Option::as_ref).map_err(Clone::clone)
    }

    /// Returns the facts about the program that tools show.
    pub fn program_info(&self) -> Result<QpcInfo, QpcError> {
        QpcInfo::new(&self.container, self.bytes(), &self.network)
    }

    /// Returns the tensors of the program, in the form that clients decode.
    pub fn io_desc(&self) -> Result<IoDesc, QpcError> {
        IoDesc::from_network(&self.network)
    }

    /// Sizes of the constants.
    pub fn constants_desc(&self) -> Result<ConstantsDesc, QpcError> {
        ConstantsDesc::decode(self.segment(names::CONSTANTS_DESC).unwrap_or_default())
    }

    /// Returns the metadata of the program; `None` if its ELF file has none.
    pub fn metadata(&self) -> Result<Option<LocatedMetadata>, QpcError> {
        let file = self.segment(names::NETWORK_ELF).unwrap_or_default();
        match LocatedMetadata::from_elf(file, &Limits::default()) {
            Ok(located) => Ok(Some(located)),
            Err(QpcError::MetadataMissing) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the range of a section of the program's ELF file in [`Image::bytes`]; `None` if there is none
    /// of this name.
    pub fn elf_section(&self, name: &str) -> Result<Option<Range<usize>>, QpcError> {
        let Some(segment) = self.container.segment(names::NETWORK_ELF) else { return Ok(None) };
        let start = segment.range.start;
        let section = elf::section(segment.payload(self.bytes()), name)?;
        Ok(section.map(|range| start + range.start..start + range.end))
    }

    /// Payload of a segment.
    pub(crate) fn segment(&self, name: &str) -> Option<&[u8]> {
        self.container.segment(name).map(|segment| segment.payload(self.bytes()))
    }
}

fn is_container(payload: &[u8]) -> bool {
    payload.starts_with(&MAGIC.to_le_bytes())
}

/// Returns true if the container holds other containers. The format marks them only by their first bytes and by the
/// segment that orders them.
fn holds_containers(container: &Container, bytes: &[u8]) -> bool {
    container.is_multi_device()
        || container.segments.iter().any(|segment| is_container(segment.payload(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIMPLE: &[u8] = include_bytes!("../../../tests/data/qpc/s01_simple_f32_file.qpc");

    #[test]
    fn sections_of_the_elf_file_are_found_in_the_bytes_of_the_container() {
        let image = Image::from_bytes(SIMPLE.to_vec()).unwrap();
        let metadata = image.metadata().unwrap().unwrap();
        let range = image.elf_section(metadata.section).unwrap().unwrap();
        assert_eq!(range.len() as u64, metadata.section_size);
        let file = image.segment(names::NETWORK_ELF).unwrap();
        let in_file = elf::section(file, metadata.section).unwrap().unwrap();
        assert_eq!(image.bytes()[range], file[in_file]);
        assert_eq!(image.elf_section("none"), Ok(None));
    }

    #[test]
    fn container_is_the_named_file_or_that_of_a_compiled_program() {
        let folder = std::env::temp_dir().join(format!("openqaic-locate-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let locate =
            |base: &Path, name: Option<&str>| Image::locate(base.to_owned(), name.map(PathBuf::from));
        assert_eq!(locate(&folder, None).unwrap(), folder.join("programqpc.bin"));
        assert_eq!(locate(&folder, Some("other.qpc")).unwrap(), folder.join("other.qpc"));
        // A missing path is returned unchanged; opening it fails.
        assert_eq!(locate(&folder.join("gone"), None).unwrap(), folder.join("gone"));
        std::fs::remove_dir(&folder).unwrap();
        let refusal = locate(Path::new("/dev/null"), None).unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "/dev/null is not a regular file; a container, or a directory with one, is expected"
        );
    }

    #[test]
    fn every_description_is_of_the_same_program() {
        let image = Image::from_bytes(SIMPLE.to_vec()).unwrap();
        let info = image.program_info().unwrap();
        assert_eq!(info.programs.len(), 1);
        assert_eq!(info.programs[0].num_cores, image.network.num_cores);
        assert_eq!(image.io_desc().unwrap(), IoDesc::from_network(&image.network).unwrap());
        let static_part = image.container.constants().map_or(0, |ranges| ranges.static_part.len());
        assert_eq!(image.constants_desc().unwrap().static_constants_size, static_part as u64);
    }
}
