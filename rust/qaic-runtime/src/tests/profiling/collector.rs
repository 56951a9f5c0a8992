//! Collectors: the accepted programs, and the data that remains of a deleted program.

use crate::tests::prelude::*;
use qaic_runtime::profiling::{Collector, NameFilter, ProfiledProgram};

use super::profiler::run;

fn set(set_size: u32, activations: u32) -> Arc<InferenceSet> {
    HeldNoop::default().set(&image(ElementType::Float32), set_size, activations)
}

fn collector(filter: Option<NameFilter>) -> Arc<Collector> {
    Collector::new(Profiler::new(SamplingRule::default(), Limits::default(), DeviceStats::Never), filter)
}

#[test]
fn collector_with_a_filter_takes_the_programs_made_later_that_it_accepts() {
    let earlier = set(1, 1);
    let name = earlier.programs[0].subscriptions.name().to_owned();
    let all = collector(Some(Box::new(move |found| found == name)));
    let none = collector(Some(Box::new(|_| false)));
    assert!(all.profiler.start().unwrap() && !all.profiler.start().unwrap() && all.profiler.is_running());
    let set = set(2, 1);
    // Other tests of this process also create programs, with this name and others.
    let number = all.add(&set.programs[0].subscriptions).unwrap();
    let programs = all.programs();
    let facts = &programs[number as usize].facts;
    assert_eq!((facts.number, facts.set_size, facts.activations), (number, Some(2), 1));
    run(&set, 3);
    run(&earlier, 1);
    let drained = all.drain().unwrap();
    assert_eq!(drained.of_program(number).host().len(), 3);
    assert!(none.programs().is_empty());
    assert!(all.profiler.stop().unwrap() && !all.profiler.stop().unwrap());
}

#[test]
fn collector_without_a_filter_takes_what_it_is_given_until_that_is_removed() {
    let collector = collector(None);
    let first = set(1, 1);
    let second = set(1, 1);
    assert!(collector.programs().is_empty());
    let registries = [&first, &second].map(|set| Arc::clone(&set.programs[0].subscriptions));
    assert_eq!(collector.add(&registries[0]).unwrap(), 0);
    assert_eq!(collector.add(&registries[1]).unwrap(), 1);
    assert_eq!(collector.add(&registries[0]).unwrap(), 0);
    assert!(collector.remove(&registries[0]).unwrap() && !collector.remove(&registries[0]).unwrap());
    let profiled: Vec<_> = collector.programs().iter().map(ProfiledProgram::is_profiled).collect();
    assert_eq!(profiled, [false, true]);
    collector.profiler.start().unwrap();
    run(&first, 2);
    run(&second, 1);
    let drained = collector.drain().unwrap();
    let samples = |program| drained.of_program(program).host().len();
    assert_eq!((samples(0), samples(1), drained.host().len()), (0, 1, 1));
    assert_eq!(drained.latency_report(0, false).unwrap(), None);
    assert!(drained.latency_report(0, true).unwrap().is_some());
    assert!(drained.latency_report(1, false).unwrap().is_some());
    assert_eq!(drained.latency_report(2, true).unwrap(), None);
}

#[test]
fn collector_keeps_a_container_until_the_last_samples_of_its_program_were_fetched() {
    let collector = collector(None);
    let set = set(1, 1);
    collector.add(&set.programs[0].subscriptions).unwrap();
    collector.profiler.start().unwrap();
    run(&set, 1);
    let has_image = || collector.programs()[0].image.is_some();
    assert_eq!(collector.drain().unwrap().host().len(), 1);
    assert!(has_image());
    run(&set, 1);
    drop(set);
    assert!(!collector.programs()[0].is_profiled() && has_image());
    let last = collector.drain().unwrap();
    assert!(last.host().len() == 1 && last.programs[0].image.is_some() && !has_image());
    assert_eq!(collector.programs()[0].facts, last.programs[0].facts);
}
