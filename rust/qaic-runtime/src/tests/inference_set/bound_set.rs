//! Handles of a set with the memory that callers share: the memory that is returned if an inference cannot
//! begin.

use crate::tests::first_device;
use crate::tests::prelude::*;
use qaic_runtime::request::BoundSet;

const HANDLES: u32 = 2;

fn set() -> BoundSet {
    let context = noop(RegistryOptions::default());
    BoundSet::new(first_device::set(&context, &resizable(), HANDLES, 1)).unwrap()
}

fn buffers() -> Vec<Arc<SharedMemory>> {
    (0..3).map(|_| first_device::shared(Storage::new(4 * ELEMENTS as usize).unwrap())).collect()
}

fn available(set: &BoundSet) -> usize {
    let taken: Vec<_> = std::iter::from_fn(|| set.set.try_acquire()).collect();
    for handle in &taken {
        set.set.put_completed(*handle).unwrap();
    }
    taken.len()
}

fn submit(
    set: &BoundSet,
    id: u64,
    given: Result<Vec<Arc<SharedMemory>>, RuntimeError>,
) -> Result<(), RuntimeError> {
    let handle = set.set.try_acquire().unwrap();
    let count = given.as_ref().map_or(0, Vec::len);
    set.bind_acquired(handle, count, |_, _| false, || given)?;
    set.submit_acquired(handle, id, Detached::assume())
}

#[test]
fn inference_on_given_buffers_is_collected_by_its_id() {
    let set = set();
    submit(&set, 7, Ok(buffers())).unwrap();
    let handle = set.set.get_completed_id(7, &mut WaitScope::default()).unwrap();
    set.set.exec_obj(handle).unwrap().outcome().unwrap();
    set.set.put_completed(handle).unwrap();
    assert_eq!(available(&set), HANDLES as usize);
}

#[test]
fn handle_is_available_again_when_its_inference_cannot_begin() {
    let set = set();
    let refused = set.bound(HandleId(9)).unwrap_err().code();
    for given in [Ok(buffers().split_off(1)), Err(set.bound(HandleId(9)).unwrap_err())] {
        assert!(submit(&set, 1, given).is_err());
        assert_eq!(available(&set), HANDLES as usize);
    }
    assert_eq!(submit(&set, 1, Err(set.bound(HandleId(9)).unwrap_err())).unwrap_err().code(), refused);
    submit(&set, 1, Ok(buffers())).unwrap();
}

#[test]
fn dims_that_wait_for_their_buffers_keep_an_inference_from_beginning() {
    let set = set();
    let handle = set.set.try_acquire().unwrap();
    let bound = set.bound(handle).unwrap();
    bound.replace_part(Part::All, &buffers()).unwrap();
    let dims = vec![GivenShape { item_bytes: 4, dims: vec![1, u64::from(u32::MAX)] }; 3];
    bound.announce(dims).unwrap();
    assert_eq!(set.submit(handle, 1, Detached::assume()).unwrap_err().code(), "call.argument");
    // The next user of the handle did not announce these dims.
    set.renew(handle).unwrap();
    set.submit(handle, 1, Detached::assume()).unwrap();
}

#[test]
fn all_handles_are_bound_to_the_same_buffers() {
    let set = set();
    let given = buffers();
    // Two calls, as after a benchmark that has leased the handles.
    for _ in 0..2 {
        set.bind_all(&given).unwrap();
        for handle in (0..HANDLES).map(HandleId) {
            let bound = set.bound(handle).unwrap().buffers().unwrap();
            assert!(bound.iter().flatten().zip(&given).all(|(bound, given)| Arc::ptr_eq(bound, given)));
            assert_eq!(bound.iter().flatten().count(), given.len());
        }
    }
    assert!(set.bind_all(&given[1..]).is_err());
}
