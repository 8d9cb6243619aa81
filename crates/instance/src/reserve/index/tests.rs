//! Memory never goes backwards and never serves from half a bond.

use jiff::Timestamp;

use super::*;
use crate::identity::{InstanceId, SpecId};
use crate::record::{Hold, Reservation};

const INTERVAL: Duration = Duration::from_secs(30);

fn task() -> TaskId {
    TaskId { namespace: "prod".into(), name: "agent".into(), uid: "t1".into() }
}

fn key(text: &str) -> SessionKey {
    SessionKey::new(text).unwrap()
}

fn session(key_text: &str, version: u64) -> Session {
    Session {
        namespace: "prod".into(),
        task_uid: "t1".into(),
        key: key(key_text),
        uid: format!("lease-{key_text}").into(),
        version,
        holder: Some(InstanceId::pod("agent-0", "p1")),
        binding: 1,
        binder: "router-a/1".into(),
        created: Timestamp::UNIX_EPOCH,
        renewed: Timestamp::UNIX_EPOCH,
        releasing: false,
        rests: None,
        ending: false,
        interrupted: false,
    }
}

fn instance(version: u64) -> Instance {
    Instance {
        namespace: "prod".into(),
        id: InstanceId::pod("agent-0", "p1"),
        version,
        task_uid: "t1".into(),
        spec_id: SpecId("agent-1".into()),
        slot: Some(0),
        address: Some([10, 0, 0, 7].into()),
        port: None,
        life: Life::Ready,
        hold: Hold::Held { key: key("a"), reservation: Reservation { lease: "lease-a".into(), binding: 1 } },
        paused: false,
        woken: None,
        releasing: false,
        created_for: None,
        created: Timestamp::UNIX_EPOCH,
        last_active: None,
    }
}

struct Memory {
    index: Index,
    clock: Clock,
}

impl Memory {
    fn new() -> Memory {
        Memory { index: Index::new(), clock: Clock::start() }
    }

    /// With a bound session.
    fn bound() -> Memory {
        let memory = Memory::new();
        memory.watched(session("a", 5), 5);
        memory.pod(instance(6), Source::Watch(6));
        memory
    }

    fn id(&self) -> SessionId {
        SessionId::of(&task(), &key("a"))
    }

    fn put(&self, session: Session, source: Source) -> LeaseNews {
        self.index.put_lease(self.id(), Kept::Session(session), source, Duration::ZERO)
    }

    fn watched(&self, session: Session, revision: u64) -> LeaseNews {
        self.put(session, Source::Watch(revision))
    }

    fn pod(&self, instance: Instance, source: Source) -> bool {
        self.index.put_instance(instance, source, |_, _| false).is_some()
    }

    fn lookup(&self) -> Option<Hit> {
        self.index.lookup(&task(), &self.id(), None, INTERVAL, &self.clock)
    }

    fn version(&self) -> Option<u64> {
        self.index.session(&self.id()).map(|entry| entry.kept.version())
    }
}

#[test]
fn a_hit_needs_a_whole_bond_that_is_not_about_to_end() {
    assert!(Memory::bound().lookup().is_some());
    type Change = fn(&mut Session, &mut Instance);
    let changes: [Change; 13] = [
        |session, _| session.releasing = true,
        |session, _| session.ending = true,
        |session, _| session.binding = 2,
        |session, _| session.holder = None,
        |session, _| session.task_uid = "t2".into(),
        |_, instance| instance.hold = Hold::Free,
        |session, _| session.rests = Some(5),
        |_, instance| instance.life = Life::Paused,
        |_, instance| instance.life = Life::Unready,
        |_, instance| instance.releasing = true,
        |_, instance| instance.address = None,
        // Of another namespace, or another Task, whatever its annotations say.
        |_, instance| instance.namespace = "other".into(),
        |_, instance| instance.task_uid = "t2".into(),
    ];
    for (n, change) in changes.iter().enumerate() {
        let memory = Memory::new();
        let (mut session, mut instance) = (session("a", 5), instance(6));
        change(&mut session, &mut instance);
        memory.watched(session, 5);
        memory.pod(instance, Source::Watch(6));
        assert!(memory.lookup().is_none(), "change {n}");
    }
    let memory = Memory::bound();
    memory.index.begin_binding(&memory.id());
    assert!(memory.lookup().is_none(), "a binding is at work");
    memory.index.end_binding(&memory.id());
    assert!(memory.lookup().is_some());
}

