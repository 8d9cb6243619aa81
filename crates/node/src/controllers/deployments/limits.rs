//! How many Pods a rollout may have too many or too few.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::observe::wanted;

pub(super) fn is_rolling(deployment: &Deployment) -> bool {
    let strategy = deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref()?.type_.as_deref());
    strategy != Some("Recreate")
}

/// How many Pods there may be beyond the wanted ones during a rollout.
pub(super) fn max_surge(deployment: &Deployment) -> i32 {
    if is_rolling(deployment) { both(deployment).0 } else { 0 }
}

/// How many of the wanted Pods may be unavailable.
pub(super) fn max_unavailable(deployment: &Deployment) -> i32 {
    let wanted = wanted(deployment);
    if is_rolling(deployment) { both(deployment).1.min(wanted) } else { 0 }
}

/// How many Pods there may be at most.
pub(super) fn most(deployment: &Deployment) -> i32 {
    wanted(deployment).saturating_add(max_surge(deployment))
}

fn both(deployment: &Deployment) -> (i32, i32) {
    let update = deployment.spec.as_ref().and_then(|spec| spec.strategy.as_ref()?.rolling_update.as_ref());
    let total = wanted(deployment);
    let surge = update.and_then(|update| update.max_surge.as_ref()).map_or(0, |value| up(value, total));
    let unavailable =
        update.and_then(|update| update.max_unavailable.as_ref()).map_or(0, |value| down(value, total));
    match (surge, unavailable) {
        // By rounding only, and nothing could be rolled out so.
        (0, 0) => (0, 1),
        both => both,
    }
}

fn up(value: &IntOrString, total: i32) -> i32 {
    scaled(value, total, 99)
}

fn down(value: &IntOrString, total: i32) -> i32 {
    scaled(value, total, 0)
}

fn scaled(value: &IntOrString, total: i32, rounding: i64) -> i32 {
    match value {
        IntOrString::Int(number) => (*number).max(0),
        IntOrString::String(text) => {
            let percent: i64 = text.strip_suffix('%').and_then(|digits| digits.parse().ok()).unwrap_or(0);
            let scaled = percent.saturating_mul(i64::from(total)).saturating_add(rounding) / 100;
            i32::try_from(scaled.max(0)).unwrap_or(i32::MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn surge_is_rounded_up_and_unavailability_down() {
        let table = [
            // wanted, maxSurge, maxUnavailable, both resolved
            (10, json!("25%"), json!("25%"), (3, 2)),
            (1, json!("25%"), json!("25%"), (1, 0)),
            (4, json!(1), json!(0), (1, 0)),
            (2, json!("0%"), json!("1%"), (0, 1)),
            (1, json!("1%"), json!("25%"), (1, 0)),
            (3, json!(0), json!(10), (0, 3)),
            (0, json!("25%"), json!("25%"), (0, 0)),
            (i32::MAX, json!("100%"), json!("100%"), (i32::MAX, i32::MAX)),
        ];
        for (replicas, surge, unavailable, expected) in table {
            let deployment: Deployment = serde_json::from_value(json!({ "metadata": {}, "spec": {
                "replicas": replicas, "selector": {}, "template": {}, "strategy": { "type": "RollingUpdate",
                    "rollingUpdate": { "maxSurge": surge, "maxUnavailable": unavailable } } } }))
            .unwrap();
            assert_eq!((max_surge(&deployment), max_unavailable(&deployment)), expected, "{replicas}");
            assert!(most(&deployment) >= replicas);
        }
    }
}
