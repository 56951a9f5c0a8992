//! Semaphores of a channel: 32 counters of 12 bits.

use qaic_kmd::abi::Sem;

/// The semaphores of one activation, initially 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Semaphores {
    values: [u16; Self::COUNT],
}

impl Semaphores {
    /// Number of semaphores.
    pub const COUNT: usize = 32;
    /// Maximum value; incrementing it results in 0.
    pub(crate) const MAX: u16 = 0xFFF;

    /// Value of a semaphore; indices have five bits.
    pub fn get(&self, index: u8) -> u16 {
        self.values[usize::from(index) % Self::COUNT]
    }

    /// Sets the value of a semaphore to the low 12 bits of `value`.
    pub fn set(&mut self, index: u8, value: u16) {
        self.values[usize::from(index) % Self::COUNT] = value & Self::MAX;
    }

    /// Increments a semaphore.
    pub fn increment(&mut self, index: u8) {
        self.set(index, self.get(index).wrapping_add(1));
    }

    /// Decrements a semaphore.
    pub fn decrement(&mut self, index: u8) {
        self.set(index, self.get(index).wrapping_sub(1));
    }

    /// Decrements a semaphore if it is above 0; returns true if it was.
    pub fn take(&mut self, index: u8) -> bool {
        let is_above = self.get(index) > 0;
        if is_above {
            self.decrement(index);
        }
        is_above
    }

    /// Executes an operation of an element. Returns false if the element must wait for others first. Commands that
    /// the driver refuses do nothing.
    pub(crate) fn apply(&mut self, operation: Sem) -> bool {
        let Sem { index, val, cmd, .. } = operation;
        match cmd {
            1 => self.set(index, val),
            2 => self.increment(index),
            3 => self.decrement(index),
            4 => return self.get(index) == val & Self::MAX,
            5 => return self.get(index) >= val & Self::MAX,
            6 => return self.take(index),
            _ => (),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn operation() -> impl Strategy<Value = Sem> {
        (0..32_u8, 0..4096_u16, 0..7_u8).prop_map(|(index, val, cmd)| Sem {
            val,
            index,
            cmd,
            ..Sem::default()
        })
    }

    proptest! {
        /// Compares the semaphores with unbounded counters: values are equal modulo 4096, and waits follow the table.
        #[test]
        fn semaphore_commands_count_in_twelve_bits(operations in prop::collection::vec(operation(), 0..200)) {
            let mut model = [0_i64; 32];
            let mut semaphores = Semaphores::default();
            for operation in operations {
                let counter = &mut model[usize::from(operation.index)];
                let (value, wanted) = (counter.rem_euclid(4096), i64::from(operation.val));
                let goes_on = match operation.cmd {
                    4 => value == wanted,
                    5 => value >= wanted,
                    6 => value != 0,
                    _ => true,
                };
                prop_assert_eq!(semaphores.apply(operation), goes_on);
                match operation.cmd {
                    1 => *counter = wanted,
                    2 => *counter += 1,
                    3 => *counter -= 1,
                    6 if goes_on => *counter -= 1,
                    _ => {}
                }
                for (index, counter) in (0_u8..).zip(&model) {
                    prop_assert_eq!(i64::from(semaphores.get(index)), counter.rem_euclid(4096));
                }
            }
        }
    }

    #[test]
    fn wait_commands_change_only_the_semaphore_they_take() {
        let mut semaphores = Semaphores::default();
        semaphores.set(3, 2);
        for (cmd, val, goes_on, left) in
            [(4, 3, false, 2), (4, 2, true, 2), (5, 3, false, 2), (5, 1, true, 2), (6, 0, true, 1)]
        {
            let operation = Sem { index: 3, val, cmd, ..Sem::default() };
            assert_eq!((semaphores.apply(operation), semaphores.get(3)), (goes_on, left), "{cmd} {val}");
        }
        assert!(semaphores.take(3));
        assert!(!semaphores.take(3));
        assert_eq!(semaphores, Semaphores::default());
    }
}
