//! Who a container runs as: numbers of the Pod, or names of the image, looked up in the image.

use agentcube_runtime::image::{Accounts, Config, Unknown};
use agentcube_runtime::spec::{Root, User};
use k8s_openapi::api::core::v1::{Container, Pod};

use super::Refusal;
use crate::kubelet::machine::printed_pod;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Resolved {
    pub(super) user: User,
    pub(super) home: Option<String>,
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
    let accounts = Accounts::read(root);
    let (account, image_group) = match wanted {
        Some(uid) => (accounts.by_number(number(uid)?), None),
        None => accounts.of_image(&config.user).map_err(unknown)?,
    };
    if own.run_as_non_root.or(shared.run_as_non_root) == Some(true) {
        refuse_root(pod, container, config, wanted, account.uid)?;
    }
    let gid = match (group, image_group) {
        (Some(gid), _) => number(gid)?,
        (None, Some(named)) => accounts.group_number(&named).map_err(unknown)?,
        (None, None) => account.gid,
    };
    let mut groups = Vec::new();
    if shared.supplemental_groups_policy.as_deref() != Some("Strict") {
        groups = accounts.memberships(&account.name);
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

fn unknown(name: Unknown) -> Refusal {
    Refusal::create(name.to_string())
}

fn number(id: i64) -> Result<u32, Refusal> {
    u32::try_from(id).map_err(|_| Refusal::config(format!("{id} is not a user or group number")))
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
}
