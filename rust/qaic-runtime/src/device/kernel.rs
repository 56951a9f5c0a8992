//! Source of a process's cards: the running kernel or an emulated one, optionally with a recording of its calls.

use std::path::PathBuf;
use std::sync::Arc;

use qaic_kmd::{Kmd, Recording};

use super::RegistryOptions;
use crate::error::RuntimeError;
use crate::process::log;

/// Valid values of `QAIC_KMD`.
const KERNELS: &str = "sys or emu";

/// Options that select the source of cards. Names are checked when cards are requested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelOptions {
    /// `QAIC_KMD`: `sys`, the running kernel; `emu`, emulated cards. Unset means `sys`.
    pub kernel: Option<String>,
    /// `QAIC_KMD_TRANSCRIPT`: file that receives a line for every system call.
    pub transcript: Option<PathBuf>,
    /// `QAIC_EMU_PROFILE`: kernel version that the emulated driver imitates: `old`, `new` or `ssr`; `ssr` by default.
    pub emulated_profile: Option<String>,
    /// `QAIC_EMU_FAULTS`: faults that happen on every emulated card.
    pub emulated_faults: Option<String>,
    /// `QAIC_EMU_WORKLOAD`: work of the cores of emulated cards: `graph`, `echo` or `loopback`; `graph` by default.
    pub emulated_workload: Option<String>,
    /// `QAIC_EMU_TIME`: `system`, or `virtual`, which advances only while a call waits; `system` by default.
    pub emulated_time: Option<String>,
}

/// A kernel, with its controls if it is emulated.
#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) kmd: Arc<dyn Kmd>,
    #[cfg(feature = "emu")]
    pub(super) emulator: Option<Arc<qaic_emu::EmuKmd>>,
}

impl Kernel {
    /// Opens the kernel that `options` describe. Returns `None` for the running kernel if this build does not support
    /// it.
    pub(super) fn open(options: &RegistryOptions) -> Result<Option<Self>, RuntimeError> {
        let Some(mut kernel) = Self::of_source(options)? else { return Ok(None) };
        if let Some(path) = options.kernel.transcript.as_deref().filter(|path| !path.as_os_str().is_empty()) {
            let warn = |text: &str| log::global().warn(|| format!("QAIC_KMD_TRANSCRIPT: {text}"));
            let recording = Recording::new(Arc::clone(&kernel.kmd), path, warn);
            kernel.kmd = Arc::new(recording.map_err(|error| argument("QAIC_KMD_TRANSCRIPT", &error))?);
        }
        Ok(Some(kernel))
    }

    fn of_source(options: &RegistryOptions) -> Result<Option<Self>, RuntimeError> {
        match options.kernel.kernel.as_deref().unwrap_or_default() {
            #[cfg(feature = "kmd")]
            "" | "sys" => Ok(Some(Self::of(Arc::new(qaic_kmd::SysKmd::default())))),
            #[cfg(not(feature = "kmd"))]
            "" | "sys" => Ok(None),
            #[cfg(feature = "emu")]
            "emu" => Self::emulated(options).map(Some),
            source => {
                let what = format!("QAIC_KMD is {source:?}; {KERNELS} is expected");
                Err(RuntimeError::argument(what))
            }
        }
    }

    #[cfg(feature = "kmd")]
    fn of(kmd: Arc<dyn Kmd>) -> Self {
        Self {
            kmd,
            #[cfg(feature = "emu")]
            emulator: None,
        }
    }

    /// Creates emulated cards, with the number and the family of the virtual cards.
    #[cfg(feature = "emu")]
    fn emulated(options: &RegistryOptions) -> Result<Self, RuntimeError> {
        use qaic_emu::FirmwareConfig;
        use qaic_emu::fault::{FaultPlan, Target};
        use qaic_emu::{EmuClock, EmuKmd, EmuOptions, ExecutionMode, Profile};
        use qaic_kmd::{SystemClock, VirtualClock};

        let KernelOptions { emulated_profile, emulated_faults, emulated_time, .. } = &options.kernel;
        let profile = match emulated_profile.as_deref().unwrap_or_default() {
            "old" => Profile::Old,
            "new" => Profile::New,
            "" | "ssr" => Profile::Ssr,
            other => return Err(unknown("QAIC_EMU_PROFILE", other, "old, new or ssr")),
        };
        // The waiting thread advances the time, so it must also do the work that it waits for.
        let (clock, execution_mode) = match emulated_time.as_deref().unwrap_or_default() {
            "" | "system" => (EmuClock::System(SystemClock::default()), ExecutionMode::Threads),
            "virtual" => (EmuClock::Virtual(Arc::new(VirtualClock::default())), ExecutionMode::Inline),
            other => return Err(unknown("QAIC_EMU_TIME", other, "system or virtual")),
        };
        let faults = FaultPlan::parse(emulated_faults.as_deref().unwrap_or_default(), Target::Card);
        let family = options.hardware()?;
        let emulator = EmuKmd::new(EmuOptions {
            cards: options.cards()?,
            profile,
            workload: workload(options)?,
            clock,
            execution_mode,
            faults: faults.map_err(|error| argument("QAIC_EMU_FAULTS", &error))?,
            signaled: Some(crate::process::CancellationToken::is_current_cancelled),
            firmware: FirmwareConfig {
                hw_version: family.version(),
                image_variant: family.name.replacen("ai", "AIC", 1) + ".EMU",
                ..FirmwareConfig::default()
            },
            ..EmuOptions::default()
        });
        let emulator = emulator.map_err(RuntimeError::argument)?;
        Ok(Self { kmd: Arc::clone(&emulator) as Arc<dyn Kmd>, emulator: Some(emulator) })
    }
}

fn argument(variable: &str, error: &dyn std::fmt::Display) -> RuntimeError {
    RuntimeError::argument(format!("{variable}: {error}"))
}

#[cfg(feature = "emu")]
fn unknown(variable: &str, found: &str, known: &str) -> RuntimeError {
    RuntimeError::argument(format!("{variable} is {found:?}; {known} is expected"))
}

/// Creates the workload of the cores of emulated cards.
#[cfg(all(feature = "cpu", feature = "emu"))]
fn workload(options: &RegistryOptions) -> Result<Arc<dyn qaic_emu::Workload>, RuntimeError> {
    use super::emulated_cores::{EchoWorkload, GraphWorkload};
    match options.kernel.emulated_workload.as_deref().unwrap_or_default() {
        "" | "graph" => Ok(Arc::new(GraphWorkload::new(options.engine_candidates.clone()))),
        "echo" => Ok(Arc::new(EchoWorkload)),
        "loopback" => Ok(Arc::new(qaic_emu::Loopback)),
        other => Err(unknown("QAIC_EMU_WORKLOAD", other, "graph, echo or loopback")),
    }
}

/// Creates the workload of a build without an engine: the cores compute nothing, and return their inputs.
#[cfg(all(not(feature = "cpu"), feature = "emu"))]
fn workload(options: &RegistryOptions) -> Result<Arc<dyn qaic_emu::Workload>, RuntimeError> {
    match options.kernel.emulated_workload.as_deref().unwrap_or_default() {
        "" | "loopback" => Ok(Arc::new(qaic_emu::Loopback)),
        other => Err(unknown("QAIC_EMU_WORKLOAD", other, "loopback (this was built without an engine)")),
    }
}
