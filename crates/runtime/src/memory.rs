//! The memory of this process.

/// Gives memory that was freed back to the kernel. The C library by itself keeps what lies between things that are still
/// used, in an arena for each thread: after a start or a burst that is more than what is used.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it takes no pointer, and any thread may call it at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
