//! Tables over planning: what is there, what is done about it, and when it is looked at again.

mod bed;
mod instances;
mod jobs;
mod property;
mod sessions;
