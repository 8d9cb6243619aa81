//! Gives every session an instance of its own, over any number of routers.

/// A request's hold on its instance, given back when dropped.
#[derive(Debug)]
pub struct InUse {}

impl InUse {
    /// Bytes flow.
    pub fn active(&self) {}
}
