//! Reads attributes of sysfs.

use std::path::Path;
use std::str;

use rustix::fd::AsFd;
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::read;

/// Longest value that is read; the kernel's have a page at most.
const VALUE_BYTES: usize = 4096;

/// Returns the result of `parse` on the file at `path` below `folder`, without white space around it. `None`
/// also if the file cannot be read: attributes come and go with drivers, and some are only for root. Does not
/// wait for missing files.
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

/// A number in hexadecimal with `0x` before it.
pub(crate) fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}
