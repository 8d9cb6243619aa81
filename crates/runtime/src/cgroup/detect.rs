//! Where this process stands in the machine's cgroup hierarchies. Pure functions over the text that `/proc` has.

use std::path::{Component, Path, PathBuf};

use super::Controller;

/// A hierarchy that this process is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    /// Those that we use. Empty for the unified hierarchy: its controllers are in `cgroup.controllers`.
    pub(super) controllers: Vec<Controller>,
    pub(super) unified: bool,
    /// The one of v1's freezer.
    pub(super) freezer: bool,
    /// The directory of this process's own cgroup.
    pub(super) own: PathBuf,
    /// The highest directory of the hierarchy that can be seen.
    pub(super) top: PathBuf,
}

/// Reads `/proc/self/cgroup` and `/proc/self/mountinfo`.
pub(super) fn find(cgroup: &str, mountinfo: &str) -> Vec<Found> {
    let mounts: Vec<_> = mountinfo.lines().filter_map(CgroupMount::parse).collect();
    cgroup.lines().filter_map(|line| found(line, &mounts)).collect()
}

fn found(line: &str, mounts: &[CgroupMount]) -> Option<Found> {
    let mut fields = line.splitn(3, ':');
    let (number, names, path) = (fields.next()?, fields.next()?, fields.next()?);
    let unified = number == "0" && names.is_empty();
    let controllers: Vec<_> = names.split(',').filter_map(Controller::parse).collect();
    let freezer = names.split(',').any(|name| name == "freezer");
    let carries = |mount: &&CgroupMount| {
        if unified { mount.unified } else { names.split(',').all(|name| mount.has(name)) }
    };
    let mount = mounts.iter().rev().find(carries)?;
    // What lies above the mount's root, or outside of our cgroup namespace, cannot be reached.
    let below = Path::new(path).strip_prefix(&mount.root).ok()?;
    if below.components().any(|part| part == Component::ParentDir) {
        return None;
    }
    let own = mount.point.join(below).components().collect();
    Some(Found { controllers, unified, freezer, own, top: mount.point.clone() })
}

struct CgroupMount {
    root: PathBuf,
    point: PathBuf,
    unified: bool,
    options: String,
}

impl CgroupMount {
    fn parse(line: &str) -> Option<Self> {
        let (front, back) = line.split_once(" - ")?;
        let mut front = front.split(' ').skip(3);
        let (root, point) = (front.next()?, front.next()?);
        let mut back = back.split(' ');
        let unified = match back.next()? {
            "cgroup" => false,
            "cgroup2" => true,
            _ => return None,
        };
        let options = back.nth(1)?.to_owned();
        Some(Self { root: unescape(root), point: unescape(point), unified, options })
    }

    fn has(&self, controller: &str) -> bool {
        !self.unified && self.options.split(',').any(|option| option == controller)
    }
}

/// `mountinfo` writes blanks and backslashes as octal.
fn unescape(text: &str) -> PathBuf {
    let mut parts = text.split('\\');
    let mut path = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let code = part.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => path.extend([char::from(code)].into_iter().chain(part[3..].chars())),
            None => path.push_str(part),
        }
    }
    PathBuf::from(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(controllers: &[Controller], unified: bool, own: &str, top: &str) -> Found {
        Found {
            controllers: controllers.to_vec(),
            unified,
            freezer: top.contains("freezer"),
            own: own.into(),
            top: top.into(),
        }
    }

    #[test]
    fn finds_our_place_in_each_layout() {
        let table = [
            (
                "v2",
                "0::/user.slice/user-1000.slice/session-2.scope\n",
                "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
                vec![one(
                    &[],
                    true,
                    "/sys/fs/cgroup/user.slice/user-1000.slice/session-2.scope",
                    "/sys/fs/cgroup",
                )],
            ),
            (
                "hybrid, controllers apart",
                "9:name=systemd:/\n8:pids:/\n6:freezer:/c\n4:memory:/a/b\n2:cpuacct:/\n1:cpu:/\n0::/\n",
                "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
                 33 31 0:30 / /sys/fs/cgroup/cpuacct rw,relatime - cgroup cgroup rw,cpuacct\n\
                 35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
                 39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids\n\
                 38 31 0:35 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer\n\
                 40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd\n\
                 41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
                vec![
                    one(&[], false, "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/systemd"),
                    one(&[Controller::Pids], false, "/sys/fs/cgroup/pids", "/sys/fs/cgroup/pids"),
                    one(&[], false, "/sys/fs/cgroup/freezer/c", "/sys/fs/cgroup/freezer"),
                    one(&[Controller::Memory], false, "/sys/fs/cgroup/memory/a/b", "/sys/fs/cgroup/memory"),
                    one(&[Controller::CpuTime], false, "/sys/fs/cgroup/cpuacct", "/sys/fs/cgroup/cpuacct"),
                    one(&[Controller::Cpu], false, "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu"),
                    one(&[], true, "/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified"),
                ],
            ),
            (
                "v1 in a container, mounted from its own group on",
                "4:cpu,cpuacct:/docker/abc\n",
                "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n",
                vec![one(
                    &[Controller::Cpu, Controller::CpuTime],
                    false,
                    "/sys/fs/cgroup/cpu,cpuacct",
                    "/sys/fs/cgroup/cpu,cpuacct",
                )],
            ),
            (
                "a group outside of what is mounted, and one outside of the namespace",
                "4:memory:/elsewhere\n0::/../other\n",
                "32 31 0:29 /docker/abc /m rw - cgroup cgroup rw,memory\n33 31 0:3 / /u rw - cgroup2 cgroup2 rw\n",
                vec![],
            ),
            (
                "a mount point with a blank",
                "0::/x\n",
                "33 31 0:3 / /my\\040groups rw - cgroup2 cgroup2 rw\n",
                vec![one(&[], true, "/my groups/x", "/my groups")],
            ),
        ];
        for (name, cgroup, mountinfo, expected) in table {
            assert_eq!(find(cgroup, mountinfo), expected, "{name}");
        }
    }
}