#[test]
fn who_asks_for_an_instance_that_the_session_does_not_have_touches_nothing() {
    let (memory, own) = (Memory::bound(), instance(6).id);
    let other = InstanceId::pod(own.name.clone(), "another");
    let lookup =
        |only: &InstanceId| memory.index.lookup(&task(), &memory.id(), Some(only), INTERVAL, &memory.clock);
    let in_flight = || {
        let usage = memory.index.session(&memory.id()).and_then(|entry| entry.usage);
        usage.is_some_and(|usage| usage.is_in_flight())
    };
    assert!(lookup(&other).is_none() && !in_flight());
    assert!(lookup(&own).is_some() && in_flight());
    assert!(lookup(&other).is_none());
}

#[test]
fn a_lease_of_another_namespace_is_another_session() {
    let memory = Memory::bound();
    let foreign = SessionId { namespace: "other".into(), ..memory.id() };
    let theirs = Session { namespace: "other".into(), holder: None, ..session("a", 9) };
    memory.index.put_lease(foreign, Kept::Session(theirs), Source::Watch(9), Duration::ZERO);
    assert!(memory.lookup().is_some());
}

#[test]
fn older_news_is_no_news() {
    let memory = Memory::bound();
    assert!(!memory.watched(session("a", 4), 5).changed);
    assert!(memory.put(session("a", 7), Source::Write(Duration::ZERO)).changed);
    // The watch delivers what was written through, and what came before.
    assert!(!memory.watched(session("a", 6), 6).changed);
    assert!(!memory.watched(session("a", 7), 7).changed);
    assert_eq!(memory.version(), Some(7));
    // An answer that the watch has overtaken.
    assert!(!memory.put(session("a", 7), Source::Read).changed);
    assert!(memory.watched(session("a", 9), 9).changed);
    assert!(!memory.put(session("a", 8), Source::Write(Duration::ZERO)).changed);
    assert_eq!(memory.version(), Some(9));
}

#[test]
fn a_lost_answer_leaves_doubt_until_the_next_write() {
    let memory = Memory::bound();
    let sent = |memory: &Memory| memory.index.session(&memory.id()).unwrap().sent;
    memory.put(session("a", 7), Source::Write(Duration::from_secs(1)));
    assert_eq!(sent(&memory), Some(Duration::from_secs(1)));
    memory.index.doubt(&memory.id());
    // Reading the same version again proves nothing: the lost write may come yet.
    memory.put(session("a", 7), Source::Read);
    assert_eq!(sent(&memory), None);
    memory.put(session("a", 8), Source::Write(Duration::from_secs(2)));
    assert_eq!(sent(&memory), Some(Duration::from_secs(2)));
}

#[test]
fn what_is_gone_does_not_come_back() {
    let memory = Memory::bound();
    let uid: Arc<str> = "lease-a".into();
    assert!(memory.index.remove_lease(&memory.id(), &uid, 5, Source::Read));
    // Late events and answers about the one that is gone.
    assert!(!memory.watched(session("a", 6), 6).changed);
    assert!(!memory.put(session("a", 7), Source::Read).changed);
    assert_eq!(memory.version(), None);
    // A new one of the same name is another.
    let new = Session { uid: "lease-b".into(), ..session("a", 8) };
    assert!(memory.put(new, Source::Write(Duration::ZERO)).changed);
    memory.index.remove_lease(&memory.id(), &uid, 7, Source::Watch(7));
    assert_eq!(memory.version(), Some(8));
}

#[test]
fn a_list_replaces_all_but_what_is_newer() {
    let memory = Memory::bound();
    let id = |text| SessionId::of(&task(), &key(text));
    let item = |text, version| (id(text), Kept::Session(session(text, version)));
    memory.index.put_lease(id("b"), item("b", 20).1, Source::Write(Duration::ZERO), Duration::ZERO);
    memory.index.list_leases(vec![item("c", 8)], 10, Duration::ZERO);
    assert_eq!(memory.version(), None);
    assert!(memory.index.session(&id("b")).is_some() && memory.index.session(&id("c")).is_some());
    assert_eq!((memory.index.seen_leases(), memory.index.seen_instances(Kind::Pod)), (10, 6));
    // A list of one kind says nothing of the other.
    let (gone, new) = memory.index.list_instances(Kind::Sandbox, vec![], 10, |_, _| false);
    assert!(gone.is_empty() && new.is_empty());
    let (gone, new) = memory.index.list_instances(Kind::Pod, vec![], 10, |_, _| false);
    assert_eq!((gone.len(), new.len()), (1, 0));
}

