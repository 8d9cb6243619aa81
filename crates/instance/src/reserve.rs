//! Gives every session an instance of its own, over any number of routers.

pub mod bind;

/// A request's hold on its instance, given back when dropped.
#[derive(Debug)]
pub struct InUse {}
