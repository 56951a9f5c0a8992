//! Faults of emulated cards and of `noop` devices, and their triggers: one language for both.
//!
//! A plan contains rules `TRIGGER@WHICH=ACTION`, separated by `;`; the first matching rule applies. `WHICH` is the
//! number of the call, from 1, an inclusive range `2..4`, or `*` for all calls. The suffix `*3` of an action applies
//! it three times in a row, starting with that call; `*all` applies it to all later calls. Arguments of an action are
//! in parentheses or after a colon: `nack(-13)`, `slow:20ms`. Times have a unit: `us`, `ms`, `s`.
//!
//! | trigger | devices | time |
//! |---|---|---|
//! | `open@N`, `manage@N`, `create_bo@N`, `mmap_bo@N`, `mmap@N`, `attach@N`, `execute@N`, `wait@N`, `perf_stats@N`, `detach@N`, `import@N`, `version@N` | cards | the N-th such call; `mmap_bo` requests an offset, `mmap` maps; `execute` is both execute calls |
//! | `command(NAME)@N`, `features@N` | cards | the N-th control message with this command (a name or a number); with a status transaction |
//! | `inference@N` | cards | the N-th execute call that is accepted |
//! | `time@500ms` | cards | this time after the plan was set |
//! | `load@N`, `activate@N`, `exec@N`, `execute@N` | `noop` | the N-th load of a program, activation, exec that is created, inference that is run |
//!
//! | action | devices | effect |
//! |---|---|---|
//! | `EAGAIN`, `ENOMEM`, ... | cards | the call fails with this error and has no effect |
//! | `nack(-13)`, `nack_both(-13)` | cards | the firmware refuses: in the command's reply; in the channel's transaction too |
//! | `crc` | cards | the reply's checksum is wrong |
//! | `wrong_type`, `truncated`, `count(5)`, `channel(16)`, `dbc(16)` | cards | the reply has another type, is truncated to a word, declares this number of transactions, contains this channel in the command's reply or in the channel's transaction |
//! | `reset` | cards | the card is reset |
//! | `dead` | cards | every open file of the card fails from now on |
//! | `ssr(0)`, `ssr_without_power_up(0)` | cards | the cores of a channel fail and restart, or do not restart; without a number, the channel of the call |
//! | `lost_completion`, `short_completion`, `dma_status(7)` | cards | the inference's last element, or its first slice, never completes; every element completes with this status |
//! | `hang` | cards | the cores of the inference's channel stop; the firmware does not reply |
//! | `slow(20ms)` | both | the call takes this time, or until it is cancelled; the firmware's reply is delayed by this time |
//! | `stuck` | `noop` | the call lasts until it is cancelled or the device is lost |
//! | `fail` | `noop` | the inference fails |
//! | `lost` | `noop` | the device is reset: programs that are loaded are lost, programs that are loaded afterwards work |
//! | `no_cores`, `no_memory` | `noop` | no cores are free, no memory is left |

mod counter;
mod reply_corruption;
mod vocabulary;

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

pub use counter::FaultCounter;
pub use reply_corruption::corrupt;
pub use vocabulary::{Action, Target, Trigger};

/// Faults of a device and their triggers; none by default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    rules: Vec<Rule>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    trigger: Trigger,
    when: When,
    action: Action,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum When {
    /// Calls with these numbers, starting at 1.
    Calls(RangeInclusive<u64>),
    /// This time after the plan was set.
    After(Duration),
}

/// Error for a text that is not a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultPlanError {
    rule: String,
    expected: String,
}

impl fmt::Display for FaultPlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "fault rule \"{}\": expected {}", self.rule, self.expected)
    }
}

impl std::error::Error for FaultPlanError {}

