//! What goes wrong on an emulated card, and when (device-kmd §7.3).
//!
//! A plan is text, so that a variable of the environment can hold it: rules `TRIGGER=ACTION[*COUNT]`, separated by `;`,
//! the first that fits counts. A count says how many times in a row, `*all` for ever.
//!
//! | trigger | when |
//! |---|---|
//! | `open@N`, `manage@N`, `create_bo@N`, `mmap_bo@N`, `mmap@N`, `attach@N`, `execute@N`, `wait@N`, `perf_stats@N`, `detach@N`, `import@N`, `version@N` | the N-th such call, from 1; `mmap_bo` asks for an offset, `mmap` maps; `execute` is both execute calls |
//! | `command(NAME)@N`, `features@N` | the N-th control message with this command (a name or a number); with a status transaction |
//! | `inference@N` | the N-th execute call that is taken |
//! | `time@500ms` | so long after the plan was set; `us`, `ms`, `s` |
//!
//! | action | what happens |
//! |---|---|
//! | `EAGAIN`, `ENOMEM`, ... | the call answers so and does nothing |
//! | `nack(-13)`, `nack_both(-13)` | the firmware refuses: in the command's reply; in the channel's transaction too |
//! | `crc` | the reply's checksum is wrong |
//! | `wrong_type`, `truncated`, `count(5)`, `channel(16)`, `dbc(16)` | the reply has another type, is cut to a word, is said to have so many transactions, names such a channel in the command's reply or in the channel's transaction |
//! | `reset` | the card is reset |
//! | `dead` | every open file of the card is dead for ever |
//! | `ssr(0)`, `ssr_without_power_up(0)` | the cores of a channel fail and start again, or do not; without a number the channel of the call |
//! | `lost_completion`, `short_completion`, `dma_status(7)` | the inference's last element, or its first slice, never completes; every element completes with this status |
//! | `hang` | the cores of the inference's channel stop; the firmware does not reply |

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use crate::Errno;

/// What goes wrong on a card, and when. The default is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    trigger: Trigger,
    first: u64,
    count: u64,
    action: Action,
}

/// Kinds of moments. `Time` is counted by the clock, the others from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Trigger {
    Open,
    Manage,
    CreateBo,
    MmapBo,
    Mmap,
    Attach,
    Execute,
    Wait,
    PerfStats,
    Detach,
    Import,
    Version,
    Command(u32),
    Features,
    Inference,
    Time,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Fail(Errno),
    Nack { status: i32, both: bool },
    Crc,
    WrongType,
    Truncated,
    Count(u32),
    ReplyChannel(u32),
    ActivatedChannel(u32),
    Reset,
    Dead,
    Restart { dbc_id: Option<u32>, powers_up: bool },
    LostCompletion,
    ShortCompletion,
    DmaStatus(u16),
    Hang,
}

/// Text that is no plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultPlanError {
    rule: String,
    expected: String,
}

impl fmt::Display for FaultPlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule \"{}\" of the fault plan: expected {}", self.rule, self.expected)
    }
}

impl std::error::Error for FaultPlanError {}

const CALLS: [(&str, Trigger); 14] = [
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
];

