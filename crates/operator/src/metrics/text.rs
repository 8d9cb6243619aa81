//! Prometheus' text format, version 0.0.4.

use std::fmt::{Display, Write};
use std::sync::atomic::Ordering;

use super::{AnyFamily, Described, Histogram};

/// Whether Prometheus takes this for the name of a metric.
pub(super) fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(fits)
}

/// Whether Prometheus takes this for the name of a label. `le` is what histograms need themselves.
pub(super) fn is_label(label: &str) -> bool {
    is_name(label) && !label.contains(':') && !label.starts_with("__") && label != "le"
}

impl Described {
    pub(super) fn encode(&self, name: &str, text: &mut String) {
        let Described { help, labels, series } = self;
        let kind = match series {
            AnyFamily::Counters(_) => "counter",
            AnyFamily::Gauges(_) => "gauge",
            AnyFamily::Histograms(_) => "histogram",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        line(text, format_args!("# HELP {name} {help}\n# TYPE {name} {kind}"));
        match series {
            AnyFamily::Counters(family) => {
                for (values, counter) in &*family.series.read() {
                    sample(text, name, &pairs(labels, values), counter.get());
                }
            }
            AnyFamily::Gauges(family) => {
                for (values, gauge) in &*family.series.read() {
                    sample(text, name, &pairs(labels, values), gauge.get());
                }
            }
            AnyFamily::Histograms(family) => {
                for (values, held) in &*family.series.read() {
                    histogram(text, name, &pairs(labels, values), held);
                }
            }
        }
    }
}

fn histogram(text: &mut String, name: &str, pairs: &str, histogram: &Histogram) {
    let buckets = &*histogram.0;
    let mut below = 0;
    for (index, count) in buckets.counts.iter().enumerate() {
        below += count.load(Ordering::Relaxed);
        let bound = buckets.bounds.get(index).map_or_else(|| "+Inf".to_owned(), f64::to_string);
        let comma = if pairs.is_empty() { "" } else { "," };
        sample(text, &format!("{name}_bucket"), &format!("{pairs}{comma}le=\"{bound}\""), below);
    }
    let sum = f64::from_bits(buckets.sum.load(Ordering::Relaxed));
    sample(text, &format!("{name}_sum"), pairs, sum);
    // Not counted again: it has to equal the last bucket.
    sample(text, &format!("{name}_count"), pairs, below);
}

fn pairs(labels: &[&str], values: &[String]) -> String {
    let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let pairs: Vec<String> =
        labels.iter().zip(values).map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
    pairs.join(",")
}

fn sample(text: &mut String, name: &str, pairs: &str, value: impl Display) {
    match pairs {
        "" => line(text, format_args!("{name} {value}")),
        pairs => line(text, format_args!("{name}{{{pairs}}} {value}")),
    }
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("writing to a String does not fail");
}
