//! What travels with a request that has its instance: in Envoy's metadata, from the router that picked to whichever hears
//! of the end by the access log. One value, because Envoy copies each several times on the way. Pure.

use std::collections::HashMap;

use agentcube_instance::provider;
use agentcube_instance::{InstanceId, SessionKey};
use envoy_types::pb::envoy::data::accesslog::v3::AccessLogCommon;
use envoy_types::pb::google::protobuf::{Value, value::Kind};

use crate::message::{METADATA, string};

/// Its name in the metadata.
pub const MARK: &str = "agentcube";
/// No part has one in it: keys of sessions have no control characters, and the others none that a user chose.
const BETWEEN: char = '\n';

/// A mark, as it is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark<'a> {
    /// Which pick it was.
    pub pick: &'a str,
    /// For whom it was, so that another router can take the request over: `<namespace>/<name>`.
    pub task: &'a str,
    /// `<pod>/<uid>`.
    pub instance: &'a str,
    /// Empty for a Oneshot.
    pub session: &'a str,
    /// What whoever hears of the end is to know of the decision.
    pub seen: &'a str,
}

impl<'a> Mark<'a> {
    /// The mark of a pick; [`see`] adds to it.
    pub(crate) fn write(pick: &str, wanted: &provider::Request, instance: &InstanceId) -> String {
        let session = wanted.key.as_ref().map_or("", SessionKey::as_str);
        let (task, b) = (&wanted.task, BETWEEN);
        format!("{pick}{b}{task}{b}{instance}{b}{session}{b}")
    }

    /// A mark that says only which pick it was, and which process of a router is meant.
    pub(crate) fn bare(pick: &str, process: &str) -> String {
        format!("{pick}{BETWEEN}{BETWEEN}{process}{BETWEEN}{BETWEEN}")
    }

    fn read(text: &'a str) -> Option<Mark<'a>> {
        let mut parts = text.split(BETWEEN);
        let mut next = || parts.next();
        let mark = Mark { pick: next()?, task: next()?, instance: next()?, session: next()?, seen: next()? };
        (!mark.pick.is_empty()).then_some(mark)
    }

    /// The mark in an entry of the access log.
    pub fn of(common: &'a AccessLogCommon) -> Option<Mark<'a>> {
        let of_balancer = common.metadata.as_ref()?.filter_metadata.get(METADATA)?;
        Mark::read(string(of_balancer.fields.get(MARK)?)?)
    }

    pub(crate) fn task(&self) -> Option<(&'a str, &'a str)> {
        self.task.split_once('/')
    }

    /// The key of its session; an error if it is none.
    pub(crate) fn key(&self) -> Result<Option<SessionKey>, agentcube_instance::identity::BadKey> {
        Some(self.session).filter(|key| !key.is_empty()).map(SessionKey::new).transpose()
    }
}

/// Has this come back with the end of the request.
pub(crate) fn see(fields: &mut HashMap<String, Value>, seen: &str) {
    if let Some(Value { kind: Some(Kind::StringValue(mark)) }) = fields.get_mut(MARK) {
        mark.push_str(seen);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use agentcube_instance::TaskId;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read(key in proptest::option::of("[^\\p{C}]{1,40}"), seen in "[a-z0-9,]{0,40}") {
            let task = TaskId { namespace: "prod".into(), name: "chat".into(), uid: "u".into() };
            let key = key.map(|key| SessionKey::new(&key).unwrap());
            let wanted = provider::Request { task, key: key.clone(), tenant: None, which: Default::default() };
            let instance = InstanceId::parse("chat-0/p").unwrap();
            let mut mark = Mark::write("pick-1", &wanted, &instance);
            mark.push_str(&seen);
            let read = Mark::read(&mark).unwrap();
            prop_assert_eq!((read.pick, read.task(), read.seen), ("pick-1", Some(("prod", "chat")), &*seen));
            prop_assert_eq!((read.key().unwrap(), read.instance), (key, "chat-0/p"));
        }

        #[test]
        fn anything_else_is_none_or_read(text in any::<String>()) {
            if let Some(mark) = Mark::read(&text) {
                prop_assert!(!mark.pick.is_empty());
            }
        }
    }
}
