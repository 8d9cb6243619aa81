//! How a router remembers much in little memory: what is equal is stored once.

use super::{Entry, Index, Kept, SessionId};
use crate::record::{Hold, Instance, LeaseHash};

impl Index {
    /// A Lease, with names of Tasks and routers that others have too, and with what its instance says as well.
    pub(super) fn compact(&self, kept: Kept) -> Kept {
        let Kept::Session(mut session) = kept else { return kept };
        session.namespace = self.names.intern(session.namespace);
        session.task_uid = self.names.intern(session.task_uid);
        session.binder = self.names.intern(session.binder);
        if let Some(holder) = &session.holder
            && let Some(instance) = self.instance(&holder.uid)
            && instance.id == *holder
        {
            session.holder = Some(instance.id.clone());
            if let Hold::Held { key, reservation } = &instance.hold
                && *key == session.key
                && reservation.lease == session.uid
            {
                (session.key, session.uid) = (key.clone(), reservation.lease.clone());
            }
        }
        Kept::Session(session)
    }

    /// An instance, in the same way.
    pub(super) fn compact_instance(&self, mut instance: Instance) -> Instance {
        instance.namespace = self.names.intern(instance.namespace);
        instance.task_uid = self.names.intern(instance.task_uid);
        instance.spec_id.0 = self.names.intern(instance.spec_id.0);
        instance.created_for = instance.created_for.map(|name| self.names.intern(name));
        if let Some(held) = self.instance(&instance.id.uid) {
            instance.id = held.id.clone();
        }
        if let Hold::Held { key, reservation } = &mut instance.hold {
            let hash = LeaseHash::of(&instance.task_uid, key);
            let id = SessionId { namespace: instance.namespace.clone(), hash };
            if let Some(Entry { kept: Kept::Session(session), .. }) = self.session(&id)
                && session.uid == reservation.lease
                && session.key == *key
            {
                (*key, reservation.lease) = (session.key, session.uid);
                if session.holder.as_ref() == Some(&instance.id)
                    && let Some(holder) = session.holder
                {
                    instance.id = holder;
                }
            }
        }
        instance
    }
}
