//! Contents of inputs that no client computes: random bytes, and the contents of files.

use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use qaic_mem::{HostSliceMut, open_regular};
use qaic_qpc::counted;

use crate::error::{ErrorDetail, RuntimeError};
use crate::request::Part;

/// First state of the generator. The state is fixed, so that random inputs are the same in every process.
const SEED: u64 = 0x0a1c_0100;

/// A sequence of random bytes (splitmix64, which is small and accepts every state).
#[derive(Debug)]
pub struct RandomBytes {
    state: u64,
}

impl Default for RandomBytes {
    fn default() -> Self {
        Self { state: SEED }
    }
}

impl RandomBytes {
    /// Fills memory with the next bytes. Unused bytes of the last 8 are discarded.
    pub fn fill(&mut self, memory: &mut HostSliceMut<'_>) {
        let mut at = 0;
        while at < memory.len() {
            self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.state;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            let bytes = (mixed ^ (mixed >> 31)).to_le_bytes();
            let len = bytes.len().min(memory.len() - at);
            memory.write_from(at, &bytes[..len]);
            at += len;
        }
    }
}

/// Facts of a container about one buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferSlot {
    /// Name of the buffer's binding.
    pub name: String,
    /// Bytes of the binding's largest tensor.
    pub len_bytes: usize,
    /// True for an input.
    pub is_input: bool,
    /// True if fewer bytes may be given.
    pub is_partial: bool,
}

/// A buffer for every binding of a program: inputs, then outputs.
#[derive(Clone, Debug)]
pub struct BufferSlots {
    /// All buffers, inputs then outputs.
    pub slots: Vec<BufferSlot>,
    input_count: usize,
}

impl BufferSlots {
    /// Creates the list of buffers. Fails if an input follows an output.
    pub fn new(slots: Vec<BufferSlot>) -> Result<Self, String> {
        let input_count = slots.iter().take_while(|slot| slot.is_input).count();
        match slots[input_count..].iter().find(|slot| slot.is_input) {
            Some(late) => {
                Err(format!("input `{}` follows an output; mappings list the inputs first", late.name))
            }
            None => Ok(Self { slots, input_count }),
        }
    }

    /// Positions of a part.
    pub fn range(&self, part: Part) -> Range<usize> {
        match part {
            Part::All => 0..self.slots.len(),
            Part::Inputs => 0..self.input_count,
            Part::Outputs => self.input_count..self.slots.len(),
        }
    }

    /// Fails if `found` is not the number of buffers of a part.
    pub fn check_part(&self, part: Part, found: usize) -> Result<(), String> {
        let expected = self.range(part).len();
        if found == expected {
            return Ok(());
        }
        Err(format!("found {}, expected {expected}", counted(found, part.name())))
    }

    /// Fails if a list does not have one element per buffer.
    pub fn check_list(&self, found: usize) -> Result<(), String> {
        let expected = self.slots.len();
        if found == expected {
            return Ok(());
        }
        Err(format!("the list of buffers has length {found}, expected {expected}"))
    }

    /// Returns a warning about a buffer of `found` bytes at `position`. The buffer is used anyway.
    pub fn size_warning(&self, position: usize, found: usize) -> Option<String> {
        let slot = self.slots.get(position).filter(|slot| slot.len_bytes != found)?;
        let (name, expected) = (&slot.name, slot.len_bytes);
        Some(format!("buffer of `{name}` has {found} bytes; the largest tensor has {expected}"))
    }

    /// Reads one file per input. Files for the outputs may follow and are not read.
    ///
    /// Blocking: reads the files.
    pub fn read_inputs(&self, files: &[PathBuf]) -> Result<Vec<Vec<u8>>, RuntimeError> {
        let (inputs, count) = (&self.slots[..self.input_count], self.slots.len());
        if files.len() != inputs.len() && files.len() != count {
            let what = format!(
                "found {}, expected one for each of {}, or one for each of {}",
                counted(files.len(), "file"),
                counted(inputs.len(), "input"),
                counted(count, "buffer"),
            );
            return Err(RuntimeError::argument(what));
        }
        inputs.iter().zip(files).map(|(input, file)| input.read(file)).collect()
    }
}

/// Sources of the bytes of inputs, by the codes of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputSource {
    /// Zeros.
    ZeroFill = 0,
    /// [`RandomBytes`].
    Random = 1,
    /// One file per input.
    Files = 2,
}

impl InputSource {
    /// Returns the source with this code, or the default source: files if files are given, random bytes otherwise.
    pub fn of(code: Option<u32>, has_files: bool) -> Result<Self, String> {
        match (code, has_files) {
            (None | Some(2), true) => Ok(Self::Files),
            (None | Some(1 | 2), _) => Ok(Self::Random),
            (Some(0), _) => Ok(Self::ZeroFill),
            (Some(code), _) => Err(format!(
                "source is {code}; InferenceVector.RANDOM, ZERO_FILL or FILESET is expected, or a list of files"
            )),
        }
    }
}

