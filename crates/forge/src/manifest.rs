//! The manifest: what a build makes pages of, rendered from the spec by the rules of an engine version. A later version is a module
//! of its own beside [`v1`]; neither the controller nor the hash of the spec knows of it.

pub mod v1;

use serde_json::Value;

/// Why a spec has no manifest. It stays so until the spec changes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("builder.engineVersion {0:?} is not known here: write v1 (or v1alpha1, 1, 1.0), or leave it out")]
    UnsupportedEngineVersion(String),
    #[error("the spec cannot be read: {0}")]
    Spec(String),
    #[error("{place}: {wrong}")]
    Invalid { place: String, wrong: String },
}

/// An engine version, by any of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    V1,
}

impl Engine {
    pub fn named(name: Option<&str>) -> Result<Engine, Error> {
        match name.map(str::trim) {
            None | Some("" | "v1" | "v1alpha1" | "1" | "1.0") => Ok(Engine::V1),
            Some(other) => Err(Error::UnsupportedEngineVersion(other.to_owned())),
        }
    }
}

/// The manifest of an integration.
pub fn render(name: &str, spec: &Value) -> Result<Value, Error> {
    let version = spec.pointer("/builder/engineVersion").and_then(Value::as_str);
    match Engine::named(version)? {
        Engine::V1 => v1::render(name, spec),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn versions_have_several_names() {
        for name in [None, Some("v1"), Some("v1alpha1"), Some("1"), Some("1.0"), Some("")] {
            assert_eq!(Engine::named(name), Ok(Engine::V1), "{name:?}");
        }
        let spec = json!({ "builder": { "engineVersion": "v2" } });
        assert_eq!(render("a", &spec), Err(Error::UnsupportedEngineVersion("v2".into())));
    }
}
