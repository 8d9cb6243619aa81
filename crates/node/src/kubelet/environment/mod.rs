//! The environment of a container: its variables from values, ConfigMaps, Secrets, fields of the Pod, resources and
//! Services. Decides only; errors say what `kubectl describe` shows for CreateContainerConfigError.

mod expand;
pub mod field;
mod services;

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Container, EnvFromSource, EnvVar, EnvVarSource, Pod, Secret};

pub use expand::{MOST_BYTES, TooLong, expand};

use super::lookup::Lookup;

/// The most that all variables of a container may take together; the kernel refuses more than about this.
pub const MOST_BYTES_IN_ALL: usize = 1 << 20;

/// Why a container cannot have its environment. All but the limits may pass when the cluster changes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("configmap {0:?} not found")]
    ConfigMap(String),
    #[error("secret {0:?} not found")]
    Secret(String),
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    Key { key: String, kind: &'static str, namespace: String, name: String },
    #[error(transparent)]
    Field(#[from] field::Error),
    #[error("environment variable {name} is {source}")]
    TooLong { name: String, source: TooLong },
    #[error("environment variable {0} is not text without NUL bytes; mount it as a file instead")]
    NotText(String),
    #[error("the environment takes more than {MOST_BYTES_IN_ALL} bytes; mount large values as files instead")]
    TooLarge,
    #[error("environment variable {0} comes from a file, which this node does not support")]
    FromFile(String),
}

/// The variables of a container, by name. The Pod is the one that runs: its status has its addresses.
pub fn resolve(
    pod: &Pod,
    container: &Container,
    lookup: &dyn Lookup,
) -> Result<Vec<(String, String)>, Error> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or("default");
    let mut resolver = Resolver {
        pod,
        container,
        lookup,
        namespace,
        services: links(pod, namespace, lookup),
        own: BTreeMap::new(),
    };
    for from in container.env_from.iter().flatten() {
        resolver.take_all(from)?;
    }
    for variable in container.env.iter().flatten() {
        resolver.take(variable)?;
    }
    let Resolver { mut services, own, .. } = resolver;
    services.extend(own);
    let total: usize = services.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
    if total > MOST_BYTES_IN_ALL {
        return Err(Error::TooLarge);
    }
    if let Some((name, _)) = services.iter().find(|(name, value)| name.contains('\0') || value.contains('\0'))
    {
        return Err(Error::NotText(name.escape_default().to_string()));
    }
    Ok(services.into_iter().collect())
}

/// The variables of Services: always those of the API server, the Pod's own namespace unless it declined.
fn links(pod: &Pod, namespace: &str, lookup: &dyn Lookup) -> BTreeMap<String, String> {
    let wanted = pod.spec.as_ref().and_then(|spec| spec.enable_service_links).unwrap_or(true);
    let mut seen = if wanted { lookup.services(namespace) } else { Vec::new() };
    seen.retain(|service| service.metadata.name.as_deref() != Some("kubernetes") || namespace == "default");
    if namespace != "default" || !wanted {
        let api = lookup.services("default");
        seen.extend(api.into_iter().filter(|service| service.metadata.name.as_deref() == Some("kubernetes")));
    }
    services::variables(&seen)
}

struct Resolver<'a> {
    pod: &'a Pod,
    container: &'a Container,
    lookup: &'a dyn Lookup,
    namespace: &'a str,
    services: BTreeMap<String, String>,
    /// What was declared so far: later ones refer to it and replace it.
    own: BTreeMap<String, String>,
}

impl Resolver<'_> {
    /// `None` when it is not there and need not be.
    fn config_map(&self, name: &str, optional: Option<bool>) -> Result<Option<Arc<ConfigMap>>, Error> {
        match self.lookup.config_map(self.namespace, name) {
            None if optional != Some(true) => Err(Error::ConfigMap(name.to_owned())),
            found => Ok(found),
        }
    }

    fn secret(&self, name: &str, optional: Option<bool>) -> Result<Option<Arc<Secret>>, Error> {
        match self.lookup.secret(self.namespace, name) {
            None if optional != Some(true) => Err(Error::Secret(name.to_owned())),
            found => Ok(found),
        }
    }

    fn take_all(&mut self, from: &EnvFromSource) -> Result<(), Error> {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        if let Some(source) = &from.config_map_ref {
            let map = self.config_map(&source.name, source.optional)?;
            for (key, value) in map.iter().flat_map(|map| map.data.iter().flatten()) {
                self.own.insert(format!("{prefix}{key}"), value.clone());
            }
        } else if let Some(source) = &from.secret_ref {
            let secret = self.secret(&source.name, source.optional)?;
            for (key, value) in secret.iter().flat_map(|secret| secret.data.iter().flatten()) {
                let name = format!("{prefix}{key}");
                let value = text(&name, value)?;
                self.own.insert(name, value);
            }
        }
        Ok(())
    }

    fn take(&mut self, variable: &EnvVar) -> Result<(), Error> {
        let written = variable.value.as_deref().unwrap_or_default();
        let value = match &variable.value_from {
            Some(source) if written.is_empty() => self.look_up(&variable.name, source)?,
            _ => {
                let find =
                    |name: &str| self.own.get(name).or_else(|| self.services.get(name)).map(String::as_str);
                let expanded = expand(written, find);
                Some(expanded.map_err(|source| Error::TooLong { name: variable.name.clone(), source })?)
            }
        };
        if let Some(value) = value {
            self.own.insert(variable.name.clone(), value);
        }
        Ok(())
    }

    /// `None` when the source is not there and need not be: then the variable is not set at all.
    fn look_up(&self, variable: &str, source: &EnvVarSource) -> Result<Option<String>, Error> {
        if let Some(field) = &source.field_ref {
            return Ok(Some(field::of_pod(self.pod, &field.field_path)?));
        }
        if let Some(selector) = &source.resource_field_ref {
            let allocatable = self.lookup.allocatable();
            return Ok(Some(field::of_resources(self.pod, Some(self.container), selector, &allocatable)?));
        }
        if let Some(source) = &source.config_map_key_ref {
            let Some(map) = self.config_map(&source.name, source.optional)? else { return Ok(None) };
            return match map.data.as_ref().and_then(|data| data.get(&source.key)) {
                None if source.optional != Some(true) => {
                    Err(self.no_key("ConfigMap", &source.name, &source.key))
                }
                value => Ok(value.cloned()),
            };
        }
        if let Some(source) = &source.secret_key_ref {
            let Some(secret) = self.secret(&source.name, source.optional)? else { return Ok(None) };
            return match secret.data.as_ref().and_then(|data| data.get(&source.key)) {
                Some(value) => text(variable, value).map(Some),
                None if source.optional == Some(true) => Ok(None),
                None => Err(self.no_key("Secret", &source.name, &source.key)),
            };
        }
        if source.file_key_ref.is_some() {
            return Err(Error::FromFile(variable.to_owned()));
        }
        Ok(Some(String::new()))
    }

    fn no_key(&self, kind: &'static str, name: &str, key: &str) -> Error {
        Error::Key { key: key.to_owned(), kind, namespace: self.namespace.to_owned(), name: name.to_owned() }
    }
}

fn text(name: &str, value: &ByteString) -> Result<String, Error> {
    String::from_utf8(value.0.clone()).map_err(|_| Error::NotText(name.to_owned()))
}

#[cfg(test)]
mod tests;
