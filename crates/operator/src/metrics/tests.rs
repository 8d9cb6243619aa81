use super::*;

#[test]
fn the_text_is_what_prometheus_reads() {
    let registry = Registry::new();
    let reclaims =
        registry.counter("agentcube_reclaims_total", "Sessions that ended.\nBy \\reason.", &["reason"]);
    reclaims.with(&["idle"]).add(2);
    reclaims.with(&["a \"quoted\\\nthing"]).inc();
    registry.gauge("agentcube_sessions", "Sessions.", &[]).with(&[]).set(-3);
    let waits = registry.histogram("agentcube_wait_seconds", "Waiting.", &["task"], &[0.5, 1.0]);
    for value in [0.25, 0.5, 0.75, 4.0, f64::NAN] {
        waits.with(&["t"]).observe(value);
    }
    let text = "\
# HELP agentcube_reclaims_total Sessions that ended.\\nBy \\\\reason.
# TYPE agentcube_reclaims_total counter
agentcube_reclaims_total{reason=\"a \\\"quoted\\\\\\nthing\"} 1
agentcube_reclaims_total{reason=\"idle\"} 2
# HELP agentcube_sessions Sessions.
# TYPE agentcube_sessions gauge
agentcube_sessions -3
# HELP agentcube_wait_seconds Waiting.
# TYPE agentcube_wait_seconds histogram
agentcube_wait_seconds_bucket{task=\"t\",le=\"0.5\"} 2
agentcube_wait_seconds_bucket{task=\"t\",le=\"1\"} 3
agentcube_wait_seconds_bucket{task=\"t\",le=\"+Inf\"} 4
agentcube_wait_seconds_sum{task=\"t\"} 5.5
agentcube_wait_seconds_count{task=\"t\"} 4
";
    assert_eq!(registry.encode(), text);
}

#[test]
fn a_family_asked_for_twice_is_the_same() {
    let registry = Registry::new();
    registry.counter("a_total", "A.", &["x"]).with(&["1"]).inc();
    registry.clone().counter("a_total", "A.", &["x"]).with(&["1"]).inc();
    assert!(registry.encode().ends_with("a_total{x=\"1\"} 2\n"));
    // Another meaning, or a name that cannot be: counted, not shown, and nothing else is spoilt.
    registry.gauge("a_total", "A.", &["x"]).with(&["1"]).set(9);
    registry.counter("a_total", "A.", &["y"]).with(&["1"]).inc();
    registry.counter("1 bad", "A.", &[]).with(&[]).inc();
    registry.histogram("b", "B.", &["le"], SECONDS).with(&["1"]).observe(1.0);
    assert!(registry.encode().ends_with("a_total{x=\"1\"} 2\n"));
    assert_eq!(registry.encode().lines().count(), 3);
}

#[test]
fn labels_without_end_are_counted_together() {
    let registry = Registry::new();
    let family = registry.counter("a_total", "A.", &["x"]);
    for n in 0..MOST_SERIES + 50 {
        family.with(&[&n.to_string()]).inc();
    }
    assert_eq!(family.with(&[THE_REST]).get(), 50);
    assert_eq!(family.with(&["7"]).get(), 1);
    assert_eq!(family.series.read().len(), MOST_SERIES + 1);
    family.retain(|values| values[0] == "7");
    assert_eq!(registry.encode().lines().count(), 3);
}

#[test]
fn what_is_gone_is_forgotten_and_does_not_come_back() {
    let registry = Registry::new();
    let family = registry.counter("a_total", "A.", &["namespace", "task", "x"]);
    for task in ["a", "ab", "b"] {
        family.with(&["prod", task, "1"]).inc();
    }
    family.with(&["prod2", "a", "1"]).inc();
    let subject = Subject::new(&["prod", "a"]);
    let held = subject.of(&family, &["1"]);
    subject.of(&family, &["2"]).inc();
    assert_eq!(registry.encode().lines().count(), 2 + 5);
    subject.forget(|values| family.forget(values));
    assert_eq!(registry.encode().lines().count(), 2 + 3);
    // Whoever is late counts, and is not shown.
    held.inc();
    subject.of(&family, &["3"]).inc();
    let text = registry.encode();
    assert!(!text.contains("task=\"a\",x=\"3\"") && text.lines().count() == 2 + 3, "{text}");
    // Another of the same name begins anew.
    Subject::new(&["prod", "a"]).of(&family, &["1"]).inc();
    assert!(registry.encode().contains("a_total{namespace=\"prod\",task=\"a\",x=\"1\"} 1\n"));
}

#[test]
fn what_is_looked_up_is_as_of_when_it_is_asked_for() {
    let registry = Registry::new();
    let gauge = registry.gauge("a", "A.", &[]);
    registry.read_before(move || gauge.with(&[]).add(1));
    assert!(registry.encode().ends_with("a 1\n"));
    assert!(registry.encode().ends_with("a 2\n"));
}
