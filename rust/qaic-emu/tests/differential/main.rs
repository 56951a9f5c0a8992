//! Plays one list of calls on the emulated driver and on the driver of the running kernel. The results and
//! the effects of each call are the same, or docs/reference/emulated-cards.md explains the difference.
//!
//! Without the other driver, the emulated one is compared with itself, which shows that calls have one
//! outcome. The tests that need the mainline driver run in the guest of `make test-kernel`.

#![allow(clippy::unwrap_used)]

mod call;
mod data_path;
mod player;
mod random;
mod rig;
mod scripted;

use call::Call;
use player::play;
use rig::Rig;

/// Remaining differences in the guide's table, by the sequence that shows each.
const EXPLAINED: [&str; 5] = [
    "close_of_a_file_that_is_mapped",
    "execution_on_another_channel",
    "mapping_of_a_closed_handle",
    "replies_that_are_cut",
    "replies_with_another_count",
];
const GUIDE: &str = include_str!("../../../../docs/reference/emulated-cards.md");

/// Returns the calls with their outcomes up to the first difference, and that difference; `None` if there is
/// none.
fn difference(calls: &[Call], first: &Rig, second: &Rig) -> Option<String> {
    let (one, other) = (play(calls, first), play(calls, second));
    let at = one.iter().zip(&other).position(|(one, other)| one != other)?;
    let before: Vec<_> = one[..at].iter().map(|line| format!("    {line}\n")).collect();
    let before = before.concat();
    let (first, second) = (first.name(), second.name());
    Some(format!("{before}{first:>4}: {}\n{second:>4}: {}", one[at], other[at]))
}

fn emulated_for(calls: &[Call]) -> Rig {
    let at_once = calls.iter().any(|call| matches!(call, Call::While(..)));
    if at_once { Rig::emulated_in_time() } else { Rig::emulated() }
}

fn compare_scripted(other: &dyn Fn(&[Call]) -> Rig, explained: &[&str]) {
    let mut wrong = String::new();
    for (name, calls) in scripted::all() {
        let found = difference(&calls, &emulated_for(&calls), &other(&calls));
        if found.is_some() != explained.contains(&name.as_str()) {
            let found = found.unwrap_or_else(|| "no difference, though one is explained".to_owned());
            wrong.extend([&name, ":\n", &found, "\n"]);
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

fn compare_random(cases: u32, seed: [u8; 32], other: &dyn Fn() -> Rig) {
    random::check(cases, seed, &|calls| difference(calls, &Rig::emulated(), &other()));
}

/// Returns a number from an environment variable.
fn variable(name: &str, otherwise: u32) -> u32 {
    std::env::var(name).map_or(otherwise, |text| text.parse().unwrap())
}

#[test]
fn calls_have_one_outcome_on_the_emulated_driver() {
    compare_scripted(&emulated_for, &[]);
    compare_random(64, [17; 32], &Rig::emulated);
}

#[test]
fn differences_that_stay_are_in_the_guide() {
    let names: Vec<_> = scripted::all().into_iter().map(|(name, _)| name).collect();
    for name in EXPLAINED {
        assert!(names.iter().any(|known| known == name), "{name} is no sequence");
        assert!(
            GUIDE.contains(&format!("| `{name}` |")),
            "{name} is not in the table of docs/reference/emulated-cards.md"
        );
    }
}

#[test]
#[ignore = "needs the mainline driver: make test-kernel"]
fn scripted_calls_have_the_outcome_of_the_mainline_driver() {
    compare_scripted(&|_| Rig::mainline(), &EXPLAINED);
}

/// Runs `QAIC_DIFFERENTIAL_CASES` sequences, which `QAIC_DIFFERENTIAL_SEED` selects.
#[test]
#[ignore = "needs the mainline driver: make test-kernel"]
fn random_calls_have_the_outcome_of_the_mainline_driver() {
    let mut seed = [17; 32];
    seed[..4].copy_from_slice(&variable("QAIC_DIFFERENTIAL_SEED", 0).to_le_bytes());
    let cases = variable("QAIC_DIFFERENTIAL_CASES", 150);
    compare_random(cases, seed, &Rig::mainline);
}
