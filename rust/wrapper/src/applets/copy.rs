//! `cp`, as far as pod templates use it: `cp -a SRC/. DST` in an init container, and plain copies.
//!
//! Owner, mode and times are kept where that is allowed: the volume may belong to somebody else, and a refusal is no
//! error. A file is written under another name and then renamed, so that one that is in use is replaced, not broken.

use std::ffi::{CString, OsString};
use std::fs::{self, File, Metadata, Permissions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "usage: cp [-a] [-r] [-p] [-f] SOURCE... DESTINATION";

pub fn main(arguments: &[OsString]) -> ExitCode {
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("cp: {why}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Clone, Copy, Default)]
struct Options {
    recursive: bool,
    preserve: bool,
    /// Links are copied as links.
    keep_links: bool,
}

fn run(arguments: &[OsString]) -> Result<(), String> {
    let mut options = Options::default();
    let mut paths = Vec::new();
    let mut only_paths = false;
    for argument in arguments {
        match argument.to_str() {
            Some("--") if !only_paths => only_paths = true,
            Some("--archive") if !only_paths => options = Options { recursive: true, preserve: true, keep_links: true },
            Some(text) if !only_paths && text.starts_with('-') && text.len() > 1 => options = options.with(text)?,
            _ => paths.push(PathBuf::from(argument)),
        }
    }
    let Some((destination, sources)) = paths.split_last().filter(|(_, sources)| !sources.is_empty()) else {
        return Err(USAGE.into());
    };
    if sources.len() > 1 && !destination.is_dir() {
        return Err(format!("{} is not a directory", destination.display()));
    }
    sources.iter().try_for_each(|source| copy_to(source, destination, options))
}

impl Options {
    fn with(mut self, text: &str) -> Result<Self, String> {
        for letter in text[1..].chars() {
            match letter {
                'a' => self = Options { recursive: true, preserve: true, keep_links: true },
                'r' | 'R' => (self.recursive, self.keep_links) = (true, true),
                'p' => self.preserve = true,
                'd' | 'P' => self.keep_links = true,
                'f' | 'v' => {}
                _ => return Err(format!("unknown option {text}; {USAGE}")),
            }
        }
        Ok(self)
    }
}

/// Into the destination if it is a directory, else to that name. `SRC/.` means: what is in it.
fn copy_to(source: &Path, destination: &Path, options: Options) -> Result<(), String> {
    let is_content = source.as_os_str().as_bytes().ends_with(b"/.") || source.as_os_str() == ".";
    let target = match source.file_name() {
        Some(name) if destination.is_dir() && !is_content => destination.join(name),
        _ => destination.to_owned(),
    };
    copy(source, &target, options)
}

fn copy(source: &Path, target: &Path, options: Options) -> Result<(), String> {
    let metadata = if options.keep_links { source.symlink_metadata() } else { source.metadata() };
    let metadata = metadata.map_err(failed(source))?;
    if metadata.is_symlink() {
        replace(target, |temporary| symlink(fs::read_link(source)?, temporary)).map_err(failed(target))?;
    } else if metadata.is_file() {
        replace(target, |temporary| copy_content(source, temporary, &metadata)).map_err(failed(target))?;
    } else if !metadata.is_dir() {
        return Err(format!("{} is neither a file, a directory nor a link", source.display()));
    } else if !options.recursive {
        return Err(format!("{} is a directory, and -r is not given", source.display()));
    } else {
        copy_directory(source, target, options)?;
    }
    if options.preserve {
        preserve(target, &metadata);
    }
    Ok(())
}

fn copy_directory(source: &Path, target: &Path, options: Options) -> Result<(), String> {
    if !target.is_dir() {
        fs::create_dir(target).map_err(failed(target))?;
    }
    let inner = target.canonicalize().ok().zip(source.canonicalize().ok());
    if inner.is_some_and(|(target, source)| target.starts_with(source)) {
        return Err(format!("cannot copy {} into itself", source.display()));
    }
    for entry in fs::read_dir(source).map_err(failed(source))? {
        let name = entry.map_err(failed(source))?.file_name();
        copy(&source.join(&name), &target.join(&name), options)?;
    }
    Ok(())
}

fn copy_content(source: &Path, temporary: &Path, metadata: &Metadata) -> io::Result<()> {
    io::copy(&mut File::open(source)?, &mut File::create(temporary)?)?;
    // What was executable must stay so; nothing else of the mode is worth an error.
    let _ = fs::set_permissions(temporary, Permissions::from_mode(metadata.mode() & 0o777));
    Ok(())
}

/// Make it under another name beside the target, and put it in its place.
fn replace(target: &Path, make: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(format!(".new-{}", std::process::id()));
    let temporary = target.with_file_name(name);
    let _ = fs::remove_file(&temporary);
    make(&temporary).and_then(|()| fs::rename(&temporary, target)).inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })
}

/// Owner, mode and times, each where it is allowed.
fn preserve(target: &Path, metadata: &Metadata) {
    let Ok(name) = CString::new(target.as_os_str().to_owned().into_vec()) else { return };
    let time = |seconds: i64, nanoseconds: i64| libc::timespec { tv_sec: seconds, tv_nsec: nanoseconds };
    let times = [time(metadata.atime(), metadata.atime_nsec()), time(metadata.mtime(), metadata.mtime_nsec())];
    // SAFETY: a path that ends with a NUL, and two times.
    unsafe {
        libc::lchown(name.as_ptr(), metadata.uid(), metadata.gid());
        if !metadata.is_symlink() {
            libc::chmod(name.as_ptr(), metadata.mode() & 0o7777);
        }
        libc::utimensat(libc::AT_FDCWD, name.as_ptr(), times.as_ptr(), libc::AT_SYMLINK_NOFOLLOW);
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> String + '_ {
    move |error| format!("{}: {error}", path.display())
}
