//! The kernel's calls that are needed, without a C library, and what a compiler expects of one.

use core::arch::{asm, global_asm};
use core::ffi::{CStr, c_char};
use core::slice;

/// The number of an error, as in errno.
#[derive(Clone, Copy, PartialEq)]
pub struct Errno(pub usize);

const INVALID: usize = 22;
const AT_FDCWD: usize = (-100_isize).cast_unsigned();
const AT_EMPTY_PATH: usize = 0x1000;
const O_WRONLY: usize = 0o1;
const O_CREAT: usize = 0o100;
const O_EXCL: usize = 0o200;
const O_CLOEXEC: usize = 0o2_000_000;
const MFD_CLOEXEC: usize = 1;
const MFD_EXEC: usize = 0x10;
const PROT_READ_WRITE: usize = 3;
const MAP_PRIVATE_ANONYMOUS: usize = 0x22;
const OWNER_ONLY: usize = 0o500;
const STDERR: usize = 2;

#[cfg(target_arch = "x86_64")]
mod number {
    pub const WRITE: usize = 1;
    pub const CLOSE: usize = 3;
    pub const MMAP: usize = 9;
    pub const PREAD64: usize = 17;
    pub const EXIT_GROUP: usize = 231;
    pub const OPENAT: usize = 257;
    pub const UNLINKAT: usize = 263;
    pub const MEMFD_CREATE: usize = 319;
    pub const EXECVEAT: usize = 322;
}

#[cfg(target_arch = "aarch64")]
mod number {
    pub const UNLINKAT: usize = 35;
    pub const OPENAT: usize = 56;
    pub const CLOSE: usize = 57;
    pub const WRITE: usize = 64;
    pub const PREAD64: usize = 67;
    pub const EXIT_GROUP: usize = 94;
    pub const MMAP: usize = 222;
    pub const MEMFD_CREATE: usize = 279;
    pub const EXECVEAT: usize = 281;
}

// The first instructions: where the stack is, is what `begin` wants to know; there is no caller.
#[cfg(target_arch = "x86_64")]
global_asm!(".globl _start", "_start:", "xor ebp, ebp", "mov rdi, rsp", "and rsp, -16", "call {begin}", "ud2", begin = sym crate::begin);
#[cfg(target_arch = "aarch64")]
global_asm!(".globl _start", "_start:", "mov x29, xzr", "mov x30, xzr", "mov x0, sp", "bl {begin}", "brk #1", begin = sym crate::begin);

