//! Which Event is to be written for what happened: a new one, a repeated one, or none. No I/O and no clock.
//! What it remembers is bounded, however many objects there are.

use std::collections::{BTreeMap, HashMap, VecDeque};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Event, EventSource};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::ObjectMeta;

use super::{Note, Source};

/// The numbers of Kubernetes: of so many keys the last use is remembered,
const MOST_REMEMBERED: usize = 4096;
/// Events that differ only in their message are combined from the tenth on,
const MOST_SIMILAR: usize = 10;
/// unless the last was longer ago than this,
const SIMILAR_WITHIN: SignedDuration = SignedDuration::from_mins(10);
/// and of one object so many are written at once, and then one every five minutes.
const BURST: f64 = 25.0;
const REFILL_PER_SECOND: f64 = 1.0 / 300.0;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Write {
    New(Event),
    /// An Event that was written before, with its count, time and message as they are now.
    Repeat(Event),
}

impl Write {
    pub(super) fn event(&self) -> &Event {
        match self {
            Write::New(event) | Write::Repeat(event) => event,
        }
    }
}

#[derive(Debug)]
pub(super) struct Correlator {
    source: Source,
    written: Recent<Written>,
    similar: Recent<Similar>,
    budgets: Recent<Budget>,
}

/// An Event that was written.
#[derive(Clone, Debug)]
struct Written {
    name: Option<String>,
    first: Option<Time>,
    count: i32,
}

/// The messages of Events that differ only in those.
#[derive(Clone, Debug, Default)]
struct Similar {
    messages: VecDeque<String>,
    last: Option<Timestamp>,
}

/// How many more Events of one object may be written.
#[derive(Clone, Debug)]
struct Budget {
    left: f64,
    at: Timestamp,
}

impl Correlator {
    pub(super) fn new(source: Source) -> Correlator {
        Correlator {
            source,
            written: Recent::default(),
            similar: Recent::default(),
            budgets: Recent::default(),
        }
    }

    pub(super) fn observe(&mut self, note: Note) -> Option<Write> {
        let object = note.about.clone();
        let object = [object.kind, object.namespace, object.name, object.uid, object.api_version]
            .map(Option::unwrap_or_default)
            .join("\n");
        let object = format!("{object}\n{}", note.severity.as_str());
        let similar = format!("{object}\n{}", note.reason);
        let at = note.at;
        let combined = self.is_one_of_many(&similar, &note.message, at);
        let (event, key) = if combined {
            (self.combined(note), similar)
        } else {
            let path = note.about.field_path.as_deref().unwrap_or_default();
            let key = format!("{similar}\n{path}\n{}", note.message);
            (self.single(note), key)
        };
        let write = self.count(event, &key);
        self.spend(&object, at).then_some(write)
    }

    fn is_one_of_many(&mut self, key: &str, message: &str, at: Timestamp) -> bool {
        let mut similar = self.similar.get(key).cloned().unwrap_or_default();
        if similar.last.is_some_and(|last| at.duration_since(last) > SIMILAR_WITHIN) {
            similar.messages.clear();
        }
        if !similar.messages.iter().any(|known| known == message) {
            similar.messages.push_back(message.to_owned());
        }
        similar.last = Some(at);
        let combined = similar.messages.len() >= MOST_SIMILAR;
        if combined {
            similar.messages.pop_front();
        }
        self.similar.put(key, similar);
        combined
    }

    fn single(&self, note: Note) -> Event {
        Event {
            reporting_component: Some(self.source.component.to_owned()),
            reporting_instance: Some(self.source.host.clone().unwrap_or_default()),
            ..self.event(note)
        }
    }

    fn combined(&self, mut note: Note) -> Event {
        note.message.insert_str(0, "(combined from similar events): ");
        self.event(note)
    }

    fn event(&self, note: Note) -> Event {
        let name = note.about.name.as_deref().unwrap_or_default();
        let time = Some(Time(seconds(note.at)));
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{:x}", note.at.as_nanosecond())),
                namespace: Some(note.about.namespace.clone().unwrap_or_else(|| "default".to_owned())),
                ..ObjectMeta::default()
            },
            involved_object: note.about,
            reason: Some(note.reason),
            message: Some(note.message),
            first_timestamp: time.clone(),
            last_timestamp: time,
            count: Some(1),
            type_: Some(note.severity.as_str().to_owned()),
            source: Some(EventSource {
                component: Some(self.source.component.to_owned()),
                host: self.source.host.clone(),
            }),
            ..Event::default()
        }
    }

    fn count(&mut self, mut event: Event, key: &str) -> Write {
        let before = self.written.get(key).cloned();
        if let Some(before) = &before {
            event.metadata.name = before.name.clone();
            event.first_timestamp = before.first.clone();
            event.count = Some(before.count.saturating_add(1));
        }
        let (name, first) = (event.metadata.name.clone(), event.first_timestamp.clone());
        self.written.put(key, Written { name, first, count: event.count.unwrap_or(1) });
        match before {
            Some(_) => Write::Repeat(event),
            None => Write::New(event),
        }
    }

    /// Takes one Event from the budget of an object, if there is one left.
    fn spend(&mut self, object: &str, at: Timestamp) -> bool {
        let mut budget = self.budgets.get(object).cloned().unwrap_or(Budget { left: BURST, at });
        let since = at.duration_since(budget.at).as_secs_f64().max(0.0);
        budget.left = (budget.left + since * REFILL_PER_SECOND).min(BURST);
        budget.at = at;
        let enough = budget.left >= 1.0;
        if enough {
            budget.left -= 1.0;
        }
        self.budgets.put(object, budget);
        enough
    }
}

