//! The chart, by Helm itself: it renders what `agentcube install` prints, refuses what its schema refuses, and installs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use agentcube_testkit::Request;
use agentcube_testkit::cluster::whole::{IMAGE, SYSTEM, Whole};
use anyhow::{Context, Result, ensure};
use http::Method;
use serde_json::Value;

use crate::world::{World, expect, name};

const RELEASE: &str = "agentcube";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const GROUPS: [&str; 4] = ["agentcube.io", "sandbox.fast.io", "middleware.io", "frontend-forge.io"];

fn chart() -> Result<String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/chart/agentcube");
    Ok(directory.canonicalize()?.to_str().context("the path is text")?.to_owned())
}

/// What Helm says; an error if it fails.
fn helm(cluster: &Whole, arguments: &[&str]) -> Result<String> {
    let output = cluster.helm().args(arguments).output().context("cannot run helm")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "helm {}: {error}", arguments.join(" "));
    Ok(String::from_utf8(output.stdout)?)
}

/// Objects by kind and name.
fn objects(all: &[Value]) -> BTreeMap<String, Value> {
    let key = |object: &Value| format!("{} {}", object["kind"].as_str().unwrap_or_default(), name(object));
    all.iter().filter(|object| !object.is_null()).map(|object| (key(object), object.clone())).collect()
}

pub(crate) async fn installs(world: &World) -> Result<()> {
    let cluster = world.cluster().context("it is a cluster")?;
    let chart = chart()?;
    helm(cluster, &["lint", &chart])?;
    renders_the_same(cluster, &chart)?;
    for wrong in ["router.replicas=0", "router.replica=1", "envoyGateway.mode=patches"] {
        let refused = helm(cluster, &["template", RELEASE, &chart, "--set", wrong]);
        let told = refused.err().map(|error| format!("{error:#}")).unwrap_or_default();
        expect(told.contains("schema"), "it is refused", &(wrong, told))?;
    }
    let image = format!("image={IMAGE}");
    let install = ["install", RELEASE, &chart, "--namespace", SYSTEM, "--create-namespace", "--set", &image];
    helm(cluster, &[&install[..], &["--wait", "--timeout", "5m"]].concat())?;
    let refused = cluster.run(&["uninstall"]).err().map(|error| error.to_string()).unwrap_or_default();
    expect(refused.contains("helm uninstall"), "what Helm has put there, Helm takes away", &refused)?;
    helm(cluster, &["uninstall", RELEASE, "--namespace", SYSTEM, "--wait"])?;
    // Helm leaves the definitions, as it does of every chart, and the namespace that it made.
    let defined = world.http.send(Request::new(Method::GET, DEFINITIONS)).await?.value();
    let ours = |object: &&Value| GROUPS.contains(&object["spec"]["group"].as_str().unwrap_or_default());
    for definition in defined["items"].as_array().into_iter().flatten().filter(ours) {
        delete(world, &format!("{DEFINITIONS}/{}", name(definition))).await?;
    }
    delete(world, &format!("/api/v1/namespaces/{SYSTEM}")).await?;
    super::as_it_was(cluster).await
}

async fn delete(world: &World, path: &str) -> Result<()> {
    let deleted = world.http.send(Request::new(Method::DELETE, path)).await?;
    ensure!(deleted.is_success(), "{path}: {}", deleted.value());
    Ok(())
}

/// What Helm renders is what `agentcube install` prints, but for the definitions, which Helm has from their own files, and the
/// namespace, which it makes by an option.
fn renders_the_same(cluster: &Whole, chart: &str) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let values: PathBuf = directory.path().join("values.yaml");
    std::fs::write(
        &values,
        format!("image: {IMAGE}\nrouter: {{ replicas: 3 }}\nfastpath: {{ enabled: false }}\n"),
    )?;
    let values = values.to_str().context("the path is text")?;
    let rendered = helm(cluster, &["template", RELEASE, chart, "--namespace", SYSTEM, "--values", values])?;
    let by_helm = objects(&serde_saphyr::from_multiple::<Value>(&rendered)?);
    let printed: Value = serde_json::from_str(&cluster.run(&["install", "--values", values, "-o", "json"])?)?;
    let mut by_us = objects(printed["items"].as_array().context("it is a List")?);
    by_us.retain(|_, object| object["kind"] != "CustomResourceDefinition" && object["kind"] != "Namespace");
    let names = |objects: &BTreeMap<String, Value>| objects.keys().cloned().collect::<Vec<_>>();
    expect(names(&by_helm) == names(&by_us), "the same objects", &(names(&by_helm), names(&by_us)))?;
    for (name, object) in &by_us {
        let other = &by_helm[name];
        expect(other == object, "the same object", &(name, other, object))?;
    }
    Ok(())
}
