//! Cores counted across the processes of a user (`QAIC_CPU_SHARED`).
//!
//! Each core is a file, and the process that holds the lock of the file holds the core. The system releases the locks
//! of a process at its end, so no cleanup is needed. One more file is the lock of the card. This lock serializes the
//! operations on the card, so that a count includes no core twice and a claim finds all free cores.
//!
//! # Forks
//!
//! A child shares the open files of its parent, and a lock exists until all processes have closed the file. A child
//! would therefore keep the cores of a parent that was killed. To prevent this, locked files are open only while
//! [`HELD`] is locked, or are stored in it. A fork waits for that lock ([`freeze`]), and the child closes the files
//! ([`abandon`]). A core that is released normally is unlocked explicitly, which works even if a child still has the
//! file open.

use std::cell::RefCell;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
// Model checkers cannot create statics.
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::device::{DeviceId, DeviceKind};
use crate::error::{ErrorDetail, RuntimeError};
use crate::process::CancellationToken;

/// Time limit of an operation's wait for the lock. An operation takes much less than a millisecond, so a longer wait
/// means that a process was stopped.
const TURN_LIMIT: Duration = Duration::from_secs(2);
/// Permission bits of group and others.
const OTHERS: u32 = 0o077;
const ASK_AGAIN: Duration = Duration::from_millis(1);

/// A directory that belongs to one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserDirectory {
    /// Path of the folder, which may not exist yet.
    pub path: PathBuf,
    /// Id of the user.
    pub user: u32,
}

impl UserDirectory {
    /// Creates the directory if needed, and checks that no other user can access it.
    pub fn open(&self) -> Result<&Path, RuntimeError> {
        let path = &self.path;
        let failed = |source: io::Error| ErrorDetail::Io { path: path.clone(), source: source.into() };
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
        // Reads the link itself, not its target.
        let found = fs::symlink_metadata(path).map_err(failed)?;
        if found.is_dir() && found.uid() == self.user && found.mode() & OTHERS == 0 {
            return Ok(path);
        }
        Err(RuntimeError::argument(format!(
            "{}: it is {} of user {} with mode {:o}; a directory of user {} with mode 700 is expected, because \
                 the processes of one user share it. Remove it, or set QAIC_CPU_SHARED to another folder",
            path.display(),
            if found.is_dir() { "a directory" } else { "a file, not a directory" },
            found.uid(),
            found.mode() & 0o7777,
            self.user
        )))
    }
}

/// The cores of one card, shared by all processes of a user.
#[derive(Debug)]
pub(crate) struct SharedCores {
    lock_path: PathBuf,
    cores: Vec<PathBuf>,
    key: u64,
}

/// A core that this process holds.
#[derive(Debug)]
struct HeldCore {
    key: u64,
    file: File,
}

static HELD: Mutex<Vec<HeldCore>> = Mutex::new(Vec::new());

fn held() -> MutexGuard<'static, Vec<HeldCore>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Result of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimOutcome {
    Taken,
    /// No cores were taken.
    Refused {
        free: u32,
    },
}

impl SharedCores {
    pub(in crate::device) fn new(
        directory: &UserDirectory,
        kind: DeviceKind,
        card: DeviceId,
        cores: u32,
    ) -> Result<Self, RuntimeError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let directory = directory.open()?;
        let name = format!("{}-{}", kind.name(), card.0);
        Ok(Self {
            lock_path: directory.join(format!("{name}.turns")),
            cores: (0..cores).map(|core| directory.join(format!("{name}.core-{core:02}"))).collect(),
            key: NEXT.fetch_add(1, Ordering::Relaxed),
        })
    }

    /// Takes `needed` cores, or none.
    ///
    /// Blocking: at most [`TURN_LIMIT`].
    pub(super) fn claim(&self, needed: u32) -> Result<ClaimOutcome, RuntimeError> {
        if needed == 0 {
            return Ok(ClaimOutcome::Taken);
        }
        self.with_lock(|held| {
            let mut taken = Vec::new();
            for path in &self.cores {
                taken.extend(try_lock(path)?);
                if taken.len() == needed as usize {
                    held.extend(taken.into_iter().map(|file| HeldCore { key: self.key, file }));
                    return Ok(ClaimOutcome::Taken);
                }
            }
            let free = taken.len();
            taken.iter().for_each(unlock);
            Ok(ClaimOutcome::Refused { free: u32::try_from(free).unwrap_or(u32::MAX) })
        })
    }

    pub(super) fn release(&self, count: u32) {
        let mut held = held();
        for _ in 0..count {
            let Some(index) = held.iter().rposition(|core| core.key == self.key) else { return };
            unlock(&held.swap_remove(index).file);
        }
    }

    /// Number of cores that no process holds.
    ///
    /// Blocking: at most [`TURN_LIMIT`].
    pub(super) fn free(&self) -> Result<u32, RuntimeError> {
        self.with_lock(|_| {
            let mut free = 0;
            for path in &self.cores {
                if let Some(file) = try_lock(path)? {
                    free += 1;
                    unlock(&file);
                }
            }
            Ok(free)
        })
    }

    /// Runs `work` while this process holds the lock of the card.
    fn with_lock<T>(
        &self,
        work: impl FnOnce(&mut Vec<HeldCore>) -> Result<T, RuntimeError>,
    ) -> Result<T, RuntimeError> {
        let began = Instant::now();
        loop {
            let mut held = held();
            if let Some(lock) = try_lock(&self.lock_path)? {
                let result = work(&mut held);
                unlock(&lock);
                return result;
            }
            drop(held);
            CancellationToken::current().check()?;
            if began.elapsed() >= TURN_LIMIT {
                return Err(ErrorDetail::Timeout {
                    what: "another process that uses the cores of the same card",
                    timeout_ms: u64::try_from(TURN_LIMIT.as_millis()).unwrap_or(u64::MAX),
                }
                .into());
            }
            thread::sleep(ASK_AGAIN);
        }
    }
}

