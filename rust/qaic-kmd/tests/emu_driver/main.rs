//! The emulated driver: what each call answers to what (device-kmd §2.3, §2.8), behaviours of a real one (§7.4), and each
//! row of the table of faults (§7.3) as a program sees it at the system calls.

#![allow(clippy::unwrap_used)]

mod answers;
mod behaviours;
mod cores;
mod faults;
mod losses;
mod random;
mod rig;
