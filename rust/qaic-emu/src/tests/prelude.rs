//! Names that many tests use.

pub(crate) use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

pub(crate) use super::rig::Rig;
pub(crate) use qaic_emu::{
    CoreView, EmuClock, EmuKmd, EmuOptions, ExecutionMode, FaultPlan, FirmwareConfig, Images, Profile,
    Progress, Running, Workload, fault::Target,
};
pub(crate) use qaic_kmd::{
    AccelFile, DbcState, Errno, EventKind, Ioctl, Kmd, ManageBuffer, SystemClock,
    abi::{
        AttachSliceEntry, DIR_FROM_DEVICE, DIR_TO_DEVICE, ExecuteEntry, PartialExecuteEntry, PerfStatsEntry,
        Request, Sem, Wait,
    },
    protocol::{
        ActivateReply, ActivationState, DeactivateReply, LoadConstantsReply, LoadElfReply, NncStatus, Reply,
        UnloadConstantsReply, UnloadElfReply,
        message::{self, ActivateRequest},
        parse::features,
    },
};
pub(crate) use qaic_mem::Mapping;
