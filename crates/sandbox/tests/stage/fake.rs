//! An agent in memory: a table of runs that obeys the protocol, and can be cut off, killed and made to lose its answers.
//! What runs is written into a book that all agents share, so that a sandbox that runs twice is seen by the test.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use agentcube_protos::agent::start_response::Outcome;
use agentcube_protos::agent::{
    Claim, ConfigureRequest, ConfigureResponse, Entry, ExecRequest, Fence, LogsRequest, PauseRequest,
    PauseResponse, Reason, Refusal, StartRequest, StartResponse, Started, State, StatsRequest, StatsResponse,
    StopRequest, StopResponse, SyncRequest, SyncResponse, Tombstone, Why,
};
use agentcube_protos::link::{AgentApi, Answer, Answers};
use agentcube_protos::session::exec_output::Output;
use agentcube_protos::session::{ExecOutput, Exit, LogChunk};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tonic::Status;

/// What runs now, by name; and whether anything ever ran twice at once.
#[derive(Debug, Default)]
pub(crate) struct Book {
    running: Mutex<HashMap<(String, String), Vec<String>>>,
    twice: Mutex<Vec<String>>,
    begun: Mutex<u32>,
}

impl Book {
    fn begin(&self, claim: &Claim, run: &str) {
        let mut running = self.running.lock();
        let runs = running.entry((claim.namespace.clone(), claim.name.clone())).or_default();
        runs.push(run.into());
        if runs.len() > 1 {
            self.twice.lock().push(format!("{}: {runs:?}", claim.name));
        }
        *self.begun.lock() += 1;
    }

    fn end(&self, claim: &Claim, run: &str) {
        let key = (claim.namespace.clone(), claim.name.clone());
        let mut running = self.running.lock();
        if let Some(runs) = running.get_mut(&key) {
            runs.retain(|one| one != run);
            if runs.is_empty() {
                running.remove(&key);
            }
        }
    }

    /// How many runs there ever were.
    pub(crate) fn begun(&self) -> u32 {
        *self.begun.lock()
    }

    /// Runs that go on, by the names of their sandboxes.
    pub(crate) fn running(&self) -> BTreeMap<String, String> {
        let running = self.running.lock();
        running.iter().map(|((_, name), runs)| (name.clone(), runs.join(","))).collect()
    }

    pub(crate) fn check(&self) {
        assert_eq!(*self.twice.lock(), Vec::<String>::new(), "ran twice at once");
    }
}

#[derive(Debug, Default)]
struct Table {
    incarnation: u64,
    version: u64,
    seq: u64,
    term: u64,
    contact: bool,
    capacity: u32,
    draining: bool,
    /// The term of whoever last said what is wanted of it.
    configured: u64,
    runs: BTreeMap<String, (Entry, u64)>,
    gone: BTreeMap<String, u64>,
    tombstones: BTreeMap<String, (Claim, Why)>,
    cut: bool,
    lose: u32,
    refuse: Option<Reason>,
    held: bool,
    /// Starts that were held and are dropped come to nothing.
    dropped: u32,
    told: Vec<PauseRequest>,
}

#[derive(Debug)]
pub(crate) struct Fake {
    pub(crate) uid: String,
    book: Arc<Book>,
    table: Mutex<Table>,
    changed: Notify,
    /// Starts that are held now.
    pub(crate) held: Arc<()>,
}

fn refusal(reason: Reason) -> Refusal {
    Refusal { reason: reason.into(), message: format!("{reason:?}"), ..Refusal::default() }
}

impl Fake {
    pub(crate) fn new(uid: &str, book: Arc<Book>) -> Arc<Fake> {
        let table = Table { incarnation: 1, ..Table::default() };
        let (table, changed, held) = (Mutex::new(table), Notify::new(), Arc::default());
        Arc::new(Fake { uid: uid.into(), book, table, changed, held })
    }

    /// Nobody reaches it, or somebody does again.
    pub(crate) fn cut(&self, cut: bool) {
        self.table.lock().cut = cut;
        self.changed.notify_waiters();
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.table.lock().cut
    }

    /// Whether the controller of this term has said what is wanted of it.
    pub(crate) fn is_configured(&self, term: u64) -> bool {
        self.table.lock().configured == term
    }

    /// The next so many calls that change something are carried out, and their answers lost.
    pub(crate) fn lose_answers(&self, count: u32) {
        self.table.lock().lose = count;
    }

    /// Starts wait, or go on.
    pub(crate) fn hold_starts(&self, held: bool) {
        self.table.lock().held = held;
        self.changed.notify_waiters();
    }