impl FaultPlan {
    /// Parses a plan for a kind of device; the module's documentation defines the format.
    pub fn parse(text: &str, target: Target) -> Result<Self, FaultPlanError> {
        let rules = text.split(';').map(str::trim).filter(|rule| !rule.is_empty());
        let rules = rules.map(|rule| {
            parse_rule(rule, target).map_err(|expected| FaultPlanError { rule: rule.to_owned(), expected })
        });
        Ok(Self { rules: rules.collect::<Result<_, _>>()? })
    }

    /// Returns the fault of the `nth` call of this kind, counted from 1.
    pub fn action(&self, trigger: Trigger, nth: u64) -> Option<Action> {
        let fits = |rule: &&Rule| {
            rule.trigger == trigger && matches!(&rule.when, When::Calls(calls) if calls.contains(&nth))
        };
        self.rules.iter().find(fits).map(|rule| rule.action)
    }

    /// Returns true if the plan has a fault for calls of this kind.
    pub fn mentions(&self, trigger: Trigger) -> bool {
        self.rules.iter().any(|rule| rule.trigger == trigger)
    }

    /// Returns the faults that start by the clock: the delay after the plan was set, and the fault.
    pub fn timed(&self) -> impl Iterator<Item = (Duration, Action)> {
        self.rules.iter().filter_map(|rule| match rule.when {
            When::After(time) => Some((time, rule.action)),
            When::Calls(_) => None,
        })
    }
}

fn parse_rule(rule: &str, target: Target) -> Result<Rule, String> {
    let form = match target {
        Target::Noop => "TRIGGER@WHICH=ACTION, such as execute@3=fail",
        Target::Card => "TRIGGER@WHICH=ACTION, such as execute@3=EAGAIN",
    };
    let (left, right) = rule.split_once('=').ok_or(form)?;
    let left = left.trim();
    let (name, which) = left.split_once('@').ok_or(form)?;
    let trigger = vocabulary::trigger(name.trim(), target)?;
    let when = parse_when(trigger, which.trim())?;
    let (text, count) = match right.split_once('*') {
        None => (right, None),
        Some((text, count)) => (text, Some(parse_count(count.trim())?)),
    };
    let action = vocabulary::action(text.trim(), left, trigger, target)?;
    let when = match (when, count) {
        (when, None) => when,
        (When::Calls(calls), Some(count)) if calls.start() == calls.end() => {
            When::Calls(*calls.start()..=calls.start().saturating_add(count - 1))
        }
        (When::Calls(_), Some(_)) => return Err("no count after an action of several calls".to_owned()),
        (When::After(_), Some(_)) => return Err("no count after an action with a time".to_owned()),
    };
    Ok(Rule { trigger, when, action })
}

fn parse_when(trigger: Trigger, which: &str) -> Result<When, String> {
    if trigger == Trigger::Time {
        return parse_time(which).map(When::After).ok_or_else(|| "a time, such as time@500ms".to_owned());
    }
    if which == "*" {
        return Ok(When::Calls(1..=u64::MAX));
    }
    let (first, last) = which.split_once("..").unwrap_or((which, which));
    let number = |text: &str| text.trim().parse::<u64>().ok();
    match (number(first), number(last)) {
        (Some(first), Some(last)) if 1 <= first && first <= last => Ok(When::Calls(first..=last)),
        _ => Err(format!("a call number from 1, a range such as 2..4, or *, instead of \"{which}\"")),
    }
}

fn parse_count(text: &str) -> Result<u64, String> {
    match text {
        "all" => Ok(u64::MAX),
        count => {
            let count = count.parse().ok().filter(|count| *count > 0);
            count.ok_or_else(|| "a count, such as *3, or *all".to_owned())
        }
    }
}

/// Parses a time with its unit.
fn parse_time(text: &str) -> Option<Duration> {
    let text = text.trim();
    let unit_at = text.find(|letter: char| letter.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(unit_at);
    let units_per_second = match unit {
        "s" => 1.0,
        "ms" => 1e3,
        "us" => 1e6,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.trim().parse::<f64>().ok()? / units_per_second).ok()
}

#[cfg(test)]
mod tests;
