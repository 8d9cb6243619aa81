use std::collections::{BTreeMap, HashSet, VecDeque};

use k8s_openapi::api::core::v1::Pod;
use kube::Resource;
use proptest::prelude::*;

use super::*;

fn pod(name: &str, uid: &str, revision: u64) -> Pod {
    let meta = ObjectMeta {
        namespace: Some("ns".to_owned()),
        name: Some(name.to_owned()),
        uid: Some(uid.to_owned()),
        resource_version: Some(revision.to_string()),
        ..ObjectMeta::default()
    };
    Pod { metadata: meta, ..Pod::default() }
}

/// What a test does next: to the server, to the watch, or to the answers that are under way to writers.
#[derive(Clone, Debug)]
enum Step {
    Write(u8),
    Delete(u8),
    /// The watch delivers its next event.
    Watch,
    /// A writer takes in one of the answers that wait.
    Answer(u8),
    /// The watch breaks and the server has forgotten its past.
    Relist,
}

#[derive(Clone, Debug)]
enum Event {
    Applied(Pod),
    Deleted(Pod),
}

/// A server that keeps its history, its watch, and the answers to writes that were not taken in yet.
#[derive(Default)]
struct World {
    revision: u64,
    uids: u64,
    objects: BTreeMap<String, Pod>,
    watch: VecDeque<Event>,
    answers: Vec<Event>,
}

impl World {
    fn write(&mut self, name: &str) {
        self.revision += 1;
        let uid = match self.objects.get(name) {
            Some(held) => uid(held.meta()).to_owned(),
            None => {
                self.uids += 1;
                format!("uid-{}", self.uids)
            }
        };
        let object = pod(name, &uid, self.revision);
        self.objects.insert(name.to_owned(), object.clone());
        self.watch.push_back(Event::Applied(object.clone()));
        self.answers.push(Event::Applied(object));
    }

    fn delete(&mut self, name: &str) {
        if let Some(last) = self.objects.remove(name) {
            self.revision += 1;
            // The watch shows a deletion at its own revision, the answer shows the last state.
            self.watch.push_back(Event::Deleted(pod(name, uid(last.meta()), self.revision)));
            self.answers.push(Event::Deleted(last));
        }
    }
}

fn watch_one(world: &mut World, contents: &mut Contents<Pod>) {
    match world.watch.pop_front() {
        Some(Event::Applied(object)) => contents.watched(object),
        Some(Event::Deleted(object)) => contents.watched_deletion(object.meta()),
        None => {}
    }
}

fn answer(contents: &mut Contents<Pod>, answer: Event) {
    match answer {
        Event::Applied(object) => contents.put(object),
        Event::Deleted(object) => contents.gone(object.meta()),
    }
}