    /// Starts that wait never arrive; others go on.
    pub(crate) fn drop_held_starts(&self) {
        let mut table = self.table.lock();
        (table.held, table.dropped) = (false, table.dropped + 1);
        drop(table);
        self.changed.notify_waiters();
    }

    /// The next start is refused.
    pub(crate) fn refuse(&self, reason: Reason) {
        self.table.lock().refuse = Some(reason);
    }

    /// Everything that it ran ends, and it begins anew.
    pub(crate) fn restart(&self) {
        let mut table = self.table.lock();
        for (run, (entry, _)) in std::mem::take(&mut table.runs) {
            self.end_in_book(&entry, &run);
        }
        *table = Table { incarnation: table.incarnation + 1, ..Table::default() };
        drop(table);
        self.changed.notify_waiters();
    }

    /// A program ends by itself.
    pub(crate) fn exit(&self, run: &str, code: i32, reason: &str) {
        let mut table = self.table.lock();
        table.version += 1;
        let version = table.version;
        if let Some((entry, at)) = table.runs.get_mut(run) {
            self.book.end(&entry.claim.clone().unwrap(), run);
            entry.state = State::Ended.into();
            entry.exit = Some(Exit { code, reason: reason.into(), ended_unix_ms: 1 });
            *at = version;
        }
        drop(table);
        self.changed.notify_waiters();
    }

    /// Stands still, as an agent that is out of contact has its runs do.
    pub(crate) fn fence_all(&self) {
        let mut table = self.table.lock();
        table.version += 1;
        let version = table.version;
        for (run, (entry, at)) in &mut table.runs {
            self.book.end(entry.claim.as_ref().unwrap(), run);
            (entry.fenced, *at) = (true, version);
        }
        drop(table);
        self.changed.notify_waiters();
    }

    fn end_in_book(&self, entry: &Entry, run: &str) {
        if entry.state() == State::Running && !entry.fenced {
            self.book.end(entry.claim.as_ref().unwrap(), run);
        }
    }

