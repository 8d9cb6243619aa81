//! Finds a place for the node's tree in the unified hierarchy, where a cgroup has either processes or controllers to
//! hand down, never both.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Controller, Hierarchy, make};

/// The nearest ancestor of our own cgroup that lets us hand controllers down; `None` if there is none.
pub(super) fn open(own: &Path, top: &Path, name: &str) -> Option<Hierarchy> {
    own.ancestors().take_while(|directory| directory.starts_with(top)).find_map(|parent| {
        let directory = parent.join(name);
        let existed = directory.exists();
        let hierarchy = hand_down(parent, &directory, parent == own);
        if hierarchy.is_none() && !existed {
            let _ = fs::remove_dir(&directory);
        }
        hierarchy
    })
}

fn hand_down(parent: &Path, directory: &Path, ours: bool) -> Option<Hierarchy> {
    let names = available(parent)?;
    make(directory).ok()?;
    let wanted = names.iter().map(|name| format!("+{name}")).collect::<Vec<_>>().join(" ");
    let control = parent.join("cgroup.subtree_control");
    if fs::write(&control, &wanted).is_err() {
        // Processes stand in the way. If they are only this one, it steps aside.
        if !ours || !alone(parent) {
            return None;
        }
        let aside = aside(directory);
        make(&aside).ok()?;
        fs::write(aside.join("cgroup.procs"), "0").ok()?;
        fs::write(&control, &wanted).ok()?;
    }
    fs::write(directory.join("cgroup.subtree_control"), &wanted).ok()?;
    let mut controllers: Vec<_> = names.iter().filter_map(|name| Controller::parse(name)).collect();
    if controllers.contains(&Controller::Cpu) {
        controllers.push(Controller::CpuTime);
    }
    Some(Hierarchy { controllers, directory: directory.to_owned() })
}

/// Where the node's own processes go when they have to leave their cgroup.
pub(super) fn aside(directory: &Path) -> PathBuf {
    directory.with_extension("node")
}

fn available(parent: &Path) -> Option<Vec<String>> {
    let all = fs::read_to_string(parent.join("cgroup.controllers")).ok()?;
    let names: Vec<_> = all.split_whitespace().filter(|name| Controller::parse(name).is_some()).collect();
    (!names.is_empty()).then(|| names.into_iter().map(str::to_owned).collect())
}

fn alone(parent: &Path) -> bool {
    let own = std::process::id().to_string();
    fs::read_to_string(parent.join("cgroup.procs")).is_ok_and(|all| all.lines().all(|pid| pid == own))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hierarchy of plain files, with the controllers that each directory offers.
    fn hierarchy(offers: &[(&str, &str)]) -> tempfile::TempDir {
        let top = tempfile::tempdir().unwrap();
        for (directory, controllers) in offers {
            let directory = top.path().join(directory);
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("cgroup.controllers"), controllers).unwrap();
            fs::write(directory.join("cgroup.procs"), "").unwrap();
        }
        top
    }

    #[test]
    fn takes_the_nearest_place_that_has_controllers() {
        type Offers = &'static [(&'static str, &'static str)];
        let table: [(Offers, Option<&str>); 3] = [
            (
                &[("", "cpu io memory pids"), ("user", "memory pids"), ("user/scope", "memory")],
                Some("user/scope/n"),
            ),
            (&[("", "cpu io memory pids"), ("user", "memory pids"), ("user/scope", "")], Some("user/n")),
            (&[("", "io"), ("user", ""), ("user/scope", "")], None),
        ];
        for (offers, expected) in table {
            let top = hierarchy(offers);
            let found = open(&top.path().join("user/scope"), top.path(), "n");
            let expected = expected.map(|expected| top.path().join(expected));
            assert_eq!(found.map(|found| found.directory), expected, "{offers:?}");
            if expected.is_none() {
                assert!(!top.path().join("n").exists() && !top.path().join("user/n").exists());
            }
        }
    }

    #[test]
    fn hands_down_what_it_can_use() {
        let top = hierarchy(&[("", "cpuset cpu io memory pids")]);
        let found = open(top.path(), top.path(), "n").unwrap();
        let all = [Controller::Cpu, Controller::Memory, Controller::Pids, Controller::CpuTime];
        assert_eq!(found.controllers, all);
        for control in ["cgroup.subtree_control", "n/cgroup.subtree_control"] {
            assert_eq!(fs::read_to_string(top.path().join(control)).unwrap(), "+cpu +memory +pids");
        }
    }
}
