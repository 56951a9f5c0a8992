//! Commands of the host, byte for byte (device-kmd §2.5). Only those that a runtime sends are here.

use super::id;

/// Bytes of a name, of which the last is always 0.
const NAME_BYTES: usize = 64;
/// Zero bytes behind a command. Firmware checks the lengths of commands, and only this form is known to pass.
const TRAILING_BYTES: usize = 8;
/// Bytes of a transaction before its command.
const HEADER_BYTES: usize = 8;
/// Most changes of state in one [`ActivationStates`].
pub const ACTIVATION_STATES_MAX: usize = 8;
/// Resource group, reservation or pool: none in particular, the whole device.
pub const WHOLE_DEVICE: i32 = -1;

/// A command to the firmware.
pub trait Command {
    /// Its bytes, from the number on.
    fn encode(&self) -> Vec<u8>;
}

/// A transaction that carries a command.
pub fn passthrough(command: &[u8]) -> Vec<u8> {
    // The kernel takes lengths that are multiples of 8 only.
    let len = HEADER_BYTES + command.len().next_multiple_of(8) + TRAILING_BYTES;
    let mut bytes = Vec::with_capacity(len);
    bytes.extend_from_slice(&super::transaction::PASSTHROUGH_FROM_USER.to_le_bytes());
    bytes.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend_from_slice(command);
    bytes.resize(len, 0);
    bytes
}

/// Announces constants: what comes and where it goes. The data follow in [`LoadConstantsPayload`]s.
#[derive(Clone, Copy, Debug)]
pub struct LoadConstantsEx<'a> {
    /// Process of the caller.
    pub process_id: u32,
    /// Name, cut after 63 bytes.
    pub name: &'a str,
    /// Descriptor of the constants, from the container.
    pub descriptor: &'a [u8],
}

impl Command for LoadConstantsEx<'_> {
    fn encode(&self) -> Vec<u8> {
        Bytes::of(id::LOAD_CONSTANTS_EX)
            .u32(self.process_id)
            .name(self.name)
            .u32(u32::try_from(self.descriptor.len()).unwrap_or(u32::MAX))
            .zeros(4)
            .raw(self.descriptor)
            .0
    }
}

/// A part of announced constants, in a dma transaction of the same message.
#[derive(Clone, Copy, Debug)]
pub struct LoadConstantsPayload {
    /// Process of the caller.
    pub process_id: u32,
    /// Tag of the dma transaction.
    pub tag: u32,
    /// What the announcement was answered with.
    pub constants_id: u32,
    /// Bytes of the part.
    pub data_length: u64,
    /// Where it goes.
    pub offset: u64,
}

impl Command for LoadConstantsPayload {
    fn encode(&self) -> Vec<u8> {
        Bytes::of(id::LOAD_CONSTANTS_PAYLOAD)
            .u32(self.process_id)
            .u32(self.tag)
            .u32(self.constants_id)
            .u64(self.data_length)
            .u64(self.offset)
            .0
    }
}

/// Constants and their data in one message, an older form.
#[derive(Clone, Copy, Debug)]
pub struct LoadConstants<'a> {
    /// Process of the caller.
    pub process_id: u32,
    /// Tag of the dma transaction.
    pub tag: u32,
    /// Checksum of the constants; 0 for none.
    pub constants_crc: u32,
    /// Bytes of the constants.
    pub data_length: u64,
    /// Name, cut after 63 bytes.
    pub name: &'a str,
}

impl Command for LoadConstants<'_> {
    fn encode(&self) -> Vec<u8> {
        Bytes::of(id::LOAD_CONSTANTS)
            .u32(self.process_id)
            .u32(self.tag)
            .u32(self.constants_crc)
            .u64(self.data_length)
            .name(self.name)
            .0
    }
}

/// A network image, in a dma transaction of the same message.
#[derive(Clone, Copy, Debug)]
pub struct LoadElf<'a> {
    /// Tag of the dma transaction.
    pub tag: u32,
    /// Process of the caller.
    pub process_id: u32,
    /// Checksum of the metadata; 0 for none.
    pub metadata_crc: u32,
    /// Name, cut after 63 bytes.
    pub name: &'a str,
    /// Bytes of the image.
    pub data_length: u64,
}

impl Command for LoadElf<'_> {
    fn encode(&self) -> Vec<u8> {
        // Tag and process are the other way round than in the commands that load constants.
        Bytes::of(id::LOAD_ELF)
            .u32(self.tag)
            .u32(self.process_id)
            .u32(self.metadata_crc)
            .name(self.name)
            .u64(self.data_length)
            // Checksum of the metadata in their second form, which is sent as 0.
            .u32(0)
            .zeros(4)
            .0
    }
}

