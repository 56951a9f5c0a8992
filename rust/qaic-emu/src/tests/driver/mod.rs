//! The emulated driver: what each call answers to what, behaviors of a real one, and each
//! row of the table of faults as a program sees it at the system calls.

mod answers;
mod behaviors;
mod cores;
mod faults;
mod losses;
mod ownership;
mod random;
