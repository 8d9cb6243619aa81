//! A place on the machine, and everything that comes from it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use agentcube_runtime::spawner::Options;

use super::{Node, copy_program, probe};

/// A directory with a program of its own, by which all processes that come from it are known.
pub(crate) struct Place {
    directory: tempfile::TempDir,
    pub(crate) options: Options,
    devices: BTreeSet<String>,
}

/// Everything on the machine that comes from a place.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) processes: BTreeSet<u32>,
    pub(crate) mounts: Vec<String>,
    pub(crate) cgroups: Vec<PathBuf>,
    pub(crate) scratch: Vec<PathBuf>,
}

impl Place {
    pub(crate) fn new(name: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        copy_program(Path::new(&probe()), &directory.path().join("probe"));
        let options =
            Options::new(format!("crash-{name}-{}", std::process::id()), directory.path().join("runtime"));
        Self { directory, options, devices: devices() }
    }

    pub(crate) fn program(&self) -> PathBuf {
        self.directory.path().join("probe")
    }

    pub(crate) fn start(&self) -> Node {
        Node::start_program(&self.program(), self.options.clone())
    }

    pub(crate) fn start_dying_at(&self, step: &str) -> Node {
        let options = Options { die_at: Some(step.to_owned()), ..self.options.clone() };
        Node::start_program(&self.program(), options)
    }

    pub(crate) fn found(&self) -> Found {
        let program = self.program();
        let of_ours = |pid: &u32| {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            command.starts_with(program.as_os_str().as_encoded_bytes())
        };
        let name = format!("agentcube-{}", self.options.node);
        let directory = self.directory.path().to_str().unwrap();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mut cgroups = Vec::new();
        find_named(Path::new("/sys/fs/cgroup"), &name, 8, &mut cgroups);
        Found {
            processes: numbers("/proc").filter(of_ours).collect(),
            mounts: mounts.lines().filter(|line| line.contains(directory)).map(str::to_owned).collect(),
            cgroups,
            scratch: entries(&self.options.directory.join("scratch")),
        }
    }

    /// Only the node itself is there.
    pub(crate) fn assert_only_a_spawner(&self) {
        let found = self.found();
        assert_eq!(found.processes.len(), 1, "{found:?}");
        assert_eq!((&found.mounts, &found.scratch), (&Vec::new(), &Vec::new()));
        for tree in &found.cgroups {
            let groups = entries(tree).into_iter().filter(|path| path.is_dir()).collect::<Vec<_>>();
            assert_eq!(groups, Vec::<PathBuf>::new());
        }
    }

    /// Starts once more, as after a crash, and counts.
    pub(crate) async fn assert_clean_after_next_start(&self) {
        let node = self.start();
        self.assert_only_a_spawner();
        let (sandbox, _sockets) = node.sandbox("after").await;
        let (exit, _) = node.run(node.spec("after", &sandbox, &["exit", "3"])).await.unwrap();
        assert_eq!(exit.code, 3, "what comes after works");
        node.handle.stop().await;
        assert_eq!(self.found(), Found::default());
        assert_eq!(devices(), self.devices);
        let names: Vec<_> = entries(&self.options.directory)
            .iter()
            .map(|path| path.file_name().unwrap().to_owned())
            .collect();
        assert_eq!(names, ["lock", "oci", "places", "record", "scratch", "template"]);
        assert!(entries(&self.options.directory.join("oci")).is_empty());
    }

    pub(crate) fn spawner_pid(&self) -> i32 {
        spawner_pid(&self.options.directory)
    }
}

pub(crate) fn spawner_pid(directory: &Path) -> i32 {
    let record = std::fs::read(directory.join("record")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    i32::try_from(record["spawner"]["pid"].as_i64().unwrap()).unwrap()
}

/// The children of a spawner that wait to be told of their container.
pub(crate) fn waiting(spawner: i32) -> Vec<u32> {
    let waits = |pid: &u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let value =
            |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default().trim();
        value("Name:") == "agentcube-ahead" && value("PPid:") == spawner.to_string()
    };
    numbers("/proc").filter(waits).collect()
}

/// Those of them that have laid a root over an image.
pub(crate) fn laid(spawner: i32) -> Vec<u32> {
    let has_laid = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/mountinfo")).is_ok_and(|text| text.contains("/.ahead-"))
    };
    waiting(spawner).into_iter().filter(has_laid).collect()
}

fn devices() -> BTreeSet<String> {
    let text = std::fs::read_to_string("/proc/net/dev").unwrap();
    text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned())).collect()
}

fn numbers(directory: &str) -> impl Iterator<Item = u32> {
    std::fs::read_dir(directory).unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn find_named(directory: &Path, name: &str, depth: u32, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| path.is_dir()) {
        if path.file_name().is_some_and(|found| found == name) {
            found.push(path);
        } else if depth > 0 {
            find_named(&path, name, depth - 1, found);
        }
    }
}

pub(crate) fn kill(pid: i32) {
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(pid).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
}
