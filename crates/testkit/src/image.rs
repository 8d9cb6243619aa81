//! Image archives made by hand: programs and nothing else, as `docker save` would write them.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use agentcube_runtime::image::Digest;
use anyhow::{Context, Result, ensure};
use serde_json::json;

/// Writes an archive of an image `name` whose only file is a program at `path`, into a directory.
pub fn archive(name: &str, program: &Path, path: &str, directory: &Path) -> Result<PathBuf> {
    archive_of(name, [(program.to_owned(), path.into())], directory)
}

/// The same with several programs, each with its path in the image.
pub fn archive_of(
    name: &str,
    programs: impl IntoIterator<Item = (PathBuf, PathBuf)>,
    directory: &Path,
) -> Result<PathBuf> {
    let root = directory.join("root");
    for (program, path) in programs {
        let inside = root.join(path.strip_prefix("/").context("an absolute path")?);
        std::fs::create_dir_all(inside.parent().context("a path below the root")?)?;
        std::fs::copy(program, &inside)?;
        std::fs::set_permissions(&inside, std::fs::Permissions::from_mode(0o755))?;
    }
    let image = directory.join("image");
    std::fs::create_dir_all(&image)?;
    pack(&root, &image.join("layer.tar"))?;
    let layer = Digest::of(&std::fs::read(image.join("layer.tar"))?);
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = json!({
        "architecture": architecture, "os": "linux", "config": {},
        "rootfs": { "type": "layers", "diff_ids": [layer.as_str()] },
    });
    let manifest = json!([{ "Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"] }]);
    std::fs::write(image.join("config.json"), config.to_string())?;
    std::fs::write(image.join("manifest.json"), manifest.to_string())?;
    let archive = directory.join("image.tar");
    pack(&image, &archive)?;
    Ok(archive)
}

fn pack(directory: &Path, archive: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    tar.arg("--numeric-owner").args(["--owner=0", "--group=0"]).arg("-C").arg(directory);
    let status = tar.arg("-cf").arg(archive).arg(".").status().context("tar cannot be run")?;
    ensure!(status.success(), "tar failed: {status}");
    Ok(())
}
