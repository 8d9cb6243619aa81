//! What is promised is kept; what a crash does to a log is told from what nothing ought to do to it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use agentcube_api::sandbox::SandboxSpec;
use parking_lot::{Condvar, Mutex};
use proptest::prelude::*;

use super::*;

fn sandbox(name: &str) -> Sandbox {
    let spec = SandboxSpec { image: "image".into(), pool_ref: "pool".into(), ..SandboxSpec::default() };
    let mut object = Sandbox::new(name, spec);
    object.metadata.namespace = Some("boxes".into());
    object
}

fn named(name: &str) -> Name {
    Name::new("boxes", name)
}

async fn intent(log: &Log, run: &str, name: &str) -> Result<(), LogError> {
    let object = sandbox(name);
    let agent = AgentId { name: "agent".into(), uid: "uid".into() };
    log.intent(&run.into(), &agent, "life", &object, &serde_json::to_vec(&object).unwrap()).await
}

fn open_names(log: &Log) -> Vec<String> {
    let mut names: Vec<String> = log.names().into_iter().map(|name| name.name).collect();
    names.sort();
    names
}

/// Bytes in memory that can fail, wait, and be looked at.
#[derive(Clone, Default)]
struct Memory {
    bytes: Arc<Mutex<Option<Vec<u8>>>>,
    full: Arc<AtomicBool>,
    appends: Arc<AtomicUsize>,
    gate: Arc<(Mutex<bool>, Condvar)>,
}

impl Memory {
    fn strike(&self) -> io::Result<()> {
        let mut held = self.gate.0.lock();
        while *held {
            self.gate.1.wait(&mut held);
        }
        if self.full.load(Ordering::SeqCst) { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn hold(&self, held: bool) {
        *self.gate.0.lock() = held;
        self.gate.1.notify_all();
    }

    fn length(&self) -> usize {
        self.bytes.lock().as_ref().map_or(0, Vec::len)
    }

    fn log(&self) -> Result<Log, LogError> {
        Log::open_on(Box::new(self.clone()))
    }
}

impl Disk for Memory {
    fn name(&self) -> String {
        "memory".into()
    }

    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.bytes.lock().clone())
    }

    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.bytes.lock().as_mut().unwrap().truncate(usize::try_from(length).unwrap());
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Err(error) = self.strike() {
            // As much as fits.
            self.bytes.lock().as_mut().unwrap().extend_from_slice(&bytes[..bytes.len() / 2]);
            return Err(error);
        }
        self.appends.fetch_add(1, Ordering::SeqCst);
        self.bytes.lock().as_mut().unwrap().extend_from_slice(bytes);
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.strike()?;
        *self.bytes.lock() = Some(bytes.to_vec());
        Ok(())
    }
}

#[tokio::test]
async fn what_was_promised_is_there_when_it_is_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("deep/log");
    let log = Log::open(&path).unwrap();
    for (run, name) in [("1", "kept"), ("2", "made"), ("3", "deleted"), ("4", "over")] {
        intent(&log, run, name).await.unwrap();
    }
    log.settle(&"2".into());
    for run in ["3", "4"] {
        log.deleted(&run.into()).await.unwrap();
        // A deletion is not over because there is nothing to make.
        log.settle(&run.into());
    }
    log.done(&"4".into());
    assert_eq!(open_names(&log), ["deleted", "kept"]);
    drop(log);
    let log = Log::open(&path).unwrap();
    assert_eq!(open_names(&log), ["deleted", "kept"]);
    let kept = log.of(&named("kept")).unwrap();
    assert_eq!((kept.run.as_str(), kept.incarnation.as_str(), kept.deleted), ("1", "life", false));
    assert_eq!((kept.agent.uid.as_str(), kept.pool.clone()), ("uid", named("pool")));
    assert_eq!(kept.object().unwrap().spec.image, "image");
    assert!(log.of(&named("deleted")).unwrap().deleted);
    assert!(log.of(&named("over")).is_none());
}

