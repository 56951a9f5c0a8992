//! The files of `tests/data/hostile/stats`: each is refused with its code in the list of the folder.
#![allow(clippy::unwrap_used)] // A test fails by panicking.

use std::fs;
use std::path::PathBuf;

use qaic_stats::decode::{DecodeOptions, decode};

#[test]
fn hostile_files_are_refused_for_their_reason() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/hostile/stats");
    let list = fs::read_to_string(folder.join("expected.txt")).unwrap();
    let expected: Vec<(&str, &str)> = list.lines().map(|line| line.split_once(' ').unwrap()).collect();
    for (file, code) in &expected {
        let bytes = fs::read(folder.join(file)).unwrap();
        let read = decode(&bytes, None, None, DecodeOptions::default());
        assert_eq!(read.map_err(|error| error.code()).err(), Some(*code), "{file}");
    }
    let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let buffers = files.filter(|path| path.extension().is_some_and(|extension| extension == "bin")).count();
    assert_eq!(buffers, expected.len(), "a file is not listed, or listed twice");
}
