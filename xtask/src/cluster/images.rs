//! Container images without a registry and without a builder: each is a program with the libraries that it loads, as one
//! layer in an archive, which containerd imports. Images whose programs have not changed are left alone.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;

use super::node::Node;
use super::parts::PAUSE;
use crate::Settings;
use crate::process::{find_program, quietly, timed};
use crate::setup;
use crate::setup::cluster::Tools;

/// Of our own program, which is also the sample agents.
pub(crate) const AGENTCUBE: &str = "agentcube:dev";
/// The machine's Python and a shell: what code bundles can run on.
pub(crate) const PYTHON: &str = "python:dev";
/// Redis of Debian, for the trials of middleware.
const REDIS: &str = "redis:dev";
pub(crate) const COREDNS: &str = "coredns:dev";
pub(crate) const ENVOY: &str = "envoy:dev";
pub(crate) const ENVOY_GATEWAY: &str = "envoy-gateway:dev";

/// The user whom images run as. Root's rights are for those who ask for them in a Pod.
const USER: u32 = 65532;

struct Image {
    reference: &'static str,
    program: PathBuf,
    python: Option<Python>,
    /// Further programs.
    more: Vec<PathBuf>,
    /// A directory with Debian's packages unpacked, whose libraries are put where Debian has them.
    unpacked: Option<PathBuf>,
}

impl Image {
    fn of(reference: &'static str, program: PathBuf) -> Image {
        Image { reference, program, python: None, more: Vec::new(), unpacked: None }
    }
}

/// Makes sure that containerd has every image.
pub(crate) fn import(
    settings: &Settings,
    tools: &Tools,
    node: &Node,
    directory: &Path,
    own: &Path,
) -> Result<()> {
    let pause = pause(settings, directory)?;
    let mut images = vec![
        Image::of(PAUSE, pause),
        Image::of(COREDNS, tools.coredns.clone()),
        Image::of(ENVOY, tools.envoy.clone()),
        Image::of(ENVOY_GATEWAY, tools.envoy_gateway.clone()),
        Image::of(AGENTCUBE, own.to_owned()),
        python(settings)?,
    ];
    match redis(settings, own) {
        Ok(redis) => images.push(redis),
        // Whoever tries no middleware does not miss it.
        Err(error) => eprintln!("    no image {REDIS}: {error:#}"),
    }
    images.iter().try_for_each(|image| image.import(node, directory))
}

impl Image {
    fn import(&self, node: &Node, directory: &Path) -> Result<()> {
        let name = self.reference.replace(':', "-");
        let directory = directory.join("images");
        std::fs::create_dir_all(&directory)?;
        let stamp = directory.join(format!("{name}.stamp"));
        let current = state_of(&self.program)?;
        if std::fs::read_to_string(&stamp).is_ok_and(|known| known == current) {
            return Ok(());
        }
        timed(&format!("importing the image {}", self.reference), || {
            let work = directory.join(&name);
            let _ = std::fs::remove_dir_all(&work);
            let archive = self.pack(&work)?;
            for namespace in self.namespaces() {
                let arguments = ["-n", namespace, "images", "import", &archive.display().to_string()];
                node.run("ctr", &arguments)?;
            }
            std::fs::remove_dir_all(&work)?;
            std::fs::write(&stamp, current)?;
            Ok(())
        })
    }

    /// Whose images they are in containerd: the kubelet's, and also those of the agents of sandboxes.
    fn namespaces(&self) -> &[&str] {
        match self.reference {
            AGENTCUBE | PYTHON => &["k8s.io", "agentcube"],
            _ => &["k8s.io"],
        }
    }

    /// Makes an archive as `docker save` would.
    fn pack(&self, work: &Path) -> Result<PathBuf> {
        let (root, parts) = (work.join("root"), work.join("parts"));
        self.fill(&root)?;
        std::fs::create_dir_all(&parts)?;
        tar(&root, &parts.join("layer.tar"))?;
        let sum = quietly(Command::new("sha256sum").arg(parts.join("layer.tar")))?;
        let sum = sum.split_whitespace().next().context("sha256sum says nothing")?;
        let config = json!({
            "architecture": architecture()?,
            "os": "linux",
            "config": {
                "User": USER.to_string(),
                "Env": ["PATH=/usr/local/bin:/bin"],
                "Entrypoint": [format!("/usr/local/bin/{}", self.name()?)],
                "WorkingDir": "/",
            },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{sum}")] },
        });
        let manifest = json!([
            { "Config": "config.json", "RepoTags": [self.reference], "Layers": ["layer.tar"] }
        ]);
        std::fs::write(parts.join("config.json"), config.to_string())?;
        std::fs::write(parts.join("manifest.json"), manifest.to_string())?;
        let archive = work.join("image.tar");
        tar(&parts, &archive)?;
        Ok(archive)
    }