#[tokio::test]
async fn a_log_belongs_to_one_process_and_to_nobody_else() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let log = Log::open(&path).unwrap();
    let second = Log::open(&path).unwrap_err();
    assert!(matches!(&second, LogError::Locked { log } if log.ends_with("log")), "{second}");
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    drop(log);
    Log::open(&path).unwrap();
    let unusable = Log::open(&path.join("below/a/file")).unwrap_err();
    assert!(unusable.to_string().contains("below/a/file"), "{unusable}");
}

#[tokio::test]
async fn what_is_written_to_a_file_is_read_and_room_behind_it_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let length = || std::fs::metadata(&path).unwrap().len();
    for round in 0..3 {
        let log = Log::open(&path).unwrap();
        for number in 0..3 {
            intent(&log, &format!("run-{round}-{number}"), &format!("box-{round}-{number}")).await.unwrap();
        }
        assert_eq!(log.names().len(), 3 * (round + 1));
    }
    let before = length();
    assert!(before >= 1 << 20, "there is room");
    let log = Log::open(&path).unwrap();
    intent(&log, "more", "more").await.unwrap();
    drop(log);
    assert_eq!(length(), before, "a file that does not grow");
    // A crash tears a frame: its beginning is there, then zeros, then its end.
    let bytes = std::fs::read(&path).unwrap();
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    let mut torn = bytes.clone();
    torn[end - 60..end - 20].fill(0);
    std::fs::write(&path, torn).unwrap();
    let log = Log::open(&path).unwrap();
    assert!(log.of(&named("more")).is_none());
    assert_eq!(log.names().len(), 9);
    intent(&log, "again", "again").await.unwrap();
    drop(log);
    assert_eq!(Log::open(&path).unwrap().names().len(), 10);
}

#[tokio::test]
async fn whoever_waits_shares_one_sync() {
    let memory = Memory::default();
    let log = memory.log().unwrap();
    memory.hold(true);
    let first = tokio::spawn({
        let log = log.clone();
        async move { intent(&log, "first", "first").await }
    });
    // The thread has it, and waits for the disk; all others come together.
    while log.of(&named("first")).is_none() {
        tokio::task::yield_now().await;
    }
    let mut others = tokio::task::JoinSet::new();
    for number in 0..50 {
        let log = log.clone();
        others.spawn(async move { intent(&log, &format!("run-{number}"), &format!("box-{number}")).await });
    }
    while log.names().len() < 51 {
        tokio::task::yield_now().await;
    }
    memory.hold(false);
    first.await.unwrap().unwrap();
    while let Some(one) = others.join_next().await {
        one.unwrap().unwrap();
    }
    assert!(memory.appends.load(Ordering::SeqCst) <= 2, "{:?}", memory.appends);
    assert_eq!(log.names().len(), 51);
}

#[tokio::test]
async fn a_log_stays_short() {
    let memory = Memory::default();
    let log = memory.log().unwrap();
    intent(&log, "kept", "kept").await.unwrap();
    let mut object = sandbox("large");
    object.spec.command = vec!["x".repeat(200_000)];
    let text = serde_json::to_vec(&object).unwrap();
    let mut longest = 0;
    for number in 0..100 {
        let run = RunId::from(format!("run-{number}").as_str());
        log.intent(&run, &AgentId::default(), "", &object, &text).await.unwrap();
        log.settle(&run);
        longest = longest.max(memory.length());
    }
    assert!(longest < 6 << 20, "20 MB were written, and it has {longest}");
    drop(log);
    assert_eq!(open_names(&memory.log().unwrap()), ["kept"]);
}

