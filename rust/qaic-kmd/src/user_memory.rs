//! Memory of the caller of a system call, by address.
//!
//! A kernel copies what arguments point to and answers `EFAULT` for addresses that lead nowhere. So does this, through calls
//! of the system that check the addresses: whatever an argument holds, nothing here can fault. Only those who handle the
//! arguments of [`crate::kmd::AccelFile::ioctl`] may use it, because its contract is what makes the addresses the
//! caller's to give away.

use std::io::{IoSlice, IoSliceMut};

use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

use crate::Errno;

/// Copies from `address` on. `EFAULT`: some of it cannot be read; `into` then holds anything.
pub(crate) fn copy_in(address: u64, into: &mut [u8]) -> Result<(), Errno> {
    transfer(address, into.len(), |remote, done| {
        process_vm_readv(Pid::this(), &mut [IoSliceMut::new(&mut into[done..])], &[remote])
    })
}

/// Copies to `address`. `EFAULT`: some of it cannot be written; what came before has been.
pub(crate) fn copy_out(address: u64, from: &[u8]) -> Result<(), Errno> {
    transfer(address, from.len(), |remote, done| {
        process_vm_writev(Pid::this(), &[IoSlice::new(&from[done..])], &[remote])
    })
}

/// Has `copy` move `len` bytes, in as many calls as the system takes for it.
fn transfer(
    address: u64,
    len: usize,
    mut copy: impl FnMut(RemoteIoVec, usize) -> nix::Result<usize>,
) -> Result<(), Errno> {
    let base = usize::try_from(address).map_err(|_| Errno::FAULT)?;
    base.checked_add(len).ok_or(Errno::FAULT)?;
    let mut done = 0;
    while done < len {
        match copy(RemoteIoVec { base: base + done, len: len - done }, done) {
            Ok(0) => return Err(Errno::FAULT),
            Ok(moved) => done += moved,
            Err(nix::Error::EINTR) => {}
            Err(error) => return Err(Errno::from_raw_os_error(error as i32)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_exact_and_bad_addresses_are_answered() {
        let from: Vec<u8> = (0..=255).cycle().take(100_000).collect();
        let mut into = vec![0_u8; from.len()];
        let address = from.as_ptr().expose_provenance() as u64;
        assert_eq!(copy_in(address, &mut into), Ok(()));
        assert_eq!(into, from);
        let mut target = vec![0_u8; from.len()];
        let address = target.as_mut_ptr().expose_provenance() as u64;
        assert_eq!(copy_out(address, &from), Ok(()));
        assert_eq!(target, from);
        for bad in [0, 1, u64::MAX, u64::MAX - 8] {
            assert_eq!(copy_in(bad, &mut [0; 16]), Err(Errno::FAULT), "{bad:#x}");
            assert_eq!(copy_out(bad, &[0; 16]), Err(Errno::FAULT), "{bad:#x}");
        }
        assert_eq!(copy_in(1, &mut []), Ok(()));
    }

    #[test]
    fn constants_cannot_be_written() {
        static CONSTANT: [u8; 64] = [7; 64];
        let address = CONSTANT.as_ptr().expose_provenance() as u64;
        assert_eq!(copy_out(address, &[1; 64]), Err(Errno::FAULT));
        assert_eq!(CONSTANT, [7; 64]);
    }
}
