//! Hardware families of cards.

/// A family of cards that run the same programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// Name of the family in compiler options.
    pub name: &'static str,
    /// Major version of the hardware in metadata and firmware.
    pub major: u16,
}

/// Families that programs can be compiled for. The first is the default for programs and virtual cards.
pub const FAMILIES: [Family; 2] = [Family { name: "ai100", major: 2 }, Family { name: "ai200", major: 3 }];

impl Family {
    /// Returns the family with this name.
    pub fn named(name: &str) -> Option<Self> {
        FAMILIES.into_iter().find(|family| family.name == name)
    }

    /// Hardware version that a card of the family reports: the major version above 16 bits of the minor version.
    pub fn version(self) -> u32 {
        u32::from(self.major) << 16
    }
}

/// Returns the name of the family of a major version, for messages.
pub fn name_of_major(major: u32) -> &'static str {
    match FAMILIES.into_iter().find(|family| u32::from(family.major) == major) {
        Some(family) => family.name,
        None if major == 1 => "1",
        None => "unknown",
    }
}
