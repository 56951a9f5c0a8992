//! An object has one owner; a returned object is in the pool or owned by a thread.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

use crate::ObjectPool;

/// Takes an object, writes to it and returns it to the pool; returns false if there was none.
fn use_one(pool: &ObjectPool<UnsafeCell<u32>>) -> bool {
    let Some(object) = pool.take() else { return false };
    object.with_mut(|cell| unsafe { *cell += 1 });
    pool.give_back(object);
    true
}

#[test]
fn object_pool_with_an_object_for_each_thread_loses_none() {
    loom::model(|| {
        let pool = Arc::new(ObjectPool::new(2));
        (0..2).for_each(|_| pool.give_back(Box::new(UnsafeCell::new(0))));
        let other = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || use_one(&pool))
        };
        let uses = u32::from(use_one(&pool)) + u32::from(other.join().unwrap());
        let left: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(left.len(), 2);
        assert_eq!(left.iter().map(|object| object.with(|cell| unsafe { *cell })).sum::<u32>(), uses);
    });
}

#[test]
fn object_pool_given_back_to_by_two_threads_keeps_what_it_has_room_for() {
    loom::model(|| {
        let pool = Arc::new(ObjectPool::new(1));
        let other = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || pool.give_back(Box::new(UnsafeCell::new(1))))
        };
        pool.give_back(Box::new(UnsafeCell::new(2)));
        other.join().unwrap();
        assert!(pool.take().is_some() && pool.take().is_none());
    });
}
