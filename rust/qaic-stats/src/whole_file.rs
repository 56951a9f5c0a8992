//! Files that are written atomically.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

/// Writes a temporary file and renames it. Special files, such as pipes, are written directly.
pub fn write_whole(path: &Path, work: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    if fs::metadata(path).is_ok_and(|known| !known.is_file() && !known.is_dir()) {
        return work(&mut OpenOptions::new().write(true).open(path)?);
    }
    let (mut file, unfinished) = create_aside(path)?;
    let written = work(&mut file).and_then(|()| file.flush());
    let finished = written.and_then(|()| fs::rename(&unfinished, path));
    if finished.is_err() {
        // The caller gets the first error; a failure to remove the file is not reported.
        let _ = fs::remove_file(&unfinished);
    }
    finished
}

fn create_aside(path: &Path) -> io::Result<(File, PathBuf)> {
    // Relaxed: the numbers only need to be different.
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut name = OsString::from(".");
        name.push(path.file_name().ok_or(io::ErrorKind::IsADirectory)?);
        name.push(format!(".{}-{number}", process::id()));
        let unfinished = path.with_file_name(name);
        match OpenOptions::new().write(true).create_new(true).open(&unfinished) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            opened => return Ok((opened?, unfinished)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{env, thread};

    use super::*;

    fn names(folder: &Path) -> Vec<OsString> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    /// An empty folder that is removed on drop.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = env::temp_dir().join(format!("openqaic-whole-file-{name}-{}", process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn file_is_replaced_when_the_work_is_done_and_not_before() {
        let folder = Folder::new("replaced");
        let path = folder.0.join("trace.json");
        fs::write(&path, "old").unwrap();
        write_whole(&path, |out| {
            out.write_all(b"new")?;
            assert_eq!(fs::read(&path)?, b"old");
            Ok(())
        })
        .unwrap();
        assert_eq!(
            (fs::read(&path).unwrap(), names(&folder.0)),
            (b"new".to_vec(), vec!["trace.json".into()])
        );
    }

    #[test]
    fn file_whose_work_fails_stays_as_it_was_and_leaves_nothing_beside_it() {
        let folder = Folder::new("failed");
        let path = folder.0.join("trace.json");
        fs::write(&path, "old").unwrap();
        let fail = |out: &mut dyn Write| out.write_all(b"half").and(Err(io::ErrorKind::Interrupted.into()));
        assert_eq!(write_whole(&path, fail).unwrap_err().kind(), io::ErrorKind::Interrupted);
        assert_eq!(
            (fs::read(&path).unwrap(), names(&folder.0)),
            (b"old".to_vec(), vec!["trace.json".into()])
        );
        let directory = write_whole(&folder.0, |_| Ok(())).unwrap_err();
        assert_eq!(directory.kind(), io::ErrorKind::IsADirectory);
        assert_eq!(names(&folder.0).len(), 1);
    }

    #[test]
    fn file_written_by_many_threads_is_the_whole_work_of_one() {
        let folder = Folder::new("threads");
        let path = folder.0.join("summary.txt");
        thread::scope(|scope| {
            for mark in 0..4_u8 {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..20 {
                        write_whole(path, |out| (0..64).try_for_each(|_| out.write_all(&[mark]))).unwrap();
                    }
                });
            }
        });
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.len() == 64 && bytes.iter().all(|byte| Some(byte) == bytes.first()));
        assert_eq!(names(&folder.0).len(), 1);
    }
}
