//! The file `network.elf`: search for a section in any ELF file, and writing of the small ELF file of a CPU program.
//!
//! Names are resolved only through `e_shstrndx` and compared as a whole. Known tools shift section indices and leave
//! invalid name offsets; other sections of such files can still be found.

use std::ops::Range;

use object::elf::{FileHeader32, FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, FileKind};

use crate::bytes::{align_up, range_within, to_u64};
use crate::crc::Crc32;
use crate::error::{ElfDefect, NameDefect, QpcError};

/// Section with the metadata, in the first form writers used.
pub(crate) const METADATA_SECTION: &str = "metadata";
/// Section with the metadata as `FlatBuffer`, which takes precedence over the section `metadata`.
pub const METADATA_FB_SECTION: &str = "metadata_fb";
/// Machine number of programs for the card (Hexagon).
pub(crate) const MACHINE_HEXAGON: u16 = 164;

const fn elf_error(defect: ElfDefect) -> QpcError {
    QpcError::Elf { defect }
}

/// Returns the range of the first section called `name` in `file`; `None` if there is none.
pub fn section(file: &[u8], name: &str) -> Result<Option<Range<usize>>, QpcError> {
    match FileKind::parse(file) {
        Ok(FileKind::Elf32) => find_section::<FileHeader32<Endianness>>(file, name),
        Ok(FileKind::Elf64) => find_section::<FileHeader64<Endianness>>(file, name),
        _ => Err(elf_error(ElfDefect::Header)),
    }
}

fn find_section<H: FileHeader<Endian = Endianness>>(
    file: &[u8],
    name: &str,
) -> Result<Option<Range<usize>>, QpcError> {
    let header = H::parse(file).map_err(|_| elf_error(ElfDefect::Header))?;
    let endian = header.endian().map_err(|_| elf_error(ElfDefect::Header))?;
    let sections = header.sections(endian, file).map_err(|_| elf_error(ElfDefect::SectionTable))?;
    let found = sections
        .iter()
        .find(|section| sections.section_name(endian, section).is_ok_and(|n| n == name.as_bytes()));
    let Some(found) = found else { return Ok(None) };
    // A section without bytes in the file is empty.
    let (start, len) = found.file_range(endian).unwrap_or_default();
    let range = range_within(file.len(), start, len).ok_or(elf_error(ElfDefect::SectionData))?;
    Ok(Some(range))
}

/// Maximum number of loadable segments; programs have two. Each may cost the time of a long run of zeros.
const MAX_LOAD_SEGMENTS: usize = 256;

/// CRC of all loadable segments as they are in memory, in the order of the program headers.
pub fn load_image_crc(file: &[u8]) -> Result<u32, QpcError> {
    match FileKind::parse(file) {
        Ok(FileKind::Elf32) => load_crc::<FileHeader32<Endianness>>(file),
        Ok(FileKind::Elf64) => load_crc::<FileHeader64<Endianness>>(file),
        _ => Err(elf_error(ElfDefect::Header)),
    }
}

fn load_crc<H: FileHeader<Endian = Endianness>>(file: &[u8]) -> Result<u32, QpcError> {
    let header = H::parse(file).map_err(|_| elf_error(ElfDefect::Header))?;
    let endian = header.endian().map_err(|_| elf_error(ElfDefect::Header))?;
    let segments = header.program_headers(endian, file).map_err(|_| elf_error(ElfDefect::ProgramHeaders))?;
    let mut crc = Crc32::default();
    // Segments of a hostile file may all refer to the same bytes; their total size is limited to that of the file.
    let mut left = to_u64(file.len());
    for (index, segment) in segments.iter().filter(|segment| segment.p_type(endian) == PT_LOAD).enumerate() {
        if index == MAX_LOAD_SEGMENTS {
            return Err(QpcError::LimitExceeded {
                what: "loadable segments",
                max: to_u64(MAX_LOAD_SEGMENTS),
            });
        }
        let (start, len) = segment.file_range(endian);
        let bytes = range_within(file.len(), start, len).and_then(|range| file.get(range));
        let memory: u64 = segment.p_memsz(endian).into();
        let rest = left.checked_sub(len);
        let (Some(bytes), Some(zeros), Some(rest)) = (bytes, memory.checked_sub(len), rest) else {
            return Err(elf_error(ElfDefect::LoadSegment));
        };
        left = rest;
        crc.update(bytes);
        crc.update_zeros(zeros);
    }
    Ok(crc.value())
}

