//! Names that many tests use.

pub(crate) use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

pub(crate) use super::rig::Rig;
pub(crate) use qaic_emu::{
    EmuClock, EmuKmd, EmuOptions, ExecutionMode, FaultPlan, Profile,
    fault::Target,
    firmware::FirmwareConfig,
    workload::{CoreView, Images, Progress, Running, Workload},
};
pub(crate) use qaic_kmd::{
    AccelFile, DbcState, Errno, EventKind, Ioctl, Kmd, ManageBuffer, SystemClock,
    abi::{
        AttachSliceEntry, DIR_FROM_DEVICE, DIR_TO_DEVICE, ExecuteEntry, PartialExecuteEntry, PerfStatsEntry,
        Request, Sem, Wait,
    },
    calls,
    protocol::{
        NncStatus,
        command::ActivationState,
        message::{self, ActivateRequest},
        parse::features,
        reply::{
            ActivateReply, DeactivateReply, LoadConstantsReply, LoadElfReply, Reply, UnloadConstantsReply,
            UnloadElfReply,
        },
    },
};
pub(crate) use qaic_mem::Mapping;
