//! Conversion of the DMA requests in a program's metadata to the slices of buffer objects. The function is pure. At
//! load, it refuses requests that a kernel would refuse later or that a card would never finish.

use qaic_kmd::abi::{
    AttachSliceEntry, DIR_FROM_DEVICE, DIR_TO_DEVICE, SEM_IN_SYNC_FENCE, SEM_OUT_SYNC_FENCE, Sem,
};
use qaic_qpc::NetworkDesc;
use qaic_qpc::metadata::{DmaRequest, DoorbellOp, Metadata, SemaphoreOp};

use crate::error::{CardError, RuntimeError};

/// Number of elements of an activation's ring, which can hold one fewer.
pub(super) const RING_ELEMENTS: u32 = 512;
/// Size of the buffer object of requests that move no data, because kernels refuse empty buffer objects.
pub(super) const DATALESS_BYTES: u64 = 4096;
/// Byte distance between the windows of two multicast ids.
const MULTICAST_STRIDE: u64 = 0x80_0000;

const SEMAPHORES: u16 = 32;
const SEMAPHORE_VALUES: u16 = 4096;
const SLICE_SEMAPHORE_OPS: usize = 4;
const LAST_SEMAPHORE_OP: u8 = 6;

/// Buffer objects of every inference of a program, in submission order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) buffers: Vec<BufferLayout>,
    /// Index of the buffer object whose completion ends an inference.
    pub(super) awaited: usize,
    /// Minimum number of ring elements of an inference: a kernel may need several elements for a slice.
    pub(super) elements: u32,
    /// True if the program transfers parts of buffers.
    pub(super) is_partial: bool,
}

/// One buffer object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BufferLayout {
    /// Index of the DMA buffer; `None` for a buffer object without data.
    pub(super) dma: Option<usize>,
    pub(super) bytes: u64,
    pub(super) dir: u32,
    pub(super) slices: Vec<Slice>,
}