impl BufferSlot {
    fn read(&self, path: &Path) -> Result<Vec<u8>, RuntimeError> {
        let unreadable = |source: io::Error| match source.kind() {
            io::ErrorKind::InvalidInput => {
                let what = format!(
                    "{} is not a regular file, which is expected for input `{}`",
                    path.display(),
                    self.name
                );
                RuntimeError::argument(what)
            }
            _ => ErrorDetail::Io { path: path.to_owned(), source: Arc::new(source) }.into(),
        };
        let mut bytes = Vec::new();
        // One byte over the limit shows that a file is too large.
        let limit = (self.len_bytes as u64).saturating_add(1);
        open_regular(path)
            .and_then(|(file, _)| file.take(limit).read_to_end(&mut bytes))
            .map_err(unreadable)?;
        if bytes.len() == self.len_bytes || (self.is_partial && bytes.len() < self.len_bytes) {
            return Ok(bytes);
        }
        let found = if bytes.len() > self.len_bytes { "more".to_owned() } else { bytes.len().to_string() };
        let (path, name, expected) = (path.display(), &self.name, self.len_bytes);
        let what = format!("{path} has {found} bytes; input `{name}` has {expected}");
        Err(RuntimeError::argument(what))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn filled(random: &mut RandomBytes, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        random.fill(&mut HostSliceMut::of(&mut bytes));
        bytes
    }

    /// Name, bytes, true for an input, true if fewer bytes may be given.
    type Fields = (&'static str, usize, bool, bool);

    fn slots(fields: &[Fields]) -> Result<BufferSlots, String> {
        let slot = |&(name, len_bytes, is_input, is_partial): &Fields| {
            let name = name.to_owned();
            BufferSlot { name, len_bytes, is_input, is_partial }
        };
        BufferSlots::new(fields.iter().map(slot).collect())
    }

    #[test]
    fn inputs_come_before_outputs() {
        let (input, output) = (("a", 8, true, false), ("x", 4, false, false));
        let empty = slots(&[]).unwrap();
        assert_eq!((empty.range(Part::Inputs), empty.range(Part::Outputs)), (0..0, 0..0));
        assert_eq!(slots(&[output]).unwrap().range(Part::Outputs), 0..1);
        let late = slots(&[input, output, ("b", 1, true, false)]).unwrap_err();
        assert_eq!(late, "input `b` follows an output; mappings list the inputs first");
    }

    #[test]
    fn a_part_takes_as_many_buffers_as_it_has() {
        let found = slots(&[("a", 8, true, false), ("x", 4, false, false), ("y", 4, false, false)]).unwrap();
        for (part, range, name) in
            [(Part::All, 0..3, "buffers"), (Part::Inputs, 0..1, "inputs"), (Part::Outputs, 1..3, "outputs")]
        {
            assert_eq!(found.range(part), range);
            assert_eq!(found.check_part(part, range.len()), Ok(()));
            let refusal = format!("found 4 {name}, expected {}", range.len());
            assert_eq!(found.check_part(part, 4), Err(refusal));
        }
        assert_eq!(found.check_list(3), Ok(()));
        assert_eq!(found.check_list(2), Err("the list of buffers has length 2, expected 3".to_owned()));
    }

    #[test]
    fn a_buffer_of_another_size_is_odd() {
        let found = slots(&[("a", 8, true, false)]).unwrap();
        assert_eq!((found.size_warning(0, 8), found.size_warning(1, 8)), (None, None));
        let warning = found.size_warning(0, 7).unwrap();
        assert_eq!(warning, "buffer of `a` has 7 bytes; the largest tensor has 8");
    }

    #[test]
    fn inputs_are_random_where_no_files_are_given() {
        use InputSource::{Files, Random, ZeroFill};
        for (code, has_files, expected) in [
            (None, false, Random),
            (None, true, Files),
            (Some(0), true, ZeroFill),
            (Some(1), true, Random),
            (Some(2), true, Files),
            (Some(2), false, Random),
        ] {
            assert_eq!(InputSource::of(code, has_files), Ok(expected));
        }
        assert!(InputSource::of(Some(3), true).unwrap_err().starts_with("source is 3;"));
    }

    #[test]
    fn random_bytes_are_the_same_in_every_sequence_and_go_on() {
        let (mut one, mut other) = (RandomBytes::default(), RandomBytes::default());
        let first = filled(&mut one, 21);
        assert_eq!(first, filled(&mut other, 21));
        assert_ne!(first, filled(&mut one, 21));
        // First output of splitmix64 from state 0.
        assert_eq!(filled(&mut RandomBytes { state: 0 }, 8), 0xe220_a839_7b1d_cdaf_u64.to_le_bytes());
    }

    #[test]
    fn file_of_another_size_is_refused_by_its_name() {
        let folder = std::env::temp_dir().join(format!("qaic-input-source-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let file = |name: &str, len: usize| {
            let path = folder.join(name);
            fs::write(&path, vec![7; len]).unwrap();
            path
        };
        let files = [file("a", 8), file("b", 3)];
        let input = |name, len_bytes, is_partial| (name, len_bytes, true, is_partial);
        let of = |inputs: &[_]| slots(&[inputs, &[("out", 4, false, false)]].concat()).unwrap();
        let inputs = of(&[input("a", 8, false), input("b", 4, true)]);
        assert_eq!(inputs.read_inputs(&files).unwrap(), [vec![7; 8], vec![7; 3]]);
        let code = |inputs: &BufferSlots, files: &[PathBuf]| {
            let error = inputs.read_inputs(files).unwrap_err();
            (error.code(), error.to_string())
        };
        let (short, long) = (of(&[input("a", 8, false), input("b", 4, false)]), of(&[input("a", 7, true)]));
        assert!(code(&short, &files).1.ends_with("b has 3 bytes; input `b` has 4"));
        assert!(code(&long, &files[..1]).1.ends_with("a has more bytes; input `a` has 7"));
        assert_eq!(code(&inputs, &files[..1]).0, "call.argument");
        assert_eq!(code(&inputs, &[files[0].clone(), folder.join("none")]).0, "file.io");
        // One file for each binding; those of the outputs are not read.
        let with_output = [files[0].clone(), files[1].clone(), folder.join("none")];
        assert_eq!(inputs.read_inputs(&with_output).unwrap().len(), 2);
        fs::remove_dir_all(&folder).unwrap();
    }
}