const COMMANDS: [(&str, u32); 14] = [
    ("load_constants", 1),
    ("load_elf", 3),
    ("unload_constants", 5),
    ("unload_elf", 7),
    ("activate", 9),
    ("deactivate", 11),
    ("status", 13),
    ("load_constants_ex", 15),
    ("load_constants_payload", 16),
    ("create_resource_group", 28),
    ("release_resource_group", 30),
    ("resource_info", 32),
    ("performance_info", 34),
    ("activation_state", 36),
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

impl FaultPlan {
    /// The plan that text says; the module's documentation has the form.
    pub fn parse(text: &str) -> Result<Self, FaultPlanError> {
        let rules = text.split(';').map(str::trim).filter(|rule| !rule.is_empty());
        let rules = rules.map(|rule| {
            parse_rule(rule).map_err(|expected| FaultPlanError { rule: rule.to_owned(), expected })
        });
        Ok(Self { rules: rules.collect::<Result<_, _>>()? })
    }

    /// What happens by the clock: how long after the plan was set, and what.
    pub(crate) fn timed(&self) -> impl Iterator<Item = (Duration, Action)> {
        let timed = self.rules.iter().filter(|rule| rule.trigger == Trigger::Time);
        timed.map(|rule| (Duration::from_micros(rule.first), rule.action))
    }
}

fn parse_rule(rule: &str) -> Result<Rule, String> {
    let (left, right) = rule.split_once('=').ok_or("TRIGGER=ACTION")?;
    let (trigger, first) = parse_trigger(left.trim())?;
    let (action, count) = match right.split_once('*') {
        None => (right, 1),
        Some((action, count)) => match count.trim() {
            "all" => (action, u64::MAX),
            count => (action, number(count).filter(|count| *count > 0).ok_or("a count, as *3, or *all")?),
        },
    };
    let action = parse_action(action.trim())?;
    if !fits(trigger, action) {
        return Err(format!("an action that \"{}\" can have", left.trim()));
    }
    if trigger == Trigger::Time && count != 1 {
        return Err("no count behind an action of time".into());
    }
    Ok(Rule { trigger, first, count, action })
}

fn parse_trigger(text: &str) -> Result<(Trigger, u64), String> {
    let (name, at) = text.split_once('@').ok_or("TRIGGER@NUMBER=ACTION")?;
    if name == "time" {
        let time = [("us", 1), ("ms", 1_000), ("s", 1_000_000)].into_iter().find_map(|(unit, us)| {
            number::<u64>(at.strip_suffix(unit)?).and_then(|time| time.checked_mul(us))
        });
        return Ok((Trigger::Time, time.ok_or("a time, as time@500ms")?));
    }
    let trigger = match name.strip_prefix("command(").map(|name| name.strip_suffix(')')) {
        None => named(&CALLS, name)?,
        Some(None) => return Err("command(NAME)@NUMBER".into()),
        Some(Some(name)) => Trigger::Command(number(name).map_or_else(|| named(&COMMANDS, name), Ok)?),
    };
    let first = number(at).filter(|first| *first > 0).ok_or("the number of the call, from 1")?;
    Ok((trigger, first))
}

fn parse_action(text: &str) -> Result<Action, String> {
    let (name, argument) = match text.split_once('(') {
        None => (text, None),
        Some((name, rest)) => (name, Some(rest.strip_suffix(')').ok_or("a closing parenthesis")?)),
    };
    let wants = |what: &str| format!("{name}({what})");
    let channel = || argument.map(|text| number(text).ok_or_else(|| wants("CHANNEL"))).transpose();
    let action = match (name, argument) {
        ("nack" | "nack_both", _) => Action::Nack {
            status: argument.and_then(number).filter(|status| *status != 0).ok_or_else(|| wants("STATUS"))?,
            both: name == "nack_both",
        },
        ("count", _) => Action::Count(argument.and_then(number).ok_or_else(|| wants("NUMBER"))?),
        ("channel", _) => Action::ReplyChannel(argument.and_then(number).ok_or_else(|| wants("CHANNEL"))?),
        ("dbc", _) => Action::ActivatedChannel(argument.and_then(number).ok_or_else(|| wants("CHANNEL"))?),
        ("dma_status", _) => Action::DmaStatus(argument.and_then(number).ok_or_else(|| wants("STATUS"))?),
        ("ssr" | "ssr_without_power_up", _) => {
            Action::Restart { dbc_id: channel()?, powers_up: name == "ssr" }
        }
        ("crc", None) => Action::Crc,
        ("wrong_type", None) => Action::WrongType,
        ("truncated", None) => Action::Truncated,
        ("reset", None) => Action::Reset,
        ("dead", None) => Action::Dead,
        ("lost_completion", None) => Action::LostCompletion,
        ("short_completion", None) => Action::ShortCompletion,
        ("hang", None) => Action::Hang,
        (_, None) => Action::Fail(named(&ERRORS, name)?),
        (_, Some(_)) => return Err("an action, as ENOMEM, reset, nack(-13)".into()),
    };
    Ok(action)
}

fn fits(trigger: Trigger, action: Action) -> bool {
    let is_control = matches!(trigger, Trigger::Manage | Trigger::Command(_) | Trigger::Features);
    match action {
        Action::Fail(_) => !matches!(trigger, Trigger::Inference | Trigger::Time),
        Action::Nack { .. }
        | Action::Crc
        | Action::WrongType
        | Action::Truncated
        | Action::Count(_)
        | Action::ReplyChannel(_)
        | Action::ActivatedChannel(_) => is_control,
        Action::Reset | Action::Dead => trigger != Trigger::Open,
        Action::Restart { dbc_id, .. } => {
            dbc_id.is_some() && trigger != Trigger::Open
                || matches!(trigger, Trigger::Execute | Trigger::Wait | Trigger::Inference)
        }
        Action::LostCompletion | Action::ShortCompletion | Action::DmaStatus(_) => {
            trigger == Trigger::Inference
        }
        Action::Hang => is_control || trigger == Trigger::Inference,
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}

fn named<T: Copy>(table: &[(&str, T)], name: &str) -> Result<T, String> {
    let known = table.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
    known.ok_or_else(|| {
        let names: Vec<_> = table.iter().map(|(known, _)| *known).collect();
        format!("one of {} in place of \"{name}\"", names.join(", "))
    })
}

/// A plan at work: how often what has happened.
#[derive(Debug, Default)]
pub(crate) struct FaultBook {
    plan: FaultPlan,
    seen: BTreeMap<Trigger, u64>,
}

impl FaultBook {
    /// A book for a plan, in which nothing has happened.
    pub(crate) fn new(plan: FaultPlan) -> Self {
        Self { plan, seen: BTreeMap::new() }
    }

    /// Something happens; what goes wrong with it.
    pub(crate) fn happens(&mut self, trigger: Trigger) -> Option<Action> {
        if self.plan.rules.is_empty() {
            return None;
        }
        let seen = self.seen.entry(trigger).or_default();
        *seen += 1;
        let fits =
            |rule: &&Rule| rule.trigger == trigger && *seen >= rule.first && *seen - rule.first < rule.count;
        self.plan.rules.iter().find(fits).map(|rule| rule.action)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn book(text: &str) -> FaultBook {
        match FaultPlan::parse(text) {
            Ok(plan) => FaultBook::new(plan),
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn rules_apply_to_the_calls_they_name() {
        let mut book = book("execute@2=EAGAIN*2; execute@3=EPIPE; wait@1=ETIMEDOUT*all;");
        let seen: Vec<_> = (0..5).map(|_| book.happens(Trigger::Execute)).collect();
        let again = Some(Action::Fail(Errno::AGAIN));
        assert_eq!(seen, [None, again, again, None, None]);
        for _ in 0..100 {
            assert_eq!(book.happens(Trigger::Wait), Some(Action::Fail(Errno::TIMEDOUT)));
        }
        assert_eq!(book.happens(Trigger::Open), None);
    }

    #[test]
    fn every_row_of_the_fault_table_can_be_said() {
        for text in [
            "execute@1=EAGAIN*50",
            "wait@1=ETIMEDOUT*6",
            "wait@1=EINTR; manage@1=EINTR",
            "time@1500ms=reset; wait@3=reset; inference@8=reset; command(activate)@1=reset",
            "time@1s=dead",
            "inference@1=ssr; wait@1=ssr(3); inference@1=ssr_without_power_up",
            "inference@1=short_completion; inference@2=lost_completion",
            "inference@1=dma_status(7)",
            "command(load_elf)@1=crc; features@1=crc",
            "command(activate)@1=nack(-13); command(9)@1=nack_both(-102)",
            "command(deactivate)@1=nack_both(-36)",
            "create_bo@3=ENOMEM; mmap_bo@1=ENOMEM; mmap@2=ENOMEM; attach@1=ENOMEM; attach@2=ENOSPC",
            "manage@1=wrong_type; manage@2=truncated; manage@3=count(5); manage@4=channel(16); manage@5=dbc(16)",
            "open@1=EACCES; open@1=ENOENT",
            "inference@1=hang; manage@1=hang",
        ] {
            assert!(FaultPlan::parse(text).is_ok(), "{text}: {:?}", FaultPlan::parse(text));
        }
    }

    #[test]
    fn text_that_is_no_plan_is_refused_with_the_rule_and_what_was_expected() {
        for (text, message) in [
            ("execute", "rule \"execute\" of the fault plan: expected TRIGGER=ACTION"),
            ("wait@1=reset;execute@0=EAGAIN", "expected the number of the call, from 1"),
            ("execute@1=EAGAIN*0", "expected a count, as *3, or *all"),
            ("execute@1=nack(-1)", "expected an action that \"execute@1\" can have"),
            ("inference@1=EIO", "can have"),
            ("open@1=ssr(1)", "can have"),
            ("manage@1=ssr", "can have"),
            ("time@5=reset", "expected a time, as time@500ms"),
            ("time@99999999999999999999s=reset", "a time"),
            ("time@5ms=reset*2", "no count"),
            ("manage@1=nack", "expected nack(STATUS)"),
            ("manage@1=nack(0)", "expected nack(STATUS)"),
            ("manage@1=nack(1", "a closing parenthesis"),
            ("manage@1=EWHAT", "expected one of EPERM,"),
            ("command(what)@1=crc", "expected one of load_constants,"),
            ("command(activate@1=crc", "expected command(NAME)@NUMBER"),
            ("manage@1=reset(1)", "an action, as"),
        ] {
            let error = FaultPlan::parse(text).map_err(|error| error.to_string());
            assert!(error.as_ref().is_err_and(|error| error.contains(message)), "{text}: {error:?}");
        }
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in "[a-z_@=*;()0-9EAGIN -]{0,60}") {
            let _ = FaultPlan::parse(&text);
        }

        #[test]
        fn a_rule_applies_count_times_from_its_first(first in 1_u64..20, count in 1_u64..20) {
            let mut book = book(&format!("attach@{first}=ENOSPC*{count}"));
            for call in 1..50 {
                let is_in = call >= first && call < first + count;
                prop_assert_eq!(book.happens(Trigger::Attach).is_some(), is_in);
            }
        }
    }
}
