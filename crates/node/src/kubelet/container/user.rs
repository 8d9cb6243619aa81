//! Who a container runs as: numbers of the Pod, or names of the image, looked up in the image.

use std::io::Read;

use agentcube_runtime::image::Config;
use agentcube_runtime::spec::{Root, User};
use k8s_openapi::api::core::v1::{Container, Pod};
use rustix::fs::{Mode, OFlags, ResolveFlags};

use super::Refusal;
use crate::kubelet::machine::printed_pod;

/// More of `/etc/passwd` or `/etc/group` is not read.
const MOST_BYTES: u64 = 1 << 20;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Resolved {
    pub(super) user: User,
    pub(super) home: Option<String>,
}

/// One line of `/etc/passwd`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Account {
    name: String,
    uid: u32,
    gid: u32,
    home: String,
}

pub(super) fn resolve(
    pod: &Pod,
    container: &Container,
    config: &Config,
    root: &Root,
) -> Result<Resolved, Refusal> {
    let shared = pod.spec.as_ref().and_then(|spec| spec.security_context.clone()).unwrap_or_default();
    let own = container.security_context.clone().unwrap_or_default();
    let wanted = own.run_as_user.or(shared.run_as_user);
    let group = own.run_as_group.or(shared.run_as_group);
    let accounts = accounts(&read(root, "etc/passwd"));
    let (account, image_group) = match wanted {
        Some(uid) => (by_number(&accounts, number(uid)?), None),
        None => of_image(&accounts, &config.user)?,
    };
    if own.run_as_non_root.or(shared.run_as_non_root) == Some(true) {
        refuse_root(pod, container, config, wanted, account.uid)?;
    }
    let groups_file = read(root, "etc/group");
    let gid = match (group, image_group) {
        (Some(gid), _) => number(gid)?,
        (None, Some(named)) => group_number(&groups_file, &named)?,
        (None, None) => account.gid,
    };
    let mut groups = Vec::new();
    if shared.supplemental_groups_policy.as_deref() != Some("Strict") {
        groups = memberships(&groups_file, &account.name);
    }
    for group in shared.supplemental_groups.iter().flatten().chain(&shared.fs_group) {
        groups.push(number(*group)?);
    }
    groups.sort_unstable();
    groups.dedup();
    let home = Some(account.home).filter(|home| !home.is_empty());
    Ok(Resolved { user: User { uid: account.uid, gid, groups }, home })
}

fn refuse_root(
    pod: &Pod,
    container: &Container,
    config: &Config,
    wanted: Option<i64>,
    uid: u32,
) -> Result<(), Refusal> {
    let (pod, name) = (printed_pod(pod), &container.name);
    let place = format!("(pod: \"{pod}\", container: {name})");
    let account = config.user.split(':').next().unwrap_or_default();
    let numeric = account.is_empty() || account.parse::<u32>().is_ok();
    match wanted {
        Some(0) => Err(Refusal::config(format!("container's runAsUser breaks non-root policy {place}"))),
        Some(_) => Ok(()),
        None if !numeric => Err(Refusal::config(format!(
            "container has runAsNonRoot and image has non-numeric user ({account}), cannot verify user is non-root \
             {place}"
        ))),
        None if uid == 0 => {
            Err(Refusal::config(format!("container has runAsNonRoot and image will run as root {place}")))
        }
        None => Ok(()),
    }
}

fn number(id: i64) -> Result<u32, Refusal> {
    u32::try_from(id).map_err(|_| Refusal::config(format!("{id} is not a user or group number")))
}

fn by_number(accounts: &[Account], uid: u32) -> Account {
    let known = accounts.iter().find(|account| account.uid == uid).cloned();
    known.unwrap_or(Account { name: String::new(), uid, gid: 0, home: String::new() })
}

/// The image's user, and its group if it names one.
fn of_image(accounts: &[Account], user: &str) -> Result<(Account, Option<String>), Refusal> {
    let (name, group) = user.split_once(':').map_or((user, None), |(name, group)| (name, Some(group)));
    let group = group.filter(|group| !group.is_empty()).map(str::to_owned);
    let account = match name.parse::<u32>() {
        _ if name.is_empty() => by_number(accounts, 0),
        Ok(uid) => by_number(accounts, uid),
        Err(_) => accounts.iter().find(|account| account.name == name).cloned().ok_or_else(|| {
            Refusal::create(format!("the image runs as user {name:?}, whom its /etc/passwd does not know"))
        })?,
    };
    Ok((account, group))
}

fn accounts(passwd: &str) -> Vec<Account> {
    let account = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?.to_owned();
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        let home = fields.nth(1).unwrap_or_default().to_owned();
        Some(Account { name, uid, gid, home })
    };
    passwd.lines().filter_map(account).collect()
}

/// Name, number and members of each group.
fn groups(file: &str) -> impl Iterator<Item = (&str, u32, &str)> {
    file.lines().filter_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        let gid = fields.nth(1)?.parse().ok()?;
        Some((name, gid, fields.next().unwrap_or_default()))
    })
}

