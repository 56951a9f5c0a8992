//! Triggers of faults, the faults, and the names of both.

use std::time::Duration;

use qaic_kmd::Errno;

use super::parse_time;

/// Devices that faults apply to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Emulated cards.
    Card,
    /// `noop` devices.
    Noop,
}

/// Kinds of triggers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trigger {
    /// A card is opened.
    Open,
    /// A control message is sent.
    Manage,
    /// A buffer object is created.
    CreateBo,
    /// The mapping offset of a buffer object is requested.
    MmapBo,
    /// A buffer object is mapped.
    Mmap,
    /// Slices are attached to a buffer object.
    Attach,
    /// An execute call, or an inference of a `noop` device.
    Execute,
    /// A wait call.
    Wait,
    /// Statistics are requested.
    PerfStats,
    /// Slices are detached.
    Detach,
    /// Memory is imported.
    Import,
    /// The name of the driver is requested.
    Version,
    /// A control message with this command is sent.
    Command(u32),
    /// A control message that requests features is sent.
    Features,
    /// An execute call is accepted.
    Inference,
    /// A time has passed.
    Time,
    /// A program is loaded.
    Load,
    /// A program is activated.
    Activate,
    /// An exec is created.
    Exec,
}

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The call fails with this error and has no effect.
    Fail(Errno),
    /// The firmware refuses.
    Nack {
        /// Status of the refusal.
        status: i32,
        /// True if the channel's transaction is also refused.
        both: bool,
    },
    /// The reply's checksum is wrong.
    Crc,
    /// The reply has another type.
    WrongType,
    /// The reply is truncated to a word.
    Truncated,
    /// The reply's header declares this number of transactions.
    Count(u32),
    /// The command's reply contains this channel.
    ReplyChannel(u32),
    /// The channel's transaction contains this channel.
    ActivatedChannel(u32),
    /// The card is reset.
    Reset,
    /// Every open file of the card fails from now on.
    Dead,
    /// The cores of a channel fail.
    Restart {
        /// Number of the channel; `None` means the channel of the call.
        dbc_id: Option<u32>,
        /// True if the cores restart.
        powers_up: bool,
    },
    /// The inference's last element never completes.
    LostCompletion,
    /// The inference's first slice never completes.
    ShortCompletion,
    /// Every element completes with this status.
    DmaStatus(u16),
    /// The data of the inference is transferred as late as its fences permit, not in the order of the ring.
    LateDma,
    /// The cores stop, or the firmware does not reply.
    Hang,
    /// The call takes this time, or until it is cancelled. The firmware's reply is delayed by this time.
    Slow(Duration),
    /// The call lasts until it is cancelled or the device is lost.
    Stuck,
    /// The inference fails.
    FailInference,
    /// The device is reset: programs that are loaded are lost, programs that are loaded afterwards work.
    Lost,
    /// No cores are free.
    NoCores,
    /// No memory is left.
    NoMemory,
}

const CARD_TRIGGERS: [(&str, Trigger); 15] = [
    ("open", Trigger::Open),
    ("manage", Trigger::Manage),
    ("create_bo", Trigger::CreateBo),
    ("mmap_bo", Trigger::MmapBo),
    ("mmap", Trigger::Mmap),
    ("attach", Trigger::Attach),
    ("execute", Trigger::Execute),
    ("wait", Trigger::Wait),
    ("perf_stats", Trigger::PerfStats),
    ("detach", Trigger::Detach),
    ("import", Trigger::Import),
    ("version", Trigger::Version),
    ("features", Trigger::Features),
    ("inference", Trigger::Inference),
    ("time", Trigger::Time),
];

const NOOP_TRIGGERS: [(&str, Trigger); 4] = [
    ("load", Trigger::Load),
    ("activate", Trigger::Activate),
    ("exec", Trigger::Exec),
    ("execute", Trigger::Execute),
];

const COMMANDS: [(&str, u32); 10] = [
    ("load_elf", 3),
    ("unload_constants", 5),
    ("unload_elf", 7),
    ("activate", 9),
    ("deactivate", 11),
    ("status", 13),
    ("load_constants_ex", 15),
    ("load_constants_payload", 16),
    ("resource_info", 32),
    ("performance_info", 34),
];

