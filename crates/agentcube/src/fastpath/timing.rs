//! Times of the protocol, from words. For tests: agents have to know of some of them.

use std::str::FromStr;
use std::time::Duration;

use agentcube_api::GoDuration;
use agentcube_sandbox::Timing;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    name: String,
    duration: Duration,
}

fn place<'a>(timing: &'a mut Timing, name: &str) -> Option<&'a mut Duration> {
    Some(match name {
        "sync" => &mut timing.sync,
        "call" => &mut timing.call,
        "unhealthy" => &mut timing.unhealthy,
        "dropped" => &mut timing.dropped,
        "start" => &mut timing.start,
        "api" => &mut timing.api,
        "late" => &mut timing.late,
        "object_budget" => &mut timing.object_budget,
        "object_retry" => &mut timing.object_retry,
        "grace" => &mut timing.grace,
        "demand" => &mut timing.demand,
        _ => return None,
    })
}

impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, duration) = text.split_once('=').ok_or("write it like dropped=15s")?;
        if place(&mut Timing::default(), name).is_none() {
            return Err(format!("there is no time {name:?}"));
        }
        let duration: GoDuration = duration.parse().map_err(|error| format!("{duration:?}: {error}"))?;
        Ok(Change { name: name.to_owned(), duration: duration.to_std() })
    }
}

impl Change {
    pub(super) fn apply(&self, timing: &mut Timing) {
        if let Some(place) = place(timing, &self.name) {
            *place = self.duration;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_what_it_names() {
        let mut timing = Timing::default();
        "dropped=3s".parse::<Change>().expect("a change").apply(&mut timing);
        assert_eq!(timing, Timing { dropped: Duration::from_secs(3), ..Timing::default() });
        for wrong in ["", "dropped", "droped=1s", "dropped=soon"] {
            assert!(wrong.parse::<Change>().is_err(), "{wrong}");
        }
    }
}
