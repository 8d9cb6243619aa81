//! Children of which some parts are nobody else's to write into: a policy that somebody has added to may let through
//! what it is to keep out, and an apply leaves in place what others have added. The server knows who wrote what.

use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::Resource;
use kube::api::{Api, PostParams};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{Desired, Ensured, Error, compare, json};

/// Makes the child what it should be, as [`super::ensure`] does, and takes away what others have written under these
/// fields of the object (`spec`, say). `current` has its `managedFields`, or nothing of others is seen.
pub async fn ensure_alone<K>(
    api: &Api<K>,
    manager: &str,
    desired: &K,
    current: Option<&K>,
    roots: &[&str],
) -> Result<Ensured<K>, Error>
where
    K: Resource + Serialize + DeserializeOwned + Clone + Debug,
{
    let desired = Desired::new(manager, desired)?;
    let Some(current) = desired.look_up(api, current).await? else {
        return desired.write(api, None).await.map(Ensured::Created);
    };
    let foreign = Foreign { manager, roots };
    let object = json(&*current)?;
    match foreign.root(&*current).filter(|_| is_ours(&desired, &object)) {
        Some(root) => {
            let at = format!("/{root}");
            Ok(Ensured::Repaired { object: desired.replace(api, object, &foreign).await?, at })
        }
        None => desired.mend(api, &object).await,
    }
}

/// Whether it has the same controller, and is there to stay.
fn is_ours(desired: &Desired<'_>, current: &Value) -> bool {
    let uid = |object: &Value| compare::controller(object).map(|owner| owner["uid"].clone());
    let stays = current.pointer("/metadata/deletionTimestamp").is_none_or(Value::is_null);
    stays && uid(current).is_some() && uid(current) == uid(&desired.object)
}

/// What tells writes of others from ours.
struct Foreign<'a> {
    manager: &'a str,
    roots: &'a [&'a str],
}

impl<'a> Foreign<'a> {
    /// The first of the roots that somebody else has written under.
    fn root<K: Resource>(&self, object: &K) -> Option<&'a str> {
        object.meta().managed_fields.iter().flatten().find_map(|entry| self.root_of(entry))
    }

    /// The root that an entry says was written otherwise than by an apply of ours.
    fn root_of(&self, entry: &ManagedFieldsEntry) -> Option<&'a str> {
        let ours =
            entry.manager.as_deref() == Some(self.manager) && entry.operation.as_deref() == Some("Apply");
        let whole = entry.subresource.as_deref().unwrap_or_default().is_empty();
        let fields = entry.fields_v1.as_ref().filter(|_| whole && !ours)?;
        self.roots.iter().copied().find(|root| fields.0.get(format!("f:{root}")).is_some())
    }
}

impl Desired<'_> {
    /// Takes the roots out of the hands of others: replaces them as a whole, and forgets what they wrote.
    async fn replace<K>(&self, api: &Api<K>, mut object: Value, foreign: &Foreign<'_>) -> Result<K, Error>
    where
        K: Resource + Serialize + DeserializeOwned + Clone + Debug,
    {
        let uid = object.pointer("/metadata/uid").and_then(Value::as_str).map(str::to_owned);
        for root in foreign.roots {
            object[*root] = self.object.get(*root).cloned().unwrap_or_default();
        }
        let object = serde_json::from_value(object).map_err(|error| Error::Malformed(error.to_string()))?;
        self.disown(api, object, foreign).await?;
        // Never one of the same name that was made meanwhile, and none at all if it is gone.
        let written: K = self.write(api, uid.as_deref()).await?;
        // The replacement counts as a change of ours that was no apply, and would outlive what is wanted now.
        match foreign.root(&written) {
            Some(_) => self.disown(api, written, foreign).await,
            None => Ok(written),
        }
    }

    /// Writes the object, and that the roots are nobody else's.
    async fn disown<K>(&self, api: &Api<K>, mut object: K, foreign: &Foreign<'_>) -> Result<K, Error>
    where
        K: Resource + Serialize + DeserializeOwned + Clone + Debug,
    {
        if let Some(entries) = &mut object.meta_mut().managed_fields {
            entries.retain(|entry| foreign.root_of(entry).is_none());
        }
        let parameters = PostParams { field_manager: Some(self.manager.into()), ..PostParams::default() };
        api.replace(&self.name, &parameters, &object).await.map_err(|error| self.failed(error))
    }
}