    /// Runs that hold a slot.
    pub(crate) fn runs(&self) -> Vec<String> {
        let table = self.table.lock();
        let holds = table.runs.iter().filter(|(_, (entry, _))| entry.state() != State::Ended);
        holds.map(|(run, _)| run.clone()).collect()
    }

    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.table.lock().runs.values().map(|(entry, _)| entry.clone()).collect()
    }

    /// What it was told of runs that had begun.
    pub(crate) fn told(&self) -> Vec<PauseRequest> {
        self.table.lock().told.clone()
    }

    fn check(table: &mut Table, fence: Option<&Fence>) -> Result<(), Refusal> {
        let fence = fence.cloned().unwrap_or_default();
        if fence.term < table.term {
            return Err(refusal(Reason::StaleTerm));
        }
        table.term = fence.term;
        if !fence.incarnation.is_empty() && fence.incarnation != table.incarnation.to_string() {
            return Err(refusal(Reason::OtherIncarnation));
        }
        Ok(())
    }

    fn reachable(&self) -> Result<(), Status> {
        if self.table.lock().cut { Err(Status::unavailable("cut off")) } else { Ok(()) }
    }

    /// The answer, unless it gets lost.
    fn answer<T>(&self, answer: T) -> Result<T, Status> {
        let mut table = self.table.lock();
        if table.lose > 0 {
            table.lose -= 1;
            return Err(Status::unavailable("the answer was lost"));
        }
        Ok(answer)
    }

    fn admit(&self, request: &StartRequest) -> Result<Started, Refusal> {
        let mut table = self.table.lock();
        Self::check(&mut table, request.fence.as_ref())?;
        if let Some(reason) = table.refuse.take() {
            return Err(refusal(reason));
        }
        if !table.contact {
            return Err(refusal(Reason::Unknown));
        }
        if table.tombstones.contains_key(&request.run_id) {
            return Err(refusal(Reason::Tombstoned));
        }
        let claim = request.claim.clone().unwrap_or_default();
        let owner = |entry: &Entry| entry.claim.clone().map(|claim| (claim.namespace, claim.name));
        if let Some((entry, _)) = table.runs.get(&request.run_id) {
            if owner(entry) != Some((claim.namespace, claim.name)) {
                return Err(refusal(Reason::Taken));
            }
            return Ok(Started { endpoints: entry.endpoints.clone(), ready: true, ..Started::default() });
        }
        let same = |entry: &Entry| {
            entry
                .claim
                .as_ref()
                .is_some_and(|it| (&it.namespace, &it.name) == (&claim.namespace, &claim.name))
        };
        if let Some((run, _)) = table.runs.iter().find(|(_, (entry, _))| same(entry)) {
            return Err(Refusal { run_id: run.clone(), ..refusal(Reason::OtherRun) });
        }
        if table.draining {
            return Err(refusal(Reason::Draining));
        }
        let used = table.runs.values().filter(|(entry, _)| entry.state() != State::Ended).count();
        if used >= table.capacity as usize {
            return Err(refusal(Reason::Full));
        }
        let ports = request.spec.clone().unwrap_or_default().ports;
        let endpoints: Vec<String> = ports.iter().map(|port| format!("192.0.2.1:{port}")).collect();
        table.version += 1;
        let entry = Entry {
            run_id: request.run_id.clone(),
            claim: Some(claim.clone()),
            state: State::Running.into(),
            endpoints: endpoints.clone(),
            ready: true,
            started_unix_ms: 1000 + i64::try_from(table.version).unwrap(),
            object: request.object.clone(),
            ..Entry::default()
        };
        let version = table.version;
        table.runs.insert(request.run_id.clone(), (entry, version));
        drop(table);
        self.book.begin(&claim, &request.run_id);
        self.changed.notify_waiters();
        Ok(Started { endpoints, ready: true, ..Started::default() })
    }

    fn end(&self, request: &StopRequest) -> Result<StopResponse, Refusal> {
        let mut table = self.table.lock();
        Self::check(&mut table, request.fence.as_ref())?;
        if let (Some((entry, _)), Some(claim)) = (table.runs.get(&request.run_id), &request.claim) {
            let here = entry.claim.clone().unwrap();
            let uids = here.uid == claim.uid || here.uid.is_empty() || claim.uid.is_empty();
            if !uids || (&here.namespace, &here.name) != (&claim.namespace, &claim.name) {
                return Err(refusal(Reason::Taken));
            }
        }
        let was = table.runs.remove(&request.run_id);
        let claim = request.claim.clone().unwrap_or_default();
        table.tombstones.entry(request.run_id.clone()).or_insert((claim, request.why()));
        table.version += 1;
        let version = table.version;
        if let Some((entry, _)) = &was {
            table.gone.insert(request.run_id.clone(), version);
            self.end_in_book(entry, &request.run_id);
        }
        drop(table);
        self.changed.notify_waiters();
        Ok(StopResponse { was_there: was.is_some(), ..StopResponse::default() })
    }

    fn hold(&self, request: &PauseRequest) -> Result<PauseResponse, Refusal> {
        let mut table = self.table.lock();
        Self::check(&mut table, request.fence.as_ref())?;
        table.version += 1;
        let version = table.version;
        table.told.push(request.clone());
        if let Some((entry, at)) = table.runs.get_mut(&request.run_id) {
            entry.paused = request.paused.unwrap_or(entry.paused);
            if request.fenced == Some(false) && entry.fenced {
                entry.fenced = false;
                self.book.begin(entry.claim.as_ref().unwrap(), &request.run_id);
            }
            *at = version;
        }
        drop(table);
        self.changed.notify_waiters();
        Ok(PauseResponse::default())
    }

    /// What it says, if there is news or somebody asks for all of it.
    fn news(&self, request: &SyncRequest) -> Option<SyncResponse> {
        let mut table = self.table.lock();
        if let Err(refusal) = Self::check(&mut table, request.fence.as_ref()) {
            return Some(SyncResponse { refusal: Some(refusal), ..SyncResponse::default() });
        }
        table.contact |= request.ack > 0;
        for confirmed in &request.confirmed {
            // That is no news to whoever says it.
            if let Some((entry, _)) = table.runs.get_mut(&confirmed.run_id) {
                entry.object.clear();
                entry.claim.as_mut().unwrap().uid.clone_from(&confirmed.uid);
            }
        }
        let whole = request.known_version == 0;
        if !whole && request.known_version == table.version {
            return None;
        }
        table.seq += 1;
        let news = |at: u64| whole || at > request.known_version;
        let tombstones = table.tombstones.iter().filter(|_| whole).map(|(run, (claim, why))| Tombstone {
            run_id: run.clone(),
            claim: Some(claim.clone()),
            why: (*why).into(),
        });
        Some(SyncResponse {
            seq: table.seq,
            agent_uid: self.uid.clone(),
            incarnation: table.incarnation.to_string(),
            term: table.term,
            version: table.version.max(1),
            whole,
            entries: table
                .runs
                .values()
                .filter(|(_, at)| news(*at))
                .map(|(entry, _)| entry.clone())
                .collect(),
            gone: table
                .gone
                .iter()
                .filter(|(_, at)| !whole && news(**at))
                .map(|(run, _)| run.clone())
                .collect(),
            capacity: table.capacity,
            draining: table.draining,
            tombstones: tombstones.collect(),
            node: "node-1".into(),
            ..SyncResponse::default()
        })
    }

    async fn wait_for_news(&self, request: SyncRequest) -> Result<SyncResponse, Status> {
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_millis(request.wait_ms.into());
        let mut first = true;
        loop {
            let changed = self.changed.notified();
            self.reachable()?;
            // What was told with the question is taken in once.
            let request =
                if first { request.clone() } else { SyncRequest { confirmed: vec![], ..request.clone() } };
            first = false;
            if let Some(news) = self.news(&request) {
                return Ok(news);
            }
            if tokio::time::timeout_at(deadline, changed).await.is_err() {
                let mut table = self.table.lock();
                table.seq += 1;
                return Ok(SyncResponse {
                    seq: table.seq,
                    agent_uid: self.uid.clone(),
                    incarnation: table.incarnation.to_string(),
                    version: table.version.max(1),
                    capacity: table.capacity,
                    draining: table.draining,
                    node: "node-1".into(),
                    ..SyncResponse::default()
                });
            }
        }
    }
}

