//! The images that containerd has. None is ever fetched here: that is for whoever fills containerd, such as a kubelet.

use agentcube_runtime::Error;
use agentcube_runtime::image::{self, Accounts, Described, Image};
use agentcube_runtime::spec::Root;

use crate::client::{During, ask};
use crate::container::Containerd;
use crate::generated::containerd::services::content::v1::ReadContentRequest;
use crate::generated::containerd::services::images::v1::{Image as Named, ListImagesRequest};
use crate::generated::containerd::types::Mount;

/// Larger ones are no manifests and no configurations.
const MOST_BYTES: usize = 8 << 20;
/// Images that are remembered, by the digests of their manifests.
const MOST_KNOWN: usize = 64;
/// Larger files name no users.
const MOST_ACCOUNTS: u64 = 4 << 20;

impl Containerd {
    async fn find(&self, name: &str) -> Result<Named, Error> {
        let listed = self.listed().await?;
        let tagged = match name.rsplit('/').next().is_some_and(|last| last.contains([':', '@'])) {
            true => name.to_owned(),
            false => format!("{name}:latest"),
        };
        let suffix = format!("/{tagged}");
        if let Some(exact) = listed.iter().find(|image| image.name == name || image.name == tagged) {
            return Ok(exact.clone());
        }
        let mut matching = listed.into_iter().filter(|image| image.name.ends_with(&suffix));
        match (matching.next(), matching.next()) {
            (Some(only), None) => Ok(only),
            (Some(first), Some(second)) => Err(Error::Invalid(format!(
                "containerd has several images {name:?}: write {:?} or {:?}",
                first.name, second.name
            ))),
            (None, _) => Err(Error::Invalid(format!(
                "containerd has no image {name:?} in its namespace {:?}: import it there",
                self.options.namespace
            ))),
        }
    }

    async fn listed(&self) -> Result<Vec<Named>, Error> {
        let request = self.client.request(ListImagesRequest::default());
        Ok(ask(self.client.images().list(request)).await.during("listing the images")?.images)
    }

    pub(crate) async fn blob(&self, digest: &str) -> Result<Vec<u8>, Error> {
        let step = "reading the image";
        let request = ReadContentRequest { digest: digest.to_owned(), offset: 0, size: 0 };
        let mut parts = ask(self.client.content().read(self.client.request(request))).await.during(step)?;
        let mut bytes = Vec::new();
        while let Some(part) = parts.message().await.during(step)? {
            bytes.extend(part.data);
            if bytes.len() > MOST_BYTES {
                return Err(Error::Invalid(format!("{digest} is too large to describe an image")));
            }
        }
        Ok(bytes)
    }

    async fn load(&self, name: &str) -> Result<(Image, Accounts), Error> {
        let named = self.find(name).await?;
        let mut target = named.target.unwrap_or_default().digest;
        let asked = target.clone();
        let known = self.known.lock().get(&asked).cloned();
        if let Some(known) = known
            && let Root::Snapshot(top) = &known.0.root
            && self.has_snapshot(top).await?
        {
            return Ok(known);
        }
        let invalid = |error: image::Error| Error::Invalid(format!("{name}: {error}"));
        let described = loop {
            match image::describe(&self.blob(&target).await?).map_err(invalid)? {
                // An index within an index is as good as one, but not without end.
                Described::Index(one) if one != target => target = one,
                Described::Index(_) => {
                    return Err(Error::Invalid(format!("{name}: an index that names itself")));
                }
                Described::Manifest(manifest) => break manifest,
            }
        };
        let configuration = image::configured(&self.blob(&described.config).await?).map_err(invalid)?;
        let (config, contents) = configuration;
        let top = self.unpacked(&described, &contents).await?;
        let accounts = self.accounts(&top).await?;
        let image = Image {
            id: described.config,
            names: vec![named.name],
            root: Root::Snapshot(top),
            config,
            size: described.layers.iter().map(|layer| layer.size).sum(),
        };
        let mut known = self.known.lock();
        if known.len() >= MOST_KNOWN {
            known.clear();
        }
        known.insert(asked, (image.clone(), accounts.clone()));
        Ok((image, accounts))
    }

    /// Who is who in an image. Where the layers cannot be looked into from here, users have numbers only.
    async fn accounts(&self, top: &str) -> Result<Accounts, Error> {
        let lease = self.lease().await?;
        let key = format!("agentcube-view-{}-{}", std::process::id(), self.number());
        let viewed = self.view(&key, top, &lease).await.map(|mounts| layers(&mounts));
        let read = match viewed {
            Ok(layers) => tokio::task::spawn_blocking(move || {
                let [passwd, group] = ["etc/passwd", "etc/group"].map(|file| topmost(&layers, file));
                Accounts::parse(&passwd, &group)
            })
            .await
            .map_err(|error| Error::Step { step: "reading the image", reason: error.to_string() }),
            Err(error) => Err(error),
        };
        let removed = self.remove_snapshot(&key).await;
        self.end_lease(&lease).await;
        removed.and(read)
    }
}

/// The directories of an image's layers, the topmost first.
fn layers(mounts: &[Mount]) -> Vec<String> {
    let of = |mount: &Mount| -> Vec<String> {
        let lower = mount.options.iter().find_map(|option| option.strip_prefix("lowerdir="));
        match (mount.r#type.as_str(), lower) {
            ("overlay", Some(lower)) => lower.split(':').map(str::to_owned).collect(),
            ("bind", _) => vec![mount.source.clone()],
            _ => Vec::new(),
        }
    };
    mounts.iter().flat_map(of).collect()
}

/// A file of the first layer that has it. One that a layer has removed is a device there, and nothing to read.
fn topmost(layers: &[String], file: &str) -> String {
    let has = |layer: &&String| std::path::Path::new(layer).join(file).symlink_metadata().is_ok();
    let Some(layer) = layers.iter().find(has) else { return String::new() };
    image::read_within(std::path::Path::new(layer), file, MOST_ACCOUNTS)
}

impl image::Source for Containerd {
    fn get<'a>(&'a self, name: &'a str) -> agentcube_runtime::Answer<'a, (Image, Accounts)> {
        Box::pin(self.load(name))
    }

    fn names(&self) -> agentcube_runtime::Answer<'_, Vec<String>> {
        Box::pin(async move { Ok(self.listed().await?.into_iter().map(|image| image.name).collect()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_layer_that_has_a_file_counts() {
        let directories = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let names: Vec<String> = directories.iter().map(|one| one.path().display().to_string()).collect();
        for one in &directories[1..] {
            std::fs::create_dir(one.path().join("etc")).unwrap();
            std::fs::write(one.path().join("etc/passwd"), one.path().display().to_string()).unwrap();
        }
        let overlay = Mount {
            r#type: "overlay".into(),
            options: vec!["index=off".into(), format!("lowerdir={}", names.join(":"))],
            ..Mount::default()
        };
        assert_eq!(layers(&[overlay]), names);
        assert_eq!(topmost(&names, "etc/passwd"), names[1]);
        assert_eq!(topmost(&names, "etc/group"), "");
        let bind = Mount { r#type: "bind".into(), source: names[2].clone(), ..Mount::default() };
        assert_eq!(topmost(&layers(&[bind]), "etc/passwd"), names[2]);
    }
}
