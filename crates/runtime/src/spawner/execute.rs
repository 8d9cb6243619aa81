//! Finds a container's program and executes it, with the messages that container runtimes have taught people to expect.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::{Failure, Step};

/// Replaces this process; comes back only with the reason why it could not.
pub(super) fn execute(args: &[String], env: &[(String, String)], ready: impl FnOnce()) -> Failure {
    let Some(name) = args.first() else {
        return Failure::Invalid("no command specified".to_owned());
    };
    let (Ok(arguments), Ok(environment)) = (strings(args.iter().cloned()), environment(env)) else {
        return Failure::Invalid("an argument or a variable has a zero byte in it".to_owned());
    };
    let found = match find(name, env) {
        Ok(found) => found,
        Err(failure) => return failure,
    };
    let Ok(path) = CString::new(found.as_os_str().as_bytes()) else {
        return Failure::Invalid("the program's name has a zero byte in it".to_owned());
    };
    let (arguments, environment) = (pointers(&arguments), pointers(&environment));
    ready();
    // SAFETY: the path is a string, and both arrays are of strings and end with a null pointer.
    unsafe { libc::execve(path.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
    let error = std::io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ENOENT) => {
            Failure::Invalid(format!("exec {}: no such file or directory", found.display()))
        }
        Some(libc::ENOEXEC) => Failure::Invalid(format!("exec {}: exec format error", found.display())),
        Some(libc::EACCES) => Failure::Invalid(format!("exec: {name:?}: permission denied")),
        Some(libc::E2BIG) => Failure::Invalid(format!("exec {}: argument list too long", found.display())),
        _ => Failure::Step(Step::Exec, format!("{}: {error}", found.display())),
    }
}

/// A name with a slash is a path; any other is looked for in the container's `PATH`.
fn find(name: &str, env: &[(String, String)]) -> Result<PathBuf, Failure> {
    if name.contains('/') {
        return match std::fs::metadata(name) {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
                Err(Failure::Invalid(format!("exec: {name:?}: stat {name}: no such file or directory")))
            }
            Ok(status) if status.is_dir() => Err(Failure::Invalid(format!("exec: {name:?}: is a directory"))),
            _ => Ok(PathBuf::from(name)),
        };
    }
    let paths = env.iter().rev().find(|(key, _)| key == "PATH").map_or("", |(_, value)| value);
    let mut denied = false;
    for directory in paths.split(':').filter(|directory| !directory.is_empty()) {
        let path = Path::new(directory).join(name);
        let Ok(status) = std::fs::metadata(&path) else { continue };
        if !status.is_file() {
            continue;
        }
        if rustix::fs::access(&path, rustix::fs::Access::EXEC_OK).is_ok() {
            return Ok(path);
        }
        denied = true;
    }
    let reason = if denied { "permission denied" } else { "executable file not found in $PATH" };
    Err(Failure::Invalid(format!("exec: {name:?}: {reason}")))
}

fn environment(env: &[(String, String)]) -> Result<Vec<CString>, std::ffi::NulError> {
    strings(env.iter().map(|(key, value)| format!("{key}={value}")))
}

fn strings(texts: impl Iterator<Item = String>) -> Result<Vec<CString>, std::ffi::NulError> {
    texts.map(CString::new).collect()
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect()
}