const ERRORS: [(&str, Errno); 18] = [
    ("EPERM", Errno::PERM),
    ("ENOENT", Errno::NOENT),
    ("EINTR", Errno::INTR),
    ("EIO", Errno::IO),
    ("ENXIO", Errno::NXIO),
    ("EBADF", Errno::BADF),
    ("EAGAIN", Errno::AGAIN),
    ("ENOMEM", Errno::NOMEM),
    ("EACCES", Errno::ACCESS),
    ("EFAULT", Errno::FAULT),
    ("EBUSY", Errno::BUSY),
    ("ENODEV", Errno::NODEV),
    ("EINVAL", Errno::INVAL),
    ("ENOSPC", Errno::NOSPC),
    ("EPIPE", Errno::PIPE),
    ("ETIMEDOUT", Errno::TIMEDOUT),
    ("ECANCELED", Errno::CANCELED),
    ("ENOTTY", Errno::NOTTY),
];

/// Names of actions other than errors, for messages, with one example of each.
const ACTIONS: [(&str, Action); 23] = [
    ("nack(STATUS)", Action::Nack { status: -1, both: false }),
    ("nack_both(STATUS)", Action::Nack { status: -1, both: true }),
    ("crc", Action::Crc),
    ("wrong_type", Action::WrongType),
    ("truncated", Action::Truncated),
    ("count(NUMBER)", Action::Count(0)),
    ("channel(CHANNEL)", Action::ReplyChannel(0)),
    ("dbc(CHANNEL)", Action::ActivatedChannel(0)),
    ("reset", Action::Reset),
    ("dead", Action::Dead),
    ("ssr(CHANNEL)", Action::Restart { dbc_id: Some(0), powers_up: true }),
    ("ssr_without_power_up(CHANNEL)", Action::Restart { dbc_id: Some(0), powers_up: false }),
    ("lost_completion", Action::LostCompletion),
    ("short_completion", Action::ShortCompletion),
    ("dma_status(STATUS)", Action::DmaStatus(0)),
    ("late_dma", Action::LateDma),
    ("slow(TIME)", Action::Slow(Duration::ZERO)),
    ("stuck", Action::Stuck),
    ("fail", Action::FailInference),
    ("lost", Action::Lost),
    ("no_cores", Action::NoCores),
    ("no_memory", Action::NoMemory),
    ("hang", Action::Hang),
];

pub(super) fn trigger(name: &str, target: Target) -> Result<Trigger, String> {
    match target {
        Target::Noop => named(&NOOP_TRIGGERS, name),
        Target::Card => match name.strip_prefix("command(").map(|name| name.strip_suffix(')')) {
            None => named(&CARD_TRIGGERS, name),
            Some(None) => Err("command(NAME)@WHICH".to_owned()),
            Some(Some(name)) => Ok(Trigger::Command(name.parse().or_else(|_| named(&COMMANDS, name))?)),
        },
    }
}

/// Parses an action; `left` is the other side of the rule, for messages.
pub(super) fn action(text: &str, left: &str, trigger: Trigger, target: Target) -> Result<Action, String> {
    let (name, argument) = match (text.split_once('('), text.split_once(':')) {
        (Some((name, rest)), _) => (name, Some(rest.strip_suffix(')').ok_or("a closing parenthesis")?)),
        (None, Some((name, argument))) => (name, Some(argument)),
        (None, None) => (text, None),
    };
    let action = parse_action(name.trim(), argument.map(str::trim))?;
    match action {
        Some(action) if fits(action, trigger, target) => Ok(action),
        _ => Err(format!(
            "an action that \"{left}\" can have ({}) instead of \"{text}\"",
            possible(trigger, target)
        )),
    }
}