impl AgentApi for Fake {
    fn sync(&self, request: SyncRequest) -> Answer<'_, SyncResponse> {
        Box::pin(self.wait_for_news(request))
    }

    fn start(&self, request: StartRequest) -> Answer<'_, StartResponse> {
        Box::pin(async move {
            let sent = self.table.lock().dropped;
            loop {
                let changed = self.changed.notified();
                if !self.table.lock().held {
                    break;
                }
                let _one = self.held.clone();
                changed.await;
            }
            if self.table.lock().dropped != sent {
                return Err(Status::unavailable("it never arrived"));
            }
            self.reachable()?;
            let outcome = match self.admit(&request) {
                Ok(started) => Outcome::Started(started),
                Err(refusal) => Outcome::Refusal(refusal),
            };
            self.answer(StartResponse { outcome: Some(outcome) })
        })
    }

    fn stop(&self, request: StopRequest) -> Answer<'_, StopResponse> {
        Box::pin(async move {
            self.reachable()?;
            let refused = |refusal| StopResponse { refusal: Some(refusal), ..StopResponse::default() };
            self.answer(self.end(&request).unwrap_or_else(refused))
        })
    }

    fn pause(&self, request: PauseRequest) -> Answer<'_, PauseResponse> {
        Box::pin(async move {
            self.reachable()?;
            let refused = |refusal| PauseResponse { refusal: Some(refusal) };
            self.answer(self.hold(&request).unwrap_or_else(refused))
        })
    }

    fn configure(&self, request: ConfigureRequest) -> Answer<'_, ConfigureResponse> {
        Box::pin(async move {
            self.reachable()?;
            let mut table = self.table.lock();
            if let Err(refusal) = Self::check(&mut table, request.fence.as_ref()) {
                return Ok(ConfigureResponse { refusal: Some(refusal), ..ConfigureResponse::default() });
            }
            (table.capacity, table.draining) = (request.capacity, request.drain);
            table.configured = table.term;
            table.version += 1;
            let empty = table.runs.is_empty();
            drop(table);
            self.changed.notify_waiters();
            self.answer(ConfigureResponse { draining: request.drain, empty, refusal: None })
        })
    }

    fn stats(&self, _: StatsRequest) -> Answer<'_, StatsResponse> {
        Box::pin(async { Ok(StatsResponse::default()) })
    }

    fn logs(&self, request: LogsRequest) -> Answer<'_, Answers<LogChunk>> {
        let content = format!("log of {}", request.run_id).into_bytes();
        Box::pin(async { Ok(stream::iter([Ok(LogChunk { content })]).boxed()) })
    }

    fn exec(&self, mut input: BoxStream<'static, ExecRequest>) -> Answer<'_, Answers<ExecOutput>> {
        Box::pin(async move {
            let first = input.next().await.unwrap();
            let said = first.start.unwrap().command.join(" ").into_bytes();
            let output = |output| Ok(ExecOutput { output: Some(output) });
            Ok(stream::iter([output(Output::Stdout(said)), output(Output::Exit(Exit::default()))]).boxed())
        })
    }
}
