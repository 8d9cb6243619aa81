//! The same controller under a harsh plan of faults: when they cease, everything must be as it should be.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use agentcube_apiserver::faults::Plan;
use anyhow::{Context, Result, bail, ensure};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Client, ResourceExt};

use crate::controller;
use crate::fixtures::{Widget, config_map, named, widget};
use crate::world::World;

const SEEDS: [u64; 4] = [1, 2, 3, 0xC0FFEE];
const WRITERS: usize = 4;
const EACH: usize = 8;
/// A request that fails so often in a row does not fail by chance.
const ATTEMPTS: usize = 200;

fn harsh(seed: u64) -> Plan {
    Plan {
        seed,
        conflict: 0.1,
        throttle: 0.05,
        internal: 0.05,
        unavailable: 0.05,
        lost_reply: 0.1,
        delay: 0.1,
        delay_for: Duration::from_millis(2),
        drop_watch: 0.1,
        lag_watch: 0.2,
        lag_for: Duration::from_millis(5),
    }
}

/// Whether a client may try again after this; everything else is a bug.
fn passing(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if matches!(status.code, 409 | 429 | 500 | 503))
}

/// One writer: its Widgets are created, rewritten twice, and every fourth is deleted. Returns what should be.
async fn write(api: Api<Widget>, writer: usize) -> Result<BTreeMap<String, String>> {
    let mut expected = BTreeMap::new();
    for n in 0..EACH {
        let name = format!("w{writer}-{n}");
        create(&api, &name).await?;
        for round in 0..2 {
            rewrite(&api, &name, &format!("text {round}")).await?;
        }
        if n % 4 == 3 {
            delete(&api, &name).await?;
        } else {
            expected.insert(name, "text 1".to_owned());
        }
    }
    Ok(expected)
}

