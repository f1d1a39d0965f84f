//! Starting a process as `posix_spawn` does: this process is not copied, and what the new one inherits is exactly known.
//!
//! It leads a process group of its own, has no signal blocked or ignored, and no descriptor but 0, 1 and 2. Working
//! directory and user are ours; so is the environment, unless one is given. It is also a child subreaper, which
//! `posix_spawn` cannot do: an orphan among its descendants becomes its child, so that all of them are found in the tree
//! below it for as long as it lives.

use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr;

use libc::pid_t;

use crate::entrypoint::Entrypoint;

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// The kernel's signals are numbered from 1, and a set of them has this many bytes.
const SIGNALS: c_int = 64;
const SIGNAL_SET_SIZE: usize = 8;

/// The child's stack until it executes the program.
#[repr(C, align(16))]
struct Stack([MaybeUninit<u8>; 16 * 1024]);

/// The child's arguments, and its answer.
struct Order {
    executable: *const c_char,
    argv: *const *const c_char,
    environment: *const *const c_char,
    ends: [RawFd; 3],
    failure: c_int,
}

/// The pid, which is also that of the group.
pub fn spawn(entrypoint: &Entrypoint, environment: Option<&[CString]>, ends: &[OwnedFd; 3]) -> io::Result<pid_t> {
    let argv = pointers(&entrypoint.argv);
    let environment = environment.map(pointers);
    let mut stack = Stack([MaybeUninit::uninit(); _]);
    let mut every_signal = MaybeUninit::uninit();
    let mut mask = MaybeUninit::uninit();
    // SAFETY: CLONE_VM lets the child use our memory, and CLONE_VFORK suspends this thread until the child has executed
    // the program or ended. Until then all that `order` points to lives, and the child's stack is nobody else's. No signal
    // handler of ours runs in the child, since it resets them before it unblocks the signals that are blocked here.
    unsafe {
        let mut order = Order {
            executable: entrypoint.executable.as_ptr(),
            argv: argv.as_ptr(),
            environment: environment.as_ref().map_or(environ, Vec::as_ptr),
            ends: ends.each_ref().map(AsRawFd::as_raw_fd),
            failure: 0,
        };
        libc::sigfillset(every_signal.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, every_signal.as_ptr(), mask.as_mut_ptr());
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        let top = (&raw mut stack).add(1).cast();
        let pid = libc::clone(execute, top, flags, (&raw mut order).cast());
        let failure = if pid < 0 { last_error() } else { ptr::read_volatile(&raw const order.failure) };
        if pid > 0 && failure != 0 {
            libc::waitpid(pid, ptr::null_mut(), 0);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, mask.as_ptr(), ptr::null_mut());
        if failure == 0 { Ok(pid) } else { Err(io::Error::from_raw_os_error(failure)) }
    }
}

/// The child: becomes the program, or says why not. It shares its parent's memory, so it must not allocate, panic or lock.
extern "C" fn execute(order: *mut c_void) -> c_int {
    // SAFETY: `order` is that of `spawn`, which waits. An all-zero action is the default one, in any layout of the kernel's.
    unsafe {
        let order = order.cast::<Order>();
        let default_action = [0_u64; 4];
        for signal in 1..=SIGNALS {
            // The kernel refuses SIGKILL and SIGSTOP. libc's own function would refuse its internal signals, too.
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                &raw const default_action,
                ptr::null_mut::<c_void>(),
                SIGNAL_SET_SIZE,
            );
        }
        let no_signals = [0_u8; SIGNAL_SET_SIZE];
        let is_ready = libc::setpgid(0, 0) == 0
            && libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
            // Rust's runtime keeps 0, 1 and 2 open: an end is none of these, and its copy is not closed by the execution.
            && (0..).zip((*order).ends).all(|(target, end)| libc::dup2(end, target) == target)
            && libc::syscall(
                libc::SYS_rt_sigprocmask,
                libc::SIG_SETMASK,
                &raw const no_signals,
                ptr::null_mut::<c_void>(),
                SIGNAL_SET_SIZE,
            ) == 0;
        if is_ready {
            libc::execve((*order).executable, (*order).argv, (*order).environment);
        }
        ptr::write_volatile(&raw mut (*order).failure, last_error());
        libc::_exit(127)
    }
}

fn pointers(texts: impl AsRef<[CString]>) -> Vec<*const c_char> {
    texts.as_ref().iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect()
}

fn last_error() -> c_int {
    // SAFETY: it has no preconditions. The child has the thread's own, as it shares all of its memory.
    unsafe { *libc::__errno_location() }
}
