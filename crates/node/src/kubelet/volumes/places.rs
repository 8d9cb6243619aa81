//! Where each kind of volume is, and what it takes to have it there.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use agentcube_api::Quantity;
use k8s_openapi::api::core::v1::{
    EmptyDirVolumeSource, HostPathVolumeSource, PersistentVolume, PersistentVolumeClaim, Pod,
    Volume as Wanted,
};

use super::{Options, Place, Problem, Volume, ownership, payload, private_directory, projection};
use crate::kubelet::lookup::Lookup;

/// What a volume in memory may hold when nothing else bounds it.
const MEMORY: u64 = 64 << 20;
/// Any container may write, whoever it runs as.
const SCRATCH: u32 = 0o777;

/// Makes a volume, or finds it, and fills it.
pub(super) fn prepare(
    options: &Options,
    lookup: &dyn Lookup,
    pod: &Pod,
    wanted: &Wanted,
) -> Result<Volume, Problem> {
    if let Some(path) = refill(options, lookup, pod, wanted)? {
        return Ok(Volume { place: Place::Path(path), read_only: true });
    }
    if let Some(source) = &wanted.empty_dir {
        return empty(options, lookup, pod, wanted, source);
    }
    if let Some(source) = &wanted.host_path {
        return Ok(Volume { place: Place::Path(host_path(options, source)?), read_only: false });
    }
    if let Some(source) = &wanted.persistent_volume_claim {
        let claim = bound_claim(lookup, pod, &source.claim_name)?;
        return claimed(options, lookup, pod, &claim, source.read_only == Some(true));
    }
    if wanted.ephemeral.is_some() {
        let name = format!("{}-{}", pod.metadata.name.as_deref().unwrap_or_default(), wanted.name);
        let claim = bound_claim(lookup, pod, &name)?;
        let owners = claim.metadata.owner_references.iter().flatten();
        if !owners.clone().any(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref()) {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            let pod = format!("{namespace}/{}", pod.metadata.name.as_deref().unwrap_or_default());
            return Err(Problem::NotOwner { claim: format!("{namespace}/{name}"), pod });
        }
        return claimed(options, lookup, pod, &claim, false);
    }
    if wanted.image.is_some() {
        return Err(Problem::Unsupported("image volumes"));
    }
    Err(Problem::Unsupported(
        "volumes other than emptyDir, configMap, secret, downwardAPI, projected, persistentVolumeClaim, ephemeral and \
         hostPath",
    ))
}

/// Writes what a volume shows of the cluster, if it is of such a kind.
pub(super) fn refill(
    options: &Options,
    lookup: &dyn Lookup,
    pod: &Pod,
    wanted: &Wanted,
) -> Result<Option<PathBuf>, Problem> {
    let Some(payload) = payload::of(wanted, pod, lookup)? else { return Ok(None) };
    let path = own_directory(options, pod, &wanted.name)?;
    let disk = |source| Problem::Disk { path: path.clone(), source };
    fs::set_permissions(&path, Permissions::from_mode(0o755)).map_err(disk)?;
    projection::write(&path, &payload, ownership::group(pod)).map_err(disk)?;
    Ok(Some(path))
}

/// A name that is one part of a path.
pub(super) fn file_name(name: &str) -> Result<&str, Problem> {
    let mut parts = Path::new(name).components();
    match (parts.next(), parts.next()) {
        (Some(Component::Normal(part)), None) if part == name && !name.contains('\0') => Ok(name),
        _ => Err(Problem::Name(name.to_owned())),
    }
}

/// The directory of one volume of one Pod, inside of one that only this user can enter.
fn own_directory(options: &Options, pod: &Pod, volume: &str) -> Result<PathBuf, Problem> {
    let uid = file_name(pod.metadata.uid.as_deref().unwrap_or_default())?;
    let path = options.pods().join(uid).join(file_name(volume)?);
    private_directory(&path).map_err(|source| Problem::Disk { path: path.clone(), source })?;
    Ok(path)
}

