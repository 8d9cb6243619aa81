//! Remembers which tokens were used, until they expire. Never forgets one before: when it can remember no more, it
//! refuses.

use std::collections::{BTreeSet, HashSet};
use std::fmt::{self, Debug, Formatter};

use jiff::Timestamp;
use parking_lot::Mutex;

use super::{Error, Nonce, Verified};

/// A memory of used tokens, for one process. One that is restarted has forgotten them.
pub struct SingleUse {
    limit: usize,
    used: Mutex<Used>,
}

#[derive(Default)]
struct Used {
    nonces: HashSet<Nonce>,
    by_expiry: BTreeSet<(Timestamp, Nonce)>,
    /// The latest that the clock ever was. What had expired then stays expired, even if the clock is set back.
    latest: Timestamp,
}

impl Debug for SingleUse {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleUse").field("limit", &self.limit).finish_non_exhaustive()
    }
}

impl SingleUse {
    /// Remembers at most so many tokens at once, of about 100 bytes each.
    pub fn new(limit: usize) -> SingleUse {
        SingleUse { limit, used: Mutex::default() }
    }

    /// Takes a genuine token for used; refuses it if it was already.
    pub fn take(&self, token: &Verified, now: Timestamp) -> Result<(), Error> {
        let mut used = self.used.lock();
        used.latest = used.latest.max(now);
        used.forget_expired();
        let expires = token.claims.expires;
        if expires <= used.latest {
            return Err(Error::Expired);
        }
        if used.nonces.contains(&token.nonce) {
            return Err(Error::Used);
        }
        if used.nonces.len() >= self.limit {
            return Err(Error::TooMany);
        }
        used.nonces.insert(token.nonce);
        used.by_expiry.insert((expires, token.nonce));
        Ok(())
    }
}

impl Used {
    fn forget_expired(&mut self) {
        while let Some((expires, nonce)) = self.by_expiry.first().copied()
            && expires <= self.latest
        {
            self.by_expiry.pop_first();
            self.nonces.remove(&nonce);
        }
    }
}