async fn create(api: &Api<Widget>, name: &str) -> Result<()> {
    for _ in 0..ATTEMPTS {
        match api.create(&PostParams::default(), &widget(name, "new")).await {
            Ok(_) => return Ok(()),
            // An answer was lost, but the write was done.
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => return Ok(()),
            Err(error) if passing(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    bail!("{name} could not be created")
}

/// Reads, changes and replaces until it was its own write that got through.
async fn rewrite(api: &Api<Widget>, name: &str, text: &str) -> Result<()> {
    for _ in 0..ATTEMPTS {
        let mut object = match api.get(name).await {
            Ok(object) => object,
            Err(error) if passing(&error) => continue,
            Err(error) => return Err(error.into()),
        };
        if object.spec.text == text {
            return Ok(());
        }
        object.spec.text = text.to_owned();
        match api.replace(name, &PostParams::default(), &object).await {
            Ok(_) => return Ok(()),
            Err(error) if passing(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    bail!("{name} could not be rewritten")
}

async fn delete(api: &Api<Widget>, name: &str) -> Result<()> {
    for _ in 0..ATTEMPTS {
        match api.delete(name, &DeleteParams::default()).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            Err(error) if passing(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    bail!("{name} could not be deleted")
}

/// Deletes children that others are about to make, as often as there are Widgets.
async fn vandalise(children: Api<ConfigMap>) -> Result<()> {
    for writer in 0..WRITERS {
        for n in 0..EACH {
            match children.delete(&format!("w{writer}-{n}"), &DeleteParams::default()).await {
                Ok(_) => {}
                Err(error) if passing(&error) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

pub(crate) async fn controller_converges(world: World) -> Result<()> {
    for seed in SEEDS {
        let namespace = format!("seed-{seed}");
        let object = Namespace { metadata: named(&namespace), ..Namespace::default() };
        Api::all(world.client.clone()).create(&PostParams::default(), &object).await?;
        let faults = world.internals()?.faults().clone();
        faults.set(harsh(seed));
        let outcome = suffer(&world.client, &namespace).await;
        faults.clear();
        let (expected, running) = outcome.with_context(|| format!("seed {seed}"))?;
        recovered(&world.client, &namespace, &expected).await.with_context(|| format!("seed {seed}"))?;
        drop(running);
    }
    Ok(())
}

async fn suffer(client: &Client, namespace: &str) -> Result<(BTreeMap<String, String>, controller::Running)> {
    let running = controller::start(client, namespace);
    let widgets: Api<Widget> = Api::namespaced(client.clone(), namespace);
    let children: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let writers: Vec<_> = (0..WRITERS).map(|writer| tokio::spawn(write(widgets.clone(), writer))).collect();
    let vandal = tokio::spawn(vandalise(children));
    let mut expected = BTreeMap::new();
    for writer in writers {
        expected.extend(writer.await??);
    }
    vandal.await??;
    Ok((expected, running))
}

/// Every parent has exactly its child, with the right content and status; nothing else is there.
async fn recovered(client: &Client, namespace: &str, expected: &BTreeMap<String, String>) -> Result<()> {
    let widgets: Api<Widget> = Api::namespaced(client.clone(), namespace);
    let children: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    for (name, text) in expected {
        let object = controller::settled(&widgets, name).await?;
        ensure!(object.spec.text == *text, "{name} holds {:?}", object.spec.text);
        // Created once, rewritten twice: more would be a write that was done two times.
        ensure!(object.metadata.generation == Some(3), "{name} is at {:?}", object.metadata.generation);
    }
    let wanted: BTreeMap<String, String> = expected.clone();
    let (store, writer) = reflector::store::<ConfigMap>();
    let mut events = watcher(children.clone(), watcher::Config::default()).reflect(writer).boxed();
    while contents(&store.state()) != wanted {
        events.next().await.context("a watcher never ends")??;
    }
    let parents: BTreeMap<_, _> =
        widgets.list(&ListParams::default()).await?.into_iter().map(|object| (object.name_any(), object.uid())).collect();
    ensure!(parents.keys().eq(expected.keys()), "{parents:?}");
    for child in children.list(&ListParams::default()).await? {
        let owners: Vec<_> = child.owner_references().iter().map(|owner| Some(owner.uid.clone())).collect();
        ensure!(owners == [parents[&child.name_any()].clone()], "{}: {owners:?}", child.name_any());
    }
    Ok(())
}

fn contents(objects: &[std::sync::Arc<ConfigMap>]) -> BTreeMap<String, String> {
    let text = |object: &ConfigMap| object.data.as_ref().and_then(|data| data.get("text")).cloned().unwrap_or_default();
    objects.iter().map(|object| (object.name_any(), text(object))).collect()
}

/// One client, one seed: the same faults strike the same requests, and the same objects come to be.
pub(crate) async fn a_seed_repeats(world: World) -> Result<()> {
    let first = struck(&world, 7, "first").await?;
    let again = struck(&world, 7, "again").await?;
    let other = struck(&world, 8, "other").await?;
    ensure!(first == again, "a seed repeats");
    ensure!(first != other, "another seed differs");
    let (codes, written) = first;
    for code in [201, 409, 429, 500, 503] {
        ensure!(codes.values().any(|seen| *seen == code), "{code} never struck");
    }
    let lost = codes.iter().filter(|(name, code)| **code == 500 && written.contains(*name)).count();
    ensure!(lost > 0, "no answer was lost");
    for (name, code) in &codes {
        ensure!((*code == 201) <= written.contains(name), "{name} was acknowledged and is not there");
        ensure!(!matches!(code, 409 | 429 | 503) || !written.contains(name), "{name} was refused and is there");
    }
    Ok(())
}

async fn struck(world: &World, seed: u64, namespace: &str) -> Result<(BTreeMap<String, u16>, BTreeSet<String>)> {
    let object = Namespace { metadata: named(namespace), ..Namespace::default() };
    Api::all(world.client.clone()).create(&PostParams::default(), &object).await?;
    let api: Api<ConfigMap> = Api::namespaced(world.client.clone(), namespace);
    let faults = world.internals()?.faults();
    faults.set(harsh(seed));
    let mut codes = BTreeMap::new();
    for n in 0..200 {
        let name = format!("n{n:03}");
        let code = match api.create(&PostParams::default(), &config_map(&name, &[])).await {
            Ok(_) => 201,
            Err(kube::Error::Api(status)) => status.code,
            Err(error) => return Err(error.into()),
        };
        codes.insert(name, code);
    }
    faults.clear();
    let written = api.list(&ListParams::default()).await?.iter().map(ResourceExt::name_any).collect();
    Ok((codes, written))
}