/// One slice, with addresses relative to the bases of an activation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slice {
    size: u64,
    offset: u64,
    sems: [Sem; SLICE_SEMAPHORE_OPS],
    address: Address,
    doorbell: Option<Doorbell>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Address {
    Nowhere,
    Ddr(u64),
    Multicast(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Doorbell {
    // Relative to the multicast base.
    offset: u64,
    data: u32,
    bits: u32,
}

/// Device addresses of an activation's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bases {
    pub(super) ddr: u64,
    pub(super) mcid: u64,
}

impl Layout {
    /// Creates the buffer objects of a program.
    pub(super) fn new(metadata: &Metadata, network: &NetworkDesc) -> Result<Self, RuntimeError> {
        if metadata.dma_requests.is_empty() {
            let what = "it has no DMA requests, like those of older compilers; compile it again";
            return refused(what.to_owned());
        }
        let sizes: Vec<u64> = network.dma_buffers.iter().map(|buffer| u64::from(buffer.size)).collect();
        let mut buffers: Vec<BufferLayout> = Vec::new();
        // Index of the buffer object of each DMA buffer.
        let mut taken: Vec<Option<usize>> = vec![None; sizes.len()];
        let mut open = None;
        let mut last_outbound = None;
        for (number, request) in metadata.dma_requests.iter().enumerate() {
            let slice = Slice::new(number, request)?;
            let dir = direction(number, request)?;
            if request.size == 0 {
                open = None;
                let slices = vec![slice];
                buffers.push(BufferLayout { dma: None, bytes: DATALESS_BYTES, dir: DIR_TO_DEVICE, slices });
                continue;
            }
            let dma = usize::from(request.num);
            let Some(&bytes) = sizes.get(dma) else {
                return refused(format!(
                    "DMA request {number} uses DMA buffer {dma}, but the program has {}",
                    sizes.len()
                ));
            };
            let end = request.host_offset.checked_add(u64::from(request.size));
            if end.is_none_or(|end| end > bytes) {
                return refused(format!(
                    "DMA request {number} uses {} bytes from byte {} of DMA buffer {dma}, which has {bytes}",
                    request.size, request.host_offset
                ));
            }
            let place = match (taken[dma], open) {
                (Some(place), Some(open)) if place == open => place,
                (Some(_), _) => {
                    return refused(format!(
                        "DMA request {number} uses DMA buffer {dma} again, after requests for other buffers"
                    ));
                }
                (None, _) => {
                    buffers.push(BufferLayout { dma: Some(dma), bytes, dir, slices: Vec::new() });
                    buffers.len() - 1
                }
            };
            (taken[dma], open) = (Some(place), Some(place));
            let buffer = &mut buffers[place];
            if buffer.dir != dir {
                return refused(format!(
                    "DMA request {number} moves DMA buffer {dma} in the opposite direction of the previous request"
                ));
            }
            buffer.slices.push(slice);
            if dir == DIR_FROM_DEVICE {
                last_outbound = Some(place);
            }
        }
        if let Some(dma) = (0..sizes.len()).find(|&dma| sizes[dma] > 0 && taken[dma].is_none()) {
            return refused(format!("no DMA request moves DMA buffer {dma} of {} bytes", sizes[dma]));
        }
        let elements = buffers.iter().map(|buffer| buffer.slices.len()).sum::<usize>();
        let room = RING_ELEMENTS - 1;
        let Some(elements) = u32::try_from(elements).ok().filter(|&elements| elements <= room) else {
            return refused(format!("an inference has {elements} slices, but the ring has room for {room}"));
        };
        let is_partial = network.inputs.iter().any(|input| input.is_partial_allowed);
        if let Some(buffer) = buffers.iter().find(|buffer| is_partial && buffer.slices.len() != 1) {
            return refused(format!(
                "DMA buffer {} has {} slices; in a program with partial inputs each has one",
                buffer.dma.unwrap_or_default(),
                buffer.slices.len()
            ));
        }
        let awaited = last_outbound.unwrap_or(buffers.len().saturating_sub(1));
        Ok(Self { buffers, awaited, elements, is_partial })
    }
}

impl Slice {
    fn new(number: usize, request: &DmaRequest) -> Result<Self, RuntimeError> {
        let address = match (request.size, request.dev_addr_space) {
            (0, _) => Some(Address::Nowhere),
            (_, 0) => multicast(request.mc_id, request.dev_offset).map(Address::Multicast),
            (_, 1) => Some(Address::Ddr(request.dev_offset)),
            (_, space) => {
                return refused(format!(
                    "DMA request {number} names address space {space}; 0 or 1 is expected"
                ));
            }
        };
        let Some(address) = address else {
            return refused(format!(
                "DMA request {number} has the device offset {:#x}, beyond all addresses",
                request.dev_offset
            ));
        };
        // The reference code treats several doorbells as none.
        let doorbell = match request.doorbell_ops.as_slice() {
            [doorbell] => Some(Doorbell::new(number, doorbell)?),
            _ => None,
        };
        let sems = semaphores(number, &request.semaphore_ops)?;
        Ok(Self { size: request.size.into(), offset: request.host_offset, sems, address, doorbell })
    }

    /// Returns the slice's entry of the attach call for an activation; `None` if an address is out of range.
    pub(super) fn entry(&self, bases: Bases) -> Option<AttachSliceEntry> {
        let dev_addr = match self.address {
            Address::Nowhere => 0,
            Address::Ddr(offset) => bases.ddr.checked_add(offset)?,
            Address::Multicast(offset) => bases.mcid.checked_add(offset)?,
        };
        let offset = if self.size == 0 { 0 } else { self.offset };
        let entry = AttachSliceEntry {
            size: self.size,
            sems: self.sems,
            dev_addr,
            offset,
            ..AttachSliceEntry::default()
        };
        Some(match self.doorbell {
            None => entry,
            Some(Doorbell { offset, data, bits }) => AttachSliceEntry {
                db_addr: bases.mcid.checked_add(offset)?,
                db_data: data,
                db_len: bits,
                ..entry
            },
        })
    }
}

impl Doorbell {
    fn new(number: usize, op: &DoorbellOp) -> Result<Self, RuntimeError> {
        let bits = match op.size {
            0 => 8,
            1 => 16,
            2 => 32,
            size => {
                return refused(format!(
                    "the doorbell of DMA request {number} has the size code {size}; 0 to 2 is expected"
                ));
            }
        };
        match multicast(op.mc_id, op.offset) {
            Some(offset) if offset.is_multiple_of(u64::from(bits / 8)) => {
                Ok(Self { offset, data: op.data, bits })
            }
            _ => refused(format!(
                "the doorbell of DMA request {number} is at offset {:#x}, which is not possible for {bits} bits",
                op.offset
            )),
        }
    }
}

fn multicast(mc_id: u16, offset: u64) -> Option<u64> {
    MULTICAST_STRIDE.checked_mul(mc_id.into())?.checked_add(offset)
}

fn direction(number: usize, request: &DmaRequest) -> Result<u32, RuntimeError> {
    match request.in_out {
        0 => Ok(DIR_TO_DEVICE),
        1 => Ok(DIR_FROM_DEVICE),
        other => refused(format!("DMA request {number} has the direction {other}; 0 or 1 is expected")),
    }
}

/// Converts semaphore operations to the kernel's format, including the kernel's numbers of fences.
fn semaphores(number: usize, ops: &[SemaphoreOp]) -> Result<[Sem; SLICE_SEMAPHORE_OPS], RuntimeError> {
    let what = |what: String| refused(format!("DMA request {number} {what}"));
    if ops.len() > SLICE_SEMAPHORE_OPS {
        return what(format!("has {} semaphore operations, more than {SLICE_SEMAPHORE_OPS}", ops.len()));
    }
    let mut sems = [Sem::default(); SLICE_SEMAPHORE_OPS];
    for (sem, op) in sems.iter_mut().zip(ops) {
        let index = u8::try_from(op.sem_num).ok().filter(|_| op.sem_num < SEMAPHORES);
        let Some(index) = index else {
            return what(format!("names semaphore {}; there are {SEMAPHORES}", op.sem_num));
        };
        if op.sem_op > LAST_SEMAPHORE_OP {
            return what(format!(
                "has the semaphore operation {}; 0 to {LAST_SEMAPHORE_OP} is expected",
                op.sem_op
            ));
        }
        if op.sem_value >= SEMAPHORE_VALUES {
            return what(format!("sets a semaphore to {}; semaphores have 12 bits", op.sem_value));
        }
        if op.pre_or_post > 1 {
            return what(format!(
                "has a semaphore operation at the time {}; 0 or 1 is expected",
                op.pre_or_post
            ));
        }
        let fence = |is_on: u8, flag| if is_on == 0 { 0 } else { flag };
        let flags = fence(op.in_sync_fence, SEM_IN_SYNC_FENCE) | fence(op.out_sync_fence, SEM_OUT_SYNC_FENCE);
        *sem = Sem { val: op.sem_value, index, presync: op.pre_or_post, cmd: op.sem_op, flags, pad: 0 };
    }
    let before = sems.iter().filter(|sem| sem.presync == 1).count();
    if before > 1 {
        return what(format!("has {before} semaphore operations before its transfer, more than 1"));
    }
    Ok(sems)
}

fn refused<T>(what: String) -> Result<T, RuntimeError> {
    Err(CardError::Transfers { what }.into())
}

#[cfg(test)]
mod tests;
