//! Counters, gauges and histograms with labels, and their text for Prometheus. A registry is passed to whoever counts;
//! there is none for the whole process. Counting never fails and never blocks on anything slow: a mistake in a name is
//! logged once, where it is made, and what was counted there is not shown.

mod subject;
mod text;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

pub use subject::Subject;

/// Buckets for what takes from a millisecond to a minute, in seconds.
pub const SECONDS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// How many combinations of labels one family may have; what comes after is counted together.
const MOST_SERIES: usize = 10_000;
/// The value of every label of what is counted together.
const THE_REST: &str = "_rest";

/// Everything that is counted; cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    families: Arc<Mutex<BTreeMap<String, Described>>>,
    readings: Arc<Mutex<Vec<Reading>>>,
}

/// Sets what is not kept current but looked up when somebody asks.
#[derive(Clone)]
struct Reading(Arc<dyn Fn() + Send + Sync>);

impl Debug for Reading {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Reading")
    }
}

#[derive(Debug)]
struct Described {
    help: String,
    labels: &'static [&'static str],
    series: AnyFamily,
}

#[derive(Debug)]
enum AnyFamily {
    Counters(Family<Counter>),
    Gauges(Family<Gauge>),
    Histograms(Family<Histogram>),
}

impl Registry {
    pub fn new() -> Registry {
        Registry::default()
    }

    /// A count that only grows. Its name ends in `_total`. Asked for twice, it is the same.
    pub fn counter(&self, name: &str, help: &str, labels: &'static [&'static str]) -> Family<Counter> {
        let make = |()| Counter::default();
        self.family(name, help, labels, (), make, AnyFamily::Counters, |held| match held {
            AnyFamily::Counters(family) => Some(family),
            _ => None,
        })
    }

    /// A number that goes up and down.
    pub fn gauge(&self, name: &str, help: &str, labels: &'static [&'static str]) -> Family<Gauge> {
        let make = |()| Gauge::default();
        self.family(name, help, labels, (), make, AnyFamily::Gauges, |held| match held {
            AnyFamily::Gauges(family) => Some(family),
            _ => None,
        })
    }

    /// How often values fell below each of these bounds, which ascend.
    pub fn histogram(
        &self,
        name: &str,
        help: &str,
        labels: &'static [&'static str],
        bounds: &'static [f64],
    ) -> Family<Histogram> {
        let make = Histogram::new;
        self.family(name, help, labels, bounds, make, AnyFamily::Histograms, |held| match held {
            AnyFamily::Histograms(family) => Some(family),
            _ => None,
        })
    }

    #[allow(clippy::too_many_arguments, reason = "what the three kinds differ in")]
    fn family<S: Series>(
        &self,
        name: &str,
        help: &str,
        labels: &'static [&'static str],
        layout: S::Layout,
        make: fn(S::Layout) -> S,
        wrap: fn(Family<S>) -> AnyFamily,
        unwrap: fn(&AnyFamily) -> Option<&Family<S>>,
    ) -> Family<S> {
        let family = Family { series: Arc::default(), labels, layout, make };
        if !text::is_name(name) || !labels.iter().all(|label| text::is_label(label)) {
            tracing::error!(name, ?labels, "not shown among the metrics: the name or a label is malformed");
            return family;
        }
        match self.families.lock().entry(name.to_owned()) {
            Entry::Vacant(entry) => {
                let series = wrap(family.clone());
                entry.insert(Described { help: help.to_owned(), labels, series });
                family
            }
            Entry::Occupied(entry) => match unwrap(&entry.get().series) {
                Some(held) if entry.get().labels == labels => held.clone(),
                _ => {
                    tracing::error!(
                        name,
                        ?labels,
                        "not shown among the metrics: the name has another meaning"
                    );
                    family
                }
            },
        }
    }

    /// Has this called before each [`Registry::encode`]: for gauges of what is counted only when somebody looks.
    pub fn read_before(&self, reading: impl Fn() + Send + Sync + 'static) {
        self.readings.lock().push(Reading(Arc::new(reading)));
    }

    /// Everything, in Prometheus' text format, in the order of names and labels.
    pub fn encode(&self) -> String {
        // Not under the lock: whoever reads may ask for families.
        let readings = self.readings.lock().clone();
        for Reading(read) in readings {
            read();
        }
        let mut text = String::new();
        for (name, family) in &*self.families.lock() {
            family.encode(name, &mut text);
        }
        text
    }
}