/// Frees constants.
#[derive(Clone, Copy, Debug)]
pub struct UnloadConstants {
    /// Which.
    pub constants_id: u32,
}

impl Command for UnloadConstants {
    fn encode(&self) -> Vec<u8> {
        Bytes::of(id::UNLOAD_CONSTANTS).u32(self.constants_id).0
    }
}

/// Frees a network image.
#[derive(Clone, Copy, Debug)]
pub struct UnloadElf {
    /// Which.
    pub elf_id: u32,
}

impl Command for UnloadElf {
    fn encode(&self) -> Vec<u8> {
        Bytes::of(id::UNLOAD_ELF).u32(self.elf_id).0
    }
}

/// States of an activation (device-kmd §2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(i32)]
pub enum ActivationState {
    /// Holds what it needs without running.
    Standby = 0,
    /// Runs.
    Ready = 1,
    /// Gives up what it holds.
    Deactivate = 2,
}

/// Gives images cores and, with an activate transaction in the same message, a channel.
#[derive(Clone, Copy, Debug)]
pub struct Activate {
    /// Process of the caller.
    pub process_id: u32,
    /// The constants; 0 for none.
    pub constants_id: u32,
    /// The image.
    pub elf_id: u32,
    /// Resource group that it takes from; [`WHOLE_DEVICE`] for none.
    pub resource_group_id: i32,
    /// Whether an activate transaction follows.
    pub sets_up_channel: bool,
    /// State to begin in.
    pub initial_state: ActivationState,
}

impl Command for Activate {
    fn encode(&self) -> Vec<u8> {
        Bytes::of(id::ACTIVATE)
            .u32(self.process_id)
            .u32(self.constants_id)
            .u32(self.elf_id)
            // Type of reservation: the default one.
            .u32(0)
            .i32(self.resource_group_id)
            .u32(u32::from(self.sets_up_channel))
            // Reservation of a channel: none.
            .i32(WHOLE_DEVICE)
            .i32(self.initial_state as i32)
            // Kind of DMA: the default one. No data-path switching.
            .u32(0)
            .zeros(8)
            .0
    }
}

/// Gives cores and, with a deactivate transaction in the same message, the channel back.
#[derive(Clone, Copy, Debug)]
pub struct Deactivate {
    /// Which activation.
    pub activation_id: u32,
    /// Whether a deactivate transaction follows.
    pub tears_down_channel: bool,
}

impl Command for Deactivate {
    fn encode(&self) -> Vec<u8> {
        Bytes::of(id::DEACTIVATE).u32(self.activation_id).u32(u32::from(self.tears_down_channel)).zeros(4).0
    }
}

/// Asks for everything about the card.
#[derive(Clone, Copy, Debug)]
pub struct Status;

impl Command for Status {
    fn encode(&self) -> Vec<u8> {
        Bytes::of(id::STATUS).zeros(4).0
    }
}

/// Asks what a group or the device has and has left.
#[derive(Clone, Copy, Debug)]
pub struct GetResourceInfo {
    /// Process of the caller.
    pub process_id: u32,
    /// Resource group; [`WHOLE_DEVICE`] for all of it.
    pub group_id: i32,
}

impl Command for GetResourceInfo {
    fn encode(&self) -> Vec<u8> {
        Bytes::of(id::RESOURCE_INFO).u32(self.process_id).i32(self.group_id).zeros(4).0
    }
}

/// Asks for frequencies and bandwidth.
#[derive(Clone, Copy, Debug)]
pub struct GetPerformanceInfo;

impl Command for GetPerformanceInfo {
    fn encode(&self) -> Vec<u8> {
        Bytes::of(id::PERFORMANCE_INFO).zeros(4).0
    }
}

/// Changes the states of up to [`ACTIVATION_STATES_MAX`] activations; what is beyond is left out.
#[derive(Clone, Copy, Debug)]
pub struct ActivationStates<'a> {
    /// Activations and the states they go to, in this order.
    pub changes: &'a [(u32, ActivationState)],
}

impl Command for ActivationStates<'_> {
    fn encode(&self) -> Vec<u8> {
        let changes = &self.changes[..self.changes.len().min(ACTIVATION_STATES_MAX)];
        let mut bytes = Bytes::of(id::ACTIVATION_STATE).u32(u32::try_from(changes.len()).unwrap_or(u32::MAX));
        for &(activation_id, state) in changes {
            bytes = bytes.u32(activation_id).i32(state as i32);
        }
        // Always room for all of them.
        bytes.zeros(8 * (ACTIVATION_STATES_MAX - changes.len())).0
    }
}

