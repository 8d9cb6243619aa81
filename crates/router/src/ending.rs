//! Ends sessions that nobody will ask for again, when their last request is over.

use std::sync::Arc;
use std::time::Duration;

use agentcube_instance::provider::InstanceProvider;
use agentcube_instance::reserve::SessionRef;

/// How long the streams of a session may take to end when its client has ended it.
const COMPANY: Duration = Duration::from_millis(500);

/// Ends a session when it is dropped, if one was set.
pub struct Ending {
    provider: Arc<dyn InstanceProvider>,
    session: Option<SessionRef>,
    rest: Duration,
}

impl Ending {
    pub fn new(provider: Arc<dyn InstanceProvider>) -> Ending {
        Ending { provider, session: None, rest: Duration::ZERO }
    }

    /// This session ends then; none does if there is none.
    pub fn set(&mut self, session: Option<SessionRef>) {
        self.session = session;
    }

    /// Others may be just about to hear that it is over: their streams end by themselves.
    pub fn has_company(&mut self) {
        self.rest = COMPANY;
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        // Without a runtime everything ends anyway.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(self.provider.end_session(session, self.rest));
        }
    }
}
