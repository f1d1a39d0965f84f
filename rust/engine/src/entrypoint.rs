//! The function's command line: found, and checked, before anything is served.
//!
//! Kubernetes shows why a container ended, so what can be known at the start is said at the start: a missing file, a
//! missing permission, a missing interpreter.

use std::ffi::{CString, OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// What the kernel is asked to execute.
pub struct Entrypoint {
    pub executable: CString,
    pub argv: Vec<CString>,
}

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Entrypoint {
    /// The message says what to mend.
    pub fn find(command: &[OsString], search_path: Option<&OsStr>) -> Result<Self, String> {
        let Some(name) = command.first() else {
            return Err("no entrypoint: what to run comes after --, as in `wrapper-server --port 9446 -- /function`; \
                        does the image have an entrypoint?"
                .into());
        };
        let executable = if name.as_bytes().contains(&b'/') {
            let path = PathBuf::from(name);
            check(&path).map_err(|why| format!("the entrypoint {} cannot be executed: {why}", path.display()))?;
            path
        } else {
            search(name, search_path.unwrap_or(OsStr::new(DEFAULT_PATH)))?
        };
        let argv = command.iter().map(|argument| c_string(argument.clone())).collect::<Result<_, _>>()?;
        Ok(Self { executable: c_string(executable.into_os_string())?, argv })
    }

    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.executable.as_bytes()))
    }

    pub fn name(&self) -> String {
        self.executable.to_string_lossy().into_owned()
    }
}

fn c_string(text: OsString) -> Result<CString, String> {
    CString::new(text.into_vec()).map_err(|_| "the entrypoint has a NUL character in it".into())
}

fn search(name: &OsStr, search_path: &OsStr) -> Result<PathBuf, String> {
    let mut refused = None;
    for directory in std::env::split_paths(search_path) {
        let candidate =
            Path::new(if directory.as_os_str().is_empty() { OsStr::new(".") } else { directory.as_os_str() })
                .join(name);
        if candidate.symlink_metadata().is_err() {
            continue;
        }
        match check(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(why) => refused = refused.or(Some(format!("{}: {why}", candidate.display()))),
        }
    }
    let shown = name.display();
    Err(match refused {
        Some(refused) => format!("the entrypoint {shown} cannot be executed: {refused}"),
        None => format!("the entrypoint {shown} is not in the PATH of this image ({})", search_path.display()),
    })
}

/// Whether the kernel would execute it, as far as one can see.
fn check(path: &Path) -> Result<(), String> {
    let metadata = path.metadata().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound if path.symlink_metadata().is_ok() => {
            "the file that it links to is missing".into()
        }
        std::io::ErrorKind::NotFound => "there is no such file".into(),
        _ => error.to_string(),
    })?;
    check_permission(path, &metadata)?;
    match interpreter(path) {
        Some((what, interpreter)) if !interpreter.exists() => {
            Err(format!("{what} {} is missing in this image", interpreter.display()))
        }
        _ => Ok(()),
    }
}

fn check_permission(path: &Path, metadata: &Metadata) -> Result<(), String> {
    if metadata.is_dir() {
        return Err("it is a directory".into());
    }
    if !metadata.is_file() {
        return Err("it is not a file".into());
    }
    let name = c_string(path.as_os_str().to_owned())?;
    // SAFETY: a NUL-terminated path.
    if unsafe { libc::faccessat(libc::AT_FDCWD, name.as_ptr(), libc::X_OK, libc::AT_EACCESS) } != 0 {
        return Err(format!("it is not executable for user {}; chmod +x it in the image", effective_user()));
    }
    Ok(())
}

fn effective_user() -> u32 {
    // SAFETY: it has no preconditions.
    unsafe { libc::geteuid() }
}

