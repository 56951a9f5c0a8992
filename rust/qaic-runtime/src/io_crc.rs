//! Checksums of what goes into an inference and comes out of it (compile-options rows 86 and 87).
//!
//! A program compiled with `io_crc` has the bytes of every wired input summed when the inference is submitted and again
//! by the thread that begins it; those of every output when it has been computed and again by whoever collects it. Two
//! values that differ say that somebody wrote in between, and where. The sums are CRC-32 (the one of zlib), one per
//! buffer or one per section of so many bytes. Slices are not covered.

use qaic_qpc::crc::Crc32;

use crate::buffer::{HostSlice, HostSliceMut};
use crate::error::RuntimeError;
use crate::wiring::{InputWire, OutputWire, Wiring};

/// Bytes that are copied aside at a time: a caller may write to its memory while it is summed.
const STEP_BYTES: usize = 4096;

/// The sums of one inference, by binding: empty where no memory is wired.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoCrcs {
    /// Per input, one value per section.
    pub inputs: Vec<Vec<u32>>,
    /// Per output; empty until it has ended well.
    pub outputs: Vec<Vec<u32>>,
}

/// Takes and compares the sums of the inferences of one exec object.
#[derive(Debug)]
pub(crate) struct IoCheck {
    section_bytes: usize,
    taken: IoCrcs,
    // Bytes of each output; the memory it was written to may be larger.
    output_bytes: Vec<usize>,
    // Whether the outputs were taken and nobody has collected them.
    is_uncollected: bool,
}

impl IoCheck {
    /// Sums of sections of this many bytes; 0 makes each buffer one section.
    pub(crate) fn new(section_bytes: usize) -> Self {
        let section_bytes = if section_bytes == 0 { usize::MAX } else { section_bytes };
        Self { section_bytes, taken: IoCrcs::default(), output_bytes: Vec::new(), is_uncollected: false }
    }

    /// What was last taken.
    pub(crate) fn taken(&self) -> &IoCrcs {
        &self.taken
    }

    /// At submission.
    pub(crate) fn take_inputs(&mut self, wiring: &Wiring) {
        self.is_uncollected = false;
        self.taken.outputs.clear();
        let sums = wiring.inputs.iter().map(|wire| match wire {
            InputWire::Memory { memory, .. } => sections(*memory, self.section_bytes),
            InputWire::Unset | InputWire::Held | InputWire::DmaBuf { .. } => Vec::new(),
        });
        self.taken.inputs = sums.collect();
    }

    /// By the thread that begins the inference. `name` tells the name of an input.
    pub(crate) fn check_inputs(
        &self,
        wiring: &Wiring,
        name: impl Fn(usize) -> String,
    ) -> Result<(), RuntimeError> {
        for (index, (wire, taken)) in wiring.inputs.iter().zip(&self.taken.inputs).enumerate() {
            if let InputWire::Memory { memory, .. } = wire {
                self.compare(*memory, taken, "submitted", "begun", || name(index))?;
            }
        }
        Ok(())
    }

    /// When the outputs have been computed, which have this many bytes each.
    pub(crate) fn take_outputs(&mut self, wiring: &Wiring, output_bytes: impl Iterator<Item = usize>) {
        self.output_bytes.clear();
        self.output_bytes.extend(output_bytes);
        let sums = wiring.outputs.iter().zip(&self.output_bytes).map(|(wire, bytes)| match wire {
            OutputWire::Memory { memory, .. } => sections(head(*memory, *bytes), self.section_bytes),
            OutputWire::Dropped | OutputWire::DmaBuf { .. } => Vec::new(),
        });
        self.taken.outputs = sums.collect();
        self.is_uncollected = true;
    }

    /// By the first who collects the inference: afterwards the memory is the caller's to write to.
    pub(crate) fn check_outputs(
        &mut self,
        wiring: &Wiring,
        name: impl Fn(usize) -> String,
    ) -> Result<(), RuntimeError> {
        if !std::mem::take(&mut self.is_uncollected) {
            return Ok(());
        }
        let taken = self.taken.outputs.iter().zip(&self.output_bytes);
        for (index, (wire, (taken, bytes))) in wiring.outputs.iter().zip(taken).enumerate() {
            if let OutputWire::Memory { memory, .. } = wire {
                self.compare(head(*memory, *bytes), taken, "computed", "collected", || name(index))?;
            }
        }
        Ok(())
    }

