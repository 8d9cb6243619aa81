//! The ways in which an agent isolates what it runs: natively, by OCI runtimes of this machine, by a containerd.

use std::ffi::OsStr;
use std::path::Path;

use agentcube_runtime::oci::{Kind, Oci, Program};
use agentcube_testkit::containers::oci::CACHED;
use anyhow::{Context, Result, ensure};

use crate::alone;
use crate::world::path;

#[allow(dead_code, reason = "what is shared with the tests of containerd is used in part")]
#[path = "../../../containerd/tests/containerd/daemon.rs"]
mod daemon;

/// The namespace of containerd that is used.
const NAMESPACE: &str = "agentcube-tests";
const IMAGE: &str = "example.com/tests/programs:1";

#[derive(Clone)]
pub(crate) struct Way {
    /// As `--runtime` has it.
    pub(crate) runtime: String,
    /// What an agent is told besides.
    pub(crate) words: Vec<String>,
    /// An image with a shell and with AgentCube itself.
    pub(crate) image: &'static str,
    /// What it runs can stand still.
    pub(crate) freezes: bool,
    /// How paths of cgroups begin that are not in the agent's own.
    pub(crate) elsewhere: Option<&'static str>,
}

impl Way {
    pub(crate) fn native() -> Way {
        let runtime = "native".to_owned();
        Way { runtime, words: Vec::new(), image: "host", freezes: true, elsewhere: None }
    }

    fn oci(program: &Program) -> Result<Way> {
        let directory = program.path.parent().context("a program is in a directory")?;
        Ok(Way {
            runtime: program.kind.to_string(),
            words: vec!["--oci-runtime-dir".to_owned(), path(directory)?.to_owned()],
            // Decision 20: gVisor's end of it.
            freezes: program.kind != Kind::Runsc,
            ..Way::native()
        })
    }

    fn containerd(socket: &Path) -> Result<Way> {
        let words = ["--containerd", path(socket)?, "--containerd-namespace", NAMESPACE];
        Ok(Way {
            runtime: "containerd".to_owned(),
            words: words.map(str::to_owned).to_vec(),
            image: IMAGE,
            elsewhere: Some("/agentcube/sb-"),
            ..Way::native()
        })
    }
}

/// By each OCI runtime, where this machine has it.
pub(crate) fn oci(cache: &Path, programs: &OsStr) -> Vec<(Kind, Option<Program>)> {
    let directories = std::iter::once(cache.join(CACHED)).chain(std::env::split_paths(programs));
    let found = Oci::find(directories);
    Kind::ALL.map(|kind| (kind, found.iter().find(|program| program.kind == kind).cloned())).to_vec()
}

pub(crate) async fn by_oci(program: &Path, runtime: &Program) -> Result<()> {
    alone::outlives(program, &Way::oci(runtime)?).await
}

/// Where containerd is, if this machine has it.
pub(crate) use daemon::programs as containerd;

/// With an image that nobody but containerd has; and nothing is left of what it ran.
pub(crate) async fn by_containerd(program: &Path, programs: &Path) -> Result<()> {
    let daemon = daemon::Daemon::start(programs)?;
    daemon.import(IMAGE, true)?;
    let way = Way::containerd(&daemon.socket())?;
    alone::outlives(program, &way).await.with_context(|| daemon.complaints())?;
    let left = daemon.left()?;
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}