#[test]
fn a_mark_on_what_is_in_use_is_not_seen_before_it_is_answered() {
    let memory = Memory::bound();
    let marked = |version| Session { releasing: true, ..session("a", version) };
    let hit = memory.lookup().unwrap();
    let news = memory.watched(marked(7), 7);
    assert_eq!(news.objection, Some(Objection { about: memory.id(), version: 7 }));
    assert!(news.marked);
    assert_eq!(memory.index.seen_leases(), 6);
    assert!(memory.lookup().is_none());
    memory.watched(session("a", 8), 8);
    memory.index.lease_settled(7);
    assert_eq!(memory.index.seen_leases(), 8);

    // The same when an answer to a read is faster than the watch.
    assert!(memory.put(marked(9), Source::Read).objection.is_some());
    assert!(!memory.watched(marked(9), 9).changed);
    assert_eq!(memory.index.seen_leases(), 8);
    memory.index.lease_settled(9);

    // At a hard end only requests in flight count.
    let ending = Session { ending: true, ..session("a", 10) };
    assert!(memory.watched(ending, 10).objection.is_some());
    let said = Session { ending: true, interrupted: true, ..session("a", 11) };
    assert!(memory.watched(said, 11).objection.is_none());
    drop(hit);
}

#[test]
fn a_mark_on_what_is_idle_is_seen_at_once() {
    let memory = Memory::bound();
    let news = memory.watched(Session { releasing: true, ..session("a", 7) }, 7);
    assert!(news.marked && news.objection.is_none());
    assert_eq!(memory.index.seen_leases(), 7);
}

#[test]
fn the_uses_of_a_session_outlive_its_versions_but_not_the_session() {
    let memory = Memory::bound();
    let first = memory.lookup().unwrap().usage;
    memory.watched(session("a", 7), 7);
    assert!(Arc::ptr_eq(&first, &memory.lookup().unwrap().usage));
    let new = Session { uid: "lease-b".into(), ..session("a", 8) };
    memory.watched(new, 8);
    assert!(memory.lookup().is_none(), "the instance names the old one");
    assert!(!memory.index.is_used(&memory.id()));
}

#[cfg(feature = "campaign")]
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

/// Run alone, since other tests disturb the numbers:
/// `cargo test -p agentcube-instance --features campaign --lib -- --nocapture hundred_thousand`.
#[cfg(feature = "campaign")]
#[test]
fn a_hundred_thousand_sessions() {
    const COUNT: usize = 100_000;
    let (index, clock) = (Index::new(), Clock::start());
    let pools = crate::reserve::waiting::Pools::new("router-a".into(), Arc::default(), clock);
    let before = resident();
    let uuid = |kind: u64, n: usize| format!("{kind:08x}-1111-4111-8111-{n:012x}");
    for n in 0..COUNT {
        let name = format!("session-key-of-user-{n}");
        let holder = InstanceId::pod(format!("agent-{n}"), uuid(2, n));
        let made = Session { uid: uuid(1, n).into(), holder: Some(holder.clone()), ..session(&name, 1) };
        let hold = Hold::Held { key: key(&name), reservation: made.reservation() };
        let id = SessionId::of(&task(), &key(&name));
        let pod = Instance { id: holder, slot: Some(n as u32), hold, ..instance(1) };
        index.put_instance(pod, Source::Watch(1), |was, instance| pools.apply(was, instance, true));
        index.put_lease(id, Kept::Session(made), Source::Watch(1), Duration::ZERO);
    }
    let task = task();
    let ids: Vec<SessionId> =
        (0..COUNT).map(|n| SessionId::of(&task, &key(&format!("session-key-of-user-{n}")))).collect();
    let ids_take = COUNT * size_of::<SessionId>();
    let idle = (resident() - before - ids_take) / COUNT;
    let mut times = Vec::with_capacity(COUNT);
    for id in ids.iter().cycle().step_by(7919).take(COUNT) {
        let begun = std::time::Instant::now();
        let hit = index.lookup(&task, id, None, INTERVAL, &clock);
        times.push(begun.elapsed());
        assert!(hit.is_some());
    }
    times.sort();
    let used = (resident() - before - ids_take - COUNT * size_of::<Duration>()) / COUNT;
    println!(
        "{idle} bytes per session, {used} when used; lookup p50 {:?} p99 {:?}",
        times[COUNT / 2],
        times[COUNT * 99 / 100]
    );
    assert!(used <= 1024, "{used} bytes per session");
}
