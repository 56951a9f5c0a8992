//! What goes wrong on a `noop` device, and when: `execute@3=slow:20ms; execute@5=stuck; load@1=no_memory`.
//!
//! A rule is `CALL@WHICH=FAULT`; rules are separated by `;` and the first that fits decides. `WHICH` is the number of the
//! call, from 1; a range `2..4` with both ends; or `*`.

use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use crate::error::RuntimeError;

/// Calls of the device seam that can go wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// Loading a program.
    Load,
    /// Activating it.
    Activate,
    /// Making an exec.
    Exec,
    /// Running an inference.
    Execute,
}

impl Call {
    /// All of them, in the order of a program's life.
    pub const ALL: [Self; 4] = [Self::Load, Self::Activate, Self::Exec, Self::Execute];

    /// Name in a plan.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Activate => "activate",
            Self::Exec => "exec",
            Self::Execute => "execute",
        }
    }

    /// Faults this call can have. Only calls that can be cancelled may take long.
    const fn faults(self) -> &'static [&'static str] {
        match self {
            Self::Load => &["slow:TIME", "stuck", "no_memory", "lost"],
            Self::Activate => &["no_cores", "no_memory", "lost"],
            Self::Exec => &["no_memory", "lost"],
            Self::Execute => &["slow:TIME", "stuck", "fail", "lost"],
        }
    }
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call takes this long, or until it is cancelled.
    Slow(Duration),
    /// The call lasts until it is cancelled or the device is lost.
    Stuck,
    /// The inference fails.
    Fail,
    /// The device is reset: all that was loaded before is lost, what is loaded afterwards works.
    Lost,
    /// No cores are free.
    NoCores,
    /// No memory is left.
    NoMemory,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Rule {
    call: Call,
    which: RangeInclusive<u64>,
    fault: Fault,
}

/// Rules in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    rules: Vec<Rule>,
}

impl FaultPlan {
    /// What happens to the `nth` call of this kind.
    pub fn fault(&self, call: Call, nth: u64) -> Option<Fault> {
        self.rules.iter().find(|rule| rule.call == call && rule.which.contains(&nth)).map(|rule| rule.fault)
    }

    /// Whether calls of this kind can go wrong at all.
    pub fn mentions(&self, call: Call) -> bool {
        self.rules.iter().any(|rule| rule.call == call)
    }
}

impl FromStr for FaultPlan {
    type Err = RuntimeError;

    fn from_str(text: &str) -> Result<Self, RuntimeError> {
        let rules = text.split(';').map(str::trim).filter(|rule| !rule.is_empty());
        Ok(Self { rules: rules.map(rule).collect::<Result<_, _>>()? })
    }
}

fn rule(text: &str) -> Result<Rule, RuntimeError> {
    let refuse = |reason: String| RuntimeError::Argument { what: format!("fault rule {text:?}: {reason}") };
    let parts = text.split_once('@').and_then(|(call, rest)| Some((call, rest.split_once('=')?)));
    let Some((call, (which, fault))) = parts else {
        return Err(refuse("CALL@WHICH=FAULT is expected, as in execute@3=fail".to_owned()));
    };
    let call = Call::ALL.into_iter().find(|known| known.name() == call.trim()).ok_or_else(|| {
        refuse(format!("{call:?} is no call; known: {}", Call::ALL.map(Call::name).join(", ")))
    })?;
    let which = range(which.trim())
        .ok_or_else(|| refuse(format!("{which:?} is not a number from 1, a range as 2..4, or *")))?;
    let fault = fault.trim();
    let (name, time) = fault.split_once(':').map_or((fault, None), |(name, time)| (name, Some(time)));
    let known = call.faults().iter().any(|known| known.split(':').next() == Some(name));
    let fault = match (known, name, time) {
        (true, "slow", Some(time)) => Fault::Slow(
            duration(time).ok_or_else(|| refuse(format!("{time:?} is not a time as 20ms, 1.5s or 300us")))?,
        ),
        (true, "stuck", None) => Fault::Stuck,
        (true, "fail", None) => Fault::Fail,
        (true, "lost", None) => Fault::Lost,
        (true, "no_cores", None) => Fault::NoCores,
        (true, "no_memory", None) => Fault::NoMemory,
        _ => {
            return Err(refuse(format!(
                "{fault:?} cannot happen to {}; possible: {}",
                call.name(),
                call.faults().join(", ")
            )));
        }
    };
    Ok(Rule { call, which, fault })
}

fn range(text: &str) -> Option<RangeInclusive<u64>> {
    if text == "*" {
        return Some(1..=u64::MAX);
    }
    let (first, last) = text.split_once("..").unwrap_or((text, text));
    let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (1 <= first && first <= last).then_some(first..=last)
}

fn duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let unit_at = text.find(|letter: char| letter.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(unit_at);
    let seconds = match unit {
        "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.trim().parse::<f64>().ok()? * seconds).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_rule_that_fits_decides() {
        let plan: FaultPlan =
            "execute@2..4=fail; execute@3=stuck; execute@7 = slow:1.5s ;load@*=no_memory;".parse().unwrap();
        let execute: Vec<_> = (1..=7).map(|nth| plan.fault(Call::Execute, nth)).collect();
        let (fail, slow) = (Some(Fault::Fail), Some(Fault::Slow(Duration::from_millis(1500))));
        assert_eq!(execute, [None, fail, fail, fail, None, None, slow]);
        assert_eq!(plan.fault(Call::Load, u64::MAX), Some(Fault::NoMemory));
        assert!(plan.mentions(Call::Load) && !plan.mentions(Call::Activate));
        assert_eq!("".parse::<FaultPlan>().unwrap(), FaultPlan::default());
    }

    #[test]
    fn refusals_name_the_rule_and_what_is_possible() {
        let refused = |text: &str| text.parse::<FaultPlan>().unwrap_err().to_string();
        assert!(refused("execute@1=fail; execute=fail").contains("\"execute=fail\": CALL@WHICH=FAULT"));
        assert!(refused("run@1=fail").contains("known: load, activate, exec, execute"));
        for which in ["0", "4..2", "", "a", "1..", "-1", "1.5"] {
            assert!(refused(&format!("execute@{which}=fail")).contains("is not a number from 1"));
        }
        for time in ["20", "ms", "-1ms", "1h", "nans", "infs", "1e300s"] {
            assert!(refused(&format!("execute@1=slow:{time}")).contains("is not a time"));
        }
        for (call, fault) in [
            ("execute", "no_cores"),
            ("activate", "stuck"),
            ("exec", "fail"),
            ("load", "slow"),
            ("load", "lost:1s"),
        ] {
            let text = refused(&format!("{call}@1={fault}"));
            assert!(text.contains(&format!("{fault:?} cannot happen to {call}; possible: ")), "{text}");
        }
    }
}
