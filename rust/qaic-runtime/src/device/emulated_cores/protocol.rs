//! Transfer of an inference's data to and from a card, derived from the metadata.

use qaic_emu::{Images, Semaphores};
use qaic_qpc::metadata::{DmaRequest, Metadata};

use super::Refusal;

/// Byte distance between multicast windows.
const MULTICAST_WINDOW_BYTES: u64 = 0x80_0000;

const MULTICAST: u8 = 0;
const DDR: u8 = 1;
const INCREMENT: u8 = 2;
const DECREMENT: u8 = 3;
const WAIT_GREATER_OR_EQUAL: u8 = 5;
const P: u8 = 6;

/// A part of a DMA buffer, and its location on the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Region {
    pub(super) buffer: usize,
    /// Offset in the buffer.
    pub(super) host_offset: u64,
    pub(super) bytes: usize,
    pub(super) is_input: bool,
    // Multicast id; `None` for the activation's own memory.
    multicast: Option<u16>,
    offset: u64,
}

impl Region {
    /// Returns the address in an activation.
    pub(super) fn address(&self, images: &Images) -> u64 {
        let base = match self.multicast {
            Some(id) => images.mcid_base.wrapping_add(MULTICAST_WINDOW_BYTES.wrapping_mul(id.into())),
            None => images.ddr_base,
        };
        base.wrapping_add(self.offset)
    }
}

/// All regions, and the synchronization of cores and transfers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Protocol {
    /// Regions in the order of the transfers, without transfers that move no data.
    pub(super) regions: Vec<Region>,
    /// Synchronization by semaphores, if the program uses them in the supported way; otherwise the order of transfers
    /// decides.
    pub(super) handshake: Option<Handshake>,
}

/// Supported use of semaphores: transfers to the card increment semaphores after the data; transfers from the card
/// wait for semaphores and decrement them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Handshake {
    // Initial values by semaphore number.
    initial: Vec<u16>,
    // Semaphores, and the number of times that an inference raises or lowers each.
    arrivals: Vec<(u8, u16)>,
    releases: Vec<(u8, u16)>,
}

impl Protocol {
    pub(super) fn of(metadata: &Metadata) -> Result<Self, Refusal> {
        if metadata.dma_requests.is_empty() {
            return Err(Refusal::metadata(
                "its metadata has no DMA requests, like those of older compilers; compile it again",
            ));
        }
        let regions = metadata.dma_requests.iter().filter(|request| request.size > 0).map(region);
        let regions = regions.collect::<Result<_, _>>()?;
        Ok(Self { regions, handshake: Handshake::of(metadata) })
    }

    /// Returns the location on the card of `bytes` bytes at `offset` of a DMA buffer, if they are contiguous.
    pub(super) fn find(&self, buffer: usize, offset: u64, bytes: usize, is_input: bool) -> Option<Region> {
        let end = offset.checked_add(bytes as u64)?;
        let holds = |region: &&Region| {
            let region_end = region.host_offset.saturating_add(region.bytes as u64);
            (region.buffer, region.is_input) == (buffer, is_input)
                && region.host_offset <= offset
                && end <= region_end
        };
        let whole = self.regions.iter().find(holds)?;
        let offset_on_card = whole.offset.wrapping_add(offset - whole.host_offset);
        Some(Region { host_offset: offset, bytes, offset: offset_on_card, ..*whole })
    }
}

fn region(request: &DmaRequest) -> Result<Region, Refusal> {
    let multicast = match request.dev_addr_space {
        MULTICAST => Some(request.mc_id),
        DDR => None,
        other => {
            return Err(Refusal::metadata(format!(
                "a DMA request is for address space {other}; 0 or 1 is expected"
            )));
        }
    };
    Ok(Region {
        buffer: request.num.into(),
        host_offset: request.host_offset,
        bytes: request.size as usize,
        is_input: request.in_out == 0,
        multicast,
        offset: request.dev_offset,
    })
}

