//! Starting a process by `posix_spawn`: no copy of this one is made, and what it inherits is exactly known.
//!
//! It leads a process group of its own, has no signal blocked or ignored, and no descriptor but 0, 1 and 2. Working
//! directory and user are ours; so is the environment, unless one is given.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use libc::{c_char, c_int, pid_t};

use crate::entrypoint::Entrypoint;

unsafe extern "C" {
    static environ: *const *mut c_char;
}

/// The pid, which is also that of the group.
pub fn spawn(entrypoint: &Entrypoint, environment: Option<&[CString]>, ends: &[OwnedFd; 3]) -> io::Result<pid_t> {
    let argv = pointers(&entrypoint.argv);
    let environment = environment.map(pointers);
    let actions = Actions::new(ends)?;
    let attributes = Attributes::new()?;
    let mut pid = 0;
    // SAFETY: every pointer is to something that lives until the call returns; the arrays end with a null pointer.
    let failure = unsafe {
        let environment = environment.as_ref().map_or(environ, std::vec::Vec::as_ptr);
        libc::posix_spawn(
            &raw mut pid,
            entrypoint.executable.as_ptr(),
            actions.0.as_ptr(),
            attributes.0.as_ptr(),
            argv.as_ptr(),
            environment,
        )
    };
    check(failure)?;
    Ok(pid)
}

fn pointers(texts: impl AsRef<[CString]>) -> Vec<*mut c_char> {
    texts.as_ref().iter().map(|text| text.as_ptr().cast_mut()).chain([ptr::null_mut()]).collect()
}

fn check(failure: c_int) -> io::Result<()> {
    if failure == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failure)) }
}

struct Actions(MaybeUninit<libc::posix_spawn_file_actions_t>);

impl Actions {
    fn new(ends: &[OwnedFd; 3]) -> io::Result<Self> {
        let mut actions = MaybeUninit::uninit();
        // SAFETY: it is initialized first, and only then used; from then on it is dropped.
        unsafe {
            check(libc::posix_spawn_file_actions_init(actions.as_mut_ptr()))?;
            let mut actions = Self(actions);
            for (target, end) in (0..).zip(ends) {
                check(libc::posix_spawn_file_actions_adddup2(actions.0.as_mut_ptr(), end.as_raw_fd(), target))?;
            }
            Ok(actions)
        }
    }
}

impl Drop for Actions {
    fn drop(&mut self) {
        // SAFETY: it was initialized, and is destroyed once.
        unsafe { libc::posix_spawn_file_actions_destroy(self.0.as_mut_ptr()) };
    }
}

struct Attributes(MaybeUninit<libc::posix_spawnattr_t>);

impl Attributes {
    fn new() -> io::Result<Self> {
        let flags = libc::POSIX_SPAWN_SETPGROUP | libc::POSIX_SPAWN_SETSIGDEF | libc::POSIX_SPAWN_SETSIGMASK;
        let mut attributes = MaybeUninit::uninit();
        let mut signals = MaybeUninit::uninit();
        // SAFETY: both are initialized first, and only then used; from then on the attributes are dropped.
        unsafe {
            check(libc::posix_spawnattr_init(attributes.as_mut_ptr()))?;
            let mut attributes = Self(attributes);
            let raw = attributes.0.as_mut_ptr();
            check(libc::posix_spawnattr_setflags(raw, libc::c_short::try_from(flags).unwrap_or(0)))?;
            check(libc::posix_spawnattr_setpgroup(raw, 0))?;
            libc::sigemptyset(signals.as_mut_ptr());
            check(libc::posix_spawnattr_setsigmask(raw, signals.as_ptr()))?;
            libc::sigfillset(signals.as_mut_ptr());
            check(libc::posix_spawnattr_setsigdefault(raw, signals.as_ptr()))?;
            Ok(attributes)
        }
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: it was initialized, and is destroyed once.
        unsafe { libc::posix_spawnattr_destroy(self.0.as_mut_ptr()) };
    }
}
