//! How the reservation protocol is written down: what a session's Lease and an instance's object say, and what they say
//! together. Reading never fails for want of a field that others may have removed: what cannot be read is a state of
//! its own, which nobody serves from.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use agentcube_api::labels;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::core::ObjectMeta;

use crate::bearer::Bearer;
use crate::identity::{InstanceId, SessionKey, SpecId};

/// Name of the Lease of a session: the same for every router, so that only one of them creates it.
pub fn lease_name(task_uid: &str, key: &SessionKey) -> String {
    LeaseHash::of(task_uid, key).lease_name()
}

/// What the name of a session's Lease is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseHash([u8; 20]);

const NAME_PREFIX: &str = "session-";

impl LeaseHash {
    pub fn of(task_uid: &str, key: &SessionKey) -> LeaseHash {
        let mut context = ring::digest::Context::new(&ring::digest::SHA256);
        context.update(task_uid.as_bytes());
        context.update(&[0]);
        context.update(key.as_str().as_bytes());
        let mut hash = [0; 20];
        hash.copy_from_slice(&context.finish().as_ref()[..20]);
        LeaseHash(hash)
    }

    pub fn lease_name(&self) -> String {
        let hex: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{NAME_PREFIX}{hex}")
    }

    /// Reads the name of a Lease.
    pub fn parse(name: &str) -> Option<LeaseHash> {
        let hex = name.strip_prefix(NAME_PREFIX).filter(|hex| hex.len() == 40 && hex.is_ascii())?;
        let mut hash = [0; 20];
        for (n, byte) in hash.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * n..2 * n + 2], 16).ok()?;
        }
        Some(LeaseHash(hash))
    }
}

/// One making of a bond between a session and an instance: UID of the Lease and how often it was pointed anew. Never
/// used twice, so two views of different age that name the same one speak of the same bond.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Reservation {
    pub lease: Arc<str>,
    pub binding: i32,
}

impl std::fmt::Display for Reservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.lease, self.binding)
    }
}

impl Reservation {
    /// Reads what [`std::fmt::Display`] wrote.
    pub fn parse(text: &str) -> Option<Reservation> {
        let (lease, binding) = text.rsplit_once('.')?;
        let binding = binding.parse().ok()?;
        (!lease.is_empty()).then(|| Reservation { lease: lease.into(), binding })
    }
}

/// What a session's Lease says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Session {
    pub namespace: Arc<str>,
    pub task_uid: Arc<str>,
    pub key: SessionKey,
    /// The Lease's own UID and version.
    pub uid: Arc<str>,
    pub version: u64,
    /// The instance that it names; none while its binder waits for one.
    pub holder: Option<InstanceId>,
    /// How often it was pointed at an instance.
    pub binding: i32,
    /// The router that may complete the binding.
    pub binder: Arc<str>,
    pub created: Timestamp,
    /// When the session was last active.
    pub renewed: Timestamp,
    /// It is to end for being idle, unless a router objects.
    pub releasing: bool,
    /// It rests: its instance is paused, or is about to be, under this number. Nobody serves it before its instance was
    /// woken under the same number.
    pub rests: Option<u64>,
    /// It ends: the Lease is being deleted and waits for its instance to be given back.
    pub ending: bool,
    /// A router had requests in flight when it saw the deletion.
    pub interrupted: bool,
}

impl Session {
    /// The bond that an instance has to name for the session to be bound to it.
    pub fn reservation(&self) -> Reservation {
        Reservation { lease: self.uid.clone(), binding: self.binding }
    }

    /// What the Lease says; nothing if it is not that of a session, or somebody has spoilt it.
    pub fn read(lease: &Lease) -> Option<Session> {
        let meta = &lease.metadata;
        let label = |name| meta.labels.as_ref().and_then(|labels| labels.get(name)).map(String::as_str);
        if label(labels::LEASE) != Some(labels::LEASE_OF_SESSION) {
            return None;
        }
        let spec = lease.spec.as_ref()?;
        let key = SessionKey::new(annotation(meta, labels::RESERVE_KEY)?).ok()?;
        let task_uid = label(labels::TASK_UID)?;
        if meta.name.as_deref() != Some(lease_name(task_uid, &key).as_str()) {
            return None;
        }
        let created = meta.creation_timestamp.as_ref()?.0;
        let holder = match spec.holder_identity.as_deref().unwrap_or_default() {
            "" => None,
            text => Some(InstanceId::parse(text)?),
        };
        Some(Session {
            namespace: meta.namespace.as_deref()?.into(),
            task_uid: task_uid.into(),
            key,
            uid: meta.uid.as_deref()?.into(),
            version: version(meta)?,
            holder,
            binding: spec.lease_transitions.unwrap_or(0),
            binder: annotation(meta, labels::BINDER).unwrap_or_default().into(),
            created,
            renewed: spec.renew_time.as_ref().map_or(created, |time| time.0),
            releasing: annotation(meta, labels::RELEASING).is_some(),
            // What cannot be read rests too: waking it does no harm.
            rests: annotation(meta, labels::RESTS).map(|number| number.parse().unwrap_or(0)),
            ending: meta.deletion_timestamp.is_some(),
            interrupted: annotation(meta, labels::INTERRUPTED).is_some(),
        })
    }
}