impl Handshake {
    fn of(metadata: &Metadata) -> Option<Self> {
        let mut found = Self {
            initial: metadata
                .semaphore_init_state
                .iter()
                .map(|&value| u16::try_from(value).ok())
                .collect::<Option<_>>()?,
            ..Self::default()
        };
        if found.initial.len() > Semaphores::COUNT {
            return None;
        }
        let requests = &metadata.dma_requests;
        let first_out = requests.iter().position(|request| request.in_out != 0)?;
        let (inputs, outputs) = requests.split_at(first_out);
        // The last transfer to the card starts each inference, and the first transfer back waits for its end.
        let has_signal = inputs.last().is_some_and(|request| !request.semaphore_ops.is_empty());
        let waits =
            outputs.first().is_some_and(|request| request.semaphore_ops.iter().any(|op| op.pre_or_post == 1));
        let is_mixed = outputs.iter().any(|request| request.in_out == 0);
        if !has_signal || !waits || is_mixed {
            return None;
        }
        let mut waited_for = Vec::new();
        for request in requests {
            if request.semaphore_ops.len() > 4 || !request.doorbell_ops.is_empty() {
                return None;
            }
            for op in &request.semaphore_ops {
                let number =
                    u8::try_from(op.sem_num).ok().filter(|&at| usize::from(at) < Semaphores::COUNT)?;
                match (request.in_out, op.pre_or_post, op.sem_op) {
                    (0, 0, INCREMENT) => count(&mut found.arrivals, number)?,
                    (1, 1, P) | (1, 0, DECREMENT) => count(&mut found.releases, number)?,
                    (1, 1, WAIT_GREATER_OR_EQUAL) => waited_for.push((number, op.sem_value)),
                    _ => return None,
                }
            }
        }
        let released = |number: u8| found.releases.iter().find(|(other, _)| *other == number);
        let is_both = |&(number, _): &(u8, u16)| released(number).is_some();
        let has_end =
            |&(number, value): &(u8, u16)| released(number).is_some_and(|(_, count)| *count >= value);
        (!found.arrivals.iter().any(is_both) && waited_for.iter().all(has_end)).then_some(found)
    }

    /// Sets the semaphores to the program's initial values.
    pub(super) fn begin(&self, semaphores: &mut Semaphores) {
        for (number, &value) in (0..).zip(&self.initial) {
            semaphores.set(number, value);
        }
    }

    /// Returns true if all inputs of an inference have arrived, and resets the semaphores that indicate this.
    pub(super) fn take_arrival(&self, semaphores: &mut Semaphores) -> bool {
        let is_there = self.arrivals.iter().all(|&(number, count)| semaphores.get(number) >= count);
        if is_there {
            for &(number, count) in &self.arrivals {
                semaphores.set(number, semaphores.get(number) - count);
            }
        }
        is_there
    }

    /// Allows the transfers of the outputs to begin.
    pub(super) fn release(&self, semaphores: &mut Semaphores) {
        for &(number, count) in &self.releases {
            for _ in 0..count {
                semaphores.increment(number);
            }
        }
    }
}

