//! Programs on several cards, cores shared by name, and a forked child's view, through the runtime's own objects.

use crate::tests::prelude::*;

/// Cards that no other test uses.
fn context(cards: u32) -> Arc<Context> {
    noop(RegistryOptions { virtual_cards: Some(cards), ..RegistryOptions::default() })
}

/// A program of four cores.
fn image() -> Arc<Image> {
    let image = recorded();
    assert_eq!(image.network.num_cores, 4);
    image
}

fn in_group(name: &str) -> ProgramOptions {
    let load = LoadOptions { share_group: Some(name.to_owned()), ..LoadOptions::default() };
    ProgramOptions { load, ..ProgramOptions::default() }
}

fn free(context: &Context) -> Vec<u32> {
    context.devices.iter().map(|device| device.resources().nsp_free).collect()
}

#[test]
fn program_on_several_cards_takes_its_cores_on_each() {
    let context = context(4);
    let mapping = Placement::parse("2:0:3").unwrap();
    let program = Program::new(&context, &image(), &mapping, &ProgramOptions::default()).unwrap();
    program.load().unwrap();
    assert_eq!(free(&context), [16; 4]);
    program.activate().unwrap();
    assert_eq!(free(&context), [12, 16, 12, 12]);
    program.deactivate().unwrap();
    assert_eq!(free(&context), [16; 4]);
}

