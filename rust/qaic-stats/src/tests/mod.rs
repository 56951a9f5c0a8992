//! The layout as a whole: its rules, round trips, and damaged bytes.

mod defects;
mod oqstats;
mod properties;
