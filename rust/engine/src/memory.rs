//! The allocator's habits: memory of large messages is kept while calls come, and given back when they do not.
//!
//! Every message of megabytes in fresh pages costs more than all the rest of a call; all of them kept for ever would be
//! charged to a pod that does nothing. Only glibc's allocator can be told.

/// Before other threads exist.
pub fn keep_while_busy() {
    #[cfg(target_env = "gnu")]
    // SAFETY: numbers only.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
        libc::mallopt(libc::M_MMAP_THRESHOLD, 64 * 1024 * 1024);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 1024 * 1024 * 1024);
    }
}

/// Give back what is free.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: no pointers are involved.
    unsafe {
        libc::malloc_trim(0);
    }
}
