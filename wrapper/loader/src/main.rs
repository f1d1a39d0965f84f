//! Unpacks the wrapper server into memory and executes it from there, so that a `ConfigMap` can hold it.
//!
//! `pack.py` puts the compressed server behind this program, and a `ConfigMap` holds no more than a mebibyte: what is
//! over that is in files beside this one, `NAME.1`, `NAME.2` and so on. This is a function container's first program, so it
//! needs nothing of the image: no C library, no /proc, no writable root, no particular user. Arguments, environment and
//! process stay what they are. Where memory must not be executed (`vm.memfd_noexec=2`), a file in /tmp takes its place,
//! which is removed before it runs. Nothing else is left behind: what was unpacked goes with this program, and the
//! descriptor that the server is executed by is closed when it starts.
#![no_std]
#![no_main]

mod system;

use core::ffi::{CStr, c_char};
use core::panic::PanicInfo;

use miniz_oxide::inflate::TINFLStatus;
use miniz_oxide::inflate::core::inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
use miniz_oxide::inflate::core::{DecompressorOxide, decompress};

use system::{Descriptor, Errno};

/// Where the packed server begins; this program is padded to that. The same number is in `pack.py`.
const OFFSET: usize = 64 * 1024;
/// Two numbers of 4 bytes, little-endian: the server's size, and its size as it is packed.
const HEADER: usize = 8;
const LONGEST_PATH: usize = 4096;
/// As the shell says it of what it cannot execute.
const CANNOT_EXECUTE: i32 = 126;
const AT_NULL: usize = 0;
const AT_EXECFN: usize = 31;

/// What a program is started with: pointers that end with null, as the kernel has put them onto the stack.
#[derive(Clone, Copy)]
struct Start {
    arguments: *const *const c_char,
    environment: *const *const c_char,
    /// The path that was executed.
    path: &'static CStr,
}

impl Start {
    /// # Safety
    /// `stack` is the stack pointer as the kernel has set it: argument count, arguments, null, environment, null, pairs.
    unsafe fn read(stack: *const usize) -> Self {
        // SAFETY: as the kernel lays it out; what it points to stays as long as the program.
        unsafe {
            let arguments = stack.add(1).cast::<*const c_char>();
            let environment = arguments.add(*stack + 1);
            let mut end = environment;
            while !(*end).is_null() {
                end = end.add(1);
            }
            let mut pair = end.add(1).cast::<[usize; 2]>();
            while (*pair)[0] != AT_NULL && (*pair)[0] != AT_EXECFN {
                pair = pair.add(1);
            }
            let path = if (*pair)[0] == AT_EXECFN { CStr::from_ptr((*pair)[1] as *const c_char) } else { c"" };
            Self { arguments, environment, path }
        }
    }
}

/// # Safety
/// Called by `_start` with the stack pointer that the kernel has set.
#[unsafe(no_mangle)]
unsafe extern "C" fn begin(stack: *const usize) -> ! {
    // SAFETY: the caller's.
    let start = unsafe { Start::read(stack) };
    let server = unpack(start.path);
    let memory = execute_from_memory(server, start);
    let file = execute_from_file(server, start);
    system::say(c"wrapper-server: it cannot be executed from memory (error ");
    system::say_number(memory.0);
    system::say(c"), nor from a file in /tmp (error ");
    system::say_number(file.0);
    fail(c"): the pod needs a /tmp that it may write to and execute from, or its node vm.memfd_noexec below 2\n");
}

fn unpack(path: &CStr) -> &'static [u8] {
    let mut header = [0; HEADER];
    let Ok(own) = Descriptor::open(path) else { fail(c"wrapper-server: it cannot read its own file\n") };
    if own.read_at(&mut header, OFFSET) != Ok(HEADER) {
        fail(c"wrapper-server: nothing is packed here: this is the loader alone\n");
    }
    let number = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]) as usize;
    let (Ok(server), Ok(packed)) = (system::allocate(number(0)), system::allocate(number(4))) else {
        fail(c"wrapper-server: no memory to unpack it\n")
    };
    let Ok(mut count) = own.read_at(packed, OFFSET + HEADER) else { fail(c"wrapper-server: it cannot be read\n") };
    let mut part = b'1';
    while count < packed.len() {
        count += read_part(path, part, &mut packed[count..]);
        part += 1;
    }
    let mut state = DecompressorOxide::new();
    let (status, _, written) = decompress(&mut state, packed, server, 0, TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF);
    if status != TINFLStatus::Done || written != server.len() {
        fail(c"wrapper-server: what is packed here is broken\n");
    }
    server
}

/// How much of it there is in the file of this number beside this program.
fn read_part(path: &CStr, part: u8, into: &mut [u8]) -> usize {
    let mut name = [0; LONGEST_PATH];
    let path = path.to_bytes();
    let end = path.len();
    if end + 3 > LONGEST_PATH || part > b'9' {
        fail(c"wrapper-server: a part of it is missing\n");
    }
    name[..end].copy_from_slice(path);
    name[end] = b'.';
    name[end + 1] = part;
    let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
    match Descriptor::open(name).and_then(|file| file.read_at(into, 0)) {
        Ok(count) if count > 0 => count,
        _ => {
            system::say(c"wrapper-server: a part of it is missing: ");
            system::say(name);
            fail(c"\n")
        }
    }
}

/// Returns only when that is not possible.
fn execute_from_memory(server: &[u8], start: Start) -> Errno {
    let made = Descriptor::memory(c"wrapper-server");
    match made.and_then(|memory| memory.write_all(server).map(|()| memory)) {
        Ok(memory) => memory.execute(start.arguments, start.environment),
        Err(error) => error,
    }
}

/// Returns only when that is not possible.
fn execute_from_file(server: &[u8], start: Start) -> Errno {
    const PATH: &CStr = c"/tmp/.wrapper-server";
    // Of a container that ended in between.
    system::remove(PATH);
    let written = Descriptor::new_program(PATH).and_then(|file| file.write_all(server));
    // What is open for writing cannot be executed, so it is closed, and opened again.
    let opened = written.and_then(|()| Descriptor::open(PATH));
    system::remove(PATH);
    match opened {
        Ok(file) => file.execute(start.arguments, start.environment),
        Err(error) => error,
    }
}

fn fail(message: &CStr) -> ! {
    system::say(message);
    system::exit(CANNOT_EXECUTE)
}

#[panic_handler]
fn on_panic(_: &PanicInfo) -> ! {
    fail(c"wrapper-server: unpacking it has failed\n")
}