impl Drop for SharedCores {
    fn drop(&mut self) {
        self.release(u32::MAX);
    }
}

/// Opens and locks the file; `None` if another process holds the lock.
fn try_lock(path: &Path) -> Result<Option<File>, RuntimeError> {
    let failed = |source: io::Error| ErrorDetail::Io { path: path.to_owned(), source: source.into() };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(source)) => Err(failed(source).into()),
    }
}

fn unlock(file: &File) {
    // Unlocking an open file cannot fail, and closing it unlocks it too.
    let _ = file.unlock();
}

thread_local! {
    static FROZEN: RefCell<Option<MutexGuard<'static, Vec<HeldCore>>>> = const { RefCell::new(None) };
}

/// Prepares a fork: no file is locked until [`thaw`] in the parent, or [`abandon`] in the child.
pub(crate) fn freeze() {
    FROZEN.with_borrow_mut(|frozen| {
        if frozen.is_none() {
            *frozen = Some(held());
        }
    });
}

/// Resumes locking after a fork, in the parent.
pub(crate) fn thaw() {
    FROZEN.take();
}

/// Closes the parent's files without unlocking them, after a fork, in the child.
pub(crate) fn abandon() {
    if let Some(mut held) = FROZEN.take() {
        held.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(name: &str) -> UserDirectory {
        let path = std::env::temp_dir().join(format!("openqaic-test-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        let user = fs::metadata(&path).unwrap().uid();
        fs::remove_dir_all(&path).unwrap();
        UserDirectory { path, user }
    }

    fn cores(directory: &UserDirectory) -> SharedCores {
        SharedCores::new(directory, DeviceKind::Noop, DeviceId(2), 16).unwrap()
    }

    // Claims of one process exclude each other like claims of two processes, because every claim opens the
    // files again.
    #[test]
    fn claims_of_two_processes_exclude_each_other() {
        let place = directory("claims");
        let (one, other) = (cores(&place), cores(&place));
        assert_eq!(one.claim(10).unwrap(), ClaimOutcome::Taken);
        assert_eq!(other.free().unwrap(), 6);
        assert_eq!(other.claim(7).unwrap(), ClaimOutcome::Refused { free: 6 });
        assert_eq!(other.claim(6).unwrap(), ClaimOutcome::Taken);
        assert_eq!(one.claim(1).unwrap(), ClaimOutcome::Refused { free: 0 });
        one.release(4);
        assert_eq!(other.free().unwrap(), 4);
        drop(one);
        assert_eq!(other.free().unwrap(), 10);
        other.release(6);
        assert_eq!(other.free().unwrap(), 16);
        let another_card = SharedCores::new(&place, DeviceKind::Noop, DeviceId(3), 16).unwrap();
        assert_eq!(other.claim(16).unwrap(), ClaimOutcome::Taken);
        assert_eq!(another_card.free().unwrap(), 16);
        fs::remove_dir_all(&place.path).unwrap();
    }

    #[test]
    fn turn_of_a_stopped_process_is_waited_for_until_the_limit() {
        let place = directory("turns");
        let cores = cores(&place);
        let lock = try_lock(&cores.lock_path).unwrap().unwrap();
        assert_eq!(cores.free().unwrap_err().code(), "device.timeout");
        unlock(&lock);
        assert_eq!(cores.free().unwrap(), 16);
        fs::remove_dir_all(&place.path).unwrap();
    }

    #[test]
    fn directory_of_another_user_is_refused() {
        let place = directory("owner");
        let stranger = UserDirectory { user: place.user + 1, ..place.clone() };
        let refused = |place: &UserDirectory| {
            SharedCores::new(place, DeviceKind::Noop, DeviceId(0), 16).unwrap_err().to_string()
        };
        assert!(refused(&stranger).contains("is a directory of user"));
        fs::remove_dir_all(&place.path).unwrap();
        DirBuilder::new().mode(0o755).create(&place.path).unwrap();
        assert!(refused(&place).contains("mode 755"));
        fs::remove_dir_all(&place.path).unwrap();
        std::os::unix::fs::symlink(std::env::temp_dir(), &place.path).unwrap();
        assert!(refused(&place).contains("a file, not a directory"));
        fs::remove_file(&place.path).unwrap();
        fs::write(&place.path, "").unwrap();
        assert_eq!(
            SharedCores::new(&place, DeviceKind::Noop, DeviceId(0), 16).unwrap_err().code(),
            "file.io"
        );
        fs::remove_file(&place.path).unwrap();
    }
}
