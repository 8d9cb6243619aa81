//! A small image, made by hand: the program of these tests with the libraries that it loads, in two layers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use agentcube_runtime::image::Digest;
use anyhow::{Context, Result, ensure};
use serde_json::json;

/// Writes `image.tar` into a directory.
pub(crate) fn write(work: &Path, name: &str) -> Result<()> {
    let (lower, upper) = (work.join("lower"), work.join("upper"));
    let program = std::env::current_exe()?;
    copy(&program, &lower, Path::new("/probe"))?;
    for library in libraries(&program)? {
        copy(&library, &lower, &library)?;
    }
    std::fs::create_dir_all(lower.join("etc"))?;
    std::fs::write(lower.join("etc/passwd"), "root:x:0:0::/:/bin/sh\nold:x:7:7::/:/bin/sh\n")?;
    std::fs::write(lower.join("etc/given"), "by the image")?;
    std::fs::create_dir_all(upper.join("etc"))?;
    std::fs::create_dir_all(upper.join("tmp"))?;
    std::fs::write(upper.join("etc/passwd"), "root:x:0:0::/root:/bin/sh\nweb:x:33:34::/srv:/bin/sh\n")?;
    let mut contents = Vec::new();
    for layer in ["lower", "upper"] {
        run(Command::new("tar")
            .arg("-C")
            .arg(work.join(layer))
            .arg("-cf")
            .arg(work.join(format!("{layer}.tar")))
            .arg("."))?;
        contents.push(Digest::of(&std::fs::read(work.join(format!("{layer}.tar")))?).to_string());
    }
    let config = json!({
        "os": "linux", "architecture": architecture(),
        "config": {"Cmd": ["/probe", "inside", "wait"], "Env": ["OF_IMAGE=yes"], "User": "web", "StopSignal": "SIGTERM"},
        "rootfs": {"type": "layers", "diff_ids": contents},
    });
    std::fs::write(work.join("config.json"), config.to_string())?;
    let manifest =
        json!([{"Config": "config.json", "RepoTags": [name], "Layers": ["lower.tar", "upper.tar"]}]);
    std::fs::write(work.join("manifest.json"), manifest.to_string())?;
    run(Command::new("tar").arg("-C").arg(work).arg("-cf").arg(work.join("image.tar")).args([
        "manifest.json",
        "config.json",
        "lower.tar",
        "upper.tar",
    ]))
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn copy(from: &Path, root: &Path, to: &Path) -> Result<()> {
    let to = root.join(to.strip_prefix("/")?);
    std::fs::create_dir_all(to.parent().context("a file has a directory")?)?;
    std::fs::copy(from, to)?;
    Ok(())
}

/// What the loader of this machine would load.
fn libraries(program: &Path) -> Result<BTreeSet<PathBuf>> {
    let output = Command::new("ldd").arg(program).output()?;
    let text = String::from_utf8(output.stdout)?;
    let words = text.split_whitespace().filter(|word| word.starts_with('/'));
    Ok(words.map(PathBuf::from).collect())
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
