//! What a node leaves on the machine: processes, mounts, cgroups, network devices and files. Looks only, and sees all that
//! comes from one place.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use agentcube_testkit::cluster::up::Place;
use anyhow::{Context, Result, ensure};

/// How deep the cgroups of a machine are searched.
const DEPTH: u32 = 8;
/// The kernel takes killed processes apart in its own time.
const PATIENCE: Duration = Duration::from_secs(30);
/// Files named when some are left.
const SHOWN: usize = 12;
const POLL: Duration = Duration::from_millis(2);

/// Everything on the machine that comes from one place, and what it could have changed of the machine's own.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Traces {
    pub(crate) processes: Vec<String>,
    mounts: Vec<String>,
    pub(crate) cgroups: BTreeSet<PathBuf>,
    /// Network devices of the machine, and namespaces that are kept by a mount.
    network: BTreeSet<String>,
    pub(crate) files: BTreeSet<PathBuf>,
}

impl Traces {
    pub(crate) fn of(place: &Place) -> Result<Self> {
        Ok(Self {
            processes: processes(place)?,
            mounts: mounts(place)?,
            cgroups: cgroups(place)?,
            network: network()?,
            files: files(&place.data())?,
        })
    }

    /// Says what there is now that was not there before, and the other way round.
    pub(crate) fn ensure_same(&self, before: &Self) -> Result<()> {
        let Self { processes, mounts, cgroups, network, files } = self;
        ensure!(processes == &before.processes, "processes are left: {processes:#?}");
        ensure!(mounts == &before.mounts, "mounts are left: {mounts:#?}");
        ensure!(cgroups == &before.cgroups, "cgroups are left: {cgroups:#?}");
        let changed: Vec<_> = network.symmetric_difference(&before.network).collect();
        ensure!(changed.is_empty(), "the machine's network changed: {changed:#?}");
        let changed: Vec<_> = files.symmetric_difference(&before.files).take(SHOWN).collect();
        ensure!(changed.is_empty(), "files are left, or gone, among them: {changed:#?}");
        Ok(())
    }
}

/// Waits until no process of the place is left, with nobody doing anything about it.
pub(crate) async fn no_process(place: &Place) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let left = processes(place)?;
        if left.is_empty() {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "processes outlive the node that started them: {left:#?}");
        tokio::time::sleep(POLL).await;
    }
}

/// The processes of the place: its program's, its containers' by their mark, whatever is in its cgroups, and all of its
/// user, if it has one of its own.
fn processes(place: &Place) -> Result<Vec<String>> {
    let mark = place.path().as_os_str().as_bytes();
    let groups: Vec<_> = place.cgroups().unwrap_or_default().iter().filter_map(|it| name(it)).collect();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let process = entry?.path();
        if name(&process).is_none_or(|name| name.parse::<u32>().is_err()) || is_zombie(&process) {
            continue;
        }
        let read = |file: &str| std::fs::read(process.join(file)).unwrap_or_default();
        let is_program = std::fs::read_link(process.join("exe")).is_ok_and(|exe| exe == place.program());
        let is_marked = contains(&read("environ"), mark);
        let in_group = groups.iter().any(|group| contains(&read("cgroup"), group.as_bytes()));
        let owner = std::fs::metadata(&process).map(|it| it.uid()).ok();
        let is_users = place.account().is_some_and(|account| owner == Some(account.uid));
        if is_program || is_marked || in_group || is_users {
            let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
            found.push(format!("{}: {command}", process.display()));
        }
    }
    found.sort();
    Ok(found)
}

/// It holds nothing any more; who started it has yet to ask how it ended.
fn is_zombie(process: &Path) -> bool {
    let stat = std::fs::read_to_string(process.join("stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

fn name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_owned())
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

fn mounts(place: &Place) -> Result<Vec<String>> {
    let path = place.path().to_str().context("a path that is not text")?;
    let text = std::fs::read_to_string("/proc/self/mountinfo")?;
    Ok(text.lines().filter(|line| line.contains(path)).map(str::to_owned).collect())
}

/// The node's cgroups wherever they are, the one that it has itself among them.
fn cgroups(place: &Place) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    if let Some(name) = place.cgroups().unwrap_or_default().first().and_then(|group| name(group)) {
        find(Path::new("/sys/fs/cgroup"), &name, DEPTH, &mut found);
    }
    Ok(found)
}

fn find(directory: &Path, wanted: &str, depth: u32, found: &mut BTreeSet<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir()) {
        if name(&path).is_some_and(|name| name == wanted) {
            found.insert(path);
        } else if depth > 0 {
            find(&path, wanted, depth - 1, found);
        }
    }
}

fn network() -> Result<BTreeSet<String>> {
    let devices = std::fs::read_to_string("/proc/net/dev")?;
    let device = |line: &str| Some(format!("device {}", line.split_once(':')?.0.trim()));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    let kept = mounts.lines().filter(|line| line.contains(" - nsfs ")).map(str::to_owned);
    Ok(devices.lines().filter_map(device).chain(kept).collect())
}

/// Every file and directory below.
fn files(top: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let mut open = vec![top.to_owned()];
    while let Some(directory) = open.pop() {
        let entries = match std::fs::read_dir(&directory) {
            // A node that runs has removed it since it was seen.
            Err(error) if error.kind() == ErrorKind::NotFound && directory != top => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                open.push(entry.path());
            }
            found.insert(entry.path());
        }
    }
    Ok(found)
}