fn empty(
    options: &Options,
    lookup: &dyn Lookup,
    pod: &Pod,
    wanted: &Wanted,
    source: &EmptyDirVolumeSource,
) -> Result<Volume, Problem> {
    if source.medium.as_deref() == Some("Memory") && mounted_once(pod, &wanted.name) {
        let limits = [source.size_limit.as_ref().and_then(|size| bytes(&size.0)), memory_limit(pod)];
        let node = lookup.allocatable().get("memory").and_then(|memory| bytes(&memory.0));
        let bytes = limits.into_iter().flatten().min().or(node).unwrap_or(MEMORY);
        return Ok(Volume { place: Place::Memory { bytes }, read_only: false });
    }
    let path = own_directory(options, pod, &wanted.name)?;
    let disk = |source| Problem::Disk { path: path.clone(), source };
    fs::set_permissions(&path, Permissions::from_mode(SCRATCH)).map_err(disk)?;
    if let Some(group) = ownership::group(pod) {
        ownership::share(&path, group, ownership::only_on_mismatch(pod)).map_err(disk)?;
    }
    Ok(Volume { place: Place::Path(path), read_only: false })
}

/// Memory belongs to the container that it is mounted into, so what several share, or a part of it, is on the disk:
/// that they see the same files matters more than what these are made of.
fn mounted_once(pod: &Pod, volume: &str) -> bool {
    let Some(spec) = pod.spec.as_ref() else { return false };
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let mut mounts = containers
        .flat_map(|container| container.volume_mounts.iter().flatten())
        .filter(|mount| mount.name == volume);
    let whole = mounts.next().is_some_and(|mount| mount.sub_path.is_none() && mount.sub_path_expr.is_none());
    whole && mounts.next().is_none()
}

/// The sum of the containers' limits, if all have one.
fn memory_limit(pod: &Pod) -> Option<u64> {
    let spec = pod.spec.as_ref()?;
    let limit = |limits: &k8s_openapi::api::core::v1::ResourceRequirements| {
        limits.limits.as_ref().and_then(|limits| bytes(&limits.get("memory")?.0))
    };
    if let Some(limit) = spec.resources.as_ref().and_then(limit) {
        return Some(limit);
    }
    spec.containers.iter().map(|container| container.resources.as_ref().and_then(limit)).sum()
}

fn bytes(quantity: &str) -> Option<u64> {
    u64::try_from(Quantity::from_str(quantity).ok()?.value()).ok().filter(|bytes| *bytes > 0)
}

/// A path of the host, without links, if Pods may use it.
fn host_path(options: &Options, source: &HostPathVolumeSource) -> Result<PathBuf, Problem> {
    let path = Path::new(&source.path);
    let kind = source.type_.as_deref().unwrap_or_default();
    if matches!(kind, "DirectoryOrCreate" | "FileOrCreate") && fs::symlink_metadata(path).is_err() {
        let disk = |source| Problem::Disk { path: path.to_owned(), source };
        // Nothing is made where nothing may be used.
        let parent = path.parent().ok_or_else(|| Problem::NotAllowed(path.to_owned()))?;
        let parent = allowed(&options.host_paths, parent)?;
        let target = parent.join(path.file_name().ok_or_else(|| Problem::NotAllowed(path.to_owned()))?);
        if kind == "DirectoryOrCreate" {
            fs::create_dir(&target).map_err(disk)?;
        } else {
            fs::File::create_new(&target).map_err(disk)?;
        }
    }
    let path = allowed(&options.host_paths, path)?;
    let found = fs::symlink_metadata(&path).map_err(|source| Problem::Disk { path: path.clone(), source })?;
    let found = found.file_type();
    let (fits, wanted) = match kind {
        "Directory" | "DirectoryOrCreate" => (found.is_dir(), "a directory"),
        "File" | "FileOrCreate" => (found.is_file(), "a file"),
        "Socket" => (found.is_socket(), "a socket file"),
        "CharDevice" => (found.is_char_device(), "a character device"),
        "BlockDevice" => (found.is_block_device(), "a block device"),
        _ => (true, ""),
    };
    if fits { Ok(path) } else { Err(Problem::WrongType { path, wanted }) }
}

