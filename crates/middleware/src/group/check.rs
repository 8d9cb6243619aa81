//! What has to hold before an upgrade begins, as far as it is known without asking agents. What nobody says does not hold. Pure.

use std::collections::BTreeMap;

use agentcube_api::middleware::group::{PreUpgradeCheck, RoleDetection};

use super::observe::{Pod, Role, Set};

/// Whether it makes sense to ask Pods about their health: there are some, and they are as this kind of check wants them.
pub(super) fn before_asking(
    check: &PreUpgradeCheck,
    pods: &[Pod],
    detection: Option<&RoleDetection>,
    roles: &BTreeMap<String, Role>,
) -> Result<(), String> {
    if !pods.iter().any(serves) {
        return Err("no Pod of it is ready to be asked: mend it, or go back to the version before".into());
    }
    match check.type_.as_str() {
        "health" => Ok(()),
        "replication" => replicates(pods, detection, roles),
        other => Err(format!("preUpgradeCheck.type {other} is not known: use health or replication")),
    }
}

/// Whether there is nothing that an upgrade could harm: no Pod, and none is wanted so far.
pub(super) fn is_idle(set: Option<&Set>, pods: &[Pod]) -> bool {
    pods.is_empty() && set.is_some_and(|set| set.replicas == 0)
}

fn serves(pod: &Pod) -> bool {
    pod.ready && !pod.terminating
}

/// All Pods are ready, one leads, and the others follow.
fn replicates(
    pods: &[Pod],
    detection: Option<&RoleDetection>,
    roles: &BTreeMap<String, Role>,
) -> Result<(), String> {
    let Some(detection) = detection else {
        return Err("preUpgradeCheck.type replication needs highAvailability.passive.roleDetection".into());
    };
    let says_whom = detection.facts.as_ref().is_some_and(|facts| facts.follows.is_some());
    let mut leaders = Vec::new();
    for pod in pods {
        let role = match roles.get(&pod.name) {
            _ if !serves(pod) => return Err(format!("{} is not ready", pod.name)),
            None => return Err(format!("{} does not say its role", pod.name)),
            Some(role) => role,
        };
        match role.leader {
            true => leaders.push(pod.name.as_str()),
            false if says_whom && role.follows.is_none() => {
                return Err(format!("{} follows nobody", pod.name));
            }
            false => {}
        }
    }
    match leaders[..] {
        [_] => Ok(()),
        [] => Err("no Pod leads".into()),
        _ => Err(format!("more than one Pod leads: {}", leaders.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;

    fn pod(name: &str, ready: bool) -> Pod {
        Pod {
            name: name.into(),
            uid: name.into(),
            ordinal: 0,
            ready,
            shown_ready: ready,
            terminating: false,
            revision: String::new(),
            configuration: String::new(),
            created: Timestamp::UNIX_EPOCH,
            address: None,
            labelled: None,
            taken_for: None,
            homeless: None,
        }
    }

    fn role(leader: bool, follows: Option<&str>) -> Role {
        Role { leader, follows: follows.map(str::to_owned), ..Role::default() }
    }

    fn verdict(type_: &str, pods: &[Pod], facts: bool, roles: &[(&str, Role)]) -> Result<(), String> {
        let check = PreUpgradeCheck { type_: type_.into(), timeout: None };
        let facts = if facts { json!({ "follows": "(.*)" }) } else { json!({}) };
        let detection: RoleDetection =
            serde_json::from_value(json!({ "command": "role", "facts": facts })).unwrap();
        let roles = roles.iter().map(|(name, role)| ((*name).to_owned(), role.clone())).collect();
        before_asking(&check, pods, Some(&detection), &roles)
    }

    #[test]
    fn whoever_cannot_be_asked_agrees_to_nothing() {
        let leaving = Pod { terminating: true, ..pod("a", true) };
        for pods in [vec![], vec![pod("a", false), pod("b", false)], vec![leaving]] {
            for type_ in ["health", "replication"] {
                let error = verdict(type_, &pods, false, &[]).unwrap_err();
                assert!(error.contains("no Pod of it is ready to be asked"), "{error}");
            }
        }
        assert_eq!(verdict("health", &[pod("a", true), pod("b", false)], false, &[]), Ok(()));
        let error = verdict("luck", &[pod("a", true)], false, &[]).unwrap_err();
        assert!(error.contains("luck is not known: use health or replication"), "{error}");
    }

    #[test]
    fn replication_is_one_leader_and_all_others_following() {
        let pods = [pod("a", true), pod("b", true)];
        let (leads, follows, lost) = (role(true, None), role(false, Some("10.0.0.1")), role(false, None));
        let cases = [
            (vec![("a", leads.clone())], "b does not say its role"),
            (vec![("a", leads.clone()), ("b", leads.clone())], "more than one Pod leads: a, b"),
            (vec![("a", follows.clone()), ("b", follows.clone())], "no Pod leads"),
            (vec![("a", leads.clone()), ("b", lost.clone())], "b follows nobody"),
            (vec![], "a does not say its role"),
        ];
        for (roles, wanted) in cases {
            assert_eq!(verdict("replication", &pods, true, &roles), Err(wanted.to_owned()));
        }
        let one_down = [pod("a", true), pod("b", false)];
        let well = [("a", leads.clone()), ("b", follows)];
        assert_eq!(verdict("replication", &one_down, true, &well), Err("b is not ready".to_owned()));
        assert_eq!(verdict("replication", &pods, true, &well), Ok(()));
        // Whoever cannot say whom it follows is believed.
        assert_eq!(verdict("replication", &pods, false, &[("a", leads), ("b", lost)]), Ok(()));
        let check = PreUpgradeCheck { type_: "replication".into(), timeout: None };
        let error = before_asking(&check, &pods, None, &BTreeMap::new()).unwrap_err();
        assert!(error.contains("needs highAvailability.passive.roleDetection"), "{error}");
    }

    #[test]
    fn a_group_of_no_pods_has_nothing_to_lose() {
        let set = |replicas| Set { replicas, claim_templates: serde_json::Value::Null };
        assert!(is_idle(Some(&set(0)), &[]));
        assert!(!is_idle(Some(&set(1)), &[]));
        assert!(!is_idle(Some(&set(0)), &[pod("a", false)]));
        assert!(!is_idle(None, &[]));
    }
}
