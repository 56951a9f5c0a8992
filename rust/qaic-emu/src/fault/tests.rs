//! Plans as text, and their faults for calls.

use proptest::prelude::*;
use qaic_kmd::Errno;

use super::*;

fn plan(text: &str, target: Target) -> FaultPlan {
    FaultPlan::parse(text, target).unwrap_or_else(|error| panic!("{error}"))
}

/// Returns the faults of the first calls of a kind.
fn first_of(plan: &FaultPlan, trigger: Trigger, count: u64) -> Vec<Option<Action>> {
    (1..=count).map(|nth| plan.action(trigger, nth)).collect()
}

#[test]
fn card_rules_apply_to_the_calls_they_name() {
    let plan = plan("execute@2=EAGAIN*2; execute@3=EPIPE; wait@1=ETIMEDOUT*all;", Target::Card);
    let again = Some(Action::Fail(Errno::AGAIN));
    assert_eq!(first_of(&plan, Trigger::Execute, 5), [None, again, again, None, None]);
    assert_eq!(plan.action(Trigger::Wait, u64::MAX), Some(Action::Fail(Errno::TIMEDOUT)));
    assert_eq!(plan.action(Trigger::Open, 1), None);
    assert!(plan.mentions(Trigger::Wait) && !plan.mentions(Trigger::Open));
}

#[test]
fn noop_rules_apply_to_the_calls_they_name() {
    let text = "execute@2..4=fail; execute@3=stuck; execute@7 = slow:1.5s ;load@*=no_memory;";
    let plan = plan(text, Target::Noop);
    let (fail, slow) = (Some(Action::FailInference), Some(Action::Slow(Duration::from_millis(1500))));
    assert_eq!(first_of(&plan, Trigger::Execute, 7), [None, fail, fail, fail, None, None, slow]);
    assert_eq!(plan.action(Trigger::Load, u64::MAX), Some(Action::NoMemory));
    assert_eq!(FaultPlan::parse("", Target::Noop), Ok(FaultPlan::default()));
}

#[test]
fn plan_in_either_spelling_is_parsed_for_either_device() {
    for (one, other, target) in [
        ("execute@2..4=EAGAIN", "execute@2=EAGAIN*3", Target::Card),
        ("wait@*=reset", "wait@1=reset*all", Target::Card),
        ("manage@1=nack:-13", "manage@1=nack(-13)", Target::Card),
        ("execute@2=fail*3", "execute@2..4=fail", Target::Noop),
        ("load@1=slow(20ms)", "load@1=slow:0.02s", Target::Noop),
        ("time@1.5s=reset", "time@1500ms=reset", Target::Card),
    ] {
        assert_eq!(plan(one, target), plan(other, target), "{one}");
    }
}

#[test]
fn timed_actions_come_with_their_times() {
    let plan = plan("time@1500us=reset; wait@1=reset; time@2s=dead", Target::Card);
    let timed: Vec<_> = plan.timed().collect();
    assert_eq!(timed, [(Duration::from_micros(1500), Action::Reset), (Duration::from_secs(2), Action::Dead)]);
}

#[test]
fn plan_of_every_row_of_the_table_is_parsed() {
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
        "open@1=EACCES; open@1=ENOENT; import@1=ENOMEM; version@1=EINTR; detach@1=EIO; perf_stats@1=EIO",
        "inference@1=hang; manage@1=hang",
        "manage@2=slow(1s); command(activate)@1=slow:20ms; features@1=slow(300us)",
    ] {
        assert!(FaultPlan::parse(text, Target::Card).is_ok(), "{text}");
    }
    for text in [
        "load@1=slow:20ms; load@2=stuck; load@3=no_memory; load@4=lost",
        "activate@1=no_cores; activate@2=no_memory; activate@3=lost",
        "exec@1=no_memory; exec@2=lost",
        "execute@1=slow:20ms; execute@2=stuck; execute@3=fail; execute@4=lost",
    ] {
        assert!(FaultPlan::parse(text, Target::Noop).is_ok(), "{text}");
    }
}

