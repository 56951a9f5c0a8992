//! Turns of the executions of one session.
//!
//! The engine's profile of a run also records the threads of the session. It does so without locks, so other
//! executions of the session may not overlap with a profiled one: the process ends by SIGSEGV with onnxruntime 1.32.

use std::sync::Arc;
use std::time::Duration;

use crate::sync::{Condvar, Mutex};

/// Interval in which a waiting execution checks whether it must end.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

#[derive(Debug, Default)]
struct State {
    running: usize,
    // Number of executions that wait until no other one runs.
    waiting_alone: usize,
    is_alone: bool,
}

/// Lets executions overlap, except those that run alone.
#[derive(Debug, Default)]
pub(super) struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

/// Permission for one execution, returned on drop.
#[derive(Debug)]
pub(super) struct Turn(Arc<Turns>);

impl Turns {
    /// Waits for a turn that other executions may share; `None` if `must_end` returned true.
    ///
    /// Blocking: while an execution runs alone or waits to do so.
    pub(super) fn with_others(self: &Arc<Self>, must_end: &mut dyn FnMut() -> bool) -> Option<Turn> {
        let mut state = self.state.lock();
        while state.is_alone || state.waiting_alone > 0 {
            if must_end() {
                return None;
            }
            state = self.changed.wait_at_most(state, CHECK_INTERVAL);
        }
        state.running += 1;
        Some(Turn(Arc::clone(self)))
    }

    /// Waits for a turn without other executions; `None` if `must_end` returned true.
    ///
    /// Blocking: until all running executions have ended.
    pub(super) fn alone(self: &Arc<Self>, must_end: &mut dyn FnMut() -> bool) -> Option<Turn> {
        let mut state = self.state.lock();
        state.waiting_alone += 1;
        let mut is_over = false;
        while state.running > 0 && !is_over {
            is_over = must_end();
            if !is_over {
                state = self.changed.wait_at_most(state, CHECK_INTERVAL);
            }
        }
        state.waiting_alone -= 1;
        if is_over {
            self.changed.notify_all();
            return None;
        }
        state.running = 1;
        state.is_alone = true;
        Some(Turn(Arc::clone(self)))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.running -= 1;
        state.is_alone = false;
        if state.running == 0 {
            self.0.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn turn_alone_overlaps_with_no_other() {
        let turns = Arc::new(Turns::default());
        let (running, alone) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = |number: usize| {
            for round in 0..200 {
                let is_alone = (number + round).is_multiple_of(3);
                let turn =
                    if is_alone { turns.alone(&mut || false) } else { turns.with_others(&mut || false) };
                let others = running.fetch_add(1, Ordering::SeqCst);
                alone.fetch_add(usize::from(is_alone), Ordering::SeqCst);
                assert!(!is_alone || others == 0);
                assert!(is_alone || alone.load(Ordering::SeqCst) == 0);
                alone.fetch_sub(usize::from(is_alone), Ordering::SeqCst);
                running.fetch_sub(1, Ordering::SeqCst);
                drop(turn);
            }
        };
        thread::scope(|scope| {
            for number in 0..4 {
                scope.spawn(move || work(number));
            }
        });
    }

    #[test]
    fn turns_with_others_overlap() {
        let turns = Arc::new(Turns::default());
        let _both = (turns.with_others(&mut || true).unwrap(), turns.with_others(&mut || true).unwrap());
    }

    #[test]
    fn turn_that_must_end_leaves_the_others() {
        let turns = Arc::new(Turns::default());
        let first = turns.with_others(&mut || true).unwrap();
        assert!(turns.alone(&mut || true).is_none());
        drop(turns.with_others(&mut || true).unwrap());
        drop(first);
        let alone = turns.alone(&mut || true).unwrap();
        assert!(turns.with_others(&mut || true).is_none());
        assert!(turns.alone(&mut || true).is_none());
        drop(alone);
        assert!(turns.with_others(&mut || true).is_some());
    }
}
