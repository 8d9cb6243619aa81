//! `--merge-kubeconfig`: puts our cluster, user and context into the kubeconfig of `kubectl`, and changes nothing else
//! there but the layout. The current context stays, unless there is none.

use std::path::PathBuf;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use crate::environment::Environment;
use crate::paths::write_private;

/// Adds what `ours` holds to the file that `kubectl` would write to.
pub(super) fn run(ours: &str, environment: &Environment) -> anyhow::Result<()> {
    let path = target(environment)?;
    let place = || format!("cannot merge into {}", path.display());
    let theirs = match std::fs::read_to_string(&path) {
        Ok(text) if text.trim().is_empty() => json!({}),
        Ok(text) => serde_saphyr::from_str(&text).with_context(place)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => json!({}),
        Err(error) => return Err(error).with_context(place),
    };
    let merged = merge(theirs, &under_our_name(serde_saphyr::from_str(ours)?)).with_context(place)?;
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).with_context(place)?;
    }
    write_private(&path, agentcube_api::yaml::render(&merged).as_bytes()).with_context(place)
}

fn target(environment: &Environment) -> anyhow::Result<PathBuf> {
    let listed = environment.kubeconfig.as_ref().and_then(|list| std::env::split_paths(list).next());
    let default = || environment.home.as_ref().map(|home| home.join(".kube/config"));
    listed.or_else(default).context("neither KUBECONFIG nor HOME says where the kubeconfig is")
}

/// `admin` may well be taken there, by a user of another cluster.
fn under_our_name(mut ours: Value) -> Value {
    ours["users"][0]["name"] = json!("agentcube");
    ours["contexts"][0]["context"]["user"] = json!("agentcube");
    ours
}

fn merge(mut theirs: Value, ours: &Value) -> anyhow::Result<Value> {
    let Some(map) = theirs.as_object_mut() else { bail!("it is not a kubeconfig") };
    for key in ["apiVersion", "kind"] {
        map.entry(key).or_insert_with(|| ours[key].clone());
    }
    for key in ["clusters", "users", "contexts"] {
        let list = map.entry(key).or_insert_with(|| json!([]));
        if list.is_null() {
            *list = json!([]);
        }
        let Some(list) = list.as_array_mut() else { bail!("its {key} are no list") };
        for entry in ours[key].as_array().into_iter().flatten() {
            list.retain(|other| other["name"] != entry["name"]);
            list.push(entry.clone());
        }
    }
    let current = map.entry("current-context").or_insert(Value::Null);
    if current.as_str().is_none_or(str::is_empty) {
        *current = ours["current-context"].clone();
    }
    Ok(theirs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_user_is_called_as_we_are() {
        let named = under_our_name(ours("x"));
        assert_eq!(
            (&named["users"][0]["name"], &named["users"][0]["user"]["token"]),
            (&json!("agentcube"), &json!("t"))
        );
        assert_eq!(named["contexts"][0]["context"], json!({"cluster": "agentcube", "user": "agentcube"}));
    }

    fn ours(server: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "agentcube",
            "clusters": [{"name": "agentcube", "cluster": {"server": server}}],
            "users": [{"name": "admin", "user": {"token": "t"}}],
            "contexts": [{"name": "agentcube", "context": {"cluster": "agentcube", "user": "admin"}}],
        })
    }

    #[test]
    fn replaces_our_entries_and_leaves_theirs() {
        let theirs = json!({
            "current-context": "work", "preferences": {"colors": true}, "users": null,
            "clusters": [{"name": "agentcube", "cluster": {"server": "old"}}, {"name": "work"}],
        });
        let merged = merge(theirs, &ours("new")).unwrap();
        assert_eq!(merged["current-context"], "work");
        assert_eq!(merged["preferences"], json!({"colors": true}));
        assert_eq!(merged["clusters"], json!([{"name": "work"}, ours("new")["clusters"][0]]));
        assert_eq!(merge(merged.clone(), &ours("new")).unwrap(), merged, "merging again changes nothing");
        assert_eq!(merge(json!({}), &ours("x")).unwrap(), ours("x"));
        assert!(merge(json!([]), &ours("x")).is_err());
        assert!(merge(json!({"users": 5}), &ours("x")).is_err());
    }
}