/// Sets resources of the device aside for a group.
#[derive(Clone, Copy, Debug)]
pub struct CreateResourceGroup {
    /// Process of the caller.
    pub process_id: u32,
    /// Group that they are taken from; [`WHOLE_DEVICE`] for the device's pool.
    pub source_group_id: i32,
    /// Cores.
    pub num_nsp: u32,
    /// Multicast ids.
    pub num_mcid: u32,
    /// Semaphores.
    pub num_sem: u32,
    /// Virtual channels.
    pub num_vc: u32,
    /// Memory that is shared by the cores.
    pub shared_ddr_bytes: u64,
    /// Region of the second-level cache.
    pub l2_region_bytes: u64,
    /// Memory.
    pub memory_bytes: u64,
    /// Networks.
    pub num_networks: u16,
}

impl Command for CreateResourceGroup {
    fn encode(&self) -> Vec<u8> {
        Bytes::of(id::CREATE_RESOURCE_GROUP)
            .u32(self.process_id)
            .i32(self.source_group_id)
            .u32(self.num_nsp)
            .u32(self.num_mcid)
            .u32(self.num_sem)
            .u32(self.num_vc)
            .zeros(4)
            .u64(self.shared_ddr_bytes)
            .u64(self.l2_region_bytes)
            .u64(self.memory_bytes)
            .raw(&self.num_networks.to_le_bytes())
            .zeros(6)
            .0
    }
}

/// Gives the resources of a group back.
#[derive(Clone, Copy, Debug)]
pub struct ReleaseResourceGroup {
    /// Which.
    pub group_id: i32,
}

impl Command for ReleaseResourceGroup {
    fn encode(&self) -> Vec<u8> {
        Bytes::of(id::RELEASE_RESOURCE_GROUP).i32(self.group_id).0
    }
}

/// Little-endian bytes, one field after the other.
struct Bytes(Vec<u8>);

impl Bytes {
    fn of(id: u32) -> Self {
        Self(id.to_le_bytes().to_vec())
    }

    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u32(self, value: u32) -> Self {
        self.raw(&value.to_le_bytes())
    }

    fn i32(self, value: i32) -> Self {
        self.raw(&value.to_le_bytes())
    }

    fn u64(self, value: u64) -> Self {
        self.raw(&value.to_le_bytes())
    }

    fn zeros(mut self, count: usize) -> Self {
        self.0.resize(self.0.len() + count, 0);
        self
    }

