//! The files of `tests/data/hostile`: each is refused with its code in the list of the folder.

use std::fs;
use std::path::PathBuf;

use qaic_qpc::{Severity, validate};

#[test]
fn hostile_files_are_refused_for_their_reason() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/hostile");
    let list = fs::read_to_string(folder.join("expected.txt")).unwrap();
    let expected: Vec<(&str, &str)> = list.lines().map(|line| line.split_once(' ').unwrap()).collect();
    for (file, code) in &expected {
        let findings = validate(&fs::read(folder.join(file)).unwrap());
        let found =
            findings.iter().any(|finding| finding.code == *code && finding.severity == Severity::Error);
        assert!(found, "{file}: expected {code}, found {findings:?}");
    }
    let files = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let containers =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "qpc")).count();
    assert_eq!(containers, expected.len(), "a file is not listed, or listed twice");
}
