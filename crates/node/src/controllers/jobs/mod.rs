//! Jobs: Pods that are run until enough of them have succeeded, each end counted exactly once.

mod backoff;
mod facts;
mod indexes;
mod manage;
mod plan;
mod pods;
mod policy;
mod status;
mod track;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;
