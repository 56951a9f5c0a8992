//! What inputs hold that no client computed: random bytes, and the contents of files.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use qaic_mem::HostSliceMut;

use crate::error::{ErrorDetail, InputError, RuntimeError};

/// First state of the generator: all programs' inputs are filled alike in every process.
const SEED: u64 = 0x0a1c_0100;

/// A sequence of random bytes (splitmix64: small, and every state is a good one).
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
    /// Fills memory with the next bytes. What is left of the last 8 is not used again.
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

/// An input that a file is read for.
#[derive(Debug)]
pub struct FileInput<'a> {
    /// Its name.
    pub name: &'a str,
    /// Bytes of its largest tensor.
    pub len_bytes: usize,
    /// Whether fewer bytes may be given.
    pub is_partial: bool,
}

/// Contents of one file per input; `count` is the number of all bindings, as files for the outputs may follow, which are not
/// read.
///
/// Blocking: reads the files.
pub fn read_inputs(
    inputs: &[FileInput<'_>],
    count: usize,
    files: &[PathBuf],
) -> Result<Vec<Vec<u8>>, RuntimeError> {
    if files.len() != inputs.len() && files.len() != count {
        let what = format!(
            "{} files given; one for each of the {} inputs is expected, or one for each of all {count} buffers",
            files.len(),
            inputs.len(),
        );
        return Err(InputError::Argument { what }.into());
    }
    inputs.iter().zip(files).map(|(input, file)| input.read(file)).collect()
}

impl FileInput<'_> {
    fn read(&self, path: &Path) -> Result<Vec<u8>, RuntimeError> {
        let unreadable = |source: io::Error| {
            RuntimeError::from(ErrorDetail::Io { path: path.to_owned(), source: Arc::new(source) })
        };
        let mut bytes = Vec::new();
        // One byte more than fits tells a file that is too large, whatever its size.
        let limit = (self.len_bytes as u64).saturating_add(1);
        File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)).map_err(unreadable)?;
        if bytes.len() == self.len_bytes || (self.is_partial && bytes.len() < self.len_bytes) {
            return Ok(bytes);
        }
        let found = if bytes.len() > self.len_bytes { "more".to_owned() } else { bytes.len().to_string() };
        let (path, name, expected) = (path.display(), self.name, self.len_bytes);
        let what = format!("{path} has {found} bytes; input `{name}` has {expected}");
        Err(InputError::Argument { what }.into())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a failed assumption fails the test

    use std::fs;

    use super::*;

    fn filled(random: &mut RandomBytes, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        random.fill(&mut HostSliceMut::of(&mut bytes));
        bytes
    }

    #[test]
    fn random_bytes_are_the_same_in_every_sequence_and_go_on() {
        let (mut one, mut other) = (RandomBytes::default(), RandomBytes::default());
        let first = filled(&mut one, 21);
        assert_eq!(first, filled(&mut other, 21));
        assert_ne!(first, filled(&mut one, 21));
        // The first output of splitmix64 from state 0.
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
        let input = |name, len_bytes, is_partial| FileInput { name, len_bytes, is_partial };
        let inputs = [input("a", 8, false), input("b", 4, true)];
        assert_eq!(read_inputs(&inputs, 3, &files).unwrap(), [vec![7; 8], vec![7; 3]]);
        let code = |inputs: &[FileInput<'_>], files: &[PathBuf]| {
            let error = read_inputs(inputs, 3, files).unwrap_err();
            (error.code(), error.to_string())
        };
        let (short, long) = ([input("a", 8, false), input("b", 4, false)], [input("a", 7, true)]);
        assert!(code(&short, &files).1.ends_with("b has 3 bytes; input `b` has 4"));
        assert!(code(&long, &files[..1]).1.ends_with("a has more bytes; input `a` has 7"));
        assert_eq!(code(&inputs, &files[..1]).0, "call.argument");
        assert_eq!(code(&inputs, &[files[0].clone(), folder.join("none")]).0, "file.io");
        // One for each binding: those of the outputs are not read.
        let with_output = [files[0].clone(), files[1].clone(), folder.join("none")];
        assert_eq!(read_inputs(&inputs, 3, &with_output).unwrap().len(), 2);
        fs::remove_dir_all(&folder).unwrap();
    }
}