fn step(world: &mut World, contents: &mut Contents<Pod>, step: &Step) {
    match step {
        Step::Write(n) => world.write(&format!("pod-{n}")),
        Step::Delete(n) => world.delete(&format!("pod-{n}")),
        Step::Watch => watch_one(world, contents),
        Step::Answer(n) if !world.answers.is_empty() => {
            let index = usize::from(*n) % world.answers.len();
            answer(contents, world.answers.remove(index));
        }
        Step::Answer(_) => {}
        Step::Relist => {
            world.watch.clear();
            contents.listed(world.objects.values().cloned().collect(), world.revision);
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let one = prop_oneof![
        4 => (0..3u8).prop_map(Step::Write),
        3 => (0..3u8).prop_map(Step::Delete),
        6 => Just(Step::Watch),
        5 => any::<u8>().prop_map(Step::Answer),
        1 => Just(Step::Relist),
    ];
    proptest::collection::vec(one, 0..80)
}

fn state(contents: &Contents<Pod>) -> BTreeMap<String, (String, u64)> {
    let entry = |object: Arc<Pod>| {
        let meta = object.meta();
        (meta.name.clone().unwrap(), (uid(meta).to_owned(), revision(meta)))
    };
    contents.list(None).into_iter().map(entry).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_interleaving_ends_in_the_servers_state_and_never_goes_back(steps in steps()) {
        let (mut world, mut contents) = (World::default(), Contents::default());
        let mut newest: BTreeMap<String, u64> = BTreeMap::new();
        let mut gone: HashSet<String> = HashSet::new();
        let mut before = state(&contents);
        for one in &steps {
            step(&mut world, &mut contents, one);
            let now = state(&contents);
            for (uid, revision) in now.values() {
                prop_assert!(!gone.contains(uid), "{uid} came back");
                let last = newest.entry(uid.clone()).or_default();
                prop_assert!(revision >= last, "{uid} went back from {last} to {revision}");
                *last = *revision;
            }
            let held: HashSet<&String> = now.values().map(|(uid, _)| uid).collect();
            gone.extend(before.values().map(|(uid, _)| uid).filter(|uid| !held.contains(uid)).cloned());
            before = now;
        }
        while let Some(late) = world.answers.pop() {
            answer(&mut contents, late);
        }
        while !world.watch.is_empty() {
            watch_one(&mut world, &mut contents);
        }
        let server: BTreeMap<_, _> = world
            .objects
            .iter()
            .map(|(name, object)| (name.clone(), (uid(object.meta()).to_owned(), revision(object.meta()))))
            .collect();
        prop_assert_eq!(state(&contents), server);
        prop_assert!(contents.tombstones.is_empty(), "left over: {:?}", contents.tombstones);
    }

    #[test]
    fn a_subscriber_that_replays_its_changes_holds_the_same_state(steps in steps(), at in 0..40usize) {
        let (mut world, mut contents) = (World::default(), Contents::default());
        let mut receiver = None;
        let mut replayed: BTreeMap<String, (String, u64)> = BTreeMap::new();
        for (index, one) in steps.iter().enumerate() {
            if index == at {
                receiver = Some(contents.subscribe());
            }
            step(&mut world, &mut contents, one);
            if let Some(receiver) = receiver.as_mut() && index % 3 == 0 {
                replay(receiver, &mut replayed);
            }
        }
        if let Some(receiver) = receiver.as_mut() {
            replay(receiver, &mut replayed);
            let now: BTreeMap<_, _> = state(&contents).into_values().collect();
            prop_assert_eq!(replayed.into_values().collect::<BTreeMap<_, _>>(), now);
        }
    }
}

/// Keeps what a receiver has said, by uid.
fn replay(receiver: &mut Receiver<Pod>, held: &mut BTreeMap<String, (String, u64)>) {
    while let Some(change) = receiver.try_recv() {
        let meta = change.latest().meta();
        match &change.new {
            Some(_) => held.insert(uid(meta).to_owned(), (uid(meta).to_owned(), revision(meta))),
            None => held.remove(uid(meta)),
        };
    }
}

#[test]
fn objects_are_found_by_controller_until_they_are_released() {
    let owner = |uid: &str, controller| k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference {
        uid: uid.to_owned(),
        controller: Some(controller),
        ..Default::default()
    };
    let mut contents = Contents::default();
    let mut owned = pod("a", "1", 1);
    owned.metadata.owner_references = Some(vec![owner("other", false), owner("owner", true)]);
    contents.put(owned);
    assert_eq!(contents.owned_by("owner").len(), 1);
    assert!(contents.owned_by("other").is_empty() && contents.orphans("ns").is_empty());
    contents.put(pod("a", "1", 2));
    assert!(contents.owned_by("owner").is_empty());
    assert_eq!((contents.orphans("ns").len(), contents.orphans("n").len()), (1, 0));
    assert_eq!(contents.owned.len(), 1);
}

#[test]
fn a_namespace_lists_only_its_own() {
    let mut contents = Contents::default();
    for (revision, namespace) in (1..).zip(["a", "ab", "b"]) {
        let mut object = pod("x", namespace, revision);
        object.metadata.namespace = Some(namespace.to_owned());
        contents.put(object);
    }
    assert_eq!(contents.list(Some("a")).len(), 1);
    assert_eq!(contents.list(None).len(), 3);
    assert!(contents.list(Some("c")).is_empty());
}
