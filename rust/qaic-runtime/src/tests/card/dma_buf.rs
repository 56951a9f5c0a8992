//! Memory behind descriptors in place of buffer objects. Files replace the descriptors of other drivers.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::{env, fs, process};

use crate::tests::prelude::*;
use qaic_mem::DmaBuf;

use super::rig::BYTES;

/// A page of memory behind a descriptor.
fn memory() -> File {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("qaic-dma-buf-{}-{}", process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let path = env::temp_dir().join(name);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.set_len(4096).unwrap();
    fs::remove_file(path).unwrap();
    file
}

fn part(file: &File, offset: u64) -> Arc<DmaBuf> {
    Arc::new(DmaBuf { descriptor: file.try_clone().unwrap().into(), offset, len: BYTES.into() })
}

fn read(file: &File, offset: u64) -> [u8; BYTES as usize] {
    let mut bytes = [0; BYTES as usize];
    file.read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

#[test]
fn card_with_bound_descriptors_reads_and_writes_their_memory() {
    let rig = Rig::new();
    let mut exec = rig.exec();
    let (input, output) = (memory(), memory());
    input.write_all_at(&[5; 64], 128).unwrap();
    exec.bind_dma_buf(0, Some(&part(&input, 128))).unwrap();
    let target = part(&output, 192);
    exec.bind_dma_buf(1, Some(&target)).unwrap();
    let made = rig.card.calls(Request::PrimeFdToHandle);
    // A repeated call costs nothing.
    exec.bind_dma_buf(1, Some(&target)).unwrap();
    assert_eq!(rig.card.calls(Request::PrimeFdToHandle), made);
    exec.execute().unwrap();
    assert_eq!((read(&output, 192), read(&output, 128)), ([5; 64], [0; 64]));
    // Another part of the same memory.
    exec.bind_dma_buf(1, Some(&part(&output, 0))).unwrap();
    exec.execute().unwrap();
    assert_eq!(read(&output, 0), [5; 64]);
    // The exec returns to its own buffers.
    exec.bind_dma_buf(0, None).unwrap();
    exec.bind_dma_buf(1, None).unwrap();
    run(&mut *exec, 9).unwrap();
    assert_eq!(read(&output, 0), [5; 64]);
    exec.bind_dma_buf(0, Some(&part(&input, 128))).unwrap();
}

#[test]
fn refused_descriptor_leaves_the_buffer_unchanged() {
    let rig = Rig::new();
    let activation = rig.activation();
    let mut exec = activation.create_exec().unwrap();
    let mut other = activation.create_exec().unwrap();
    let file = memory();
    let short = Arc::new(DmaBuf { descriptor: file.try_clone().unwrap().into(), offset: 0, len: 32 });
    assert_eq!(exec.bind_dma_buf(0, Some(&short)).unwrap_err().code(), "input.size");
    // A part beyond the end of the memory.
    assert_eq!(exec.bind_dma_buf(0, Some(&part(&file, 4090))).unwrap_err().code(), "device.driver");
    rig.plan("import@1=ENOTTY; attach@1=ENOMEM");
    assert_eq!(exec.bind_dma_buf(0, Some(&part(&file, 0))).unwrap_err().code(), "device.driver");
    assert_eq!(exec.bind_dma_buf(0, Some(&part(&file, 0))).unwrap_err().code(), "device.memory");
    run(&mut *exec, 1).unwrap();
    exec.bind_dma_buf(0, Some(&part(&file, 0))).unwrap();
    // The kernel has one handle for the memory, and the slices are attached to this handle.
    assert_eq!(other.bind_dma_buf(0, Some(&part(&file, 0))).unwrap_err().code(), "call.state");
    file.write_all_at(&[3; 64], 0).unwrap();
    assert!(exec.bind_dma_buf(0, Some(&part(&file, 4090))).is_err());
    exec.execute().unwrap();
    assert_eq!(exec.dma_buffer(1).unwrap().as_const().to_vec(), [3; 64]);
    assert_eq!(exec.bind_dma_buf(7, Some(&part(&file, 0))).unwrap_err().code(), "call.argument");
}
