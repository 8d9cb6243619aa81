//! The known differences between the embedded server and the real one. Each is rendered into
//! `docs/CONFORMANCE.md`; one that no longer occurs fails the suite.

/// A place in a transcript that may differ on the embedded server.
pub(crate) struct Known {
    pub case: &'static str,
    /// JSON pointer into the transcript; everything below it may differ.
    pub pointer: &'static str,
    pub reason: &'static str,
}

pub(crate) const DIFFERENCES: &[Known] = &[];
