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

macro_rules! statuses {
    ($($code:literal $($constant:ident)? => $name:literal,)*) => {
        impl NncStatus {
            $($(
                #[doc = concat!("Status of \"", $name, "\".")]
                pub const $constant: Self = Self($code);
            )?)*

            /// Returns the name of the code; `"unknown"` for codes without a meaning.
            pub fn name(self) -> &'static str {
                match self.0 {
                    $($code => $name,)*
                    _ => "unknown",
                }
            }
        }
    };
}

statuses! {
    0 SUCCESS => "success",
    -1 GENERAL => "general error",
    -2 DMA_CONFIGURATION => "DMA channel configuration",
    -3 UNDEFINED_REQUEST => "undefined request",
    -4 MEMORY_EXHAUSTED => "device memory exhausted",
    -5 METADATA => "metadata version or processing",
    -6 PARAMETER => "parameter",
    -7 => "timed out",
    -8 NOT_INITIALIZED => "not initialized",
    -9 NOT_PERMITTED => "not permitted, or in use",
    -10 => "buffer too small",
    -11 NOT_FOUND => "resource not found",
    -12 MCID_ALLOC => "no multicast ids left",
    -13 NSP_ALLOC => "no cores left",
    -14 VC_ALLOC => "no virtual channel left",
    -15 SEMAPHORE_ALLOC => "no semaphores left",
    -16 => "no reply from the cores in time",
    -17 COMMAND_LENGTH => "command length",
    -18 => "reservation ids exhausted",
    -19 ID_NOT_FOUND => "database id not found",
    -20 IDS_EXHAUSTED => "database ids exhausted",
    -21 => "outbound address translation unit",
    -22 => "inbound address translation unit",
    -34 => "queue too small for the peer channel",
    -35 => "virtual channel configuration",
    -36 RESTARTING => "cores are restarting",
    -37 => "functional-safety channel check",
    -38 => "functional-safety channel check",
    -39 => "functional-safety channel check",
    -40 => "functional-safety channel check",
    -41 => "metadata image verification",
    -42 => "constants image verification",
    -43 => "ELF image verification",
    -44 => "protection unit programming",
    -45 => "activation table update",
    -46 PROGRAM_ELF => "program ELF info",
    -47 => "multicast id configuration",
    -48 => "L2TCM init state retrieval",
    -49 => "L2TCM init state invalid",
    -50 DYNAMIC_CONSTANTS => "dynamic constants not found",
    -51 => "GSM configuration",
    -52 VC_SETUP => "virtual channel set-up",
    -53 => "physical core id",
    -54 => "metadata retrieval",
    -55 => "virtual channel id retrieval",
    -56 => "core count retrieval",
    -57 => "switch command count",
    -58 => "switch command sequence",
    -59 => "switch command state",
    -60 => "switch command channel",
    -61 => "metadata retrieval",
    -62 => "metadata of a core",
    -63 => "activation record missing",
    -64 => "protocol not supported",
    -65 => "multicast id count over the limit",
    -66 SWITCHING_DISABLED => "data-path switching disabled",
    -100 => "cores: synchronization",
    -101 => "cores: mapping",
    -102 => "cores: execution context version mismatch",
    -103 => "cores: wait for the process",
    -104 => "cores: message queue",
    -105 => "cores: mapping of the message controller",
    -106 => "cores: mapping of the network",
    -107 => "cores: reply before activation",
    -108 => "cores: bandwidth monitor",
    -109 => "cores: multicast",
    -110 => "cores: multicast",
    -111 => "cores: wait for the master",
    -112 => "cores: wait for the master",
    -113 => "cores: deactivation",
    -114 => "cores: deactivation",
    -115 => "cores: deactivation",
    -116 => "cores: deactivation",
    -117 => "cores: GSM mapping",
    -118 => "cores: L2 initialization",
}

impl NncStatus {
    /// Returns true if the command was carried out.
    pub fn is_success(self) -> bool {
        self == Self::SUCCESS
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
