//! The emulated driver: the result of each call, the behavior of a real driver, and the effect of each row of
//! the table of faults on system calls.

mod answers;
mod behaviors;
mod cores;
mod faults;
mod losses;
mod ownership;
mod random;