/// What a router's Lease says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RouterLease {
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub version: u64,
    pub renewed: Timestamp,
    /// What its process is called, and where other routers reach it, if they do.
    pub peer: Option<(Arc<str>, SocketAddr)>,
    /// Revisions up to which it has seen, and respects, every change of Leases, of Pods and of Sandboxes.
    pub seen_leases: u64,
    pub seen_pods: u64,
    pub seen_sandboxes: u64,
}

impl RouterLease {
    /// What the Lease says; nothing if it is not that of a router.
    pub fn read(lease: &Lease) -> Option<RouterLease> {
        let meta = &lease.metadata;
        if meta.labels.as_ref()?.get(labels::LEASE)? != labels::LEASE_OF_ROUTER {
            return None;
        }
        let seen = |name| annotation(meta, name).and_then(|text| text.parse().ok()).unwrap_or(0);
        let process =
            || lease.spec.as_ref()?.holder_identity.as_deref()?.rsplit_once('/').map(|(_, it)| it.into());
        let address = annotation(meta, labels::ROUTER_ADDRESS).and_then(|text| text.parse().ok());
        Some(RouterLease {
            namespace: meta.namespace.as_deref()?.into(),
            peer: process().zip(address),
            name: meta.name.as_deref()?.into(),
            version: version(meta)?,
            renewed: lease.spec.as_ref()?.renew_time.as_ref()?.0,
            seen_leases: seen(labels::SEEN_LEASES),
            seen_pods: seen(labels::SEEN_PODS),
            seen_sandboxes: seen(labels::SEEN_SANDBOXES),
        })
    }
}

/// Whether an instance can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Life {
    /// Not ready yet, and never was.
    Starting,
    /// Can serve.
    Ready,
    /// Was ready and is no longer, though its processes may live.
    Unready,
    /// Stands still, and can serve again when it is told to go on.
    Paused,
    /// Is being deleted; its processes may live until the object is gone.
    Terminating,
    /// Its processes have ended for good.
    Dead,
}

/// Whom an instance belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Hold {
    /// To nobody.
    Free,
    /// To a session: under this key, for this reservation.
    Held { key: SessionKey, reservation: Reservation },
    /// The annotations make no sense. It is nobody's to take.
    Spoilt,
}

/// What an instance's object says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Instance {
    pub namespace: Arc<str>,
    pub id: InstanceId,
    pub version: u64,
    pub task_uid: Arc<str>,
    pub spec_id: SpecId,
    /// Its slot; none for the Pods of a Job.
    pub slot: Option<u32>,
    pub address: Option<IpAddr>,
    /// The port at that address; none for the Task's own.
    pub port: Option<u16>,
    pub life: Life,
    pub hold: Hold,
    /// It is to stand still.
    pub paused: bool,
    /// The number under which it was last woken.
    pub woken: Option<u64>,
    /// It is to be given back, unless a router objects.
    pub releasing: bool,
    /// The router that started it for requests of its own.
    pub created_for: Option<Arc<str>>,
    pub created: Timestamp,
    pub last_active: Option<Timestamp>,
}

impl Instance {
    /// What the Pod or Sandbox says; nothing if it is no instance of a Task.
    pub fn read<B: Bearer>(object: &B) -> Option<Instance> {
        let meta = object.meta();
        let label = |name| meta.labels.as_ref().and_then(|labels| labels.get(name)).map(String::as_str);
        let created = meta.creation_timestamp.as_ref()?.0;
        let last_active = annotation(meta, labels::LAST_ACTIVE).and_then(|text| text.parse().ok());
        let (address, port) = object.place();
        let hold = hold(meta);
        Some(Instance {
            namespace: meta.namespace.as_deref()?.into(),
            id: InstanceId {
                kind: B::KIND,
                name: meta.name.as_deref()?.into(),
                uid: meta.uid.as_deref()?.into(),
            },
            version: version(meta)?,
            task_uid: label(labels::TASK_UID)?.into(),
            spec_id: SpecId(label(labels::SPEC_ID)?.into()),
            slot: label(labels::SLOT).and_then(|slot| slot.parse().ok()),
            address,
            port,
            life: object.life(hold != Hold::Free),
            hold,
            paused: object.is_paused(),
            woken: annotation(meta, labels::WOKEN).and_then(|number| number.parse().ok()),
            releasing: annotation(meta, labels::RELEASING).is_some(),
            created_for: annotation(meta, labels::CREATED_FOR).map(Into::into),
            created,
            last_active,
        })
    }

    /// Whether the instance is bound to this session: both say so, and speak of the same bond.
    pub fn is_bound_to(&self, session: &Session) -> bool {
        let Hold::Held { key, reservation } = &self.hold else { return false };
        session.holder.as_ref() == Some(&self.id)
            && *key == session.key
            && reservation.lease == session.uid
            && reservation.binding == session.binding
    }
}