fn group_number(file: &str, group: &str) -> Result<u32, Refusal> {
    if let Ok(gid) = group.parse() {
        return Ok(gid);
    }
    let known = groups(file).find(|(name, ..)| *name == group).map(|(_, gid, _)| gid);
    known.ok_or_else(|| {
        Refusal::create(format!("the image runs as group {group:?}, which its /etc/group does not know"))
    })
}

fn memberships(file: &str, user: &str) -> Vec<u32> {
    let member = |members: &str| !user.is_empty() && members.split(',').any(|member| member == user);
    groups(file).filter(|(_, _, members)| member(members)).map(|(_, gid, _)| gid).collect()
}

/// A file of the image, resolved within it: a link cannot lead to a file of the host. What cannot be read is empty.
fn read(root: &Root, path: &str) -> String {
    let base = match root {
        Root::Directory(path) => path.as_path(),
        Root::Host { .. } => std::path::Path::new("/"),
    };
    let open = || -> Option<std::fs::File> {
        let base =
            rustix::fs::open(base, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::openat2(base, path, flags, Mode::empty(), ResolveFlags::IN_ROOT).ok()?;
        let file = std::fs::File::from(file);
        file.metadata().is_ok_and(|meta| meta.is_file()).then_some(file)
    };
    let mut bytes = Vec::new();
    let read = open().map(|file| file.take(MOST_BYTES).read_to_end(&mut bytes));
    match read {
        Some(Ok(_)) => String::from_utf8_lossy(&bytes).into_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn image() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("etc")).unwrap();
        let passwd = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:34::/srv:/bin/sh\nbroken\n";
        std::fs::write(dir.path().join("etc/passwd"), passwd).unwrap();
        std::fs::write(dir.path().join("etc/group"), "root:x:0:\nlog:x:4:web,x\nops:x:50:\n").unwrap();
        dir
    }

    fn resolved(spec: serde_json::Value, user: &str) -> Result<Resolved, Refusal> {
        let dir = image();
        let pod: Pod = serde_json::from_value(
            json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec}),
        )
        .unwrap();
        let container = pod.spec.as_ref().unwrap().containers[0].clone();
        let config = Config { user: user.into(), ..Config::default() };
        resolve(&pod, &container, &config, &Root::Directory(dir.path().into()))
    }

    #[test]
    fn pods_win_over_images_and_names_are_looked_up() {
        let table = [
            (json!({}), json!({}), "", (0, 0, vec![])),
            (json!({}), json!({}), "web", (33, 34, vec![4])),
            (json!({}), json!({}), "33", (33, 34, vec![4])),
            (json!({}), json!({}), "web:ops", (33, 50, vec![4])),
            (json!({}), json!({}), "7:8", (7, 8, vec![])),
            (json!({"runAsUser": 9}), json!({}), "web", (9, 0, vec![])),
            (json!({"runAsUser": 9}), json!({"runAsUser": 33, "runAsGroup": 2}), "", (33, 2, vec![4])),
            (
                json!({"fsGroup": 77, "supplementalGroups": [5, 77]}),
                json!({}),
                "web",
                (33, 34, vec![4, 5, 77]),
            ),
            (
                json!({"supplementalGroupsPolicy": "Strict", "fsGroup": 6}),
                json!({}),
                "web",
                (33, 34, vec![6]),
            ),
        ];
        for (shared, own, user, (uid, gid, groups)) in table {
            let spec =
                json!({"securityContext": shared, "containers": [{"name": "c", "securityContext": own}]});
            let found = resolved(spec, user).unwrap().user;
            assert_eq!((found.uid, found.gid, found.groups), (uid, gid, groups), "{shared} {own} {user}");
        }
    }

    #[test]
    fn root_is_refused_in_the_words_of_a_kubelet() {
        let place = "(pod: \"p_n(u)\", container: c)";
        let table = [
            (json!({"runAsUser": 0}), "", format!("container's runAsUser breaks non-root policy {place}")),
            (json!({}), "", format!("container has runAsNonRoot and image will run as root {place}")),
            (
                json!({}),
                "web",
                format!(
                    "container has runAsNonRoot and image has non-numeric user (web), cannot verify user is non-root {place}"
                ),
            ),
        ];
        for (mut own, user, message) in table {
            own["runAsNonRoot"] = json!(true);
            let spec = json!({"containers": [{"name": "c", "securityContext": own}]});
            assert_eq!(resolved(spec, user), Err(Refusal::config(message)));
        }
        let spec = json!({"containers": [{"name": "c", "securityContext": {"runAsNonRoot": true}}]});
        assert_eq!(resolved(spec, "33").unwrap().user.uid, 33);
    }

    #[test]
    fn links_of_an_image_do_not_lead_out_of_it() {
        let outside = image();
        let inside = tempfile::tempdir().unwrap();
        std::fs::create_dir(inside.path().join("etc")).unwrap();
        let link = inside.path().join("etc/passwd");
        std::os::unix::fs::symlink(outside.path().join("etc/passwd"), link).unwrap();
        assert_eq!(read(&Root::Directory(inside.path().into()), "etc/passwd"), "");
        assert_ne!(read(&Root::Directory(outside.path().into()), "etc/passwd"), "");
    }
}
