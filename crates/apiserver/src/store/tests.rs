use serde_json::json;

use super::*;

fn table() -> Arc<str> {
    "things".into()
}

fn object(n: u64) -> Value {
    json!({"metadata": {"name": "a", "uid": "u", "labels": {"n": n.to_string()}}, "n": n})
}

async fn put(store: &Store, key: &str, expect: Expect, n: u64) -> Result<Arc<Object>, WriteError> {
    store.write(Write { table: table(), key: key.into(), expect, change: Change::Put(object(n)) }).await
}

fn stores() -> Vec<(Store, Option<tempfile::TempDir>)> {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let durable = Store::durable(directory.path(), Retention::default()).expect("opens");
    vec![(Store::memory(Retention::default()), None), (durable, Some(directory))]
}

#[tokio::test]
async fn a_write_on_a_stale_view_loses_and_sees_the_winner() {
    for (store, _directory) in stores() {
        let first = put(&store, "ns/a", Expect::Absent, 1).await.expect("created");
        let second = put(&store, "ns/a", Expect::At(first.revision), 2).await.expect("updated");
        let lost = put(&store, "ns/a", Expect::At(first.revision), 3).await;
        assert!(matches!(lost, Err(WriteError::Raced(Some(now))) if now.revision == second.revision));
        assert!(matches!(put(&store, "ns/a", Expect::Absent, 4).await, Err(WriteError::Raced(Some(_)))));
        assert!(matches!(put(&store, "ns/b", Expect::At(1), 4).await, Err(WriteError::Raced(None))));
        assert_eq!(store.get("things", "ns/a").expect("there").value()["n"], 2);
    }
}

#[tokio::test]
async fn of_many_creators_of_one_key_one_wins() {
    for (store, _directory) in stores() {
        let tasks: Vec<_> = (0..32)
            .map(|n| {
                let store = store.clone();
                tokio::spawn(async move { put(&store, "ns/a", Expect::Absent, n).await.is_ok() })
            })
            .collect();
        let mut won = 0;
        for task in tasks {
            won += usize::from(task.await.expect("no panic"));
        }
        assert_eq!(won, 1);
    }
}

#[tokio::test]
async fn pages_show_one_revision_whatever_happens_between_them() {
    let (store, _) = stores().remove(0);
    for key in ["ns/a", "ns/b", "ns/c", "other/d"] {
        put(&store, key, Expect::Absent, 1).await.expect("created");
    }
    let range = Range { namespace: Some("ns"), limit: 2, ..Range::default() };
    let first = store.list("things", &range, |_| true).expect("a page");
    assert_eq!(keys(&first), ["ns/a", "ns/b"]);
    assert_eq!((first.next.as_deref(), first.remaining), (Some("ns/b"), 1));

    let c = store.get("things", "ns/c").expect("there");
    let gone = Write {
        table: table(),
        key: "ns/c".into(),
        expect: Expect::At(c.revision),
        change: Change::Delete(c.value()),
    };
    store.write(gone).await.expect("deleted");
    put(&store, "ns/bb", Expect::Absent, 9).await.expect("created");

    let rest = Range { after: first.next.as_deref(), at: Some(first.revision), ..range };
    assert_eq!(keys(&store.list("things", &rest, |_| true).expect("a page")), ["ns/c"]);
    store.compact(&table());
    assert!(matches!(store.list("things", &rest, |_| true), Err(HistoryError::TooOld { .. })));
}

fn keys(page: &Page) -> Vec<&str> {
    page.items.iter().map(|object| object.key()).collect()
}

#[tokio::test]
async fn a_cursor_sees_every_event_once_and_a_slow_one_is_told() {
    let retention = Retention { events: 4, bytes: 1 << 20 };
    let store = Store::memory(retention);
    let mut cursor = store.watch(&table(), store.revision()).expect("now is never too old");
    for n in 0..3 {
        put(&store, &format!("ns/{n}"), Expect::Absent, n).await.expect("created");
    }
    cursor.changed().await;
    let (events, seen) = cursor.take(2).expect("in the log");
    assert_eq!(events.len(), 2);
    assert_eq!(seen, events[1].revision);
    assert_eq!(cursor.take(9).expect("in the log").0.len(), 1);
    assert_eq!(cursor.take(9).expect("nothing new").0.len(), 0);
    for n in 3..9 {
        put(&store, &format!("ns/{n}"), Expect::Absent, n).await.expect("created");
    }
    assert!(matches!(cursor.take(9), Err(HistoryError::TooOld { .. })));
}

#[tokio::test]
async fn the_log_is_bounded_by_bytes_too() {
    let store = Store::memory(Retention { events: 1000, bytes: 500 });
    for n in 0..50 {
        put(&store, &format!("ns/{n}"), Expect::Absent, n).await.expect("created");
    }
    let state = store.state.read();
    let table = &state.tables["things"];
    assert!(table.log_bytes <= 500 && table.log.len() < 10);
}

#[tokio::test]
async fn a_reopened_store_has_every_object_and_a_later_revision() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let last = {
        let store = Store::durable(directory.path(), Retention::default()).expect("opens");
        let a = put(&store, "ns/a", Expect::Absent, 1).await.expect("created");
        put(&store, "b", Expect::Absent, 2).await.expect("created");
        let gone = Write {
            table: table(),
            key: "ns/a".into(),
            expect: Expect::At(a.revision),
            change: Change::Delete(a.value()),
        };
        store.write(gone).await.expect("deleted").revision
    };
    let store = reopen(directory.path()).await;
    assert_eq!(store.revision(), last);
    assert!(store.get("things", "ns/a").is_none());
    assert_eq!(store.get("things", "b").expect("kept").value()["n"], 2);
    assert!(matches!(store.watch(&table(), last - 1), Err(HistoryError::TooOld { .. })));
    assert!(store.watch(&table(), last).is_ok());
    assert!(put(&store, "c", Expect::Absent, 3).await.expect("created").revision > last);
}

#[tokio::test]
async fn nothing_is_lost_over_many_turns_of_a_small_journal() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let retention = Retention::default();
    let mut revisions = Vec::new();
    for round in 0..3 {
        // 2 KiB hold some ten objects: every round takes many turns, and one object fits into no file at all.
        let store = Store::durable_with(directory.path(), retention, 2048).expect("opens");
        for n in 0..60 {
            let written = put(&store, &format!("ns/{round}-{n}"), Expect::Absent, n).await.expect("created");
            revisions.push(written.revision);
        }
        let large = json!({"metadata": {"name": "large"}, "data": "x".repeat(5000)});
        let write = Write {
            table: table(),
            key: format!("ns/large-{round}").into(),
            expect: Expect::Absent,
            change: Change::Put(large),
        };
        revisions.push(store.write(write).await.expect("created").revision);
        let last = put(&store, &format!("ns/last-{round}"), Expect::Absent, 7).await.expect("created");
        revisions.push(last.revision);
        store.close().await;
    }
    assert!(revisions.is_sorted());
    let store = Store::durable_with(directory.path(), retention, 2048).expect("opens");
    assert_eq!(store.count("things"), 3 * 62);
    assert_eq!(store.revision(), *revisions.last().expect("some"));
}

/// The committing thread of a dropped store lets go of the file a moment later.
async fn reopen(path: &std::path::Path) -> Store {
    loop {
        match Store::durable(path, Retention::default()) {
            Ok(store) => return store,
            Err(_) => tokio::task::yield_now().await,
        }
    }
}
