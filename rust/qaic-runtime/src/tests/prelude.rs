//! Names that many tests use.

pub(crate) use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};

pub(crate) use super::first_device::{
    assert_interrupted, await_executing, control, recorded, set, shared, soon, try_set,
};
pub(crate) use super::held_device::{HeldDevice, HeldNoop, of_each_kind};
pub(crate) use crate::{
    echo::{ELEMENTS, image, noop, resizable},
    oracle::f32_bytes,
};
pub(crate) use qaic_mem::{HostSlice, HostSliceMut, Lender, SharedMemory, Storage};
pub(crate) use qaic_qpc::ElementType;
pub(crate) use qaic_runtime::{
    Context, Detached, DeviceError, ErrorDetail, Image, Program, ProgramOptions, RuntimeError, WaitLimits,
    binding::{Bindings, GivenShape, InputBinding},
    device::{DeviceId, DeviceStatus, Exec, LoadOptions, Placement, RegistryOptions, noop::Control},
    inference_set::{HandleId, InferenceSet, PendingInference},
    process::{Deadline, WaitScope},
    profiling::{DeviceStats, Limits, Profiler, SamplingRule},
    request::{BoundBuffers, ExecObj, Part},
};

#[cfg(feature = "emu")]
pub(crate) use cards::*;

#[cfg(feature = "emu")]
mod cards {
    pub(crate) use crate::tests::card::rig::{CardProgramSpec, Rig, run};
    pub(crate) use crate::tests::echo_card::EchoCard;
    pub(crate) use crate::tests::first_device::long;
    pub(crate) use qaic_emu::{EmuKmd, EmuOptions, FaultPlan, FirmwareConfig, Profile, fault::Target};
    #[cfg(feature = "kmd")]
    pub(crate) use qaic_kmd::Telemetry;
    pub(crate) use qaic_kmd::{AccelFile, Clock, Errno, EventSource, Kmd, NodeInfo, abi::Request};
    pub(crate) use qaic_qpc::{
        ConstantsDesc, Direction, DmaBuffer, IoBinding, NetworkDesc, elf,
        metadata::{DmaRequest, Metadata, SemaphoreOp},
    };
    pub(crate) use qaic_runtime::{CardError, binding::OutputBinding, device::card::CardDevice};
}