/// Parses an action by name; `None` if it does not exist.
fn parse_action(name: &str, argument: Option<&str>) -> Result<Option<Action>, String> {
    let wants = |what: &str| format!("{name}({what})");
    let number = |what| argument.and_then(|text| text.parse().ok()).ok_or_else(|| wants(what));
    let status = || {
        let status = argument.and_then(|text| text.parse().ok()).filter(|status| *status != 0);
        status.ok_or_else(|| wants("STATUS"))
    };
    let channel = || {
        let number = |text: &str| text.parse().map_err(|_| wants("CHANNEL"));
        argument.map(number).transpose()
    };
    Ok(Some(match (name, argument) {
        ("nack" | "nack_both", _) => Action::Nack { status: status()?, both: name == "nack_both" },
        ("count", _) => Action::Count(number("NUMBER")?),
        ("channel", _) => Action::ReplyChannel(number("CHANNEL")?),
        ("dbc", _) => Action::ActivatedChannel(number("CHANNEL")?),
        ("dma_status", _) => {
            Action::DmaStatus(argument.and_then(|text| text.parse().ok()).ok_or_else(|| wants("STATUS"))?)
        }
        ("ssr" | "ssr_without_power_up", _) => {
            Action::Restart { dbc_id: channel()?, powers_up: name == "ssr" }
        }
        ("slow", _) => Action::Slow(
            argument.and_then(parse_time).ok_or_else(|| wants("TIME, such as 20ms, 1.5s or 300us"))?,
        ),
        (_, None) => {
            let known = ACTIONS.iter().find(|(spelling, _)| *spelling == name).map(|(_, action)| *action);
            return Ok(known.or_else(|| named(&ERRORS, name).ok().map(Action::Fail)));
        }
        (_, Some(_)) => return Ok(None),
    }))
}

/// Lists the permitted actions of a trigger, for messages.
fn possible(trigger: Trigger, target: Target) -> String {
    let mut names: Vec<&str> = Vec::new();
    if fits(Action::Fail(Errno::IO), trigger, target) {
        names.extend(ERRORS.iter().map(|(name, _)| *name));
    }
    names.extend(ACTIONS.iter().filter(|(_, action)| fits(*action, trigger, target)).map(|(name, _)| *name));
    names.join(", ")
}

fn fits(action: Action, trigger: Trigger, target: Target) -> bool {
    match target {
        Target::Card => fits_card(action, trigger),
        Target::Noop => fits_noop(action, trigger),
    }
}

fn fits_card(action: Action, trigger: Trigger) -> bool {
    let is_control = matches!(trigger, Trigger::Manage | Trigger::Command(_) | Trigger::Features);
    match action {
        Action::Fail(_) => !matches!(trigger, Trigger::Inference | Trigger::Time),
        Action::Nack { .. }
        | Action::Crc
        | Action::WrongType
        | Action::Truncated
        | Action::Count(_)
        | Action::ReplyChannel(_)
        | Action::ActivatedChannel(_)
        | Action::Slow(_) => is_control,
        Action::Reset | Action::Dead => trigger != Trigger::Open,
        Action::Restart { dbc_id, .. } => {
            dbc_id.is_some() && trigger != Trigger::Open
                || matches!(trigger, Trigger::Execute | Trigger::Wait | Trigger::Inference)
        }
        Action::LostCompletion | Action::ShortCompletion | Action::DmaStatus(_) | Action::LateDma => {
            trigger == Trigger::Inference
        }
        Action::Hang => is_control || trigger == Trigger::Inference,
        Action::Stuck | Action::FailInference | Action::Lost | Action::NoCores | Action::NoMemory => false,
    }
}

/// Returns true if the action is permitted: only calls that can be cancelled may take long.
fn fits_noop(action: Action, trigger: Trigger) -> bool {
    match action {
        Action::Slow(_) | Action::Stuck => matches!(trigger, Trigger::Load | Trigger::Execute),
        Action::FailInference => trigger == Trigger::Execute,
        Action::Lost => true,
        Action::NoCores => trigger == Trigger::Activate,
        Action::NoMemory => trigger != Trigger::Execute,
        _ => false,
    }
}

fn named<T: Copy>(table: &[(&str, T)], name: &str) -> Result<T, String> {
    let known = table.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    known.ok_or_else(|| {
        let names: Vec<_> = table.iter().map(|(known, _)| *known).collect();
        format!("one of {} instead of \"{name}\"", names.join(", "))
    })
}
