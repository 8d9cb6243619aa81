//! What a condition says, before it is one.

use agentcube_api::conditions::{self, FALSE, TRUE, Update};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The reason of a condition that tells of a repair, in both kinds.
const REPAIRED: &str = conditions::task::REASON_AUTO_REPAIRED;
/// What stands between the word of a repair and the rest of a message.
const AND_NOW: &str = ". ";

/// Whether a condition holds, why, and in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) holds: bool,
    /// It does not hold only because somebody has not answered yet.
    waiting: bool,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    /// What was put right.
    repaired: Option<String>,
}

pub(crate) fn yes(reason: &'static str, message: impl Into<String>) -> Said {
    Said { holds: true, waiting: false, reason, message: message.into(), repaired: None }
}

pub(crate) fn no(reason: &'static str, message: impl Into<String>) -> Said {
    Said { holds: false, waiting: false, reason, message: message.into(), repaired: None }
}

pub(crate) fn not_yet(reason: &'static str, message: impl Into<String>) -> Said {
    Said { holds: false, waiting: true, reason, message: message.into(), repaired: None }
}

impl Said {
    /// After a repair, if there was one.
    pub(crate) fn after(self, repaired: Option<String>) -> Said {
        Said { repaired, ..self }
    }

    /// Sets the condition. That something was repaired stays to be seen until the spec changes or something fails.
    pub(crate) fn set(self, conditions: &mut Vec<Condition>, type_: &str, generation: i64, now: &Time) {
        let before = conditions::find(conditions, type_);
        let before =
            before.filter(|one| one.reason == REPAIRED && one.observed_generation == Some(generation));
        let before = before.and_then(|one| one.message.split(AND_NOW).next().map(str::to_owned));
        let repaired = self.repaired.or(before).filter(|_| self.holds || self.waiting);
        let (reason, message) = match repaired {
            None => (self.reason, self.message),
            Some(repaired) if self.holds => (REPAIRED, repaired),
            Some(repaired) => (REPAIRED, format!("{repaired}{AND_NOW}{}", self.message)),
        };
        let status = if self.holds { TRUE } else { FALSE };
        let update = Update { type_, status, reason, message, observed_generation: Some(generation) };
        conditions::set(conditions, update, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repair_is_told_until_something_else_is_to_be_told() {
        let mut conditions = Vec::new();
        let now: Time = serde_json::from_value("2026-01-01T00:00:00Z".into()).unwrap();
        let repaired = || Some("X a.b was recreated".to_owned());
        for (said, generation, expected) in [
            (yes("Made", "made"), 1, (TRUE, "Made", "made")),
            (
                not_yet("Late", "not yet").after(repaired()),
                1,
                (FALSE, REPAIRED, "X a.b was recreated. not yet"),
            ),
            (not_yet("Late", "still not"), 1, (FALSE, REPAIRED, "X a.b was recreated. still not")),
            (yes("Made", "made"), 1, (TRUE, REPAIRED, "X a.b was recreated")),
            (yes("Made", "made"), 1, (TRUE, REPAIRED, "X a.b was recreated")),
            (yes("Made", "made"), 2, (TRUE, "Made", "made")),
            (yes("Made", "made").after(repaired()), 2, (TRUE, REPAIRED, "X a.b was recreated")),
            (no("Failed", "bad"), 2, (FALSE, "Failed", "bad")),
            (yes("Made", "made"), 2, (TRUE, "Made", "made")),
        ] {
            said.set(&mut conditions, "Ready", generation, &now);
            let one = &conditions[0];
            assert_eq!((one.status.as_str(), one.reason.as_str(), one.message.as_str()), expected);
        }
    }
}
