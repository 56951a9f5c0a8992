//! Reads attributes of sysfs.

use std::path::Path;
use std::str;

use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::read;

/// Maximum length of a value; the kernel's values have at most a page.
const VALUE_BYTES: usize = 4096;

/// Parses the file at `path` below `folder` with `parse`, without surrounding white space. Returns `None` also if the
/// file cannot be read, because attributes depend on drivers, and some require root. Does not wait for missing files.
pub(crate) fn read_attribute<T>(
    folder: impl AsFd,
    path: impl AsRef<Path>,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Option<T> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = openat(folder, path.as_ref(), flags, Mode::empty()).ok()?;
    let mut value = [0; VALUE_BYTES];
    let len = read(&file, &mut value).ok()?;
    parse(str::from_utf8(&value[..len]).ok()?.trim())
}

/// Parses a hexadecimal number with the prefix `0x`.
pub(crate) fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}
