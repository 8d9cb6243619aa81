//! When a container is probed, and what the answers amount to.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container as Spec, Probe};

use super::{after, seconds};

/// The three probes of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Startup,
    Readiness,
    Liveness,
}

impl Kind {
    pub(crate) const ALL: [Self; 3] = [Self::Startup, Self::Readiness, Self::Liveness];

    pub(crate) fn of(self, container: &Spec) -> Option<&Probe> {
        match self {
            Self::Startup => container.startup_probe.as_ref(),
            Self::Readiness => container.readiness_probe.as_ref(),
            Self::Liveness => container.liveness_probe.as_ref(),
        }
    }

    /// As Events begin.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Startup => "Startup",
            Self::Readiness => "Readiness",
            Self::Liveness => "Liveness",
        }
    }
}

/// What one probe said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Success,
    /// It counts as success, but somebody should look.
    Warning(String),
    Failure(String),
    /// Nothing could be asked; the answers so far stand.
    Error(String),
}

/// The answers to one probe over the current run of its container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answers {
    /// What holds until a threshold is crossed.
    pub(crate) holds: bool,
    last: Option<bool>,
    run: i32,
    due: Timestamp,
    asking: bool,
    /// The question is settled for this run of the container.
    settled: bool,
}

/// The answers to all probes of a container. Absent ones were not asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Probes {
    startup: Option<Answers>,
    readiness: Option<Answers>,
    liveness: Option<Answers>,
}

impl Probes {
    /// Of a container that starts now.
    pub(crate) fn begin(container: &Spec, now: Timestamp) -> Self {
        let fresh = |kind: Kind| {
            let probe = kind.of(container)?;
            Some(Answers {
                holds: kind == Kind::Liveness,
                last: None,
                run: 0,
                due: after(now, seconds(probe.initial_delay_seconds.unwrap_or(0).into())),
                asking: false,
                settled: false,
            })
        };
        Self {
            startup: fresh(Kind::Startup),
            readiness: fresh(Kind::Readiness),
            liveness: fresh(Kind::Liveness),
        }
    }

    fn of(&self, kind: Kind) -> Option<&Answers> {
        match kind {
            Kind::Startup => self.startup.as_ref(),
            Kind::Readiness => self.readiness.as_ref(),
            Kind::Liveness => self.liveness.as_ref(),
        }
    }

    fn of_mut(&mut self, kind: Kind) -> Option<&mut Answers> {
        match kind {
            Kind::Startup => self.startup.as_mut(),
            Kind::Readiness => self.readiness.as_mut(),
            Kind::Liveness => self.liveness.as_mut(),
        }
    }

    pub(crate) fn started(&self) -> bool {
        self.startup.as_ref().is_none_or(|answers| answers.holds)
    }

    pub(crate) fn ready(&self) -> bool {
        self.started() && self.readiness.as_ref().is_none_or(|answers| answers.holds)
    }

    /// The probe that says that the container must be started again.
    pub(crate) fn broken(&self) -> Option<Kind> {
        let failed = |answers: &Option<Answers>| answers.as_ref().is_some_and(|it| it.settled && !it.holds);
        if failed(&self.startup) {
            return Some(Kind::Startup);
        }
        failed(&self.liveness).then_some(Kind::Liveness)
    }

    /// When a probe is to be sent next; none while it is out, settled, or waits for the startup probe.
    pub(crate) fn due(&self, kind: Kind) -> Option<Timestamp> {
        let answers = self.of(kind)?;
        let its_turn = kind == Kind::Startup || self.started();
        (its_turn && !answers.asking && !answers.settled).then_some(answers.due)
    }

    pub(crate) fn sent(&mut self, kind: Kind, probe: &Probe, now: Timestamp) {
        if let Some(answers) = self.of_mut(kind) {
            answers.asking = true;
            answers.due = after(now, seconds(probe.period_seconds.unwrap_or(10).max(1).into()));
        }
    }

    pub(crate) fn answered(&mut self, kind: Kind, probe: &Probe, verdict: &Verdict) {
        let Some(answers) = self.of_mut(kind) else { return };
        answers.asking = false;
        let good = match verdict {
            Verdict::Success | Verdict::Warning(_) => true,
            Verdict::Failure(_) => false,
            Verdict::Error(_) => return,
        };
        answers.run = if answers.last == Some(good) { answers.run.saturating_add(1) } else { 1 };
        answers.last = Some(good);
        let threshold =
            if good { probe.success_threshold.unwrap_or(1) } else { probe.failure_threshold.unwrap_or(3) };
        if answers.run < threshold {
            return;
        }
        answers.holds = good;
        answers.settled = kind == Kind::Startup || (kind == Kind::Liveness && !good);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(probe: &str) -> Spec {
        serde_json::from_str(&format!(r#"{{"name":"c","{probe}":{{"periodSeconds":5,"failureThreshold":2,"successThreshold":2,"initialDelaySeconds":3}}}}"#)).unwrap()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn feed(container: &Spec, kind: Kind, answers: &str) -> Vec<bool> {
        let mut probes = Probes::begin(container, at(0));
        let probe = kind.of(container).unwrap();
        answers
            .chars()
            .map(|answer| {
                probes.sent(kind, probe, at(0));
                let verdict = match answer {
                    '+' => Verdict::Success,
                    '-' => Verdict::Failure(String::new()),
                    _ => Verdict::Error(String::new()),
                };
                probes.answered(kind, probe, &verdict);
                probes.ready()
            })
            .collect()
    }

    #[test]
    fn thresholds_flip_readiness() {
        let spec = container("readinessProbe");
        let flips = feed(&spec, Kind::Readiness, "+++-+--?++");
        assert_eq!(flips, [false, true, true, true, true, true, false, false, false, true]);
    }

    #[test]
    fn other_probes_wait_for_the_startup_probe() {
        let mut spec = container("startupProbe");
        spec.liveness_probe = spec.startup_probe.clone();
        let mut probes = Probes::begin(&spec, at(100));
        let probe = spec.startup_probe.as_ref().unwrap();
        assert_eq!(probes.due(Kind::Startup), Some(at(103)));
        assert_eq!(probes.due(Kind::Liveness), None);
        probes.sent(Kind::Startup, probe, at(103));
        assert_eq!(probes.due(Kind::Startup), None, "one question at a time");
        probes.answered(Kind::Startup, probe, &Verdict::Success);
        assert_eq!(probes.due(Kind::Startup), Some(at(108)));
        probes.answered(Kind::Startup, probe, &Verdict::Success);
        assert_eq!((probes.due(Kind::Startup), probes.due(Kind::Liveness)), (None, Some(at(103))));
        assert!(probes.started() && probes.broken().is_none());
    }

    #[test]
    fn a_failed_liveness_probe_settles() {
        let spec = container("livenessProbe");
        let mut probes = Probes::begin(&spec, at(0));
        let probe = spec.liveness_probe.as_ref().unwrap();
        for broken in [None, Some(Kind::Liveness)] {
            probes.answered(Kind::Liveness, probe, &Verdict::Failure(String::new()));
            assert_eq!(probes.broken(), broken);
        }
        assert_eq!(probes.due(Kind::Liveness), None);
    }
}
