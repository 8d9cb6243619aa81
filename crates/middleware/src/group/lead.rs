//! Who leads, where the plugin has us choose. Pure.
//!
//! A Pod of such a middleware never leads by itself: it starts as one that follows nobody. When nobody leads, all Pods but one
//! that know where they are have to be heard, or simply all. They are fenced first, so that none of them acknowledges anything
//! to whoever led; then whoever has most of the data is promoted, and the others follow. What a leader and one follower had is
//! therefore not lost with either of them.
//!
//! Positions count within a history only. The one that is recorded is the leader's; it is recorded before anybody is sent to the
//! leader. Whoever claims to lead and comes from elsewhere is of the past, and follows.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use agentcube_api::middleware::group::Leader;

use super::observe::{Observed, Pod, Role};
use super::plan::Operation;

/// What there is to say and to do about who leads.
#[derive(Debug, Default)]
pub(super) struct Settled {
    /// What Pods say, without claims of the past.
    pub(super) roles: BTreeMap<String, Role>,
    /// To be recorded before anything is done.
    pub(super) leader: Option<Leader>,
    pub(super) operations: Vec<Operation>,
    /// Why nobody leads.
    pub(super) waits: Option<String>,
}

/// Whether controllers choose the leader of this group.
pub(super) fn elects(observed: &Observed<'_>) -> bool {
    let active = observed.policies.high_availability.as_ref().and_then(|available| available.active.as_ref());
    observed.failover && active.is_some_and(|active| active.follow_command.is_some())
}

/// The Pods that operations of this kind are about.
pub(super) fn told(operations: &[Operation]) -> BTreeSet<String> {
    let pod = |operation: &Operation| match operation {
        Operation::Fence { pod } | Operation::Promote { pod } | Operation::Follow { pod, .. } => {
            Some(pod.clone())
        }
        _ => None,
    };
    operations.iter().filter_map(pod).collect()
}

/// Looks at what Pods say of themselves.
pub(super) fn settle(observed: &Observed<'_>) -> Settled {
    let known = observed.group.status.as_ref().and_then(|status| status.leader.clone());
    let mut settled = Settled { roles: observed.answers.roles.clone(), ..Settled::default() };
    if !elects(observed) {
        return settled;
    }
    let heard: Vec<(&Pod, &Role)> = observed
        .pods
        .iter()
        .filter(|pod| !pod.terminating)
        .filter_map(|pod| Some((pod, observed.answers.roles.get(&pod.name)?)))
        .collect();
    let rightful = rightful(known.as_ref(), &heard);
    for (pod, role) in &heard {
        if role.leader && rightful.is_none_or(|(leader, _)| leader.name != pod.name) {
            settled
                .roles
                .insert(pod.name.clone(), Role { leader: false, name: String::new(), ..(*role).clone() });
        }
    }
    match rightful {
        Some((leader, role)) => {
            let history = role.history.clone().unwrap_or_default();
            settled.leader = Some(Leader { pod: leader.name.clone(), history });
            settled.operations = followers(leader, &heard);
        }
        None => {
            settled.leader = known;
            elect(observed, &heard, &mut settled);
        }
    }
    settled
}

/// Whoever leads by right: the one that is recorded; one that is still in the recorded history; or one to whom the recorded leader has
/// handed over, which is when that one follows it. That somebody took over from the history proves nothing: it may have gone
/// on since. If nothing is recorded, whoever says so and has the most.
fn rightful<'a>(known: Option<&Leader>, heard: &[(&'a Pod, &'a Role)]) -> Option<(&'a Pod, &'a Role)> {
    let handed_over = |known: &Leader, pod: &Pod, role: &Role| {
        role.previous_history.as_ref() == Some(&known.history)
            && heard.iter().any(|(one, its)| {
                one.name == known.pod && !its.leader && its.follows.is_some() && its.follows == pod.address
            })
    };
    let is_right = |pod: &Pod, role: &Role| match known {
        None => true,
        Some(known) if known.pod == pod.name => true,
        Some(known) if known.history.is_empty() => false,
        Some(known) => role.history.as_ref() == Some(&known.history) || handed_over(known, pod, role),
    };
    let claims = heard.iter().filter(|(pod, role)| role.leader && is_right(pod, role));
    let rank = |(pod, role): &&(&Pod, &Role)| {
        (known.is_some_and(|known| known.pod == pod.name), role.position, Reverse(pod.ordinal))
    };
    claims.max_by_key(rank).copied()
}

