//! A program under narrow limits, for work on what strangers have written: no sockets, no privileges to gain, little memory and
//! time, and where the kernel has Landlock nothing of the machine's files but what it is shown. Leaner than a container: it needs
//! neither root nor namespaces, so it works inside of a Pod as well.
//!
//! The process that confines itself is this program once more, under [`WORD`]: limits are set where there is one thread, and only
//! then the other program takes its place.

mod landlock;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};

use crate::seccomp::{self, Filter};

/// The first argument by which a program becomes the confined one; its `main` calls [`main`] then, before anything else.
pub const WORD: &str = "__confined";
/// The exit code when the program could not be confined or started.
pub const NOT_STARTED: u8 = 125;

/// How much a confined program may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory that is its own.
    pub memory: u64,
    /// Seconds of processor time.
    pub cpu_seconds: u64,
    /// Bytes of the largest file that it may write.
    pub file_bytes: u64,
    /// Files that it may have open.
    pub open_files: u64,
}

/// Whether the kernel can hide the machine's files from a confined program.
pub fn hides_files() -> bool {
    landlock::version() > 0
}

/// A command that runs `program` confined. It may read and execute below `shown` and below the usual places of programs and
/// libraries, and write below `work`, which is also where it starts. The environment is empty but for `environment`.
pub fn command(
    confiner: &Path,
    program: &Path,
    work: &Path,
    shown: &[PathBuf],
    limits: Limits,
    environment: &[(&str, &OsStr)],
) -> Command {
    let mut command = Command::new(confiner);
    let Limits { memory, cpu_seconds, file_bytes, open_files } = limits;
    let parent = std::process::id();
    command.arg(WORD).arg(format!("{parent},{memory},{cpu_seconds},{file_bytes},{open_files}")).arg(work);
    for place in shown {
        command.arg("--show").arg(place);
    }
    command.arg("--").arg(program).env_clear().current_dir(work).process_group(0);
    command.envs(environment.iter().copied());
    command
}

/// What a confined process was asked for.
struct Order {
    parent: i32,
    limits: Limits,
    work: PathBuf,
    shown: Vec<PathBuf>,
    program: OsString,
    arguments: Vec<OsString>,
}

/// Confines this process and becomes the program. To be called by a process with one thread.
pub fn main() -> ExitCode {
    let error = match Order::read(std::env::args_os().skip(2)) {
        Some(order) => order.carry_out(),
        None => "this is not for people: `agentcube build-service` starts it".to_owned(),
    };
    eprintln!("{error}");
    ExitCode::from(NOT_STARTED)
}

impl Order {
    fn read(mut words: impl Iterator<Item = OsString>) -> Option<Order> {
        let numbers = words.next()?.into_string().ok()?;
        let (parent, numbers) = numbers.split_once(',')?;
        let parent = parent.parse().ok()?;
        let numbers: Vec<u64> =
            numbers.split(',').map(|number| number.parse().ok()).collect::<Option<_>>()?;
        let [memory, cpu_seconds, file_bytes, open_files] = numbers[..] else { return None };
        let limits = Limits { memory, cpu_seconds, file_bytes, open_files };
        let work = words.next()?.into();
        let mut shown = Vec::new();
        loop {
            match words.next()? {
                word if word == "--show" => shown.push(words.next()?.into()),
                word if word == "--" => break,
                _ => return None,
            }
        }
        Some(Order { parent, limits, work, shown, program: words.next()?, arguments: words.collect() })
    }

    /// Comes back only with what went wrong.
    fn carry_out(self) -> String {
        if let Err(error) = self.confine() {
            return format!("a program cannot be confined: {error}");
        }
        let error = Command::new(&self.program).args(&self.arguments).exec();
        format!("{} cannot be run: {error}", Path::new(&self.program).display())
    }

    fn confine(&self) -> io::Result<()> {
        // Whoever started it may die without a word; nobody else would end it.
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        if rustix::process::getppid().is_none_or(|now| now.as_raw_nonzero().get() != self.parent) {
            return Err(io::Error::other("whoever started it is gone"));
        }
        for (resource, most) in [
            (Resource::Data, self.limits.memory),
            (Resource::Cpu, self.limits.cpu_seconds),
            (Resource::Fsize, self.limits.file_bytes),
            (Resource::Nofile, self.limits.open_files),
            (Resource::Core, 0),
        ] {
            lower(resource, most)?;
        }
        rustix::thread::set_no_new_privs(true)?;
        // Without Landlock the rest still holds: it runs nothing that a stranger wrote, it only reads that.
        landlock::restrict(&self.work, &self.shown)?;
        Filter::new(&BTreeSet::new()).load()?;
        seccomp::refuse_sockets()
    }
}

/// Never raises a limit that is there already.
fn lower(resource: Resource, most: u64) -> io::Result<()> {
    let now = getrlimit(resource);
    let most = [now.current, now.maximum].into_iter().flatten().fold(most, u64::min);
    Ok(setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) })?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { memory: 1 << 30, cpu_seconds: 9, file_bytes: 1 << 20, open_files: 64 };

    #[test]
    fn what_is_asked_for_arrives() {
        let shown = [PathBuf::from("/opt/tools")];
        let mut command =
            command(Path::new("/a"), Path::new("/usr/bin/b"), Path::new("/w"), &shown, LIMITS, &[]);
        command.args(["--", "--show", "x y"]);
        let words: Vec<OsString> = command.get_args().map(OsString::from).collect();
        assert_eq!(words[0], WORD);
        let order = Order::read(words.into_iter().skip(1)).unwrap();
        assert_eq!((order.limits, order.work, order.shown), (LIMITS, "/w".into(), shown.to_vec()));
        assert_eq!(
            (order.program, order.arguments),
            ("/usr/bin/b".into(), vec!["--".into(), "--show".into(), "x y".into()])
        );
    }

    #[test]
    fn what_is_no_order_is_refused() {
        for words in
            [&[][..], &["1,2,3,4"], &["1,2,3,4,5"], &["1,2,3,4,5", "/w", "/p"], &["1,2,3,4,5", "/w", "--"]]
        {
            assert!(Order::read(words.iter().map(OsString::from)).is_none(), "{words:?}");
        }
    }
}
