//! Settings of the facts that an emulated card reports. All can be changed, so that tests can use cards with unusual
//! answers.

use qaic_kmd::protocol::EMULATED_IMAGE;

use crate::options::settings;

settings! {
    /// Firmware of a card. The default is a Cloud AI 100 with the values that `qaic-kmd` expects.
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct FirmwareConfig {
        /// Version of the transactions; the kernel requires 5.0.
        transport_version: (u16, u16) = (5, 0),
        /// Flags of the status transaction; bit 0 requires checksums.
        status_flags: u64 = 0,
        /// Version of the status reply's format; versions from 12 on are known.
        format_version: u8 = 12,
        /// Accepted version of program metadata.
        metadata_version: (u16, u16) = (1, 0),
        /// Version of the commands.
        nnc_version: (u16, u16) = (17, 0),
        /// Family, above bit 16, and revision: `0x0002_0000` is a Cloud AI 100, `0x0003_0000` a Cloud AI 200.
        hw_version: u32 = 0x0002_0000,
        sku_type: u8 = 2,
        /// Version: major, minor, patch, build. A build of 255 is not displayed.
        fw_version: [u8; 4] = [1, 0, 0, 255],
        /// Name of the firmware's image, truncated to 37 bytes.
        qc_image: String = EMULATED_IMAGE.into(),
        /// Name of the manufacturer's image, truncated to 37 bytes.
        oem_image: String = "emulated card".into(),
        /// Variant, truncated to 15 bytes.
        image_variant: String = "AIC100.EMU".into(),
        /// Name of the boot loader's image, truncated to 23 bytes.
        sbl_image: String = "emulated card".into(),
        pvs_image_version: u32 = 0,
        /// Version of the cores' image: major, minor, patch, build.
        nsp_version: [u8; 4] = [1, 0, 0, 255],
        /// Serial number of the chip, truncated to 15 bytes; `%` is the number of the card.
        serial: String = "EMU-%".into(),
        /// Serial number of the board, truncated to 31 bytes; `%` is the number of the card.
        board_serial: String = "EMU-BOARD-%".into(),
        /// Defective cores, as a bit mask.
        nsp_defects: u64 = 0,
        totals: Totals = Totals::default(),
        /// Clocks and figures of speed.
        performance: Performance = Performance::default(),
        /// True if commands must have exactly their length, followed by eight zero bytes.
        is_strict: bool = true,
        /// True if a refusal of an activation or deactivation is in both transactions, so that the system call also
        /// fails. False if it is only in the command's reply.
        nacks_both: bool = true,
        /// Number of zero bytes after the replies to commands. It is unknown whether real replies have eight of them.
        reply_tail_bytes: usize = 0,
    }
}

settings! {
    /// Resources of a card; the default is those of the runtime's virtual cards.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
    pub struct Totals {
        /// Number of cores, at most 64.
        cores: u32 = 16,
        multicast_ids: u32 = 3072,
        semaphores: u32 = 32,
        /// Number of channels, at most 16.
        channels: u32 = 16,
        ddr_bytes: u64 = 32_692 << 20,
        /// Physical channels of the DMA engine, at most 32.
        #[serde(skip)]
        physical_channels: u8 = 16,
    }
}

settings! {
    /// Clocks in Hz, and figures of speed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Performance {
        nsp_hz: u32 = 825_000_000,
        ddr_hz: u32 = 2_133_000_000,
        compute_noc_hz: u32 = 1_450_000_000,
        memory_noc_hz: u32 = 1_000_000_000,
        system_noc_hz: u32 = 667_000_000,
        peak_operations_per_second: u64 = 350_000_000_000_000,
        /// Recent memory traffic, in kilobytes per second.
        ddr_kilobytes_per_second: u64 = 0,
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