/// Everybody else follows the leader. First those that follow somebody: they serve, and have little to do to go on serving; whoever led
/// may have to be rewound, which takes its time.
fn followers(leader: &Pod, heard: &[(&Pod, &Role)]) -> Vec<Operation> {
    let Some(address) = &leader.address else { return Vec::new() };
    let mut others: Vec<&(&Pod, &Role)> = heard
        .iter()
        .filter(|(pod, role)| {
            pod.name != leader.name && (role.leader || role.follows.as_ref() != Some(address))
        })
        .collect();
    others.sort_by_key(|(_, role)| role.leader || role.follows.is_none());
    let follow =
        |(pod, _): &(&Pod, &Role)| Operation::Follow { pod: pod.name.clone(), leader: address.clone() };
    others.into_iter().map(follow).collect()
}

/// Nobody leads: fences, and when all who are heard are fenced, promotes.
fn elect(observed: &Observed<'_>, heard: &[(&Pod, &Role)], settled: &mut Settled) {
    let known = settled.leader.clone();
    let last = known.as_ref().and_then(|known| observed.pods.iter().find(|pod| pod.name == known.pod));
    // Its probe says when it is gone; until then it may only be slow.
    let slow = |pod: &&Pod| pod.ready && !pod.terminating && !observed.answers.roles.contains_key(&pod.name);
    if let Some(last) = last.filter(slow) {
        settled.waits = Some(format!("{} leads, and does not answer", last.name));
        return;
    }
    let there = observed.pods.iter().filter(|pod| !pod.terminating).count();
    let wanted = observed.set.and_then(|set| usize::try_from(set.replicas).ok()).unwrap_or(there).max(there);
    if wanted == 0 {
        return;
    }
    // How much somebody has of the recorded history; also if it has left that for another since.
    let has = |role: &Role| match &known {
        Some(known) if !known.history.is_empty() => {
            let is = |history: &Option<String>| history.as_ref() == Some(&known.history);
            match (is(&role.history), is(&role.previous_history)) {
                (true, _) => Some(role.position.unwrap_or(0)),
                (false, true) => Some(role.previous_position.unwrap_or(0)),
                (false, false) => None,
            }
        }
        // Nobody has led yet.
        _ => Some(0),
    };
    // Whoever has started anew may have the data, but does not know how much of it.
    let knowing = heard.iter().filter(|(_, role)| has(role).is_some()).count();
    if knowing < (wanted - 1).max(1) && heard.len() < wanted {
        let silent = observed.pods.iter().filter(|pod| !heard.iter().any(|(one, _)| one.name == pod.name));
        let silent: Vec<&str> = silent.map(|pod| pod.name.as_str()).collect();
        settled.waits = Some(format!(
            "nobody leads, and of {wanted} Pods {} answer, {knowing} of them knowing how much they have; all but one have to, \
             or all have to answer, since any may have what the others have not. Missing: {}",
            heard.len(),
            silent.join(", ")
        ));
        return;
    }
    let loose = heard.iter().filter(|(_, role)| role.leader || role.follows.is_some());
    let fences: Vec<Operation> = loose.map(|(pod, _)| Operation::Fence { pod: pod.name.clone() }).collect();
    if !fences.is_empty() {
        settled.waits = Some("nobody leads; Pods are being fenced".into());
        settled.operations = fences;
        return;
    }
    let rank = |(pod, role): &&(&Pod, &Role)| {
        let led = known.as_ref().is_some_and(|known| known.pod == pod.name);
        (has(role), led, Reverse(pod.ordinal))
    };
    let Some((heir, _)) = heard.iter().max_by_key(rank) else { return };
    settled.waits = Some(format!("nobody leads; {} is being promoted", heir.name));
    settled.leader = Some(Leader {
        pod: heir.name.clone(),
        history: known.map(|known| known.history).unwrap_or_default(),
    });
    settled.operations = vec![Operation::Promote { pod: heir.name.clone() }];
}
