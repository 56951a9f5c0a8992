//! Checksums of the inputs and outputs of an inference (`io_crc` in docs/reference/options.md).
//!
//! A program compiled with `io_crc` computes checksums of every bound input at submission, and again on the thread
//! that begins the inference. Checksums of every output are computed after its computation, and again on the thread
//! that collects the inference. Two different values prove a write in between, and identify the buffer. The checksums
//! are CRC-32 (as in zlib), one per buffer or one per section of a given size. Slices are not covered.

use qaic_mem::{ForeignMemoryMut, HostSlice};
use qaic_qpc::Crc32;

use crate::binding::{Bindings, InputBinding, OutputBinding};
use crate::error::{InputError, RuntimeError};

/// Number of bytes that are copied at a time, because a caller may write to its memory during the checksum.
const STEP_BYTES: usize = 4096;

/// The checksums of one inference, by binding; empty for a binding without memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IoCrcs {
    /// Checksums of each input, one value per section.
    pub inputs: Vec<Vec<u32>>,
    /// Checksums of each output; empty until the inference has succeeded.
    pub outputs: Vec<Vec<u32>>,
}

/// Computes and compares the checksums of the inferences of one exec object.
#[derive(Debug)]
pub(crate) struct IoCheck {
    section_bytes: usize,
    /// The checksums that were computed last.
    pub(crate) taken: IoCrcs,
    // Size of each output; its memory may be larger.
    output_bytes: Vec<usize>,
    // True if the checksums of the outputs are computed and no thread has collected the inference.
    is_uncollected: bool,
}

impl IoCheck {
    /// Creates checksums over sections of this many bytes; with 0, each buffer is one section.
    pub(crate) fn new(section_bytes: usize) -> Self {
        let section_bytes = if section_bytes == 0 { usize::MAX } else { section_bytes };
        Self { section_bytes, taken: IoCrcs::default(), output_bytes: Vec::new(), is_uncollected: false }
    }

    /// Computes the checksums of the inputs, at submission.
    pub(crate) fn take_inputs(&mut self, bindings: &Bindings) {
        self.is_uncollected = false;
        self.taken.outputs.clear();
        let sums = bindings.inputs.iter().map(|binding| match binding {
            InputBinding::Memory(memory) => sections(memory.as_slice(), self.section_bytes),
            InputBinding::Unset | InputBinding::Retained | InputBinding::DmaBuf { .. } => Vec::new(),
        });
        self.taken.inputs = sums.collect();
    }

    /// Checks the inputs, on the thread that begins the inference. `name` returns the name of an input.
    pub(crate) fn check_inputs(
        &self,
        bindings: &Bindings,
        name: impl Fn(usize) -> String,
    ) -> Result<(), RuntimeError> {
        for (index, (binding, taken)) in bindings.inputs.iter().zip(&self.taken.inputs).enumerate() {
            if let InputBinding::Memory(memory) = binding {
                self.compare(memory.as_slice(), taken, "submission", "start", || name(index))?;
            }
        }
        Ok(())
    }

    /// Computes the checksums of the outputs, after they were computed. `output_bytes` contains the size of each
    /// output.
    pub(crate) fn take_outputs(&mut self, bindings: &Bindings, output_bytes: impl Iterator<Item = usize>) {
        self.output_bytes.clear();
        self.output_bytes.extend(output_bytes);
        let sums = bindings.outputs.iter().zip(&self.output_bytes).map(|(binding, bytes)| match binding {
            OutputBinding::Memory(memory) => sections(head(memory, *bytes), self.section_bytes),
            OutputBinding::Dropped | OutputBinding::DmaBuf { .. } => Vec::new(),
        });
        self.taken.outputs = sums.collect();
        self.is_uncollected = true;
    }

    /// Checks the outputs, on the first thread that collects the inference. Afterwards the caller may write to the
    /// memory.
    pub(crate) fn check_outputs(
        &mut self,
        bindings: &Bindings,
        name: impl Fn(usize) -> String,
    ) -> Result<(), RuntimeError> {
        if !std::mem::take(&mut self.is_uncollected) {
            return Ok(());
        }
        let taken = self.taken.outputs.iter().zip(&self.output_bytes);
        for (index, (binding, (taken, bytes))) in bindings.outputs.iter().zip(taken).enumerate() {
            if let OutputBinding::Memory(memory) = binding {
                self.compare(head(memory, *bytes), taken, "end", "collection", || name(index))?;
            }
        }
        Ok(())
    }