    fn compare(
        &self,
        memory: HostSlice,
        taken: &[u32],
        first: &'static str,
        second: &'static str,
        name: impl Fn() -> String,
    ) -> Result<(), RuntimeError> {
        let found = sections(memory, self.section_bytes);
        match found.iter().zip(taken).position(|(found, taken)| found != taken) {
            None => Ok(()),
            Some(section) => Err(RuntimeError::IoCrc {
                binding: name(),
                section: section as u64,
                begin: section.saturating_mul(self.section_bytes) as u64,
                end: section.saturating_add(1).saturating_mul(self.section_bytes).min(memory.len()) as u64,
                first,
                second,
                taken: taken[section],
                found: found[section],
            }),
        }
    }
}

/// The bytes of a tensor at the begin of memory that may be larger, or smaller.
fn head(memory: HostSliceMut, bytes: usize) -> HostSlice {
    memory.subslice(0, bytes).unwrap_or(memory).as_const()
}

/// The CRC of every section of `memory`; the last one may be shorter. Memory without bytes has none.
fn sections(memory: HostSlice, section_bytes: usize) -> Vec<u32> {
    let mut buffer = [0_u8; STEP_BYTES];
    let mut sums = Vec::with_capacity(memory.len().div_ceil(section_bytes));
    let mut at = 0;
    while at < memory.len() {
        let end = at.saturating_add(section_bytes).min(memory.len());
        let mut sum = Crc32::new();
        while at < end {
            let step = buffer.len().min(end - at);
            // Inside, by the arithmetic above.
            if memory.read_into(at, &mut buffer[..step]).is_some() {
                sum.update(&buffer[..step]);
            }
            at += step;
        }
        sums.push(sum.value());
    }
    sums
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed assumption fails the test

    use std::iter;

    use proptest::prelude::*;
    use qaic_qpc::crc::crc32;

    use super::*;
    use crate::buffer::Storage;

    proptest! {
        #[test]
        fn every_section_has_the_sum_of_its_bytes(
            bytes in prop::collection::vec(any::<u8>(), 0..3 * STEP_BYTES),
            section_bytes in prop_oneof![1_usize..80, 4000_usize..5000, Just(usize::MAX)],
        ) {
            let storage = Storage::new(bytes.len()).unwrap();
            storage.memory().write_from(0, &bytes).unwrap();
            let expected: Vec<u32> = bytes.chunks(section_bytes.min(1 << 20)).map(crc32).collect();
            prop_assert_eq!(sections(storage.memory().as_const(), section_bytes), expected);
        }
    }

    #[test]
    fn a_changed_byte_is_found_in_its_section() {
        let storage = Storage::new(100).unwrap();
        let mut wiring = Wiring::new(1, 1);
        wiring.inputs[0] = InputWire::Memory { memory: storage.memory().as_const(), owner: None };
        wiring.outputs[0] = OutputWire::Memory { memory: storage.memory(), owner: None };
        let mut check = IoCheck::new(32);
        check.take_inputs(&wiring);
        check.check_inputs(&wiring, |_| "x".to_owned()).unwrap();
        assert_eq!(check.taken().inputs[0].len(), 4);
        storage.memory().write_from(97, &[1_u8]).unwrap();
        let error = check.check_inputs(&wiring, |index| format!("x{index}")).unwrap_err();
        assert_eq!(error.code(), "inference.io_crc");
        let text = error.to_string();
        assert!(text.contains("`x0`, bytes 96 to 99 (section 3)"), "{text}");

        // What follows the tensor is the caller's.
        check.take_outputs(&wiring, iter::once(90));
        storage.memory().write_from(90, &[1_u8]).unwrap();
        check.check_outputs(&wiring, |_| "y".to_owned()).unwrap();
        check.take_outputs(&wiring, iter::once(100));
        storage.memory().write_from(0, &[1_u8]).unwrap();
        check.check_outputs(&wiring, |_| "y".to_owned()).unwrap_err();
        // Whoever comes second finds memory that is the caller's again.
        check.check_outputs(&wiring, |_| "y".to_owned()).unwrap();
        check.take_inputs(&wiring);
        assert!(check.taken().outputs.is_empty());
    }
}