/// Times in Events are whole seconds.
fn seconds(at: Timestamp) -> Timestamp {
    Timestamp::from_second(at.as_second()).unwrap_or(at)
}

/// A map that keeps the entries which were written last.
#[derive(Debug)]
struct Recent<V> {
    entries: HashMap<String, (u64, V)>,
    order: BTreeMap<u64, String>,
    sequence: u64,
}

impl<V> Default for Recent<V> {
    fn default() -> Self {
        Recent { entries: HashMap::new(), order: BTreeMap::new(), sequence: 0 }
    }
}

impl<V> Recent<V> {
    fn get(&self, key: &str) -> Option<&V> {
        self.entries.get(key).map(|(_, value)| value)
    }

    fn put(&mut self, key: &str, value: V) {
        self.sequence += 1;
        if let Some((before, _)) = self.entries.insert(key.to_owned(), (self.sequence, value)) {
            self.order.remove(&before);
        }
        self.order.insert(self.sequence, key.to_owned());
        if self.entries.len() > MOST_REMEMBERED
            && let Some((_, oldest)) = self.order.pop_first()
        {
            self.entries.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ObjectReference;

    use super::super::Severity;
    use super::*;

    fn correlator() -> Correlator {
        Correlator::new(Source { component: "test", host: None })
    }

    fn note(name: &str, message: &str, second: i64) -> Note {
        Note {
            about: ObjectReference { name: Some(name.to_owned()), ..ObjectReference::default() },
            severity: Severity::Normal,
            reason: "Reason".to_owned(),
            message: message.to_owned(),
            at: Timestamp::from_second(second).unwrap(),
        }
    }

    #[test]
    fn the_same_event_is_counted_under_its_first_name() {
        let mut correlator = correlator();
        let Some(Write::New(first)) = correlator.observe(note("a", "m", 1)) else { panic!("not new") };
        let Some(Write::Repeat(second)) = correlator.observe(note("a", "m", 5)) else { panic!("not again") };
        assert_eq!(second.metadata.name, first.metadata.name);
        assert_eq!(second.first_timestamp, first.first_timestamp);
        assert_eq!(second.last_timestamp, Some(Time(Timestamp::from_second(5).unwrap())));
        assert_eq!(second.count, Some(2));
        assert!(matches!(correlator.observe(note("b", "m", 5)), Some(Write::New(_))));
    }

    #[test]
    fn the_tenth_that_differs_in_its_message_is_combined() {
        let mut correlator = correlator();
        for n in 1..10 {
            assert!(matches!(correlator.observe(note("a", &format!("m{n}"), n)), Some(Write::New(_))));
        }
        let Some(Write::New(tenth)) = correlator.observe(note("a", "m10", 10)) else { panic!("not new") };
        assert_eq!(tenth.message.as_deref(), Some("(combined from similar events): m10"));
        let Some(Write::Repeat(next)) = correlator.observe(note("a", "m11", 11)) else { panic!("not again") };
        assert_eq!((next.count, next.metadata.name), (Some(2), tenth.metadata.name));
        let Some(Write::New(later)) = correlator.observe(note("a", "m12", 1000)) else { panic!("not new") };
        assert_eq!(later.message.as_deref(), Some("m12"));
    }

    #[test]
    fn an_object_that_causes_too_many_is_silenced_for_a_while() {
        let mut correlator = correlator();
        let written = (0..40).filter(|_| correlator.observe(note("a", "m", 1)).is_some()).count();
        assert_eq!(written, 25);
        assert!(correlator.observe(note("b", "m", 1)).is_some());
        assert!(correlator.observe(note("a", "m", 302)).is_some());
        assert!(correlator.observe(note("a", "m", 302)).is_none());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut recent = Recent::default();
        for n in 0..=MOST_REMEMBERED {
            recent.put(&n.to_string(), n);
            recent.put("kept", 0);
        }
        assert_eq!((recent.entries.len(), recent.order.len()), (MOST_REMEMBERED, MOST_REMEMBERED));
        assert!(recent.get("0").is_none() && recent.get("kept").is_some());
    }
}