    /// What its program is called in it. Ours goes by its own name, however the file is called.
    fn name(&self) -> Result<String> {
        if self.reference == AGENTCUBE {
            return Ok("agentcube".into());
        }
        let name = self.program.file_name().and_then(|name| name.to_str());
        Ok(name.with_context(|| format!("{} has no name", self.program.display()))?.to_owned())
    }

    /// The files of the image.
    fn fill(&self, root: &Path) -> Result<()> {
        for directory in ["usr/local/bin", "etc", "tmp"] {
            std::fs::create_dir_all(root.join(directory))?;
        }
        std::fs::set_permissions(root.join("tmp"), std::fs::Permissions::from_mode(0o1777))?;
        let users = format!("root:x:0:0::/:/none\nagentcube:x:{USER}:{USER}::/tmp:/none\n");
        std::fs::write(root.join("etc/passwd"), users)?;
        std::fs::write(root.join("etc/group"), format!("root:x:0:\nagentcube:x:{USER}:\n"))?;
        std::fs::write(root.join("etc/nsswitch.conf"), "hosts: files dns\n")?;
        let program = root.join("usr/local/bin").join(self.name()?);
        copy(&self.program, &program)?;
        // What a debugger needs is most of a debug build. Without `strip` the image is just larger.
        let _ = quietly(Command::new("strip").arg("--strip-debug").arg(&program));
        let unpacked = self.unpacked.as_deref();
        let mut needed = libraries(&self.program, unpacked)?;
        if let Some(python) = &self.python {
            needed.extend(python.fill(root, &self.name()?)?);
        }
        for program in &self.more {
            needed.extend(libraries(program, unpacked)?);
            if unpacked.is_some_and(|unpacked| program.starts_with(unpacked)) {
                let name = program.file_name().context("a program has a name")?;
                copy(program, &root.join("usr/local/bin").join(name))?;
            }
        }
        needed.sort();
        needed.dedup();
        for library in needed {
            let own = unpacked.and_then(|unpacked| library.strip_prefix(unpacked).ok());
            let within = own.map_or_else(|| library.strip_prefix("/"), Ok).context("a library has a path")?;
            copy(&library, &root.join(within))?;
        }
        Ok(())
    }
}

/// Redis with its client, and whatever our own program loads: that is put beside it in Pods.
fn redis(settings: &Settings, own: &Path) -> Result<Image> {
    setup::middleware::run(settings)?;
    let unpacked = settings.cache.join("redis-debian/newer/debian");
    let [server, client] = ["usr/bin/redis-server", "usr/bin/redis-cli"].map(|path| unpacked.join(path));
    let more = vec![client, own.to_owned()];
    Ok(Image { more, unpacked: Some(unpacked), ..Image::of(REDIS, server) })
}

/// The machine's own Python, for code bundles, with a shell.
fn python(settings: &Settings) -> Result<Image> {
    let python = setup::python(settings)?;
    let ask = "import os, sys, sysconfig; print(os.path.realpath(sys.executable)); print(sysconfig.get_path('stdlib'))";
    let answer = quietly(Command::new(python).args(["-c", ask]))?;
    let mut lines = answer.lines().map(PathBuf::from);
    let (Some(program), Some(library)) = (lines.next(), lines.next()) else { bail!("Python says: {answer}") };
    let shell = find_program(&settings.path, "sh").context("there is no sh on PATH")?;
    Ok(Image { python: Some(Python { library, shell }), ..Image::of(PYTHON, program) })
}

struct Python {
    /// The directory of its standard library.
    library: PathBuf,
    shell: PathBuf,
}

