//! Whether a sandbox answers: somebody listens on each of its ports. The kernel tells nobody when a program begins to,
//! so it is tried: soon at first, by a thread that sleeps for less than timers of the event loop can, then more and more
//! seldom. It is seen at the latest after an eighth of the time that it took.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use agentcube_runtime::SandboxId;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use tokio::sync::oneshot;

use crate::network::SandboxNetwork;

/// The shortest pause, for each port that is looked at: where many start at once, they need the processors more than we do.
const SHORTEST: Duration = Duration::from_micros(100);
/// The longest: of a program that takes its time, or does not mean to listen at all.
const LONGEST: Duration = Duration::from_secs(1);
/// For so long the thread looks; pauses are long enough for the event loop then.
const CLOSELY: Duration = Duration::from_millis(250);
/// How long an answer may take that is on its way.
const ANSWER: Timespec = Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
/// A thread that has had nothing to look at for so long ends.
const IDLE: Duration = Duration::from_secs(5);

/// A socket in the network of a sandbox, and the sandbox's address.
pub(crate) type Socket = (OwnedFd, Ipv4Addr);

/// Looks at ports for all runs of an agent.
#[derive(Default)]
pub(crate) struct Looks {
    thread: Mutex<Option<Sender<Look>>>,
}

/// A port that somebody waits for.
struct Look {
    socket: OwnedFd,
    to: SocketAddrV4,
    begun: Instant,
    next: Instant,
    /// Dropped without a word if the port does not listen soon.
    tell: Option<oneshot::Sender<()>>,
}

impl Looks {
    /// Comes back when all ports listen. `first` is a socket for the first of them, if somebody has got one already.
    pub(crate) async fn ready(
        &self,
        network: &dyn SandboxNetwork,
        sandbox: &SandboxId,
        ports: &[u16],
        mut first: Option<Socket>,
    ) {
        let begun = Instant::now();
        for port in ports {
            let socket = match first.take() {
                Some(socket) => Ok(socket),
                None => network.socket(sandbox).await,
            };
            if let Ok(socket) = socket
                && self.closely(socket, *port, begun).await
            {
                continue;
            }
            while network.connect(sandbox, *port).await.is_err() {
                tokio::time::sleep(pause(begun.elapsed())).await;
            }
        }
    }

    /// Whether the port listens within the time that the thread looks at it.
    async fn closely(&self, (socket, address): Socket, port: u16, begun: Instant) -> bool {
        let to = SocketAddrV4::new(address, port);
        if begun.elapsed() > CLOSELY {
            return false;
        }
        let (tell, told) = oneshot::channel();
        self.look(Look { socket, to, begun, next: Instant::now(), tell: Some(tell) });
        told.await.is_ok()
    }

    fn look(&self, look: Look) {
        let mut thread = self.thread.lock();
        let unsent = match &*thread {
            // One that has ended for want of work takes nothing.
            Some(thread) => thread.send(look).err().map(|unsent| unsent.0),
            None => Some(look),
        };
        let Some(look) = unsent else { return };
        let (sender, more) = mpsc::channel();
        match std::thread::Builder::new().name("ports".into()).spawn(move || run(look, &more)) {
            Ok(_) => *thread = Some(sender),
            Err(error) => tracing::debug!("ports are looked at less closely: {error}"),
        }
    }
}