/// The true path, if it is one of the allowed directories or below one.
fn allowed(roots: &[PathBuf], path: &Path) -> Result<PathBuf, Problem> {
    let refused = || Problem::NotAllowed(path.to_owned());
    if roots.is_empty() || !path.is_absolute() {
        return Err(refused());
    }
    // What cannot be looked at is told apart from what is refused only where it is allowed to look.
    let resolved = match path.canonicalize() {
        Err(source) if roots.iter().any(|root| path.starts_with(root)) => {
            return Err(Problem::Disk { path: path.to_owned(), source });
        }
        resolved => resolved.map_err(|_| refused())?,
    };
    let below = |root: &PathBuf| root.canonicalize().is_ok_and(|root| resolved.starts_with(root));
    if roots.iter().any(below) { Ok(resolved) } else { Err(refused()) }
}

fn bound_claim(
    lookup: &dyn Lookup,
    pod: &Pod,
    name: &str,
) -> Result<std::sync::Arc<PersistentVolumeClaim>, Problem> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let claim = lookup.claim(namespace, name).ok_or_else(|| Problem::Claim(name.to_owned()))?;
    let phase = claim.status.as_ref().and_then(|status| status.phase.as_deref());
    if phase != Some("Bound") { Err(Problem::Unbound(name.to_owned())) } else { Ok(claim) }
}

/// The directory of the volume that a claim is bound to.
fn claimed(
    options: &Options,
    lookup: &dyn Lookup,
    pod: &Pod,
    claim: &PersistentVolumeClaim,
    read_only: bool,
) -> Result<Volume, Problem> {
    let name = claim.metadata.name.clone().unwrap_or_default();
    let bound = claim.spec.as_ref().and_then(|spec| spec.volume_name.clone()).unwrap_or_default();
    let volume = lookup.volume(&bound).ok_or_else(|| Problem::Volume(bound.clone()))?;
    let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    if reference.and_then(|reference| reference.uid.as_ref()) != claim.metadata.uid.as_ref() {
        return Err(Problem::OtherClaim { volume: bound, claim: name });
    }
    let mode = volume.spec.as_ref().and_then(|spec| spec.volume_mode.as_deref());
    if mode == Some("Block") {
        return Err(Problem::Unsupported("block volumes"));
    }
    let path = volume_path(options, &volume)?;
    if let Some(group) = ownership::group(pod).filter(|_| !read_only && is_ours(options, &path)) {
        ownership::share(&path, group, ownership::only_on_mismatch(pod))
            .map_err(|source| Problem::Disk { path: path.clone(), source })?;
    }
    Ok(Volume { place: Place::Path(path), read_only })
}

fn is_ours(options: &Options, path: &Path) -> bool {
    path.starts_with(options.claims())
}

/// Where a PersistentVolume is: in the directory of claims, or where the host allows it.
fn volume_path(options: &Options, volume: &PersistentVolume) -> Result<PathBuf, Problem> {
    let spec = volume.spec.as_ref();
    let (path, kind) = if let Some(local) = spec.and_then(|spec| spec.local.as_ref()) {
        (local.path.clone(), None)
    } else if let Some(host) = spec.and_then(|spec| spec.host_path.as_ref()) {
        (host.path.clone(), host.type_.clone())
    } else {
        return Err(Problem::Unsupported("persistent volumes other than local and hostPath ones"));
    };
    let claims = options.claims();
    if Path::new(&path).parent() == Some(&claims) {
        let found = fs::symlink_metadata(&path).map_err(|source| disk(&path, source))?;
        // The directory is this module's own, so a link can only be a mistake.
        return if found.is_dir() {
            Ok(path.into())
        } else {
            Err(Problem::WrongType { path: path.into(), wanted: "a directory" })
        };
    }
    host_path(options, &HostPathVolumeSource { path, type_: kind })
}

fn disk(path: &str, source: io::Error) -> Problem {
    Problem::Disk { path: path.into(), source }
}