fn hold(meta: &ObjectMeta) -> Hold {
    let key = annotation(meta, labels::RESERVE_KEY).unwrap_or_default();
    let reservation = annotation(meta, labels::RESERVATION).unwrap_or_default();
    match (SessionKey::new(key), Reservation::parse(reservation)) {
        _ if key.is_empty() && reservation.is_empty() => Hold::Free,
        (Ok(key), Some(reservation)) => Hold::Held { key, reservation },
        _ => Hold::Spoilt,
    }
}

fn annotation<'a>(meta: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(name).map(String::as_str)
}

/// Versions of one kind can be compared: Kubernetes promises it since 1.35, and our server always did.
fn version(meta: &ObjectMeta) -> Option<u64> {
    meta.resource_version.as_ref()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    use super::*;

    fn lease(change: impl FnOnce(&mut Value)) -> Lease {
        let key = SessionKey::new("user-1").unwrap();
        let mut lease = json!({
            "metadata": {
                "name": lease_name("t1", &key), "namespace": "prod", "uid": "l1", "resourceVersion": "7",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": { labels::LEASE: labels::LEASE_OF_SESSION, labels::TASK_UID: "t1" },
                "annotations": { labels::RESERVE_KEY: "user-1", labels::BINDER: "router-a" },
            },
            "spec": { "holderIdentity": "agent-0/p1", "leaseTransitions": 2, "renewTime": "2026-01-01T00:01:00.000000Z" },
        });
        change(&mut lease);
        serde_json::from_value(lease).unwrap()
    }

    fn pod(change: impl FnOnce(&mut Value)) -> Pod {
        let mut pod = json!({
            "metadata": {
                "name": "agent-0", "namespace": "prod", "uid": "p1", "resourceVersion": "9",
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": { labels::TASK_UID: "t1", labels::SPEC_ID: "agent-1", labels::SLOT: "0" },
                "annotations": { labels::RESERVE_KEY: "user-1", labels::RESERVATION: "l1.2" },
            },
            "status": { "phase": "Running", "podIP": "10.0.0.7",
                "conditions": [{ "type": "Ready", "status": "True" }] },
        });
        change(&mut pod);
        serde_json::from_value(pod).unwrap()
    }

    #[test]
    fn both_sides_have_to_agree() {
        let session = Session::read(&lease(|_| ())).unwrap();
        let bound = |change: &dyn Fn(&mut Value)| Instance::read(&pod(change)).unwrap().is_bound_to(&session);
        assert!(bound(&|_| ()));
        for (path, value) in [
            ("/metadata/uid", "p2"),
            ("/metadata/annotations/agentcube.io~1reserve-key", "user-2"),
            ("/metadata/annotations/agentcube.io~1reservation", "l1.1"),
            ("/metadata/annotations/agentcube.io~1reservation", "l2.2"),
            ("/metadata/annotations/agentcube.io~1reservation", "nonsense"),
        ] {
            assert!(!bound(&|pod| *pod.pointer_mut(path).unwrap() = value.into()), "{path} {value}");
        }
    }

    #[test]
    fn a_spoilt_lease_is_no_session() {
        for (path, value) in [
            ("/metadata/annotations/agentcube.io~1reserve-key", json!("user-2")),
            ("/metadata/annotations/agentcube.io~1reserve-key", json!("")),
            ("/metadata/labels/agentcube.io~1lease", json!("router")),
            ("/spec/holderIdentity", json!("nobody")),
        ] {
            let spoilt = lease(|lease| *lease.pointer_mut(path).unwrap() = value.clone());
            assert_eq!(Session::read(&spoilt), None, "{path} {value}");
        }
        let waiting = lease(|lease| lease["spec"]["holderIdentity"] = json!(""));
        assert_eq!(Session::read(&waiting).unwrap().holder, None);
    }

    #[test]
    fn the_life_of_an_instance() {
        let of = |change: &dyn Fn(&mut Value)| Instance::read(&pod(change)).unwrap().life;
        let unready = |pod: &mut Value| pod["status"]["conditions"][0]["status"] = json!("False");
        assert_eq!(of(&|_| ()), Life::Ready);
        assert_eq!(of(&unready), Life::Unready);
        assert_eq!(
            of(&|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:02:00Z")),
            Life::Terminating
        );
        assert_eq!(of(&|pod| pod["status"]["phase"] = json!("Failed")), Life::Dead);
        let free = |pod: &mut Value| {
            unready(pod);
            pod["metadata"]["annotations"] = json!({ labels::RESERVE_KEY: "" });
        };
        assert_eq!(of(&free), Life::Starting);
    }

    #[test]
    fn names_fit_and_differ() {
        let key = |text: &str| SessionKey::new(text).unwrap();
        let name = lease_name("t1", &key("user-1"));
        assert_eq!(name.len(), "session-".len() + 40);
        assert_ne!(name, lease_name("t2", &key("user-1")));
        assert_ne!(name, lease_name("t1", &key("user-2")));
        assert_eq!(LeaseHash::parse(&name), Some(LeaseHash::of("t1", &key("user-1"))));
        for bad in ["", "session-", "session-+1", &name[1..], &name[..name.len() - 1], &format!("{name}0")] {
            assert_eq!(LeaseHash::parse(bad), None, "{bad}");
        }
    }
}