const FILE_HEADER_BYTES: u64 = 52;
const SECTION_HEADER_BYTES: u64 = 40;
/// Alignment of section contents, so that aligned readers can use a mapped file.
const SECTION_ALIGNMENT: u64 = 8;
const NAME_TABLE: &str = ".shstrtab";

/// Builds a 32-bit little-endian ELF file for the card's machine with these sections and no loadable segments.
///
/// Equal sections result in equal bytes. Names must be non-empty, unique and without NUL; the file must be smaller
/// than 4 GiB.
pub fn build(sections: &[(&str, &[u8])]) -> Result<Vec<u8>, QpcError> {
    let mut names = vec![0_u8];
    let mut name_offsets = Vec::with_capacity(sections.len());
    for (index, (name, _)) in sections.iter().enumerate() {
        let invalid = |defect| QpcError::InvalidName { name: (*name).to_owned(), defect };
        if name.is_empty() {
            return Err(invalid(NameDefect::Empty));
        }
        if name.contains('\0') {
            return Err(invalid(NameDefect::EmbeddedNul));
        }
        let earlier = sections.iter().take(index).any(|(other, _)| other == name);
        if earlier || *name == NAME_TABLE {
            return Err(QpcError::DuplicateSegment { name: (*name).to_owned() });
        }
        name_offsets.push(to_u64(names.len()));
        names.extend_from_slice(name.as_bytes());
        names.push(0);
    }
    let table_name = to_u64(names.len());
    names.extend_from_slice(NAME_TABLE.as_bytes());
    names.push(0);

    let mut file = vec![0; usize::try_from(FILE_HEADER_BYTES).unwrap_or_default()];
    let mut headers = vec![SectionFields::default()];
    for ((_, contents), name) in sections.iter().zip(name_offsets) {
        let start = append_aligned(&mut file, contents)?;
        headers.push(SectionFields {
            name,
            kind: 1,
            start,
            len: to_u64(contents.len()),
            alignment: SECTION_ALIGNMENT,
        });
    }
    let start = append_aligned(&mut file, &names)?;
    headers.push(SectionFields { name: table_name, kind: 3, start, len: to_u64(names.len()), alignment: 1 });
    let table = append_aligned(&mut file, &[])?;
    for header in &headers {
        header.write(&mut file)?;
    }
    let head = file_header(word(table)?, half(to_u64(headers.len()))?)?;
    for (to, from) in file.iter_mut().zip(head) {
        *to = from;
    }
    Ok(file)
}

/// The fields of a section header that differ between sections.
#[derive(Default)]
struct SectionFields {
    name: u64,
    kind: u32,
    start: u64,
    len: u64,
    alignment: u64,
}

impl SectionFields {
    fn write(&self, out: &mut Vec<u8>) -> Result<(), QpcError> {
        // name, type, flags, address, offset, size, link, info, alignment, entry size
        let (name, start, len) = (word(self.name)?, word(self.start)?, word(self.len)?);
        let alignment = word(self.alignment)?;
        for value in [name, self.kind, 0, 0, start, len, 0, 0, alignment, 0] {
            out.extend(value.to_le_bytes());
        }
        Ok(())
    }
}

fn file_header(table: u32, count: u16) -> Result<Vec<u8>, QpcError> {
    let mut out = b"\x7fELF\x01\x01\x01".to_vec();
    out.resize(16, 0);
    // An executable, like the programs of cards.
    out.extend(2_u16.to_le_bytes());
    out.extend(MACHINE_HEXAGON.to_le_bytes());
    // version, entry, program headers, section headers, flags
    for value in [1, 0, 0, table, 0] {
        out.extend(value.to_le_bytes());
    }
    let sizes = [half(FILE_HEADER_BYTES)?, 0, 0, half(SECTION_HEADER_BYTES)?];
    for value in sizes.into_iter().chain([count, count.saturating_sub(1)]) {
        out.extend(value.to_le_bytes());
    }
    Ok(out)
}

fn append_aligned(file: &mut Vec<u8>, contents: &[u8]) -> Result<u64, QpcError> {
    let start = align_up(to_u64(file.len()), SECTION_ALIGNMENT).ok_or(TOO_LARGE)?;
    file.resize(usize::try_from(start).map_err(|_| TOO_LARGE)?, 0);
    file.extend_from_slice(contents);
    Ok(start)
}

const TOO_LARGE: QpcError = QpcError::TooLarge { what: "the ELF file" };

fn word(value: u64) -> Result<u32, QpcError> {
    u32::try_from(value).map_err(|_| TOO_LARGE)
}

fn half(value: u64) -> Result<u16, QpcError> {
    u16::try_from(value).map_err(|_| TOO_LARGE)
}
