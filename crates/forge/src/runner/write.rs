//! The one write of a runner: conditional on the version of what it replaces, and never over a bundle of a newer spec.

use agentcube_api::JSBundle;
use agentcube_api::frontend::JSBundleSpec;
use agentcube_api::frontend::bundle::BundleFile;
use agentcube_api::labels::{
    FORGE, FORGE_BUILD_JOB, FORGE_FI_NAME, FORGE_GENERATION, FORGE_MANAGED_BY, FORGE_MANIFEST_HASH,
    FORGE_SPEC_HASH, hash_label,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{Api, PostParams};
use kube::{Resource, ResourceExt};

use super::{Error, Runner};
use crate::core::is_code;
use crate::names;
use crate::raw::Integration;

const MANAGER: &str = "agentcube-forge-runner";

impl Runner {
    /// Writes the bundle; `false` if somebody else wrote meanwhile, and everything has to be looked at again.
    pub(super) async fn write(
        &self,
        integration: &Integration,
        manifest_hash: &str,
        files: &[BundleFile],
    ) -> Result<bool, Error> {
        let api: Api<JSBundle> = Api::namespaced(self.client.clone(), &self.settings.namespace);
        let parameters = PostParams { field_manager: Some(MANAGER.into()), ..PostParams::default() };
        let spec = JSBundleSpec { manifest_hash: manifest_hash.to_owned(), files: files.to_vec() };
        let name = &self.settings.bundle;
        let written = match api.get_opt(name).await? {
            None => {
                let mut bundle = JSBundle::new(name, spec);
                self.mark(&mut bundle, integration, manifest_hash);
                api.create(&parameters, &bundle).await
            }
            Some(mut bundle) => {
                check(&bundle, integration)?;
                bundle.spec = spec;
                bundle.metadata.managed_fields = None;
                self.mark(&mut bundle, integration, manifest_hash);
                api.replace(name, &parameters, &bundle).await
            }
        };
        match written {
            Ok(_) => Ok(true),
            Err(error) if is_code(&error, 409) || is_code(&error, 404) => Ok(false),
            Err(error) if is_code(&error, 413) => Err(Error::TooLarge(crate::files::weight(files))),
            Err(error) => Err(error.into()),
        }
    }

    /// Labels and annotations of others stay.
    fn mark(&self, bundle: &mut JSBundle, integration: &Integration, manifest_hash: &str) {
        bundle.metadata.namespace = Some(self.settings.namespace.clone());
        let labels = bundle.metadata.labels.get_or_insert_default();
        for (name, value) in [
            (FORGE_MANAGED_BY, FORGE.to_owned()),
            (FORGE_FI_NAME, names::label(&self.settings.name)),
            (FORGE_SPEC_HASH, hash_label(&self.settings.spec_hash).to_owned()),
            (FORGE_MANIFEST_HASH, hash_label(manifest_hash).to_owned()),
        ] {
            labels.insert(name.to_owned(), value);
        }
        let annotations = bundle.metadata.annotations.get_or_insert_default();
        annotations.insert(FORGE_BUILD_JOB.to_owned(), self.settings.job.clone());
        let generation = integration.metadata.generation.unwrap_or_default();
        annotations.insert(FORGE_GENERATION.to_owned(), generation.to_string());
        let owner = integration.controller_owner_ref(&());
        // To hold up the deletion of the integration would take a right that a runner does not have.
        let owner = owner.map(|owner| OwnerReference { block_owner_deletion: None, ..owner });
        bundle.metadata.owner_references = owner.map(|owner| vec![owner]);
    }
}

/// Whether a bundle may be replaced.
fn check(bundle: &JSBundle, integration: &Integration) -> Result<(), Error> {
    let uid = integration.uid().unwrap_or_default();
    if !bundle.owner_references().iter().any(|owner| owner.uid == uid) {
        return Err(Error::Foreign(bundle.name_any()));
    }
    let generation = bundle.annotations().get(FORGE_GENERATION).and_then(|text| text.parse::<i64>().ok());
    match generation {
        Some(newer) if newer > integration.metadata.generation.unwrap_or_default() => {
            Err(Error::Stale(format!("the bundle is of generation {newer} already")))
        }
        _ => Ok(()),
    }
}