#[tokio::test]
async fn a_full_disk_is_told_and_heals() {
    let memory = Memory::default();
    let log = memory.log().unwrap();
    intent(&log, "1", "before").await.unwrap();
    memory.full.store(true, Ordering::SeqCst);
    let refused = intent(&log, "2", "torn").await.unwrap_err();
    assert!(matches!(refused, LogError::Broken { .. }), "{refused}");
    assert!(matches!(log.check(), Err(LogError::Broken { .. })));
    assert!(matches!(log.deleted(&"1".into()).await, Err(LogError::Broken { .. })));
    assert!(!log.of(&named("before")).unwrap().deleted, "nobody was told so");
    // It may be on disk: it stays open until somebody settles it.
    assert_eq!(open_names(&log), ["before", "torn"]);
    log.settle(&"2".into());
    assert!(matches!(log.forgotten(&named("torn")).await, Err(LogError::Broken { .. })));
    memory.full.store(false, Ordering::SeqCst);
    while log.check().is_err() {
        tokio::task::yield_now().await;
    }
    log.forgotten(&named("torn")).await.unwrap();
    intent(&log, "3", "after").await.unwrap();
    drop(log);
    assert_eq!(open_names(&memory.log().unwrap()), ["after", "before"]);
}

#[tokio::test]
async fn what_is_forgotten_is_forgotten_on_disk() {
    let memory = Memory::default();
    let log = memory.log().unwrap();
    log.forgotten(&named("unknown")).await.unwrap();
    intent(&log, "1", "one").await.unwrap();
    log.settle(&"1".into());
    log.forgotten(&named("one")).await.unwrap();
    // As after a crash: nothing that was not written by now comes.
    let crashed = Memory { bytes: Arc::new(Mutex::new(memory.bytes.lock().clone())), ..Memory::default() };
    assert_eq!(open_names(&crashed.log().unwrap()), Vec::<String>::new());
}

/// A log of so many frames, and where each of them ends.
async fn written(frames: usize) -> (Vec<u8>, Vec<usize>) {
    let memory = Memory::default();
    let log = memory.log().unwrap();
    let mut ends = vec![memory.length()];
    for number in 0..frames {
        intent(&log, &format!("run-{number}"), &format!("box-{number}")).await.unwrap();
        ends.push(memory.length());
    }
    let bytes = memory.bytes.lock().clone().unwrap();
    (bytes, ends)
}

fn of_bytes(bytes: &[u8]) -> Memory {
    Memory { bytes: Arc::new(Mutex::new(Some(bytes.to_vec()))), ..Memory::default() }
}

#[tokio::test]
async fn a_torn_end_is_cut_off_and_written_over() {
    let (bytes, ends) = written(3).await;
    for length in ends[2]..bytes.len() {
        for garbage in [&b""[..], &[0; 100], b"{\"intent\":", &bytes[..20]] {
            let torn = [&bytes[..length], garbage].concat();
            let memory = of_bytes(&torn);
            let log = memory.log().unwrap();
            assert_eq!(open_names(&log), ["box-0", "box-1"], "{length}");
            assert_eq!(memory.length(), ends[2]);
            intent(&log, "more", "more").await.unwrap();
            drop(log);
            assert_eq!(open_names(&memory.log().unwrap()), ["box-0", "box-1", "more"]);
        }
    }
}

#[tokio::test]
async fn a_corrupt_middle_is_told_with_its_place_and_nothing_is_opened() {
    let (bytes, ends) = written(3).await;
    for at in 0..ends[2] {
        let mut spoilt = bytes.clone();
        spoilt[at] ^= 0x10;
        let error = of_bytes(&spoilt).log().unwrap_err();
        let begins = ends.iter().rev().find(|end| **end <= at).copied().unwrap_or(0);
        let LogError::Corrupt { log, offset, .. } = &error else { panic!("{error}") };
        assert_eq!((log.as_str(), *offset), ("memory", begins as u64));
        let said = error.to_string();
        assert!(
            said.contains(&format!("corrupt at byte {begins}")) && said.contains("move it away"),
            "{said}"
        );
    }
}

