//! What a request that Envoy carries holds: the use of its session, and the end of it, where it ends with the request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use agentcube_instance::provider::InstanceProvider;
use agentcube_instance::reserve::InUse;
use agentcube_router::ending::Ending;
use agentcube_router::observe::InFlight;
use parking_lot::Mutex;

/// Let go of when it is dropped: first the use, then the session.
pub(crate) struct Hold {
    pub(crate) in_use: InUse,
    _in_flight: Option<InFlight>,
    ending: Mutex<Ending>,
    /// The session was begun for this request.
    first: bool,
    /// Another router had picked its instance.
    taken_over: bool,
    /// Another router holds it from now on.
    passed_on: AtomicBool,
}

impl Hold {
    /// The session ends with a request for which it was begun, unless [`Hold::ends`] says something else.
    pub(crate) fn new(
        in_use: InUse,
        in_flight: Option<InFlight>,
        provider: Arc<dyn InstanceProvider>,
        first: bool,
    ) -> Hold {
        let mut ending = Ending::new(provider);
        if first {
            ending.set(in_use.session());
        }
        let (taken_over, passed_on) = (false, AtomicBool::new(false));
        Hold { in_use, _in_flight: in_flight, ending: Mutex::new(ending), first, taken_over, passed_on }
    }

    /// The same for a request that another router has begun. Its session is that one's to end.
    pub(crate) fn taken_over(
        in_use: InUse,
        in_flight: Option<InFlight>,
        provider: Arc<dyn InstanceProvider>,
    ) -> Hold {
        Hold { taken_over: true, ..Hold::new(in_use, in_flight, provider, false) }
    }

    pub(crate) fn is_taken_over(&self) -> bool {
        self.taken_over
    }

    /// Another router holds the request from now on: letting go of it here is not its end.
    pub(crate) fn pass_on(&self) {
        self.passed_on.store(true, Ordering::SeqCst);
        self.ending.lock().set(None);
    }

    /// The answer has said whether the session ends.
    pub(crate) fn ends(&self, ends: bool) {
        let mut ending = self.ending.lock();
        if self.passed_on.load(Ordering::SeqCst) {
            return;
        }
        ending.set(self.in_use.session().filter(|_| ends));
        if !self.first {
            ending.has_company();
        }
    }
}
