//! Hardware families of cards.

/// A family of cards that run the same programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family {
    /// Its name, as compilers take it.
    pub name: &'static str,
    /// Major version of its hardware, as metadata and firmware have it.
    pub major: u16,
}

/// Those that programs are compiled for here. The first is that of programs and virtual cards that name none.
pub const FAMILIES: [Family; 2] = [Family { name: "ai100", major: 2 }, Family { name: "ai200", major: 3 }];

/// Firmware and metadata keep the major version above 16 bits of a minor one.
const MAJOR_SHIFT: u32 = 16;

impl Family {
    /// The family of this name.
    pub fn named(name: &str) -> Option<Self> {
        FAMILIES.into_iter().find(|family| family.name == name)
    }

    /// Version that a card of the family says its hardware has.
    pub fn version(self) -> u32 {
        u32::from(self.major) << MAJOR_SHIFT
    }
}

/// Name of the family of a hardware version, for messages.
pub fn name_of_version(version: u32) -> &'static str {
    name_of_major(version >> MAJOR_SHIFT)
}

/// Name of the family of a major version, for messages.
pub fn name_of_major(major: u32) -> &'static str {
    match FAMILIES.into_iter().find(|family| u32::from(family.major) == major) {
        Some(family) => family.name,
        None if major == 1 => "1",
        None => "unknown",
    }
}
