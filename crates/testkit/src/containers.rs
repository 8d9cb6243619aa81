//! Containers by other means than ours, for measurements: the program that all of them run, its root file system, and
//! how long it takes.

pub mod bundle;
pub mod oci;
pub mod plain;
pub mod times;
#[path = "../bench-program/words.rs"]
pub mod words;
