//! Status codes of the firmware.

use std::fmt;

use bytemuck::{Pod, Zeroable};

use crate::wire::{Kind, Value};

/// Status of a reply; 0 is success.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Pod, Zeroable)]
pub struct NncStatus(pub i32);

impl Value for NncStatus {
    const KIND: Kind = Kind::I32;
}

impl NncStatus {
    /// All is well.
    pub const SUCCESS: Self = Self(0);
    /// Something went wrong.
    pub const GENERAL: Self = Self(-1);
    /// The kind of DMA, or a physical channel, cannot be had.
    pub const DMA_CONFIGURATION: Self = Self(-2);
    /// There is no such command.
    pub const UNDEFINED_REQUEST: Self = Self(-3);
    /// No memory of the card is left.
    pub const MEMORY_EXHAUSTED: Self = Self(-4);
    /// The metadata are of a version that the firmware does not take, or cannot be processed.
    pub const METADATA: Self = Self(-5);
    /// A field of the command has a value that it cannot have.
    pub const PARAMETER: Self = Self(-6);
    /// The named image has not been loaded.
    pub const NOT_INITIALIZED: Self = Self(-8);
    /// Not permitted, or in use.
    pub const NOT_PERMITTED: Self = Self(-9);
    /// There is no such thing.
    pub const NOT_FOUND: Self = Self(-11);
    /// No multicast ids are left.
    pub const MCID_ALLOC: Self = Self(-12);
    /// No cores are left.
    pub const NSP_ALLOC: Self = Self(-13);
    /// No channel is left.
    pub const VC_ALLOC: Self = Self(-14);
    /// No semaphores are left.
    pub const SEMAPHORE_ALLOC: Self = Self(-15);
    /// The command has another length than it should.
    pub const COMMAND_LENGTH: Self = Self(-17);
    /// No ids of reservations are left.
    pub const RESERVATION_IDS: Self = Self(-18);
    /// There is no image with this id.
    pub const ID_NOT_FOUND: Self = Self(-19);
    /// No ids are left.
    pub const IDS_EXHAUSTED: Self = Self(-20);
    /// The cores are restarting: worth another try in a while.
    pub const RESTARTING: Self = Self(-36);
    /// The program's ELF cannot be used.
    pub const PROGRAM_ELF: Self = Self(-46);
    /// The dynamic constants were not loaded.
    pub const DYNAMIC_CONSTANTS: Self = Self(-50);
    /// The channel cannot be set up.
    pub const VC_SETUP: Self = Self(-52);
    /// A change of states has no changes, or too many.
    pub const SWITCH_COUNT: Self = Self(-57);
    /// There is no such state.
    pub const SWITCH_STATE: Self = Self(-59);
    /// There is no such activation.
    pub const ACTIVATION_RECORD: Self = Self(-63);
    /// Data paths are not switched here.
    pub const SWITCHING_DISABLED: Self = Self(-66);
    /// The image is for another version of the execution context.
    pub const EXEC_CONTEXT: Self = Self(-102);

    /// Returns whether the command was carried out.
    pub fn is_success(self) -> bool {
        self == Self::SUCCESS
    }

    /// Returns the name of the code; `"unknown"` for codes without a meaning.
    pub fn name(self) -> &'static str {
        match self.0 {
            0 => "success",
            -1 => "general error",
            -2 => "DMA channel configuration",
            -3 => "undefined request",
            -4 => "device memory exhausted",
            -5 => "metadata version or processing",
            -6 => "parameter",
            -7 => "timed out",
            -8 => "not initialized",
            -9 => "not permitted, or in use",
            -10 => "buffer too small",
            -11 => "resource not found",
            -12 => "no multicast ids left",
            -13 => "no cores left",
            -14 => "no virtual channel left",
            -15 => "no semaphores left",
            -16 => "no answer from the cores in time",
            -17 => "command length",
            -18 => "reservation ids exhausted",
            -19 => "database id not found",
            -20 => "database ids exhausted",
            -21 => "outbound address translation unit",
            -22 => "inbound address translation unit",
            -34 => "queue too small for the peer channel",
            -35 => "virtual channel configuration",
            -36 => "cores are restarting",
            -40..=-37 => "functional-safety channel check",
            -41 => "metadata image verification",
            -42 => "constants image verification",
            -43 => "ELF image verification",
            -44 => "protection unit programming",
            -45 => "activation table update",
            -46 => "program ELF info",
            -47 => "multicast id configuration",
            -48 => "L2TCM init state retrieval",
            -49 => "L2TCM init state invalid",
            -50 => "dynamic constants not found",
            -51 => "GSM configuration",
            -52 => "virtual channel set-up",
            -53 => "physical core id",
            -54 | -61 => "metadata retrieval",
            -55 => "virtual channel id retrieval",
            -56 => "core count retrieval",
            -57 => "switch command count",
            -58 => "switch command sequence",
            -59 => "switch command state",
            -60 => "switch command channel",
            -62 => "metadata of a core",
            -63 => "activation record missing",
            -64 => "protocol not supported",
            -65 => "multicast id count over the limit",
            -66 => "data-path switching disabled",
            -100 => "cores: synchronization",
            -101 => "cores: mapping",
            -102 => "cores: execution context version mismatch",
            -103 => "cores: wait for the process",
            -104 => "cores: message queue",
            -105 => "cores: mapping of the message controller",
            -106 => "cores: mapping of the network",
            -107 => "cores: reply before activation",
            -108 => "cores: bandwidth monitor",
            -109 | -110 => "cores: multicast",
            -111 | -112 => "cores: wait for the master",
            -116..=-113 => "cores: deactivation",
            -117 => "cores: GSM mapping",
            -118 => "cores: L2 initialization",
            _ => "unknown",
        }
    }
}

impl fmt::Display for NncStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.0, self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_name_exists_for_each_code_of_the_table_only() {
        let table = (-22..=0).chain(-66..=-34).chain(-118..=-100);
        for code in -200..=50 {
            let listed = table.clone().any(|listed| listed == code);
            assert_eq!(NncStatus(code).name() != "unknown", listed, "{code}");
        }
        assert_eq!(NncStatus(i32::MIN).name(), "unknown");
    }

    #[test]
    fn status_printed_has_code_and_meaning() {
        assert_eq!(NncStatus::NSP_ALLOC.to_string(), "-13 (no cores left)");
        assert_eq!(NncStatus(7).to_string(), "7 (unknown)");
        assert!(NncStatus(0).is_success());
        assert!(!NncStatus::RESTARTING.is_success());
    }
}
