//! The `FlatBuffer` form: rules in addition to those of its tables.

use super::flat_read::Table;
use super::flat_write;
use super::table::FlatTable;
use super::types::{Metadata, VERSION_MAJOR};
use crate::error::QpcError;
use crate::limits::{Budget, Limits};

/// Name of an unnamed program in the file.
const UNNAMED: &str = "unnamed";

/// Id of the field `networkName`.
const NAME_ID: u16 = 2;

impl Metadata {
    /// Decodes the bare `FlatBuffer` form: first the structure, then version and required fields, in the order of the
    /// reference. [`LocatedMetadata::from_elf`](super::LocatedMetadata::from_elf) finds the section and supports all
    /// encodings.
    pub fn decode_flatbuffer(bytes: &[u8], limits: &Limits) -> Result<Self, QpcError> {
        let metadata = Self::read(&Table::root(bytes, Self::NAME)?, &mut Budget::new(limits))?;
        if metadata.version_major != VERSION_MAJOR {
            return Err(QpcError::MetadataVersion {
                found: metadata.version_major,
                supported: VERSION_MAJOR,
            });
        }
        match metadata.required_fields.iter().find(|field| !super::is_known_field(field)) {
            Some(field) => Err(QpcError::UnknownRequiredField { field: field.clone() }),
            None => Ok(metadata),
        }
    }

    /// Encodes the `FlatBuffer` form, for ELF section `metadata_fb`. An empty name is written as `unnamed`. Every
    /// vector of the first version is present, because readers of that version may require it.
    pub fn encode_flatbuffer(&self) -> Vec<u8> {
        let mut fields = self.fields();
        for (id, value) in &mut fields {
            if *id == NAME_ID && self.network_name.is_empty() {
                *value = flat_write::Value::Text(UNNAMED.to_owned());
            }
        }
        flat_write::finish(&fields)
    }
}