/// Looks at ports until there has been none for a while, or nobody can ask any more.
fn run(first: Look, more: &Receiver<Look>) {
    let mut looks = vec![first];
    loop {
        let now = Instant::now();
        let shortest = SHORTEST * looks.len() as u32;
        looks.retain_mut(|look| look.next > now || look.goes_on(now, shortest));
        let next = looks.iter().map(|look| look.next).min();
        let wait = next.map_or(IDLE, |next| next.saturating_duration_since(Instant::now()));
        match more.recv_timeout(wait) {
            Ok(look) => looks.push(look),
            Err(RecvTimeoutError::Timeout) if !looks.is_empty() => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Look {
    /// Whether it has to be looked at again, after this time at the soonest.
    fn goes_on(&mut self, now: Instant, shortest: Duration) -> bool {
        let elapsed = now.duration_since(self.begun);
        match listens(&self.socket, self.to) {
            Some(true) => {
                // Whoever waited may have gone.
                let _gone = self.tell.take().map(|tell| tell.send(()));
                false
            }
            Some(false) if elapsed < CLOSELY && self.tell.as_ref().is_some_and(|tell| !tell.is_closed()) => {
                self.next = now + pause(elapsed).max(shortest);
                true
            }
            Some(false) | None => false,
        }
    }
}

/// Whether somebody listens there. Inside of one machine the answer takes no longer than the call, or a moment; a socket
/// that was refused can be used again. None if it cannot be found out this way.
fn listens(socket: &OwnedFd, to: SocketAddrV4) -> Option<bool> {
    let connect = || rustix::net::connect(socket, &to);
    let mut connected = connect();
    if matches!(connected, Err(Errno::INPROGRESS | Errno::ALREADY)) {
        // What came of it is told by the next call.
        let mut answered = [PollFd::new(socket, PollFlags::OUT)];
        let _late = rustix::event::poll(&mut answered, Some(&ANSWER));
        connected = connect();
    }
    match connected {
        Ok(()) | Err(Errno::ISCONN) => Some(true),
        Err(Errno::CONNREFUSED | Errno::INPROGRESS | Errno::ALREADY | Errno::INTR) => Some(false),
        Err(_) => None,
    }
}

fn pause(elapsed: Duration) -> Duration {
    (elapsed / 8).clamp(SHORTEST, LONGEST)
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, listen, socket_with};

    use super::*;

    /// Long enough for anything that happens at all.
    const LIMIT: Duration = Duration::from_secs(10);

    fn socket() -> OwnedFd {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).expect("a socket")
    }

    /// A port of loopback on which nobody listens, as yet; while it is held nobody else gets it.
    fn silent() -> (OwnedFd, SocketAddrV4) {
        let held = socket();
        bind(&held, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = getsockname(&held).expect("an address");
        (held, address.try_into().expect("of IPv4"))
    }

    #[test]
    fn soon_at_first() {
        let millis = |elapsed| pause(Duration::from_millis(elapsed)).as_micros();
        assert_eq!([0, 8, 800, 80_000].map(millis), [100, 1_000, 100_000, 1_000_000]);
    }

    #[test]
    fn a_socket_that_was_refused_is_used_again() {
        let (socket, (held, to)) = (socket(), silent());
        assert_eq!(listens(&socket, to), Some(false));
        assert_eq!(listens(&socket, to), Some(false));
        listen(&held, 8).expect("it listens");
        let begun = Instant::now();
        // The answer may be late.
        while listens(&socket, to) != Some(true) {
            assert!(begun.elapsed() < LIMIT, "it is not seen");
        }
        assert_eq!(listens(&socket, to), Some(true));
    }

    #[tokio::test]
    async fn who_waits_is_told_and_what_does_not_listen_is_given_back() {
        let looks = Looks::default();
        let first = Instant::now();
        // On a slow machine the thread may look for the last time before it listens.
        loop {
            let (held, to) = silent();
            let begun = Instant::now();
            let looking = looks.closely((socket(), *to.ip()), to.port(), begun);
            let (told, listening) = tokio::join!(looking, async { listen(&held, 8) });
            listening.expect("it listens");
            if told {
                break;
            }
            assert!(first.elapsed() < LIMIT, "nobody is told");
        }
        let (_held, other) = silent();
        assert!(!looks.closely((socket(), *other.ip()), other.port(), Instant::now()).await);
    }

    #[test]
    fn a_thread_ends_when_nobody_can_ask_any_more() {
        let (sender, more) = mpsc::channel();
        drop(sender);
        let (tell, mut told) = oneshot::channel();
        let now = Instant::now();
        let (_held, to) = silent();
        run(Look { socket: socket(), to, begun: now, next: now, tell: Some(tell) }, &more);
        assert!(told.try_recv().is_err());
    }
}