    fn compare(
        &self,
        memory: HostSlice<'_>,
        taken: &[u32],
        first: &'static str,
        second: &'static str,
        name: impl Fn() -> String,
    ) -> Result<(), RuntimeError> {
        let found = sections(memory, self.section_bytes);
        match found.iter().zip(taken).position(|(found, taken)| found != taken) {
            None => Ok(()),
            Some(section) => Err(InputError::IoCrc {
                binding: name(),
                section: section as u64,
                begin: section.saturating_mul(self.section_bytes) as u64,
                end: section.saturating_add(1).saturating_mul(self.section_bytes).min(memory.len()) as u64,
                first,
                second,
                taken: taken[section],
                found: found[section],
            }
            .into()),
        }
    }
}

/// Returns the bytes of a tensor at the start of memory, which may be larger or smaller than the tensor.
fn head(memory: &ForeignMemoryMut, bytes: usize) -> HostSlice<'_> {
    let all = memory.as_slice();
    all.subslice(0, bytes).unwrap_or(all)
}

/// Computes the CRC of every section of `memory`; the last section may be shorter. Empty memory has no sections.
fn sections(memory: HostSlice<'_>, section_bytes: usize) -> Vec<u32> {
    let mut buffer = [0_u8; STEP_BYTES];
    let mut sums = Vec::with_capacity(memory.len().div_ceil(section_bytes));
    let mut at = 0;
    while at < memory.len() {
        let end = at.saturating_add(section_bytes).min(memory.len());
        let mut sum = Crc32::default();
        while at < end {
            let step = buffer.len().min(end - at);
            // The range is within the memory by the arithmetic above.
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
    use std::iter;

    use proptest::prelude::*;
    use qaic_mem::Storage;
    use qaic_qpc::crc32;

    use super::*;

    proptest! {
        #[test]
        fn every_section_has_the_sum_of_its_bytes(
            bytes in prop::collection::vec(any::<u8>(), 0..3 * STEP_BYTES),
            section_bytes in prop_oneof![1_usize..80, 4000_usize..5000, Just(usize::MAX)],
        ) {
            let expected: Vec<u32> = bytes.chunks(section_bytes.min(1 << 20)).map(crc32).collect();
            prop_assert_eq!(sections(HostSlice::of(&bytes), section_bytes), expected);
        }
    }

    #[test]
    fn a_changed_byte_is_found_in_its_section() {
        let mut bindings = Bindings::new(1, 1);
        bindings.inputs[0] = InputBinding::Memory(Storage::new(100).unwrap().into());
        bindings.outputs[0] = OutputBinding::Memory(Storage::new(100).unwrap().into());
        let mut check = IoCheck::new(32);
        check.take_inputs(&bindings);
        check.check_inputs(&bindings, |_| "x".to_owned()).unwrap();
        assert_eq!(check.taken.inputs[0].len(), 4);
        let mut changed = [0_u8; 100];
        changed[97] = 1;
        bindings.inputs[0] = InputBinding::Memory(Storage::of(&changed).unwrap().into());
        let error = check.check_inputs(&bindings, |index| format!("x{index}")).unwrap_err();
        assert_eq!(error.code(), "inference.io_crc");
        let text = error.to_string();
        assert!(text.contains("start of the inference: bytes 96 to 99 (section 3)"), "{text}");

        // Memory after the tensor belongs to the caller.
        check.take_outputs(&bindings, iter::once(90));
        write(&mut bindings, 90);
        check.check_outputs(&bindings, |_| "y".to_owned()).unwrap();
        check.take_outputs(&bindings, iter::once(100));
        write(&mut bindings, 0);
        check.check_outputs(&bindings, |_| "y".to_owned()).unwrap_err();
        // After the first comparison, the memory belongs to the caller again.
        check.check_outputs(&bindings, |_| "y".to_owned()).unwrap();
        check.take_inputs(&bindings);
        assert!(check.taken.outputs.is_empty());
    }

    fn write(bindings: &mut Bindings, at: usize) {
        let OutputBinding::Memory(memory) = &mut bindings.outputs[0] else { panic!("it is bound to memory") };
        memory.as_mut().write_from(at, &[1_u8]).unwrap();
    }
}
