//! Errors of devices and of their selection.

use qaic_qpc::counted;

qaic_qpc::errors! {
    /// A device is unavailable, was lost, or does not support a request.
    #[derive(Clone, Debug, thiserror::Error)]
    pub enum DeviceError: "DeviceError" {
        /// The container was built for a target that this device cannot run.
        #[error("the container was built for {built_for}; device {device} ({kind}) cannot run it: {reason}")]
        WrongTarget {
            built_for: String = "a card".into(), device: u32 = 0, kind: &'static str = "cpu",
            reason: String = "it has no CPU program".into(),
        } => "device.wrong_target" [built_for, device]
            hint "compile the ONNX model for this device, or inspect the container with qaic.Qpc",
        /// The program was compiled for another hardware family.
        #[error("the program was compiled for {built_for}; device {device} is of the hardware family {family}")]
        HardwareFamily {
            built_for: String = "ai200".into(), device: u32 = 0, family: &'static str = "ai100",
        } => "device.hardware_family" [built_for, device, family]
            hint "compile with aic_hw_version for the device, or load with allow_hw_mismatch=True",
        /// No device has this id.
        #[error("device {id} does not exist; {}", existing_ids(existing))]
        NotFound { id: u32 = 7, existing: Vec<u32> = vec![0, 1] }
            => "device.not_found" "DeviceNotFoundError" [id as "device", existing],
        /// A program needs more devices than are available.
        #[error(
            "the program is partitioned for {}; kind `{kind}` has {}, with the ids {existing:?}{}",
            counted(needed, "device"),
            counted(existing.len(), "device"),
            more_devices(*needed, kind, *hidden)
        )]
        TooFew {
            needed: u32 = 4, kind: &'static str = "cpu", existing: Vec<u32> = vec![0], hidden: usize = 0,
        } => "device.too_few" "DeviceNotFoundError" [needed, kind, existing, hidden],
        /// The value of `QAIC_DEVICE` or an argument is not an existing kind of device.
        #[error("device kind `{kind}` does not exist; known kinds: {known}")]
        Kind { kind: String = "gpu".into(), known: &'static str = "cpu, kmd, noop" }
            => "device.kind" "DeviceNotFoundError" [kind]
            hint "set QAIC_DEVICE to one of them",
        /// The device does not have enough free cores.
        #[error("device {id} has {} of {total}; the program needs {needed}", counted(free, "free core"))]
        Busy { id: u32 = 0, needed: u32 = 4, free: u32 = 2, total: u32 = 16 }
            => "device.busy" "DeviceBusyError" [id as "device", needed, free, total]
            hint "lower num_activations or aic_num_cores, or reset a session that uses cores",
        /// The device was lost.
        #[error("device {id} is lost: {reason}")]
        Lost { id: u32 = 0, reason: String = "it was reset".into() }
            => "device.lost" "DeviceLostError" [id as "device"]
            hint "once the device is back, unload and load the program, or reset the session",
        /// The device exists but cannot be used.
        #[error("device {id} cannot be used: {reason}")]
        Unavailable {
            id: u32 = 0, reason: String = "it has no device node yet; its firmware may still be booting".into(),
        } => "device.unavailable" [id as "device"],
        /// The device does not support the operation.
        #[error("not supported: {what}")]
        Unsupported { what: String = "a dma-buf on a device of kind `cpu`".into() } => "device.unsupported",
        /// The activations of a program take more private memory than is free.
        #[error(
            "the program needs {} of private memory: for each activation (num_activations={activations}) {} of states and {} \
             of other outputs; expected at most {} (free memory, or QAIC_CPU_MEMORY): {}",
            mebibytes(*needed),
            mebibytes(*states),
            mebibytes(*outputs),
            mebibytes(*free),
            if *fitting == 0 { "there is room for no activation".to_owned() } else {
                format!("there is room for {fitting} of {activations} activations")
            }
        )]
        HostMemory {
            needed: u64 = 8 << 30, free: u64 = 5 << 30, states: u64 = 4000 << 20, outputs: u64 = 96 << 20,
            activations: u32 = 2, fitting: u32 = 1,
        } => "device.host_memory" "DeviceMemoryError" [needed, free, states, outputs, activations, fitting]
            hint if *fitting > 0 {
                "lower num_activations; QAIC_CPU_MEMORY=any loads the program without this check"
            } else if states < outputs {
                "compile for a smaller batch or smaller shapes; QAIC_CPU_MEMORY=any loads the program without this check"
            } else {
                "compile for a shorter context or with mxint8_kv_cache=True; QAIC_CPU_MEMORY=any loads the program \
                 without this check"
            },
        /// The memory for a buffer could not be allocated.
        #[error("cannot allocate {bytes} bytes for {what}")]
        OutOfMemory { bytes: u64 = 1 << 40, what: &'static str = "an output" }
            => "device.memory" "DeviceMemoryError" [bytes],
    }
}

/// Formats a size in MiB, rounded up.
fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

/// Lists the ids of the existing devices, for messages.
fn existing_ids(existing: &[u32]) -> String {
    if existing.is_empty() { "no device was found".to_owned() } else { format!("existing ids: {existing:?}") }
}

fn more_devices(needed: u32, kind: &str, hidden: usize) -> String {
    match (hidden, kind) {
        (0, "cpu") => format!("; set QAIC_CPU_DEVICES={needed} for {}", counted(needed, "virtual card")),
        (0, _) => String::new(),
        (hidden, _) => format!("; QAIC_VISIBLE_DEVICES hides {hidden} more"),
    }
}
