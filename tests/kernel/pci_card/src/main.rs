//! A card for a guest with the mainline driver: waits at a socket for a user mode kernel, and serves it until it disconnects.
//!
//! `qaic-pci-card SOCKET`. `QAIC_EMU_WORKLOAD` selects the work of the cores (`graph` with the engine's library in `QAIC_ENGINE`, `echo`,
//! `loopback`). `QAIC_EMU_FAULTS` contains the faults; alternatively, the first line of the file in `QAIC_EMU_FAULTS_FILE` contains them,
//! and is read again whenever it changes. With `QAIC_EMU_CHECKSUMS`, messages have checksums, which the driver verifies. The process ends
//! with an error if the guest has left resources on the card.
#![forbid(unsafe_code)]

mod card;
mod config_space;
mod control_link;
mod dma_bridge;
mod guest_memory;
mod mhi;
mod vhost_user;
mod virtqueue;

use std::env;
use std::error::Error;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use qaic_emu::fault::Target;
use qaic_emu::{FaultPlan, FirmwareConfig, Loopback, Workload};
use qaic_runtime::device::emulated_cores::{EchoWorkload, GraphWorkload};

use card::PciCard;

fn main() -> Result<(), Box<dyn Error>> {
    let socket = env::args_os().nth(1).ok_or("expected the path of a socket")?;
    let variable = |name| env::var(name).unwrap_or_default();
    let workload: Arc<dyn Workload> = match variable("QAIC_EMU_WORKLOAD").as_str() {
        "" | "graph" => {
            let engine = env::var_os("QAIC_ENGINE").ok_or("QAIC_ENGINE: expected the engine's library")?;
            Arc::new(GraphWorkload::new(vec![engine.into()]))
        }
        "echo" => Arc::new(EchoWorkload),
        "loopback" => Arc::new(Loopback),
        other => {
            return Err(format!("QAIC_EMU_WORKLOAD is {other:?}; graph, echo or loopback is expected").into());
        }
    };
    let faults = FaultPlan::parse(&variable("QAIC_EMU_FAULTS"), Target::Card)?;
    let status_flags = u64::from(env::var_os("QAIC_EMU_CHECKSUMS").is_some());
    let config = FirmwareConfig { status_flags, ..FirmwareConfig::default() };
    let listener = UnixListener::bind(&socket)?;
    let card = PciCard::new(config, workload, faults);
    if let Some(path) = env::var_os("QAIC_EMU_FAULTS_FILE") {
        card.read_faults_from(path.into());
    }
    let fresh = card.resource_usage();
    card.serve(&listener)?;
    let left = card.resource_usage();
    if left == fresh { Ok(()) } else { Err(format!("the guest left {left:?} of {fresh:?}").into()) }
}
