//! Obtains the definitions of the Gateway API and of Envoy Gateway, as its Go module has them: what our controllers
//! write is held to the real ones. They are kept in the cache and are no part of this repository.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::{go, go_command};
use crate::Settings;
use crate::process::{quietly, timed};

/// Of Envoy Gateway. The suite that uses its definitions knows it too.
pub(super) const VERSION: &str = "v1.9.1";
/// Where the module has them.
const DEFINITIONS: [&str; 2] =
    ["charts/gateway-helm/charts/crds/crds", "charts/gateway-helm/charts/crds/crds/generated"];

/// Makes sure that the definitions are there.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    let target = settings.cache.join(format!("envoy-gateway-{VERSION}"));
    if target.is_dir() {
        eprintln!("    definitions of Envoy Gateway {VERSION}: present");
        return Ok(());
    }
    let go = go(settings)?;
    timed(&format!("fetching the definitions of Envoy Gateway {VERSION}"), || fetch(settings, &go, &target))
}

fn fetch(settings: &Settings, go: &Path, target: &Path) -> Result<()> {
    let work = settings.cache.join("build").join("envoy-gateway");
    std::fs::create_dir_all(&work)?;
    std::fs::write(work.join("go.mod"), "module agentcube.io/tools\n\ngo 1.21\n")?;
    let module = format!("github.com/envoyproxy/gateway@{VERSION}");
    let described = quietly(go_command(go, &work).args(["mod", "download", "-json", &module]))?;
    let described: serde_json::Value = serde_json::from_str(&described)?;
    let root = Path::new(described["Dir"].as_str().context("go named no directory for Envoy Gateway")?);
    let unfinished = settings.cache.join(format!(".envoy-gateway.{}", std::process::id()));
    std::fs::create_dir_all(&unfinished)?;
    let mut copied = 0;
    for directory in DEFINITIONS {
        for entry in
            std::fs::read_dir(root.join(directory)).context("Envoy Gateway has no definitions there")?
        {
            let path = entry?.path();
            let name = path.file_name().context("a file has a name")?;
            if path.extension().is_some_and(|extension| extension == "yaml") {
                // Not a copy of the file: those of a module may not be written to.
                std::fs::write(unfinished.join(name), std::fs::read(&path)?)?;
                copied += 1;
            }
        }
    }
    ensure!(copied > 1, "Envoy Gateway {VERSION} has no definitions");
    std::fs::rename(&unfinished, target)?;
    Ok(())
}
