//! The annotations by which a Deployment numbers its ReplicaSets, and by which `kubectl rollout` finds them.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use kube::ResourceExt;

use super::limits::most;
use super::observe::wanted;

pub(super) const REVISION: &str = "deployment.kubernetes.io/revision";
const HISTORY: &str = "deployment.kubernetes.io/revision-history";
pub(super) const DESIRED: &str = "deployment.kubernetes.io/desired-replicas";
pub(super) const MOST: &str = "deployment.kubernetes.io/max-replicas";
/// Annotations of the Deployment that its ReplicaSets do not get.
const NOT_COPIED: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    HISTORY,
    DESIRED,
    MOST,
    "deprecated.deployment.rollback.to",
];
/// The history is cut at its old end when it gets longer than this.
const LONGEST_HISTORY: usize = 2000;

pub(super) type Annotations = BTreeMap<String, String>;

/// The number of a ReplicaSet; zero if it has none, nothing if it cannot be read.
pub(super) fn number(set: &ReplicaSet) -> Option<i64> {
    set.annotations().get(REVISION).map_or(Some(0), |text| text.parse().ok())
}

/// The number after the highest among these.
pub(super) fn after<'a>(old: impl IntoIterator<Item = &'a ReplicaSet>) -> i64 {
    old.into_iter().filter_map(number).max().unwrap_or(0).max(0).saturating_add(1)
}

/// The annotations that the new ReplicaSet should have, given those it has.
pub(super) fn annotations(deployment: &Deployment, held: &Annotations, number: i64) -> Annotations {
    let mut annotations = held.clone();
    let copied = deployment.annotations().iter().filter(|(key, _)| !NOT_COPIED.contains(&key.as_str()));
    annotations.extend(copied.map(|(key, value)| (key.clone(), value.clone())));
    let before = held.get(REVISION).filter(|text| !text.is_empty());
    let before_number = match before.map(|text| text.parse::<i64>()) {
        None => 0,
        Some(Ok(number)) => number,
        // Someone else's numbering: left alone.
        Some(Err(_)) => return annotations,
    };
    if before_number < number {
        annotations.insert(REVISION.to_owned(), number.to_string());
        if let Some(before) = before {
            let history = held.get(HISTORY).map_or("", String::as_str);
            annotations.insert(HISTORY.to_owned(), longer(history, before));
        }
    }
    annotations
}

/// The history with one more number, without as many of the oldest as it takes to keep it short.
fn longer(history: &str, number: &str) -> String {
    let mut numbers: Vec<&str> = history.split(',').filter(|number| !number.is_empty()).collect();
    numbers.push(number);
    let length = |numbers: &[&str]| numbers.iter().map(|number| number.len() + 1).sum::<usize>() - 1;
    let mut kept = &numbers[..];
    while kept.len() > 1 && length(kept) > LONGEST_HISTORY {
        kept = &kept[1..];
    }
    kept.join(",")
}

/// The annotations by which a later scaling is told from a rollout.
pub(super) fn sizes(deployment: &Deployment) -> [(String, String); 2] {
    [(DESIRED.to_owned(), wanted(deployment).to_string()), (MOST.to_owned(), most(deployment).to_string())]
}

/// What an annotation says about a size.
pub(super) fn noted(set: &ReplicaSet, key: &str) -> Option<i32> {
    set.annotations().get(key)?.parse::<u32>().ok().and_then(|number| i32::try_from(number).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(pairs: &[(&str, &str)]) -> Annotations {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn going_back_to_a_template_keeps_its_former_numbers() {
        let deployment = Deployment::default();
        let first = annotations(&deployment, &held(&[]), 1);
        assert_eq!(first, held(&[(REVISION, "1")]));
        let again = annotations(&deployment, &first, 3);
        assert_eq!(again, held(&[(REVISION, "3"), (HISTORY, "1")]));
        let third = annotations(&deployment, &again, 5);
        assert_eq!(third, held(&[(REVISION, "5"), (HISTORY, "1,3")]));
        assert_eq!(annotations(&deployment, &third, 4), third, "a number never goes down");
        let foreign = held(&[(REVISION, "x")]);
        assert_eq!(annotations(&deployment, &foreign, 4), foreign);
    }

    #[test]
    fn annotations_of_the_deployment_are_copied_but_its_own_are_not() {
        let deployment = Deployment {
            metadata: kube::core::ObjectMeta {
                annotations: Some(held(&[("note", "new"), (REVISION, "9"), (NOT_COPIED[0], "x")])),
                ..Default::default()
            },
            ..Deployment::default()
        };
        let set = annotations(&deployment, &held(&[("note", "old"), ("other", "kept")]), 1);
        assert_eq!(set, held(&[("note", "new"), ("other", "kept"), (REVISION, "1")]));
    }

    #[test]
    fn the_history_is_bounded() {
        let mut history = String::new();
        for number in 0..2000 {
            history = longer(&history, &number.to_string());
            assert!(history.len() <= LONGEST_HISTORY);
        }
        assert!(history.ends_with(",1999"));
    }
}