#[test]
fn bad_plan_of_cards_is_refused_with_the_rule_and_the_expectation() {
    for (text, message) in [
        ("execute", "fault rule \"execute\": expected TRIGGER@WHICH=ACTION, such as execute@3=EAGAIN"),
        ("execute=EAGAIN", "expected TRIGGER@WHICH=ACTION"),
        ("wait@1=reset;execute@0=EAGAIN", "rule \"execute@0=EAGAIN\": expected a call number from 1"),
        ("execute@1=EAGAIN*0", "expected a count, such as *3, or *all"),
        ("execute@1..2=EAGAIN*2", "no count after an action of several calls"),
        ("execute@1=nack(-1)", "expected an action that \"execute@1\" can have (EPERM, "),
        ("inference@1=EIO", "can have (reset, dead, ssr(CHANNEL), "),
        ("execute@1=fail", "can have"),
        ("execute@1=slow(1s)", "can have"),
        ("open@1=ssr(1)", "can have (EPERM, "),
        ("manage@1=ssr", "can have"),
        ("time@5=reset", "expected a time, such as time@500ms"),
        ("time@99999999999999999999s=reset", "a time"),
        ("time@5ms=reset*2", "no count after an action with a time"),
        ("manage@1=nack", "expected nack(STATUS)"),
        ("manage@1=nack(0)", "expected nack(STATUS)"),
        ("manage@1=nack(1", "a closing parenthesis"),
        ("manage@1=EWHAT", "instead of \"EWHAT\""),
        ("command(what)@1=crc", "expected one of load_elf,"),
        ("command(activate@1=crc", "expected command(NAME)@WHICH"),
        ("manage@1=reset(1)", "instead of \"reset(1)\""),
        ("load@1=no_memory", "expected one of open, manage,"),
    ] {
        let error = FaultPlan::parse(text, Target::Card).map_err(|error| error.to_string());
        assert!(error.as_ref().is_err_and(|error| error.contains(message)), "{text}: {error:?}");
    }
}

#[test]
fn bad_plan_of_noop_devices_is_refused_with_the_rule_and_the_possible_actions() {
    let refused = |text: &str| FaultPlan::parse(text, Target::Noop).unwrap_err().to_string();
    assert!(
        refused("execute@1=fail; execute=fail")
            .contains("\"execute=fail\": expected TRIGGER@WHICH=ACTION, such as execute@3=fail")
    );
    assert!(refused("run@1=fail").contains("one of load, activate, exec, execute instead of \"run\""));
    for which in ["0", "4..2", "", "a", "1..", "-1", "1.5"] {
        assert!(refused(&format!("execute@{which}=fail")).contains("a call number from 1"));
    }
    for time in ["20", "ms", "-1ms", "1h", "nans", "infs", "1e300s"] {
        assert!(refused(&format!("execute@1=slow:{time}")).contains("expected slow(TIME, such as 20ms"));
    }
    for (call, fault, possible) in [
        ("execute", "no_cores", "slow(TIME), stuck, fail, lost"),
        ("activate", "stuck", "lost, no_cores, no_memory"),
        ("exec", "fail", "lost, no_memory"),
        ("load", "lost:1s", "slow(TIME), stuck, lost, no_memory"),
        ("load", "EAGAIN", "slow(TIME), stuck, lost, no_memory"),
    ] {
        let text = refused(&format!("{call}@1={fault}"));
        let expected = format!("an action that \"{call}@1\" can have ({possible}) instead of \"{fault}\"");
        assert!(text.ends_with(&expected), "{text}");
    }
}

proptest! {
    #[test]
    fn plan_of_any_text_is_parsed_without_a_panic(text in "[a-z_@=*;:.()0-9EAGIN -]{0,60}") {
        for target in [Target::Card, Target::Noop] {
            let _ = FaultPlan::parse(&text, target);
        }
    }

    #[test]
    fn rule_with_a_count_applies_so_often_from_its_first_call(first in 1_u64..20, count in 1_u64..20) {
        let plan = plan(&format!("attach@{first}=ENOSPC*{count}"), Target::Card);
        for call in 1..50 {
            let is_in = call >= first && call < first + count;
            prop_assert_eq!(plan.action(Trigger::Attach, call).is_some(), is_in);
        }
    }
}