    fn name(self, name: &str) -> Self {
        let kept = &name.as_bytes()[..name.len().min(NAME_BYTES - 1)];
        let room = NAME_BYTES - kept.len();
        self.raw(kept).zeros(room)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Bytes of a command from its fields' offsets, written down from the tables and not from the code above.
    fn at(total: usize, fields: &[(usize, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; total];
        for (offset, field) in fields {
            bytes[*offset..*offset + field.len()].copy_from_slice(field);
        }
        bytes
    }

    #[test]
    fn announced_constants() {
        let command = LoadConstantsEx { process_id: 0x0102_0304, name: "Abc", descriptor: &[7; 24] };
        let expected =
            at(104, &[(0, &[15]), (4, &[4, 3, 2, 1]), (8, b"Abc"), (72, &[24, 0, 0, 0]), (80, &[7; 24])]);
        assert_eq!(command.encode(), expected);
    }

    #[test]
    fn a_part_of_constants() {
        let command = LoadConstantsPayload {
            process_id: 5,
            tag: 300,
            constants_id: 9,
            data_length: 0x1_0000_0001,
            offset: 0x2_0000_0003,
        };
        let expected = [
            16, 0, 0, 0, 5, 0, 0, 0, 0x2c, 1, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0,
            0,
        ];
        assert_eq!(command.encode(), expected);
    }

    #[test]
    fn constants_of_the_older_form() {
        let command = LoadConstants {
            process_id: 5,
            tag: 300,
            constants_crc: 0xAABB_CCDD,
            data_length: 0x1_0000_0001,
            name: "constants",
        };
        let expected = at(
            88,
            &[
                (0, &[1]),
                (4, &[5]),
                (8, &[0x2c, 1]),
                (12, &[0xDD, 0xCC, 0xBB, 0xAA]),
                (16, &[1, 0, 0, 0, 1]),
                (24, b"constants"),
            ],
        );
        assert_eq!(command.encode(), expected);
    }

    #[test]
    fn a_network_image() {
        let command = LoadElf {
            tag: 100,
            process_id: 0x0102_0304,
            metadata_crc: 0x0506_0708,
            name: "NetworkImage",
            data_length: 0x1122_3344_5566_7788,
        };
        let expected = at(
            96,
            &[
                (0, &[3]),
                (4, &[100, 0, 0, 0]),
                (8, &[4, 3, 2, 1]),
                (12, &[8, 7, 6, 5]),
                (16, b"NetworkImage"),
                (80, &[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]),
            ],
        );
        assert_eq!(command.encode(), expected);
    }

    #[test]
    fn images_are_freed() {
        assert_eq!(UnloadConstants { constants_id: 0x0102_0304 }.encode(), [5, 0, 0, 0, 4, 3, 2, 1]);
        assert_eq!(UnloadElf { elf_id: 0x0102_0304 }.encode(), [7, 0, 0, 0, 4, 3, 2, 1]);
    }

    #[test]
    fn an_activation() {
        let command = Activate {
            process_id: 1,
            constants_id: 2,
            elf_id: 3,
            resource_group_id: -1,
            sets_up_channel: true,
            initial_state: ActivationState::Ready,
        };
        let minus_one = [0xFF; 4];
        let expected = at(
            48,
            &[
                (0, &[9]),
                (4, &[1]),
                (8, &[2]),
                (12, &[3]),
                (20, &minus_one),
                (24, &[1]),
                (28, &minus_one),
                (32, &[1]),
            ],
        );
        assert_eq!(command.encode(), expected);
        let bare =
            Activate { sets_up_channel: false, initial_state: ActivationState::Standby, ..command }.encode();
        assert_eq!(
            bare,
            at(48, &[(0, &[9, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3]), (20, &minus_one), (28, &minus_one)])
        );
    }

    #[test]
    fn a_deactivation() {
        let with = Deactivate { activation_id: 6, tears_down_channel: true };
        assert_eq!(with.encode(), [11, 0, 0, 0, 6, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        let without = Deactivate { activation_id: 6, tears_down_channel: false };
        assert_eq!(without.encode(), [11, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn questions() {
        assert_eq!(Status.encode(), [13, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(GetPerformanceInfo.encode(), [34, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(
            GetResourceInfo { process_id: 2, group_id: -1 }.encode(),
            [32, 0, 0, 0, 2, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0]
        );
    }

    #[test]
    fn changes_of_state() {
        let changes = [(7, ActivationState::Ready), (8, ActivationState::Deactivate)];
        let expected = at(72, &[(0, &[36]), (4, &[2]), (8, &[7]), (12, &[1]), (16, &[8]), (20, &[2])]);
        assert_eq!(ActivationStates { changes: &changes }.encode(), expected);
    }

    #[test]
    fn resource_groups() {
        let command = CreateResourceGroup {
            process_id: 1,
            source_group_id: -1,
            num_nsp: 2,
            num_mcid: 3,
            num_sem: 4,
            num_vc: 5,
            shared_ddr_bytes: 6,
            l2_region_bytes: 7,
            memory_bytes: 8,
            num_networks: 0x0102,
        };
        let expected = at(
            64,
            &[
                (0, &[28]),
                (4, &[1]),
                (8, &[0xFF; 4]),
                (12, &[2]),
                (16, &[3]),
                (20, &[4]),
                (24, &[5]),
                (32, &[6]),
                (40, &[7]),
                (48, &[8]),
                (56, &[2, 1]),
            ],
        );
        assert_eq!(command.encode(), expected);
        assert_eq!(ReleaseResourceGroup { group_id: 2 }.encode(), [30, 0, 0, 0, 2, 0, 0, 0]);
    }

    proptest! {
        #[test]
        fn names_are_cut_and_always_end(name in "\\PC{0,100}") {
            let bytes = LoadElf { tag: 0, process_id: 0, metadata_crc: 0, name: &name, data_length: 0 }.encode();
            let field = &bytes[16..80];
            let kept = name.len().min(63);
            prop_assert_eq!(&field[..kept], &name.as_bytes()[..kept]);
            prop_assert!(field[kept..].iter().all(|&byte| byte == 0));
            prop_assert_eq!(field[63], 0);
        }

        #[test]
        fn transactions_keep_the_command_and_end_in_zeros(command in proptest::collection::vec(any::<u8>(), 0..200)) {
            let bytes = passthrough(&command);
            prop_assert_eq!(bytes.len() % 8, 0);
            prop_assert_eq!(&bytes[..4], &[1, 0, 0, 0]);
            prop_assert_eq!(&bytes[4..8], &u32::try_from(bytes.len()).unwrap().to_le_bytes());
            prop_assert_eq!(&bytes[8..8 + command.len()], &command[..]);
            let behind = &bytes[8 + command.len()..];
            prop_assert!((8..16).contains(&behind.len()) && behind.iter().all(|&byte| byte == 0));
        }

        #[test]
        fn changes_beyond_eight_are_left_out(count in 0_usize..20) {
            let changes = vec![(1, ActivationState::Ready); count];
            let bytes = ActivationStates { changes: &changes }.encode();
            prop_assert_eq!(bytes.len(), 72);
            prop_assert_eq!(usize::from(bytes[4]), count.min(8));
        }
    }
}