/// One kind of thing that is counted: what it is made with, and nothing else.
pub trait Series: Clone + Debug {
    type Layout: Copy + Debug;
}

impl Series for Counter {
    type Layout = ();
}

impl Series for Gauge {
    type Layout = ();
}

impl Series for Histogram {
    type Layout = &'static [f64];
}

/// The series of one name, told apart by the values of labels; cheap to clone.
#[derive(Debug)]
pub struct Family<S: Series> {
    series: Arc<RwLock<BTreeMap<Vec<String>, S>>>,
    labels: &'static [&'static str],
    layout: S::Layout,
    make: fn(S::Layout) -> S,
}

impl<S: Series> Clone for Family<S> {
    fn clone(&self) -> Self {
        let Family { series, labels, layout, make } = self;
        Family { series: series.clone(), labels, layout: *layout, make: *make }
    }
}

impl<S: Series> Family<S> {
    /// The series with these values of the labels, in their order. What is hot keeps it instead of asking each time.
    pub fn with(&self, values: &[&str]) -> S {
        debug_assert_eq!(values.len(), self.labels.len(), "one value for each of {:?}", self.labels);
        let padded = (0..self.labels.len()).map(|index| values.get(index).copied().unwrap_or_default());
        let mut key: Vec<String> = padded.map(str::to_owned).collect();
        if let Some(held) = self.series.read().get(&key) {
            return held.clone();
        }
        let mut series = self.series.write();
        if series.len() >= MOST_SERIES && !series.contains_key(&key) {
            key.fill(THE_REST.to_owned());
        }
        series.entry(key).or_insert_with(|| (self.make)(self.layout)).clone()
    }

    /// A series that is not shown.
    pub fn unseen(&self) -> S {
        (self.make)(self.layout)
    }

    /// Forgets the series whose first labels have these values: what they told of no longer exists. Costs as much as
    /// there is of it.
    pub fn forget(&self, first: &[&str]) {
        let from: Vec<String> = first.iter().map(|value| (*value).to_owned()).collect();
        let mut series = self.series.write();
        let gone: Vec<Vec<String>> = series
            .range(from.clone()..)
            .map(|(values, _)| values)
            .take_while(|values| values.starts_with(&from))
            .cloned()
            .collect();
        for values in gone {
            series.remove(&values);
        }
    }

    /// Forgets the series whose values do not fit: what they told of no longer exists.
    pub fn retain(&self, fits: impl Fn(&[String]) -> bool) {
        self.series.write().retain(|values, _| fits(values));
    }
}

/// A count that only grows.
#[derive(Clone, Debug, Default)]
pub struct Counter(Arc<AtomicU64>);

impl Counter {
    pub fn inc(&self) {
        self.add(1);
    }

    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A number that goes up and down.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<AtomicI64>);

impl Gauge {
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub fn add(&self, more: i64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How often values fell below bounds.
#[derive(Clone, Debug)]
pub struct Histogram(Arc<Buckets>);

#[derive(Debug)]
struct Buckets {
    bounds: &'static [f64],
    /// One more than bounds, for what is above all of them.
    counts: Box<[AtomicU64]>,
    /// The bits of a float.
    sum: AtomicU64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Histogram {
        debug_assert!(bounds.is_sorted(), "bounds ascend");
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Histogram(Arc::new(Buckets { bounds, counts, sum: AtomicU64::new(0_f64.to_bits()) }))
    }

    /// Counts a value. What is not a number is not counted.
    pub fn observe(&self, value: f64) {
        if value.is_nan() {
            return;
        }
        let bucket = self.0.bounds.partition_point(|bound| *bound < value);
        self.0.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let add = |bits| Some((f64::from_bits(bits) + value).to_bits());
        let _ = self.0.sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Counts a time, in seconds.
    pub fn took(&self, time: Duration) {
        self.observe(time.as_secs_f64());
    }

    /// How many values were counted.
    pub fn count(&self) -> u64 {
        self.0.counts.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests;
