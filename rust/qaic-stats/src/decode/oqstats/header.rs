//! The header of the open layout.

use crate::decode::descriptor::Fingerprint;
use crate::decode::record::Field;
use crate::error::StatsError;
use crate::model::{DeviceKind, Run};

/// The first bytes of every buffer.
pub const MAGIC: [u8; 8] = *b"OQSTATS1";
/// Bytes of the header of version 1.
pub(crate) const HEADER_BYTES: usize = 128;
/// Bytes of an entry of the section directory of version 1.
pub(crate) const ENTRY_BYTES: usize = 32;
const LAYOUT_ID: u32 = 1;

const MAJOR: u16 = 1;
const BYTE_ORDER_MARK: u16 = 0xFEFF;
/// Offset of the CRC, which covers the bytes before it.
const CRC_OFFSET: usize = 120;

/// Contents of the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Minor version.
    pub minor: u16,
    /// Bytes of the header.
    pub header_bytes: u16,
    /// Bytes of the buffer.
    pub buffer_bytes: u64,
    /// Number of used bytes in the buffer.
    pub used_bytes: u64,
    /// Entries of the section directory.
    pub sections: u32,
    /// Bytes of an entry.
    pub entry_bytes: u32,
    /// Offset of the directory.
    pub directory: u64,
    /// Fingerprint of the program that wrote the buffer.
    pub fingerprint: Fingerprint,
    /// Facts about the inference.
    pub run: Run,
}

impl Header {
    /// Creates a header of version 1, which the directory follows.
    pub(crate) fn new(
        run: Run,
        fingerprint: Fingerprint,
        sections: u32,
        used_bytes: u64,
        buffer_bytes: u64,
    ) -> Self {
        Self {
            minor: 0,
            header_bytes: 128,
            buffer_bytes,
            used_bytes,
            sections,
            entry_bytes: 32,
            directory: 128,
            fingerprint,
            run,
        }
    }

    /// Reads and checks the header; the most basic checks come first.
    pub fn read(bytes: &[u8]) -> Result<Self, StatsError> {
        let found: [u8; 8] = bytes.first_chunk().copied().unwrap_or_default();
        if found != MAGIC {
            return Err(StatsError::BadMagic { found });
        }
        let file_bytes = length(bytes);
        let Some(fields) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Err(StatsError::Truncated { needed: 128, bytes: file_bytes });
        };
        let byte_order = u16::get(fields, 14);
        if byte_order != BYTE_ORDER_MARK {
            return Err(StatsError::ByteOrder { found: byte_order });
        }
        let (major, minor) = (u16::get(fields, 8), u16::get(fields, 10));
        if major != MAJOR {
            return Err(StatsError::Version { major, minor });
        }
        let (stored, computed) = (u32::get(fields, CRC_OFFSET), crc(fields));
        if stored != computed {
            return Err(StatsError::HeaderCrc { stored, computed });
        }
        let mut header = Self::new(Run::default(), Fingerprint::default(), 0, 0, 0);
        header.fingerprint.copy_from_slice(fields.get(48..64).unwrap_or_default());
        header.read_numbers(fields);
        header.run.device = DeviceKind::from_code(u32::get(fields, 116));
        header.check(file_bytes)?;
        Ok(header)
    }

    fn check(&self, file_bytes: u64) -> Result<(), StatsError> {
        if usize::from(self.header_bytes) < HEADER_BYTES {
            return Err(StatsError::HeaderSize { found: self.header_bytes });
        }
        if self.entry_bytes < 32 {
            return Err(StatsError::EntrySize { found: self.entry_bytes });
        }
        let end = self.directory_end();
        if self.directory < u64::from(self.header_bytes) || end.is_none_or(|end| end > self.used_bytes) {
            return Err(StatsError::Directory {
                offset: self.directory,
                count: self.sections,
                entry_bytes: self.entry_bytes,
                used: self.used_bytes,
            });
        }
        if self.used_bytes > self.buffer_bytes {
            return Err(StatsError::UsedSize { used: self.used_bytes, capacity: self.buffer_bytes });
        }
        if self.buffer_bytes > file_bytes {
            return Err(StatsError::Truncated { needed: self.buffer_bytes, bytes: file_bytes });
        }
        if self.run.ucycle_hz == 0 {
            return Err(StatsError::ClockRate);
        }
        Ok(())
    }

    /// Returns the end of the directory; `None` if it exceeds any buffer.
    pub(crate) fn directory_end(&self) -> Option<u64> {
        let bytes = u64::from(self.sections).checked_mul(u64::from(self.entry_bytes))?;
        self.directory.checked_add(bytes)
    }

    /// Encodes the header.
    pub(crate) fn write(&self) -> [u8; HEADER_BYTES] {
        let mut fields = [0; HEADER_BYTES];
        u64::from_le_bytes(MAGIC).put(&mut fields, 0);
        MAJOR.put(&mut fields, 8);
        BYTE_ORDER_MARK.put(&mut fields, 14);
        if let Some(place) = fields.get_mut(48..64) {
            place.copy_from_slice(&self.fingerprint);
        }
        LAYOUT_ID.put(&mut fields, 64);
        self.run.device.code().put(&mut fields, 116);
        self.write_numbers(&mut fields);
        crc(&fields).put(&mut fields, CRC_OFFSET);
        fields
    }
}

/// Defines numbers of the header by their offsets.
macro_rules! numbers {
    ($($offset:literal $($field:ident).+;)*) => {
        impl Header {
            fn read_numbers(&mut self, bytes: &[u8]) {
                $(self.$($field).+ = Field::get(bytes, $offset);)*
            }

            fn write_numbers(&self, bytes: &mut [u8]) {
                $(self.$($field).+.put(bytes, $offset);)*
            }
        }
    };
}

numbers! {
    10 minor;
    12 header_bytes;
    16 buffer_bytes;
    24 used_bytes;
    32 sections;
    36 entry_bytes;
    40 directory;
    68 run.stats_level;
    70 run.op_stats_level;
    72 run.cores;
    74 run.threads_per_core;
    76 run.batch_size;
    80 run.ucycle_hz;
    88 run.epoch_utc_ns;
    96 run.inference;
    104 run.program;
    108 run.activation;
    112 run.flags;
    124 run.specialization;
}

fn crc(fields: &[u8; HEADER_BYTES]) -> u32 {
    crc32fast::hash(fields.get(..CRC_OFFSET).unwrap_or_default())
}

/// Length of a slice in the number type of the layout.
pub(super) fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}