/// What the kernel needs beside the file itself: the program of a script's first line, or the dynamic loader.
fn interpreter(path: &Path) -> Option<(&'static str, PathBuf)> {
    let mut head = Vec::new();
    // What cannot be read may well be executed.
    File::open(path).ok()?.take(4096).read_to_end(&mut head).ok()?;
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|&byte| byte == b'\n').next()?.trim_ascii_start();
        let program = line.split(u8::is_ascii_whitespace).next().filter(|program| !program.is_empty())?;
        return Some(("the interpreter of its first line", PathBuf::from(OsStr::from_bytes(program))));
    }
    Some(("its dynamic loader", PathBuf::from(OsStr::from_bytes(elf_loader(&head)?))))
}

/// The `PT_INTERP` of a 64-bit little-endian ELF file, if its head shows one.
fn elf_loader(head: &[u8]) -> Option<&[u8]> {
    const PT_INTERP: u64 = 3;
    let number = |offset: usize, size: usize| {
        let bytes = head.get(offset..offset + size)?;
        Some(bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)))
    };
    let offset = |value: u64| usize::try_from(value).ok().filter(|offset| *offset < head.len());
    if !head.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let table = offset(number(32, 8)?)?;
    let (entry_size, count) = (offset(number(54, 2)?)?, offset(number(56, 2)?)?);
    (0..count).map(|index| table + index * entry_size).find_map(|entry| {
        if number(entry, 4)? != PT_INTERP {
            return None;
        }
        let (start, size) = (offset(number(entry + 8, 8)?)?, offset(number(entry + 32, 8)?)?);
        head.get(start..start + size)?.strip_suffix(b"\0")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("entrypoint-{}-{name}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn file(&self, name: &str, content: &str, mode: u32) -> PathBuf {
            let path = self.0.join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn refusal(command: &[&OsStr], search_path: &str) -> String {
        let command: Vec<OsString> = command.iter().map(|part| (*part).to_owned()).collect();
        Entrypoint::find(&command, Some(OsStr::new(search_path))).err().unwrap_or_default()
    }

    #[test]
    fn a_bare_name_is_found_by_path_and_keeps_its_arguments() {
        let directory = Directory::new("found");
        let path = directory.file("function", "#!/bin/sh\n", 0o755);
        let search_path = OsString::from(format!("/nonexistent:{}", directory.0.display()));
        let found = Entrypoint::find(&["function".into(), "--flag".into()], Some(&search_path)).unwrap();
        assert_eq!(found.name(), path.display().to_string());
        assert_eq!(found.argv, [c"function".to_owned(), c"--flag".to_owned()]);
    }

    #[test]
    fn refusals_say_what_is_wrong() {
        let directory = Directory::new("refused");
        let script = directory.file("script", "#! /nonexistent/python3 -u\n", 0o755);
        let data = directory.file("data", "x", 0o644);
        let link = directory.0.join("link");
        std::os::unix::fs::symlink("/nonexistent/target", &link).unwrap();
        assert!(refusal(&[], "").contains("no entrypoint"));
        assert!(
            refusal(&[OsStr::new("function")], "/nonexistent").contains("not in the PATH of this image (/nonexistent)")
        );
        assert!(refusal(&[OsStr::new("/nonexistent")], "").contains("there is no such file"));
        assert!(
            refusal(&[script.as_os_str()], "")
                .contains("interpreter of its first line /nonexistent/python3 is missing")
        );
        assert!(refusal(&[link.as_os_str()], "").contains("links to is missing"));
        assert!(refusal(&[directory.0.as_os_str()], "").contains("is a directory"));
        assert!(refusal(&[data.as_os_str()], "").contains("not executable"));
        assert!(refusal(&[OsStr::new("data")], directory.0.to_str().unwrap()).contains("not executable"));
    }

    #[test]
    fn the_dynamic_loader_of_a_program_is_seen() {
        let shell = fs::canonicalize("/bin/sh").unwrap();
        let (what, loader) = interpreter(&shell).expect("/bin/sh is linked dynamically");
        assert_eq!(what, "its dynamic loader");
        assert!(loader.exists(), "{}", loader.display());
    }
}
