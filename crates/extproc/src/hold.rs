//! What a request that Envoy carries holds: the use of its session, and the end of it, where it ends with the request.

use std::sync::Arc;

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
        Hold { in_use, _in_flight: in_flight, ending: Mutex::new(ending), first }
    }

    /// The answer has said whether the session ends.
    pub(crate) fn ends(&self, ends: bool) {
        let mut ending = self.ending.lock();
        ending.set(self.in_use.session().filter(|_| ends));
        if !self.first {
            ending.has_company();
        }
    }
}
