//! Patches, field sets, managed fields and server-side apply.
