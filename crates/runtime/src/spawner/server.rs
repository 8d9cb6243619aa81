//! The spawner's own loop: one request, one report or one exit at a time, never waiting for any of them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::channel::{self, Packet};
use super::child::Claim;
use super::clone::Ended;
use super::containers::Container;
use super::embryo::Embryo;
use super::freeze::Late;
use super::notes::Notes;
use super::process::Process;
use super::protocol::{ADOPTING, Answer, Asked, Failure, Hello, Message, Request, What};
use super::sandbox::{Factory, Namespaces, Ready, check_host_name};
use super::start::SOCKET;
use super::{During, Step};
use crate::Exit;
use crate::rootfs::template::Template;
use crate::seccomp::Filter;
use crate::spec::{ContainerId, SandboxId, SandboxSpec};

/// How often a cgroup that is still busy is tried again.
const RETRY: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
/// Nothing may have happened for so long before a sandbox is made ahead of time: whoever has just got one is about to start a
/// container in it.
const QUIET: Duration = Duration::from_millis(10);
/// Requests that are read before others get their turn.
const MOST_AT_ONCE: usize = 64;
/// Answers that the node has not read yet. It reads all the time; one that does not is broken.
const MOST_UNREAD: usize = 100_000;

/// The spawner's body. The program calls this, and nothing before it, when it is run with the argument `__spawner`.
pub fn main() -> ExitCode {
    // SAFETY: whoever runs us has put the socket there; no other code knows of it.
    let socket = unsafe { OwnedFd::from_raw_fd(SOCKET) };
    let run = || -> io::Result<()> {
        let Some(packet) = channel::receive(&socket)? else { return Ok(()) };
        let hello: Hello = packet.read()?;
        match Server::new(socket.as_fd(), hello) {
            Err(failure) => {
                let message = Message::Answer { id: 0, answer: Answer::Failed(failure) };
                Packet::new(&message, Vec::new())?.send(&socket)
            }
            Ok(mut server) => server.run(),
        }
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("agentcube spawner: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What an event is about; packed into the number that epoll keeps for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token {
    Socket,
    Report(u64),
    /// The same of a child that is told something in return.
    News(u64),
    Exit(u64),
}

impl Token {
    fn wants(self) -> EventFlags {
        match self {
            // What a child has said is of interest when it has said all.
            Self::Report(_) => EventFlags::RDHUP,
            Self::News(_) => EventFlags::IN | EventFlags::RDHUP,
            Self::Socket | Self::Exit(_) => EventFlags::IN,
        }
    }

    fn pack(self) -> EventData {
        EventData::new_u64(match self {
            Self::Socket => 0,
            Self::Report(id) => id << 2 | 1,
            Self::Exit(id) => id << 2 | 2,
            Self::News(id) => id << 2 | 3,
        })
    }

    fn unpack(data: EventData) -> Self {
        let number = data.u64();
        match number & 3 {
            1 => Self::Report(number >> 2),
            2 => Self::Exit(number >> 2),
            3 => Self::News(number >> 2),
            _ => Self::Socket,
        }
    }
}

pub(super) struct Sandbox {
    pub(super) namespaces: Namespaces,
    /// Waits for its first container.
    pub(super) embryo: Option<Embryo>,
    pub(super) spec: SandboxSpec,
    /// For whoever adopts it, if anybody may.
    pub(super) sockets: Vec<OwnedFd>,
    /// Who waits for its removal; nobody starts anything in it any more.
    pub(super) removing: Option<Vec<u64>>,
}

pub(super) struct Server<'a> {
    socket: BorrowedFd<'a>,
    epoll: OwnedFd,
    pub(super) hello: Hello,
    pub(super) template: Template,
    pub(super) filter: Filter,
    pub(super) factory: Factory,
    pub(super) own_pids: OwnedFd,
    /// As it was before we raised it for ourselves; containers get this one.
    pub(super) open_files: Rlimit,
    pub(super) sandboxes: BTreeMap<SandboxId, Sandbox>,
    pub(super) containers: BTreeMap<ContainerId, Container>,
    /// By the number of the request that made them.
    pub(super) processes: HashMap<u64, Process>,
    /// Sandboxes that are yet to be made. Each takes as long as starting a container, so those that are made already go
    /// first: while one is made here, the containers of others set themselves up.
    pub(super) waiting: VecDeque<(u64, SandboxSpec)>,
    /// Containers whose cgroup was busy when it was to be removed.
    pub(super) busy: Vec<ContainerId>,
    pub(super) late: Vec<Late>,
    /// Killed before they became anything, and not gone yet; those of sandboxes that somebody knows with their names.
    pub(super) discarded: Vec<(Option<SandboxId>, Embryo)>,
    /// Numbers for processes that nobody asked for, from the other end.
    pub(super) next_internal: u64,
    /// There may be children that nobody knows.
    pub(super) strays: bool,
    /// How those ended, by their numbers, while a runtime might still say that one was a container's.
    pub(super) ended_strays: HashMap<i32, Ended>,
    pub(super) notes: Notes,
    /// When somebody was last heard of, since the machine's start.
    pub(super) heard: Option<Duration>,
    /// The highest number that anybody has asked with.
    pub(super) last: u64,
    pub(super) unsent: VecDeque<Packet>,
    /// We are told when the node has made room for what is unsent.
    wants_room: bool,
}

impl<'a> Server<'a> {
    fn new(socket: BorrowedFd<'a>, hello: Hello) -> Result<Self, Failure> {
        settle()?;
        if let Err(error) = super::relocated::share() {
            eprintln!("agentcube spawner: containers start later than they could: {error}");
        }
        rustix::io::fcntl_setfd(socket, rustix::io::FdFlags::CLOEXEC).during(Step::Clone)?;
        let open_files = raise_open_files();
        let template = Template::mount(&hello.directory, hello.rootless).during(Step::Devices)?;
        super::oci::mount_state(&super::oci_directory(&hello.directory)).during(Step::Oci)?;
        std::fs::create_dir(super::memory_directory(&hello.directory)).during(Step::Root)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).during(Step::Clone)?;
        channel::set_nonblocking(socket).during(Step::Clone)?;
        epoll::add(&epoll, socket, Token::Socket.pack(), EventFlags::IN).during(Step::Clone)?;
        let own_pids = openat(CWD, "/proc/self/ns/pid", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .during(Step::Namespaces)?;
        Ok(Self {
            socket,
            epoll,
            template,
            filter: Filter::new(&crate::capabilities::default_set()),
            factory: Factory::new(hello.spare_sandboxes).during(Step::Namespaces)?,
            own_pids,
            open_files,
            hello,
            sandboxes: BTreeMap::new(),
            containers: BTreeMap::new(),
            processes: HashMap::new(),
            waiting: VecDeque::new(),
            busy: Vec::new(),
            late: Vec::new(),
            discarded: Vec::new(),
            next_internal: u64::MAX >> 2,
            strays: false,
            ended_strays: HashMap::new(),
            notes: Notes::default(),
            heard: None,
            last: 0,
            unsent: VecDeque::new(),
            wants_room: false,
        })
    }

    fn run(&mut self) -> io::Result<()> {
        self.answer(0, Answer::Done, Vec::new());
        let mut events = Vec::with_capacity(64);
        let mut last_event = Instant::now();
        loop {
            events.clear();
            let lacking = self.factory.lacks();
            let timeout = if !self.waiting.is_empty() || lacking.is_some() && last_event.elapsed() >= QUIET {
                Some(AT_ONCE)
            } else if !self.busy.is_empty() || !self.late.is_empty() || !self.discarded.is_empty() {
                Some(RETRY)
            } else if lacking.is_some() {
                Timespec::try_from(QUIET).ok()
            } else {
                self.until_impatient()
            };
            rustix::io::retry_on_intr(|| {
                epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref())
            })?;
            for event in &events {
                match Token::unpack(event.data) {
                    Token::Socket => {
                        if !self.serve()? {
                            self.end();
                            return Ok(());
                        }
                    }
                    Token::Report(id) | Token::News(id) => self.report(id),
                    Token::Exit(id) => self.exited(id),
                }
            }
            self.reap_strays();
            self.retry_busy();
            self.retry_late();
            self.bury_discarded();
            self.lose_patience();
            if !events.is_empty() {
                last_event = Instant::now();
            }
            if let Some((id, spec)) = self.waiting.pop_front() {
                self.make_sandbox(id, &spec);
            } else if let Some(lacking) = lacking.filter(|_| last_event.elapsed() >= QUIET) {
                self.make_ahead(lacking);
            }
        }
    }

    /// Reads and sends what there is, but not without end. `false` when the node is gone.
    fn serve(&mut self) -> io::Result<bool> {
        if !self.unsent.is_empty() {
            self.flush()?;
        }
        for _ in 0..MOST_AT_ONCE {
            match channel::receive(self.socket) {
                Ok(Some(packet)) => {
                    let asked: Asked = packet.read()?;
                    self.request(asked, packet.descriptors);
                }
                Ok(None) => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn request(&mut self, asked: Asked, descriptors: Vec<OwnedFd>) {
        let id = asked.id;
        if id < ADOPTING {
            self.last = self.last.max(id);
        }
        let result = match asked.request {
            Request::CreateSandbox(spec) => {
                self.waiting.push_back((id, spec));
                return;
            }
            Request::RemoveSandbox(sandbox) => {
                self.make_waiting(&sandbox);
                self.remove_sandbox(id, &sandbox);
                return;
            }
            Request::Socket { sandbox, source } => {
                self.make_waiting(&sandbox);
                self.socket(&sandbox, source)
            }
            Request::Start { spec, by, streams } => {
                self.make_waiting(&spec.sandbox);
                let (streams, kept) = streams.split(descriptors);
                self.start(id, spec, by, streams, kept);
                return;
            }
            Request::Prepare(spec) => {
                self.make_waiting(&spec.sandbox);
                self.prepare(id, spec);
                return;
            }
            Request::Hold(spec) => {
                self.make_waiting(&spec.sandbox);
                self.hold(id, spec, descriptors);
                return;
            }
            Request::Namespaces(container) => self.namespaces(&container),
            Request::Claim { container, program, streams } => {
                match self.claim(id, &container, Claim { program, streams }, descriptors) {
                    Ok(()) => return,
                    Err(failure) => Err(failure),
                }
            }
            Request::Exec { container, spec, streams } => {
                match self.exec(id, &container, &spec, streams.split(descriptors).0) {
                    Ok(()) => return,
                    Err(failure) => Err(failure),
                }
            }
            Request::Signal { container, signal } => match self.signal(id, &container, signal) {
                Ok(()) => return,
                Err(failure) => Err(failure),
            },
            Request::Freeze { container, frozen } => {
                self.freeze(id, &container, frozen);
                return;
            }
            Request::FreezeHeld { container, program, frozen } => {
                if let Some(entry) = self.containers.get_mut(&container).filter(|entry| entry.prepared) {
                    entry.program = Some(program);
                }
                self.freeze(id, &container, frozen);
                return;
            }
            Request::Remove(container) => {
                self.remove(id, &container);
                return;
            }
            Request::Usage(container) => self.usage(&container),
            Request::Adopt { after } => self.adopted(after.as_ref()),
            Request::Retag { container, tag } => self.retag(&container, tag),
            Request::Note { key, value } => self.note(key, value),
            Request::Patience { container, patience } => self.set_patience(&container, patience),
            Request::Heard(at) => self.heard(at),
            Request::Kept(container) => self.kept(&container),
            Request::Sockets(sandbox) => self.sockets(&sandbox),
            Request::Spare { who, count, embryos } => {
                for embryo in self.factory.keep(who, count, embryos) {
                    self.discard(None, Some(embryo));
                }
                Ok((Answer::Done, Vec::new()))
            }
        };
        self.reply(id, result);
    }

    fn reply(&mut self, id: u64, result: Result<(Answer, Vec<OwnedFd>), Failure>) {
        match result {
            Ok((answer, descriptors)) => self.answer(id, answer, descriptors),
            Err(failure) => self.answer(id, Answer::Failed(failure), Vec::new()),
        }
    }

    /// Where a container may have a directory in memory.
    pub(super) fn memory(&self, container: &ContainerId) -> PathBuf {
        super::memory_directory(&self.hello.directory).join(container.as_str())
    }

    pub(super) fn make_sandbox(&mut self, id: u64, spec: &SandboxSpec) {
        let result = self.create_sandbox(spec);
        self.reply(id, result);
    }

    /// Nobody who asks for something in a sandbox overtakes whoever has asked for the sandbox.
    fn make_waiting(&mut self, sandbox: &SandboxId) {
        while let Some(at) = self.waiting.iter().position(|(_, spec)| &spec.id == sandbox) {
            let Some((id, spec)) = self.waiting.remove(at) else { return };
            self.make_sandbox(id, &spec);
        }
    }

    fn create_sandbox(&mut self, spec: &SandboxSpec) -> Result<(Answer, Vec<OwnedFd>), Failure> {
        if self.sandboxes.contains_key(&spec.id) {
            return Err(Failure::Exists(What::Sandbox, spec.id.to_string()));
        }
        super::die_if_asked(self.hello.die_at.as_deref(), "spawner", Step::Namespaces);
        check_host_name(&spec.hostname)?;
        let Ready { namespaces, embryo } = self.factory.take()?;
        let sockets = match self.factory.configure(&namespaces, spec) {
            Ok(sockets) => sockets,
            Err(failure) => {
                self.discard(None, embryo);
                return Err(failure);
            }
        };
        super::die_if_asked(self.hello.die_at.as_deref(), "spawner", Step::Network);
        let sockets = vec![sockets.outgoing, sockets.dns];
        let kept = if self.hello.adoptable { super::snapshot::copies(&sockets)? } else { Vec::new() };
        let sandbox = Sandbox { namespaces, embryo, spec: spec.clone(), sockets: kept, removing: None };
        self.sandboxes.insert(spec.id.clone(), sandbox);
        Ok((Answer::Done, sockets))
    }

    fn remove_sandbox(&mut self, id: u64, sandbox: &SandboxId) {
        let Some(found) = self.sandboxes.get_mut(sandbox) else {
            return self.answer(id, Answer::Done, Vec::new());
        };
        found.removing.get_or_insert_default().push(id);
        let of_it = |container: &&Container| &container.spec.sandbox == sandbox;
        let containers: Vec<_> =
            self.containers.values().filter(of_it).map(|container| container.spec.id.clone()).collect();
        for container in containers {
            self.begin_removal(&container, None);
        }
        self.discard_embryo(sandbox);
        self.finish_sandbox(sandbox);
    }

    /// Lets go of a sandbox that is being removed, once nothing runs in it.
    pub(super) fn finish_sandbox(&mut self, sandbox: &SandboxId) {
        let used = self.containers.values().any(|container| &container.spec.sandbox == sandbox);
        let removing = self.sandboxes.get(sandbox).is_some_and(|found| found.removing.is_some());
        if used || !removing || self.is_discarding_in(sandbox) {
            return;
        }
        let waiting = self.sandboxes.remove(sandbox).and_then(|found| found.removing).unwrap_or_default();
        for id in waiting {
            self.answer(id, Answer::Done, Vec::new());
        }
    }

    fn socket(
        &mut self,
        sandbox: &SandboxId,
        source: Option<std::net::Ipv4Addr>,
    ) -> Result<(Answer, Vec<OwnedFd>), Failure> {
        let found = self.sandboxes.get(sandbox);
        let found = found.ok_or_else(|| Failure::NotFound(What::Sandbox, sandbox.to_string()))?;
        Ok((Answer::Done, vec![self.factory.socket(&found.namespaces, source)?]))
    }

    pub(super) fn watch(&self, descriptor: BorrowedFd<'_>, token: Token) -> Result<(), Failure> {
        epoll::add(&self.epoll, descriptor, token.pack(), token.wants()).during(Step::Clone)
    }

    /// The same for what is watched already, with another token.
    pub(super) fn watch_on(&self, descriptor: BorrowedFd<'_>, token: Token) -> Result<(), Failure> {
        epoll::modify(&self.epoll, descriptor, token.pack(), token.wants()).during(Step::Claim)
    }

    /// To be called before a watched descriptor is closed: children that are not executed yet have a copy of it, and
    /// epoll would go on to tell us of that.
    pub(super) fn unwatch(&self, descriptor: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, descriptor);
    }

    pub(super) fn answer(&mut self, id: u64, answer: Answer, descriptors: Vec<OwnedFd>) {
        self.send(&Message::Answer { id, answer }, descriptors);
    }

    pub(super) fn send_exit(&mut self, id: u64, exit: Exit) {
        self.send(&Message::Exited { id, exit }, Vec::new());
    }

    fn send(&mut self, message: &Message, descriptors: Vec<OwnedFd>) {
        // An answer is short text of our own making.
        let packet = Packet::new(message, descriptors).expect("an answer can be written as JSON");
        self.unsent.push_back(packet);
        if let Err(error) = self.flush() {
            eprintln!("agentcube spawner: cannot answer the node: {error}");
        }
    }

    /// Sends what waits, as far as there is room; the rest when there is more.
    fn flush(&mut self) -> io::Result<()> {
        while let Some(packet) = self.unsent.front() {
            match packet.send(self.socket) {
                Ok(()) => drop(self.unsent.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The node is gone; the next read will tell.
                Err(error) if channel::is_gone(&error) => {
                    self.unsent.clear();
                }
                Err(error) => return Err(error),
            }
        }
        if self.unsent.len() > MOST_UNREAD {
            return Err(io::Error::other("the node does not read its answers"));
        }
        let full = !self.unsent.is_empty();
        if self.wants_room != full {
            self.wants_room = full;
            let mut wanted = EventFlags::IN;
            wanted.set(EventFlags::OUT, full);
            epoll::modify(&self.epoll, self.socket, Token::Socket.pack(), wanted)?;
        }
        Ok(())
    }
}

/// Makes this process independent of whatever started it.
fn settle() -> Result<(), Failure> {
    // SAFETY: sets every signal to its default; there are no handlers that could be running.
    unsafe {
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
    let _ = rustix::process::setsid();
    super::join_new_keyring();
    rustix::process::umask(Mode::empty());
    rustix::process::chdir(c"/").during(Step::WorkingDirectory)?;
    let nothing =
        openat(CWD, c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).during(Step::Streams)?;
    for number in [0, 1] {
        // SAFETY: replaces a standard stream, which nothing owns.
        unsafe { libc::dup2(nothing.as_raw_fd(), number) };
    }
    private_mounts()
}

/// Nothing that is mounted from here on shows up on the machine, and nothing of the machine's comes in later.
fn private_mounts() -> Result<(), Failure> {
    use rustix::mount::{MountPropagationFlags, mount_change};
    mount_change(c"/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).map_err(|error| {
        match error {
            rustix::io::Errno::PERM | rustix::io::Errno::ACCESS => {
                Failure::Unsupported(crate::host::NO_USER_NAMESPACES.to_owned())
            }
            other => Failure::Step(Step::Namespaces, io::Error::from(other).to_string()),
        }
    })
}

/// Each container costs us two descriptors and each sandbox three.
fn raise_open_files() -> Rlimit {
    let before = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, maximum: before.maximum });
    before
}
