//! When a container is probed, and what the answers amount to.

use std::time::Duration;

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

/// A container that has just started is asked again after this part of its age, and not sooner than that: one that takes
/// milliseconds to start is not kept waiting for a whole period.
const PART_OF_AGE: u32 = 4;
const SHORTEST_WAIT: Duration = Duration::from_millis(5);
/// Failures before this age say only that it is starting.
const EARLIEST_FAILURE: Duration = Duration::from_secs(1);

/// Whether the first good answer is looked for ahead of time: where one waits for it, and asking costs little.
fn is_eager(kind: Kind, probe: &Probe) -> bool {
    kind != Kind::Liveness && probe.exec.is_none()
}

/// The answers to one probe over the current run of its container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Answers {
    /// What holds until a threshold is crossed.
    pub(crate) holds: bool,
    last: Option<bool>,
    run: i32,
    due: Timestamp,
    /// When the container has begun to be asked, and from when on a failure counts.
    begun: Timestamp,
    counts: Timestamp,
    asking: bool,
    /// The question that is out was ahead of its time.
    early: bool,
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
            let begun = after(now, seconds(probe.initial_delay_seconds.unwrap_or(0).into()));
            let counts = if is_eager(kind, probe) { after(begun, EARLIEST_FAILURE) } else { begun };
            Some(Answers {
                holds: kind == Kind::Liveness,
                last: None,
                run: 0,
                due: begun,
                begun,
                counts,
                asking: false,
                early: false,
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

    /// Whether a probe that is sent now comes ahead of its time.
    pub(crate) fn is_early(&self, kind: Kind, now: Timestamp) -> bool {
        self.of(kind).is_some_and(|answers| now < answers.counts)
    }

    pub(crate) fn sent(&mut self, kind: Kind, probe: &Probe, early: bool, now: Timestamp) {
        let Some(answers) = self.of_mut(kind) else { return };
        (answers.asking, answers.early) = (true, early);
        if !early {
            answers.counts = after(now, seconds(probe.period_seconds.unwrap_or(10).max(1).into()));
        }
        let new = !answers.holds && answers.last != Some(true);
        answers.due = match new && is_eager(kind, probe) {
            true => {
                let age = Duration::try_from(now.duration_since(answers.begun)).unwrap_or_default();
                after(now, (age / PART_OF_AGE).max(SHORTEST_WAIT)).min(answers.counts)
            }
            false => answers.counts,
        };
    }

    pub(crate) fn answered(&mut self, kind: Kind, probe: &Probe, verdict: &Verdict) {
        let Some(answers) = self.of_mut(kind) else { return };
        answers.asking = false;
        let early = std::mem::take(&mut answers.early);
        let good = match verdict {
            Verdict::Success | Verdict::Warning(_) => true,
            Verdict::Failure(_) if early => return,
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
        serde_json::from_str(&format!(r#"{{"name":"c","{probe}":{{"exec":{{"command":["ask"]}},"periodSeconds":5,"failureThreshold":2,"successThreshold":2,"initialDelaySeconds":3}}}}"#)).unwrap()
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
                probes.sent(kind, probe, false, at(0));
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
        probes.sent(Kind::Startup, probe, false, at(103));
        assert_eq!(probes.due(Kind::Startup), None, "one question at a time");
        probes.answered(Kind::Startup, probe, &Verdict::Success);
        assert_eq!(probes.due(Kind::Startup), Some(at(108)));
        probes.answered(Kind::Startup, probe, &Verdict::Success);
        assert_eq!((probes.due(Kind::Startup), probes.due(Kind::Liveness)), (None, Some(at(103))));
        assert!(probes.started() && probes.broken().is_none());
    }

    #[test]
    fn the_first_good_answer_is_looked_for_ahead_of_time() {
        let mut spec: Spec = serde_json::from_str(
            r#"{"name":"c","readinessProbe":{"tcpSocket":{"port":80},"periodSeconds":2,"failureThreshold":1}}"#,
        )
        .unwrap();
        let probe = spec.readiness_probe.take().unwrap();
        spec.readiness_probe = Some(probe.clone());
        let mut probes = Probes::begin(&spec, at(0));
        let (mut asked, mut counted) = (0, Vec::new());
        while let Some(now) = probes.due(Kind::Readiness).filter(|due| *due < at(20)) {
            let early = probes.is_early(Kind::Readiness, now);
            probes.sent(Kind::Readiness, &probe, early, now);
            probes.answered(Kind::Readiness, &probe, &Verdict::Failure(String::new()));
            asked += 1;
            if !early {
                counted.push(now.as_second());
            }
        }
        assert_eq!(
            counted,
            (0..10).map(|n| 1 + 2 * n).collect::<Vec<_>>(),
            "those that count keep to the period"
        );
        assert!((30..60).contains(&asked), "{asked}");

        let now = at(21);
        probes.sent(Kind::Readiness, &probe, true, now);
        probes.answered(Kind::Readiness, &probe, &Verdict::Success);
        assert!(probes.ready());
        let due = probes.due(Kind::Readiness).unwrap();
        probes.sent(Kind::Readiness, &probe, probes.is_early(Kind::Readiness, due), due);
        assert_eq!(probes.due(Kind::Readiness), None);
        probes.answered(Kind::Readiness, &probe, &Verdict::Failure(String::new()));
        assert!(!probes.ready(), "once ready, each failure counts");
        assert_eq!(probes.due(Kind::Readiness), Some(after(due, seconds(2))), "and there is no hurry");
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