/// Counts an operation on a semaphore.
fn count(counts: &mut Vec<(u8, u16)>, number: u8) -> Option<()> {
    match counts.iter_mut().find(|(known, _)| *known == number) {
        Some((_, count)) => *count = count.checked_add(1)?,
        None => counts.push((number, 1)),
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use qaic_qpc::metadata::SemaphoreOp;

    use super::*;

    fn op(sem_num: u16, sem_op: u8, pre_or_post: u8) -> SemaphoreOp {
        SemaphoreOp { sem_num, sem_op, pre_or_post, ..SemaphoreOp::default() }
    }

    fn request(in_out: u8, num: u16, dev_offset: u64, semaphore_ops: Vec<SemaphoreOp>) -> DmaRequest {
        DmaRequest {
            in_out,
            num,
            dev_offset,
            size: 64,
            dev_addr_space: DDR,
            semaphore_ops,
            ..DmaRequest::default()
        }
    }

    fn metadata() -> Metadata {
        Metadata {
            dma_requests: vec![
                request(0, 0, 0, Vec::new()),
                request(0, 3, 64, vec![op(7, INCREMENT, 0), op(7, INCREMENT, 0)]),
                request(1, 1, 128, vec![op(2, P, 1)]),
                request(1, 2, 192, Vec::new()),
            ],
            semaphore_init_state: vec![0, 5],
            ..Metadata::default()
        }
    }

    #[test]
    fn protocol_of_a_program_has_the_semaphores_of_its_metadata() {
        let handshake = Protocol::of(&metadata()).unwrap().handshake.unwrap();
        let mut semaphores = Semaphores::default();
        handshake.begin(&mut semaphores);
        assert_eq!((semaphores.get(0), semaphores.get(1)), (0, 5));
        semaphores.increment(7);
        assert!(!handshake.take_arrival(&mut semaphores));
        semaphores.increment(7);
        assert!(handshake.take_arrival(&mut semaphores));
        assert!(!handshake.take_arrival(&mut semaphores));
        handshake.release(&mut semaphores);
        assert_eq!((semaphores.get(2), semaphores.get(7)), (1, 0));
    }

    #[test]
    fn protocol_with_a_wait_and_a_later_decrement_is_found() {
        let mut changed = metadata();
        let wait = SemaphoreOp { sem_value: 1, ..op(2, WAIT_GREATER_OR_EQUAL, 1) };
        changed.dma_requests[2].semaphore_ops = vec![wait.clone(), op(2, DECREMENT, 0)];
        assert_eq!(Handshake::of(&changed), Handshake::of(&metadata()));
        changed.dma_requests[2].semaphore_ops = vec![wait];
        assert_eq!(Handshake::of(&changed), None);
    }

    #[test]
    fn protocol_of_other_semaphores_is_none() {
        let change = |change: &dyn Fn(&mut Metadata)| {
            let mut changed = metadata();
            change(&mut changed);
            Protocol::of(&changed).unwrap().handshake
        };
        assert!(change(&|_| ()).is_some());
        let wrong: [&dyn Fn(&mut Metadata); 10] = [
            &|metadata| metadata.dma_requests.swap(1, 2),
            &|metadata| metadata.dma_requests[1].semaphore_ops.clear(),
            &|metadata| metadata.dma_requests[2].semaphore_ops.clear(),
            &|metadata| metadata.dma_requests[1].semaphore_ops[0].sem_num = 32,
            &|metadata| metadata.dma_requests[1].semaphore_ops[0].sem_op = 3,
            &|metadata| metadata.dma_requests[2].semaphore_ops[0].pre_or_post = 0,
            &|metadata| metadata.dma_requests[2].semaphore_ops[0].sem_num = 7,
            &|metadata| metadata.semaphore_init_state = vec![0; 33],
            &|metadata| metadata.semaphore_init_state[1] = 0x1_0000,
            &|metadata| metadata.dma_requests.truncate(2),
        ];
        for (number, wrong) in wrong.iter().enumerate() {
            assert_eq!(change(wrong), None, "{number}");
        }
    }

    #[test]
    fn tensor_across_regions_has_no_address() {
        let protocol = Protocol::of(&metadata()).unwrap();
        let images = Images {
            elf: [].into(),
            elf_id: 1,
            constants: [].into(),
            constants_id: 0,
            ddr_base: 0x1_0000,
            mcid_base: 0x2_0000,
        };
        let address = |buffer, offset, bytes, is_input| {
            protocol.find(buffer, offset, bytes, is_input).map(|region| region.address(&images))
        };
        assert_eq!(address(3, 0, 64, true), Some(0x1_0040));
        assert_eq!(address(3, 60, 4, true), Some(0x1_007C));
        assert_eq!(address(3, 60, 5, true), None);
        assert_eq!(address(3, 0, 4, false), None);
        assert_eq!(address(9, 0, 0, true), None);
        assert_eq!(address(3, u64::MAX, 4, true), None);
        let mut other = metadata();
        other.dma_requests[0].dev_addr_space = MULTICAST;
        other.dma_requests[0].mc_id = 3;
        let protocol = Protocol::of(&other).unwrap();
        let found = protocol.find(0, 4, 4, true).unwrap();
        assert_eq!(found.address(&images), 0x2_0000 + 3 * 0x80_0000 + 4);
        other.dma_requests[0].dev_addr_space = 2;
        assert_eq!(Protocol::of(&other).unwrap_err().status, qaic_kmd::protocol::NncStatus::METADATA);
        let refused = Protocol::of(&Metadata::default()).unwrap_err();
        assert!(refused.reason.contains("compile it again"), "{refused:?}");
    }
}