#[test]
fn program_refused_by_one_full_card_takes_nothing_on_others() {
    let context = context(2);
    let image = image();
    let options = ProgramOptions::default();
    let on_one = |id| Placement::one(DeviceId(id));
    let _full = InferenceSet::new(&context, &image, &on_one(1), 1, 4, options.clone()).unwrap();
    let both = Placement::parse("0:1").unwrap();
    let program = Program::new(&context, &image, &both, &options).unwrap();
    match program.activate().unwrap_err().into_detail() {
        ErrorDetail::Device(DeviceError::Busy { id: 1, needed: 4, free: 0, total: 16 }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(free(&context), [16, 0]);
    match InferenceSet::new(&context, &image, &both, 1, 2, options).unwrap_err().into_detail() {
        ErrorDetail::Device(DeviceError::Busy { id: 1, needed: 8, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(free(&context), [16, 0]);
}

#[test]
fn impossible_placement_is_refused_when_the_program_is_made() {
    let context = context(2);
    let refused = |devices: &[u32]| {
        let mapping = Placement { devices: devices.iter().copied().map(DeviceId).collect() };
        Program::new(&context, &image(), &mapping, &ProgramOptions::default()).unwrap_err()
    };
    assert_eq!(refused(&[]).code(), "call.argument");
    assert_eq!(refused(&[1, 1]).code(), "call.argument");
    match refused(&[0, 2]).into_detail() {
        ErrorDetail::Device(DeviceError::NotFound { id: 2, existing }) => assert_eq!(existing, [0, 1]),
        other => panic!("{other:?}"),
    }
}

#[test]
fn sets_of_one_name_share_cores_and_others_do_not() {
    let context = context(2);
    let image = image();
    let set =
        |activations, options: &ProgramOptions| try_set(&context, &image, 1, activations, options.clone());
    let large = set(3, &in_group("group1")).unwrap();
    assert_eq!(free(&context), [4, 16]);
    // Members of the same or a smaller size need no more cores.
    let small = set(1, &in_group("group1")).unwrap();
    let same = set(3, &in_group("group1")).unwrap();
    assert_eq!(free(&context), [4, 16]);
    match set(2, &ProgramOptions::default()).unwrap_err().into_detail() {
        ErrorDetail::Device(DeviceError::Busy { needed: 8, free: 4, .. }) => {}
        other => panic!("{other:?}"),
    }
    let largest = set(4, &in_group("group1")).unwrap();
    assert_eq!(free(&context), [0, 16]);
    match set(1, &in_group("group2")).unwrap_err().into_detail() {
        ErrorDetail::Device(DeviceError::Busy { needed: 4, free: 0, .. }) => {}
        other => panic!("{other:?}"),
    }
    drop((large, largest, same));
    assert_eq!(free(&context), [12, 16]);
    let apart = set(3, &in_group("group2")).unwrap();
    assert_eq!(free(&context), [0, 16]);
    drop((small, apart));
    assert_eq!(free(&context), [16, 16]);
}

#[test]
fn program_holds_its_memory_and_id_until_its_drop() {
    let context = context(1);
    let image = image();
    let unused = context.devices[0].resources();
    let set = set(&context, &image, 1, 2);
    let used = context.devices[0].resources();
    assert_eq!(used.dram_free_mb, unused.dram_free_mb - 1);
    assert_eq!((used.vc_free, used.programs_loaded, used.programs_active), (14, 1, 2));
    assert_eq!((used.constants_loaded, used.constants_in_use), (1, 1));
    // The descriptors of this container: two semaphores and one multicast id.
    assert_eq!((used.semaphore_free, used.mcid_free), (28, 3070));
    drop(set);
    assert_eq!(context.devices[0].resources(), unused);
}

#[test]
fn program_goes_where_its_user_says_and_else_to_free_cores() {
    let context = context(3);
    let image = image();
    let candidates = [DeviceId(1), DeviceId(2)];
    let place = |device: Option<u32>, mapping| {
        let placed = context.place(&candidates, device.map(DeviceId), mapping, &image);
        placed.map(|placed| (placed.placement.to_string(), placed.is_chosen))
    };
    assert_eq!(place(None, "").unwrap(), ("1".to_owned(), true));
    assert_eq!(place(Some(1), "").unwrap(), ("1".to_owned(), false));
    assert_eq!(place(None, "2:1").unwrap(), ("2:1".to_owned(), false));
    assert_eq!(place(Some(0), "").unwrap_err().to_string(), "device 0 does not exist; existing ids: [1, 2]");
    let on_one = Placement::one(DeviceId(1));
    let _full = InferenceSet::new(&context, &image, &on_one, 1, 4, ProgramOptions::default()).unwrap();
    assert_eq!(place(None, "").unwrap(), ("2".to_owned(), true));
    assert_eq!(place(Some(1), "").unwrap(), ("1".to_owned(), false));
}

#[test]
fn program_of_one_device_stays_on_the_first_where_the_order_counts() {
    let context = context(2);
    let image = image();
    let first = Placement::one(DeviceId(0));
    let _full = set(&context, &image, 1, 4);
    assert_eq!(context.choose(&[DeviceId(0), DeviceId(1)], &image).unwrap(), Placement::one(DeviceId(1)));
    assert_eq!(context.choose_in_order(&image).unwrap(), first);
}

#[test]
fn program_knows_its_own_context_alone() {
    let (own, other) = (context(1), context(1));
    let card = Placement::one(DeviceId(0));
    let program = Program::new(&own, &image(), &card, &ProgramOptions::default()).unwrap();
    program.check_context(&own).unwrap();
    assert_eq!(
        program.check_context(&other).unwrap_err().to_string(),
        "the program belongs to another context; pass the context that created it"
    );
}

#[test]
fn listed_devices_count_once_and_an_empty_list_means_all() {
    let context = context(3);
    let select = |ids: &[u32]| {
        let listed = ids.iter().map(|id| Ok::<_, RuntimeError>(DeviceId(*id)));
        context.select(listed).map(|found| found.iter().map(|id| id.0).collect::<Vec<_>>())
    };
    assert_eq!(select(&[2, 0, 2, 0]).unwrap(), [2, 0]);
    assert_eq!(select(&[]).unwrap(), [0, 1, 2]);
    assert_eq!(select(&[1, 5]).unwrap_err().to_string(), "device 5 does not exist; existing ids: [0, 1, 2]");
    // The first error is reported.
    let failed = || Err(DeviceError::NotFound { id: 9, existing: Vec::new() }.into());
    let codes = |first, second| {
        let refusal: RuntimeError = context.select([first, second]).unwrap_err();
        refusal.to_string()
    };
    assert!(codes(Ok(DeviceId(5)), failed()).starts_with("device 5"));
    assert!(codes(failed(), Ok(DeviceId(5))).starts_with("device 9"));
}