#[test]
fn what_is_no_log_is_refused() {
    let begin = |text: &str| frame::write(0, text.as_bytes());
    let two =
        [begin(r#"[{"begin":{"format":1}}]"#), frame::write(1, br#"[{"deleted":{"run":"r"}}]"#)].concat();
    let skipped = [begin(r#"[{"begin":{"format":1}}]"#), frame::write(2, b"[]")].concat();
    for (bytes, why) in [
        (Vec::new(), "does not begin as a log"),
        (b"hello".to_vec(), "does not begin as a log"),
        (begin(r#"[{"begin":{"format":2}}]"#), "format 2 is not known"),
        (begin("[]"), "which format"),
        (begin("{"), "cannot be read"),
        (begin(r#"[{"begin":{"format":1}},{"other":{}}]"#), "cannot be read"),
        (two, "never begun"),
        (skipped, "frame 2 stands where 1 should"),
    ] {
        let error = of_bytes(&bytes).log().unwrap_err().to_string();
        assert!(error.contains(why), "{error}");
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = frame::read(&bytes);
        let _ = of_bytes(&bytes).log();
        let mut behind = frame::write(0, br#"[{"begin":{"format":1}}]"#);
        let whole = behind.len();
        behind.extend_from_slice(&bytes);
        // Behind a whole frame they are torn, or damage; never something that was promised.
        if let Ok(log) = of_bytes(&behind).log() {
            prop_assert_eq!(log.names(), Vec::new());
        }
        if let Ok(read) = frame::read(&behind) {
            prop_assert_eq!(read.length, whole as u64);
        }
    }

    #[test]
    fn records_of_any_payload_are_read_or_refused(payload in ".{0,200}", first in any::<bool>()) {
        let _ = entries::parse(payload.as_bytes(), first);
        let bytes = [frame::write(0, br#"[{"begin":{"format":1}}]"#), frame::write(1, payload.as_bytes())].concat();
        let _ = of_bytes(&bytes).log();
    }

    #[test]
    fn a_prefix_of_a_log_is_a_state_it_had(cut in 0usize..4000, frames in 1usize..5) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (bytes, ends) = runtime.block_on(written(frames));
        let cut = ends[0] + cut % (bytes.len() - ends[0] + 1);
        let log = of_bytes(&bytes[..cut]).log().unwrap();
        prop_assert_eq!(log.names().len(), ends.iter().filter(|end| **end <= cut).count() - 1);
    }

    #[test]
    fn what_is_open_survives_being_written_anew(steps in prop::collection::vec((0usize..6, 0u8..3), 0..40)) {
        let mut entries = entries::Entries::default();
        let mut open = std::collections::BTreeMap::new();
        for (run, step) in steps {
            let (run, name) = (RunId::from(format!("run-{run}").as_str()), format!("box-{run}"));
            match step {
                0 => {
                    let text = serde_json::to_vec(&sandbox(&name)).unwrap();
                    let intent = Intent::new(&run, &AgentId::default(), "", &text).unwrap();
                    entries.take_in(Record::Intent(intent)).unwrap();
                    open.insert(name, false);
                }
                1 => {
                    let known = entries.take_in(Record::Deleted { run }).is_ok();
                    prop_assert_eq!(known, open.contains_key(&name));
                    open.entry(name).and_modify(|deleted| *deleted = true);
                }
                _ => {
                    entries.take_in(Record::Done { run }).unwrap();
                    open.remove(&name);
                }
            }
        }
        let mut anew = entries::Entries::default();
        for record in entries::parse(&entries::payload(&entries.records()), true).unwrap() {
            anew.take_in(record).unwrap();
        }
        prop_assert_eq!(anew.bytes(), entries.bytes());
        let found: std::collections::BTreeMap<String, bool> = anew.names().into_iter()
            .map(|name| (name.name.clone(), anew.of(&name).unwrap().deleted)).collect();
        prop_assert_eq!(found, open);
    }
}
