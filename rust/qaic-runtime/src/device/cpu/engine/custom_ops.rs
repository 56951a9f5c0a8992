//! Libraries with custom operators.
//!
//! A container lists the libraries that its graph needs. Opening a container must not run arbitrary code. A library
//! is therefore loaded only if this process has allowed its path, and only if its contents match those at
//! compilation.

use std::env;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use qaic_qpc::plan::CustomOpLibrary;

use crate::sync::Mutex;

/// Number of bytes that are read at a time.
const PIECE: usize = 1 << 16;

static ALLOWED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

/// Allows programs of this process to load a library.
pub fn allow(path: PathBuf) {
    let mut allowed = ALLOWED.lock();
    if !allowed.contains(&path) {
        allowed.push(path);
    }
}

/// Allows programs of this process to load the libraries that `QAIC_CUSTOM_OP_LIBRARIES` lists.
pub fn allow_listed() {
    let listed = env::var_os("QAIC_CUSTOM_OP_LIBRARIES").unwrap_or_default();
    env::split_paths(&listed).filter(|path| !path.as_os_str().is_empty()).for_each(allow);
}

/// Returns the file of a library, if it may be loaded.
///
/// Blocking: reads the file.
pub(super) fn find(wanted: &CustomOpLibrary) -> Result<PathBuf, String> {
    let allowed = ALLOWED.lock().clone();
    let mut problem = None;
    for path in
        allowed.into_iter().rev().filter(|path| path.file_name().is_some_and(|name| *name == *wanted.name))
    {
        match measure(&path) {
            Ok(found) if found == (wanted.size, wanted.crc32) => return Ok(path),
            Ok((size, crc32)) => {
                problem = Some(format!("{} has {size} bytes with CRC {crc32:08x}", path.display()));
            }
            Err(error) => problem = Some(format!("{}: {error}", path.display())),
        }
    }
    Err(format!(
        "the program needs the custom operator library `{}` of {} bytes with CRC {:08x}: {}; add its path to \
         QAIC_CUSTOM_OP_LIBRARIES",
        wanted.name,
        wanted.size,
        wanted.crc32,
        problem.unwrap_or_else(|| "this process allows no library with this name".to_owned())
    ))
}

fn measure(path: &Path) -> std::io::Result<(u64, u32)> {
    let mut file = File::open(path)?;
    let mut piece = vec![0; PIECE];
    let (mut size, mut hasher) = (0, crc32fast::Hasher::new());
    loop {
        let count = file.read(&mut piece)?;
        if count == 0 {
            return Ok((size, hasher.finalize()));
        }
        size += count as u64;
        hasher.update(piece.get(..count).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn library_is_found_only_when_allowed_and_unchanged() {
        let name = format!("libcustom_ops_{}.so", std::process::id());
        let path = env::temp_dir().join(&name);
        fs::write(&path, b"123456789").unwrap();
        let wanted = CustomOpLibrary { name, size: 9, crc32: 0xcbf4_3926 };
        assert!(find(&wanted).unwrap_err().contains("allows no library with this name"));
        allow(path.clone());
        assert_eq!(find(&wanted).unwrap(), path);
        let other = CustomOpLibrary { crc32: 1, ..wanted.clone() };
        assert!(find(&other).unwrap_err().contains("has 9 bytes with CRC cbf43926"));
        fs::remove_file(&path).unwrap();
        assert!(find(&wanted).is_err());
    }
}
