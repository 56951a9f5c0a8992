//! Settings of the facts that an emulated card reports. All can be set, so that tests meet cards with unusual
//! answers.

use qaic_kmd::protocol::EMULATED_IMAGE;

/// The firmware of a card. The default is a Cloud AI 100 as `qaic-kmd` expects one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirmwareConfig {
    /// Version of the transactions; the kernel requires 5.0.
    pub transport_version: (u16, u16),
    /// Flags of the status transaction; bit 0 asks for checksums.
    pub status_flags: u64,
    /// Version of the status reply's format; 12 and more are known.
    pub format_version: u8,
    /// Version of program metadata that it takes.
    pub metadata_version: (u16, u16),
    /// Version of its commands.
    pub nnc_version: (u16, u16),
    /// Family, above bit 16, and revision: `0x0002_0000` is a Cloud AI 100, `0x0003_0000` a Cloud AI 200.
    pub hw_version: u32,
    /// Kind of board.
    pub sku_type: u8,
    /// Version: major, minor, patch, build. A build of 255 is not shown.
    pub fw_version: [u8; 4],
    /// Name of the firmware's image, cut after 37 bytes.
    pub qc_image: String,
    /// Name of its maker's image, cut after 37 bytes.
    pub oem_image: String,
    /// Variant, cut after 15 bytes.
    pub image_variant: String,
    /// Name of the boot loader's image, cut after 23 bytes.
    pub sbl_image: String,
    /// Version of the boot loader's settings.
    pub pvs_image_version: u32,
    /// Version of the cores' image: major, minor, patch, build.
    pub nsp_version: [u8; 4],
    /// Serial number of the chip, cut after 15 bytes; `%` is the number of the card.
    pub serial: String,
    /// Serial number of the board, cut after 31 bytes; `%` is the number of the card.
    pub board_serial: String,
    /// Cores that are defective, a bit each.
    pub nsp_defects: u64,
    /// Resources of the card.
    pub totals: Totals,
    /// Clocks and figures of speed.
    pub performance: Performance,
    /// True if commands must have exactly their length, followed by eight zero bytes.
    pub is_strict: bool,
    /// True if a refused activation or deactivation is refused in both transactions, so that the system call
    /// also fails; else only in the command's reply.
    pub nacks_both: bool,
    /// Zero bytes behind the replies of commands. Whether real ones have eight of them is not known.
    pub reply_tail_bytes: usize,
}

/// Resources of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Totals {
    /// Cores, 64 at most.
    pub cores: u32,
    /// Multicast ids.
    pub multicast_ids: u32,
    /// Semaphores.
    pub semaphores: u32,
    /// Channels, 16 at most.
    pub channels: u32,
    /// Memory in bytes.
    pub ddr_bytes: u64,
    /// Physical channels of the DMA engine, at most 32.
    #[serde(skip)]
    pub physical_channels: u8,
}

/// Clocks in Hz, and figures of speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Performance {
    /// Clock of the cores.
    pub nsp_hz: u32,
    /// Clock of the memory.
    pub ddr_hz: u32,
    /// Clock of the network between the cores.
    pub compute_noc_hz: u32,
    /// Clock of the network to the memory.
    pub memory_noc_hz: u32,
    /// Clock of the system's network.
    pub system_noc_hz: u32,
    /// Operations with 8-bit integers in a second.
    pub peak_operations_per_second: u64,
    /// Traffic of the memory of late, in kilobytes per second.
    pub ddr_kilobytes_per_second: u64,
}

impl Default for Totals {
    /// The resources of the runtime's virtual cards.
    fn default() -> Self {
        Self {
            cores: 16,
            multicast_ids: 3072,
            semaphores: 32,
            channels: 16,
            ddr_bytes: 32_692 << 20,
            physical_channels: 16,
        }
    }
}

impl Default for Performance {
    fn default() -> Self {
        Self {
            nsp_hz: 825_000_000,
            ddr_hz: 2_133_000_000,
            compute_noc_hz: 1_450_000_000,
            memory_noc_hz: 1_000_000_000,
            system_noc_hz: 667_000_000,
            peak_operations_per_second: 350_000_000_000_000,
            ddr_kilobytes_per_second: 0,
        }
    }
}

impl Default for FirmwareConfig {
    fn default() -> Self {
        Self {
            transport_version: (5, 0),
            status_flags: 0,
            format_version: 12,
            metadata_version: (1, 0),
            nnc_version: (17, 0),
            hw_version: 0x0002_0000,
            sku_type: 2,
            fw_version: [1, 0, 0, 255],
            qc_image: EMULATED_IMAGE.into(),
            oem_image: "emulated card".into(),
            image_variant: "AIC100.EMU".into(),
            sbl_image: "emulated card".into(),
            pvs_image_version: 0,
            nsp_version: [1, 0, 0, 255],
            serial: "EMU-%".into(),
            board_serial: "EMU-BOARD-%".into(),
            nsp_defects: 0,
            totals: Totals::default(),
            performance: Performance::default(),
            is_strict: true,
            nacks_both: true,
            reply_tail_bytes: 0,
        }
    }
}

impl FirmwareConfig {
    /// Returns the configuration of one of several cards, which differ in their serial numbers.
    #[must_use]
    pub fn of_card(mut self, number: u32) -> Self {
        for text in [&mut self.serial, &mut self.board_serial] {
            *text = text.replace('%', &format!("{number:04}"));
        }
        self
    }
}
