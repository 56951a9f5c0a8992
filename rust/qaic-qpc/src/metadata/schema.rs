//! The `FlatBuffer` form: its rules beyond those of its tables.

use super::flat_read::Table;
use super::flat_write;
use super::table::FlatTable;
use super::types::{Metadata, VERSION_MAJOR};
use crate::error::QpcError;
use crate::limits::{Budget, Limits};

/// Name of an unnamed program in the file.
const UNNAMED: &str = "unnamed";

impl Metadata {
    /// Reads the bare `FlatBuffer` form: structure first, then version and required fields, as the reference does.
    /// [`Metadata::from_elf`] finds it and knows the others.
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

    /// The `FlatBuffer` form, for ELF section `metadata_fb`. An empty name is written as `unnamed`; every vector of the
    /// first version is present, as a reader of that version may count on.
    pub fn encode_flatbuffer(&self) -> Vec<u8> {
        if self.network_name.is_empty() {
            return Self { network_name: UNNAMED.to_owned(), ..self.clone() }.encode_flatbuffer();
        }
        flat_write::finish(&self.fields())
    }
}