impl Python {
    /// Puts everything but the interpreter, and says what it loads. Python looks for its library beside itself.
    fn fill(&self, root: &Path, program: &str) -> Result<Vec<PathBuf>> {
        let name = self.library.file_name().context("the library of Python has a name")?;
        let target = root.join("usr/local/lib").join(name);
        std::fs::create_dir_all(&target)?;
        let mut needed = libraries(&self.shell, None)?;
        for entry in std::fs::read_dir(&self.library)? {
            let path = entry?.path();
            let left = ["site-packages", "dist-packages", "test", "idlelib", "__pycache__"];
            let of_no_use = |name: &str| left.contains(&name) || name.starts_with("config-");
            if !path.file_name().and_then(|name| name.to_str()).is_none_or(of_no_use) {
                quietly(Command::new("cp").arg("-R").arg(&path).arg(&target))?;
            }
        }
        for entry in std::fs::read_dir(self.library.join("lib-dynload"))? {
            needed.extend(libraries(&entry?.path(), None)?);
        }
        copy(&self.shell, &root.join("bin/sh"))?;
        for link in ["python", "python3"] {
            let link = root.join("usr/local/bin").join(link);
            let _ = std::os::unix::fs::symlink(program, link);
        }
        Ok(needed)
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let directory = to.parent().context("a file is in a directory")?;
    std::fs::create_dir_all(directory)?;
    std::fs::copy(from, to).with_context(|| format!("cannot copy {}", from.display()))?;
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(0o755))?;
    Ok(())
}

/// Archives the contents of a directory, so that the same files make the same archive.
fn tar(directory: &Path, archive: &Path) -> Result<()> {
    let mut command = Command::new("tar");
    command.args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--mtime=@0"]);
    quietly(command.arg("--file").arg(archive).arg("--directory").arg(directory).arg("."))?;
    Ok(())
}

/// What a program loads when it starts, with the loader itself. One that is linked statically loads nothing.
fn libraries(program: &Path, unpacked: Option<&Path>) -> Result<Vec<PathBuf>> {
    let mut command = Command::new("ldd");
    if let Some(unpacked) = unpacked {
        let places = ["lib", "usr/lib"]
            .map(|lib| unpacked.join(lib).join(format!("{}-linux-gnu", std::env::consts::ARCH)));
        let places = places.map(|place| place.display().to_string()).join(":");
        command.env("LD_LIBRARY_PATH", places);
    }
    let Ok(text) = quietly(command.arg(program)) else { return Ok(Vec::new()) };
    let missing = text.lines().find(|line| line.contains("not found"));
    if let Some(missing) = missing {
        bail!("{} lacks a library:{missing}", program.display());
    }
    Ok(loaded(&text))
}

fn loaded(ldd: &str) -> Vec<PathBuf> {
    let paths = ldd.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    paths.map(PathBuf::from).collect()
}

/// Changes whenever the file does.
fn state_of(program: &Path) -> Result<String> {
    let metadata =
        std::fs::metadata(program).with_context(|| format!("there is no {}", program.display()))?;
    Ok(format!("{} {} {}.{}\n", program.display(), metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
}

fn architecture() -> Result<&'static str> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("amd64"),
        "aarch64" => Ok("arm64"),
        other => bail!("no container images are made for {other}"),
    }
}

/// Builds the program of Pods' sandboxes.
fn pause(settings: &Settings, directory: &Path) -> Result<PathBuf> {
    let program = directory.join("images/pause");
    if program.is_file() {
        return Ok(program);
    }
    std::fs::create_dir_all(directory.join("images"))?;
    let compiler = find_program(&settings.path, "rustc").context("there is no rustc on PATH")?;
    let unfinished = directory.join("images/.pause");
    let mut rustc = Command::new(compiler);
    rustc.current_dir(&settings.root).arg("xtask/src/cluster/pause.rs");
    rustc.args(["--edition=2024", "-Copt-level=s", "-Cpanic=abort", "-Cstrip=symbols"]);
    rustc.args(["-Ctarget-feature=+crt-static", "-Crelocation-model=static", "-o"]).arg(&unfinished);
    quietly(&mut rustc)?;
    ensure!(unfinished.is_file(), "rustc has made no program");
    std::fs::rename(&unfinished, &program)?;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_libraries_and_the_loader() {
        let text =
            "\tlinux-vdso.so.1 (0x01)\n\tlibc.so.6 => /lib/libc.so.6 (0x02)\n\t/lib64/ld-linux.so.2 (0x03)\n";
        assert_eq!(loaded(text), [Path::new("/lib/libc.so.6"), Path::new("/lib64/ld-linux.so.2")]);
    }
}