/// # Safety
/// As the call that is asked for demands it.
#[cfg(target_arch = "x86_64")]
unsafe fn call(number: usize, arguments: [usize; 6]) -> Result<usize, Errno> {
    let answer: isize;
    // SAFETY: the kernel's convention; it keeps all registers but these.
    unsafe {
        asm!("syscall", inlateout("rax") number => answer,
            in("rdi") arguments[0], in("rsi") arguments[1], in("rdx") arguments[2],
            in("r10") arguments[3], in("r8") arguments[4], in("r9") arguments[5],
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result(answer)
}

/// # Safety
/// As the call that is asked for demands it.
#[cfg(target_arch = "aarch64")]
unsafe fn call(number: usize, arguments: [usize; 6]) -> Result<usize, Errno> {
    let answer: isize;
    // SAFETY: the kernel's convention; it keeps all registers but the first.
    unsafe {
        asm!("svc #0", in("x8") number, inlateout("x0") arguments[0] => answer,
            in("x1") arguments[1], in("x2") arguments[2], in("x3") arguments[3],
            in("x4") arguments[4], in("x5") arguments[5], options(nostack));
    }
    result(answer)
}

fn result(answer: isize) -> Result<usize, Errno> {
    if (-4095..0).contains(&answer) { Err(Errno(answer.unsigned_abs())) } else { Ok(answer.cast_unsigned()) }
}

/// A file that is open; closed when it is dropped.
pub struct Descriptor(usize);

impl Descriptor {
    /// In memory, and executable.
    pub fn memory(name: &CStr) -> Result<Self, Errno> {
        // SAFETY: a text that ends with NUL.
        let make = |flags| unsafe { call(number::MEMFD_CREATE, [name.as_ptr() as usize, flags, 0, 0, 0, 0]) };
        match make(MFD_CLOEXEC | MFD_EXEC) {
            // A kernel before 6.3 does not know the flag, and executes what is in memory anyway.
            Err(Errno(INVALID)) => make(MFD_CLOEXEC),
            answer => answer,
        }
        .map(Self)
    }

    /// A new file that its owner may execute, to be written.
    pub fn new_program(path: &CStr) -> Result<Self, Errno> {
        Self::open_with(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC)
    }

    /// To be read.
    pub fn open(path: &CStr) -> Result<Self, Errno> {
        Self::open_with(path, O_CLOEXEC)
    }

    fn open_with(path: &CStr, flags: usize) -> Result<Self, Errno> {
        // SAFETY: a text that ends with NUL.
        unsafe { call(number::OPENAT, [AT_FDCWD, path.as_ptr() as usize, flags, OWNER_ONLY, 0, 0]) }.map(Self)
    }

    /// From there on, as much as there is and has room; how much that was.
    pub fn read_at(&self, into: &mut [u8], offset: usize) -> Result<usize, Errno> {
        let mut count = 0;
        while count < into.len() {
            let left = &mut into[count..];
            let all = [self.0, left.as_mut_ptr() as usize, left.len(), offset + count, 0, 0];
            // SAFETY: this many bytes have room.
            match unsafe { call(number::PREAD64, all) }? {
                0 => break,
                read => count += read,
            }
        }
        Ok(count)
    }

    /// All of it, or an error.
    pub fn write_all(&self, content: &[u8]) -> Result<(), Errno> {
        let mut left = content;
        while !left.is_empty() {
            // SAFETY: this many bytes are there.
            let written = unsafe { call(number::WRITE, [self.0, left.as_ptr() as usize, left.len(), 0, 0, 0]) }?;
            left = left.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    /// Become this program; returns only when that is not possible.
    pub fn execute(&self, arguments: *const *const c_char, environment: *const *const c_char) -> Errno {
        let path = c"".as_ptr() as usize;
        let all = [self.0, path, arguments as usize, environment as usize, AT_EMPTY_PATH, 0];
        // SAFETY: both lists are the kernel's own, and end with null.
        unsafe { call(number::EXECVEAT, all) }.err().unwrap_or(Errno(0))
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: it is ours.
        let _ = unsafe { call(number::CLOSE, [self.0, 0, 0, 0, 0, 0]) };
    }
}

/// Memory that nobody else has, all zeros.
pub fn allocate(size: usize) -> Result<&'static mut [u8], Errno> {
    let nowhere = usize::MAX;
    // SAFETY: new memory, at a place that the kernel chooses; it is given to the one who asks, and never freed.
    unsafe {
        let place = call(number::MMAP, [0, size.max(1), PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS, nowhere, 0])?;
        Ok(slice::from_raw_parts_mut(place as *mut u8, size))
    }
}

/// Whether or not there is such a file.
pub fn remove(path: &CStr) {
    // SAFETY: a text that ends with NUL.
    let _ = unsafe { call(number::UNLINKAT, [AT_FDCWD, path.as_ptr() as usize, 0, 0, 0, 0]) };
}

/// On stderr.
pub fn say(text: &CStr) {
    say_bytes(text.to_bytes());
}

/// On stderr.
pub fn say_number(number: usize) {
    let digit = |place: usize| b'0' + u8::try_from(number / place % 10).unwrap_or_default();
    let digits = [digit(1000), digit(100), digit(10), digit(1)];
    let first = digits.iter().position(|digit| *digit != b'0').unwrap_or(3);
    say_bytes(&digits[first..]);
}

fn say_bytes(text: &[u8]) {
    // SAFETY: this many bytes are there.
    let _ = unsafe { call(number::WRITE, [STDERR, text.as_ptr() as usize, text.len(), 0, 0, 0]) };
}

/// The end.
pub fn exit(code: i32) -> ! {
    loop {
        // SAFETY: it does not return.
        let _ = unsafe { call(number::EXIT_GROUP, [code.cast_unsigned() as usize, 0, 0, 0, 0, 0]) };
    }
}

// What the compiler calls and finds in no library. Volatile: another loop would be compiled into a call of itself.

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    for index in 0..count {
        // SAFETY: the caller's.
        unsafe { to.add(index).write_volatile(*from.add(index)) };
    }
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, count: usize) -> *mut u8 {
    if to.cast_const() < from {
        // SAFETY: the caller's; what is overwritten has been read.
        return unsafe { memcpy(to, from, count) };
    }
    for index in (0..count).rev() {
        // SAFETY: the caller's.
        unsafe { to.add(index).write_volatile(*from.add(index)) };
    }
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: u32, count: usize) -> *mut u8 {
    let [byte, ..] = value.to_le_bytes();
    for index in 0..count {
        // SAFETY: the caller's.
        unsafe { to.add(index).write_volatile(byte) };
    }
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, count: usize) -> i32 {
    for index in 0..count {
        // SAFETY: the caller's.
        let (left, right) = unsafe { (one.add(index).read_volatile(), *other.add(index)) };
        if left != right {
            return i32::from(left) - i32::from(right);
        }
    }
    0
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, count: usize) -> i32 {
    // SAFETY: the caller's.
    unsafe { memcmp(one, other, count) }
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut length = 0;
    // SAFETY: the caller's.
    while unsafe { text.add(length).read_volatile() } != 0 {
        length += 1;
    }
    length
}
