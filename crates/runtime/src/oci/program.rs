//! The OCI runtimes, and how each is called. Pure, but for looking whether a program is there.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Kind {
    Runc,
    Crun,
    /// gVisor.
    Runsc,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Runc, Self::Crun, Self::Runsc];

    pub fn name(self) -> &'static str {
        match self {
            Self::Runc => "runc",
            Self::Crun => "crun",
            Self::Runsc => "runsc",
        }
    }

    /// What a RuntimeClass may call it.
    pub fn handlers(self) -> &'static [&'static str] {
        match self {
            Self::Runc => &["runc"],
            Self::Crun => &["crun"],
            Self::Runsc => &["runsc", "gvisor"],
        }
    }

    /// It leaves cgroups alone, so whoever runs it is in the container's before. `runc` cannot be kept from them: it is
    /// given ours by name.
    pub(crate) fn inherits_cgroup(self) -> bool {
        self != Self::Runc
    }

    /// Its containers see the machine's kernel; gVisor's see its own, which no filter of ours has to protect.
    pub(crate) fn shares_kernel(self) -> bool {
        self != Self::Runsc
    }

    /// The first process of a container is one of the machine's, and a signal can be sent to it.
    pub(crate) fn signals_directly(self, signal: i32) -> bool {
        self.shares_kernel() || signal == libc::SIGKILL
    }

    /// A directory that it must not see: `crun` refuses machines that have both versions of cgroups, even when it is
    /// told to leave them alone.
    pub(crate) fn hides(self) -> Option<&'static Path> {
        (self == Self::Crun).then_some(Path::new("/sys/fs/cgroup/unified"))
    }

    fn global(self) -> &'static [&'static str] {
        match self {
            Self::Runc => &[],
            Self::Crun => &["--cgroup-manager=disabled"],
            // A Pod's network is a kernel's: redirects on `lo`. gVisor's own would not see them.
            Self::Runsc => &["--network=host", "--platform=systrap", "--ignore-cgroups", "--overlay2=none"],
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An OCI runtime of this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    pub kind: Kind,
    /// Absolute.
    pub path: PathBuf,
}

/// What an OCI runtime is asked to do. Files are named below the bundle, which is the working directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb<'a> {
    Create { pid: &'a str, console: Option<&'a str> },
    Start,
    Exec { process: &'a str, pid: &'a str, console: Option<&'a str> },
    Kill(i32),
    Delete,
}

impl Program {
    /// The arguments, beginning with the program itself.
    pub(crate) fn command(&self, state: &Path, log: &str, container: &str, verb: Verb<'_>) -> Vec<String> {
        let mut words = vec![self.path.display().to_string()];
        words.extend(self.kind.global().iter().map(|&word| word.to_owned()));
        let mut add = |more: &[&str]| words.extend(more.iter().map(|&word| word.to_owned()));
        add(&["--root", &state.display().to_string(), "--log", log, "--log-format", "json"]);
        match verb {
            Verb::Create { pid, console } => {
                add(&["create", "--bundle", ".", "--pid-file", pid]);
                console.iter().for_each(|console| add(&["--console-socket", console]));
                add(&[container]);
            }
            Verb::Start => add(&["start", container]),
            Verb::Exec { process, pid, console } => {
                add(&["exec", "--detach", "--process", process, "--pid-file", pid]);
                console.iter().for_each(|console| add(&["--console-socket", console]));
                add(&[container]);
            }
            Verb::Kill(signal) => add(&["kill", container, &signal.to_string()]),
            Verb::Delete => add(&["delete", "--force", container]),
        }
        words
    }
}

/// The last thing that a runtime has complained about, from its log of JSON lines.
pub(crate) fn complaint(log: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Line {
        level: String,
        msg: String,
    }
    let mut lines = log.lines().rev().filter_map(|line| serde_json::from_str::<Line>(line).ok());
    lines.find(|line| matches!(line.level.as_str(), "error" | "fatal")).map(|line| line.msg)
}

pub(crate) fn is_executable(path: &Path) -> bool {
    path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_each_runtime_in_its_own_way() {
        let verb = Verb::Create { pid: "pid", console: Some("console") };
        let words = |kind, verb| {
            let program = Program { kind, path: format!("/bin/{kind}").into() };
            program.command(Path::new("/state"), "log", "c1", verb).join(" ")
        };
        assert_eq!(
            words(Kind::Runc, verb),
            "/bin/runc --root /state --log log --log-format json create --bundle . --pid-file pid \
             --console-socket console c1"
        );
        assert_eq!(
            words(Kind::Crun, Verb::Exec { process: "p", pid: "pid", console: None }),
            "/bin/crun --cgroup-manager=disabled --root /state --log log --log-format json exec --detach \
             --process p --pid-file pid c1"
        );
        assert!(words(Kind::Runsc, Verb::Kill(15)).ends_with(" kill c1 15"));
        assert!(words(Kind::Runsc, Verb::Delete).contains(" --network=host "));
    }

    #[test]
    fn finds_the_last_complaint() {
        let log = "{\"level\":\"error\",\"msg\":\"first\",\"time\":\"\"}\nnot JSON\n\
                   {\"level\":\"error\",\"msg\":\"second\"}\n{\"level\":\"warning\",\"msg\":\"third\"}\n";
        assert_eq!(complaint(log).as_deref(), Some("second"));
        assert_eq!(complaint(""), None);
    }
}
