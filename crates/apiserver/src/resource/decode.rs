//! From the wire: is the body what this resource takes, and if not, in which words is it refused.

use serde_json::Value;

use super::{Origin, Resource};
use crate::builtin;
use crate::codec;
use crate::schema;
use crate::status::{FieldError, Status};

impl Resource {
    /// The body must be of this kind; a body that does not say is taken to be.
    pub(crate) fn check_type(&self, value: &mut Value) -> Result<(), Status> {
        let Some(object) = value.as_object_mut() else {
            return Err(Status::bad_request("the body is not an object"));
        };
        let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let (api_version, kind) = (text("apiVersion"), text("kind"));
        match self.is_builtin() {
            true => self.check_builtin_type(&api_version, &kind)?,
            false => self.check_custom_type(&api_version, &kind, &object["metadata"]["name"])?,
        }
        object.insert("apiVersion".into(), self.api_version.as_str().into());
        object.insert("kind".into(), self.kind.as_str().into());
        Ok(())
    }

    /// A built-in kind that does not say what it is, is taken for what was asked.
    fn check_builtin_type(&self, api_version: &str, kind: &str) -> Result<(), Status> {
        let said_version = if api_version.is_empty() { &self.api_version } else { api_version };
        let said_kind = if kind.is_empty() { &self.kind } else { kind };
        if said_version == self.api_version && said_kind == self.kind {
            return Ok(());
        }
        let version = said_version.rsplit('/').next().unwrap_or_default();
        // Lists are kinds too.
        let element = said_kind.strip_suffix("List").unwrap_or(said_kind);
        let known = builtin::by_kind(said_version, said_kind)
            .or_else(|| builtin::by_kind(said_version, element))
            .or_else(|| builtin::by_kind(said_version, "ConfigMap").filter(|_| said_kind == "List"));
        let shared = said_version == "v1"
            && matches!(said_kind, "Status" | "APIVersions" | "APIResourceList" | "APIGroup");
        let problem = match known {
            None if old_version(&self.group, said_version) && said_kind == self.kind => {
                return Err(Status::bad_request(format!(
                    "the API version in the data ({said_version}) does not match the expected API version ({})",
                    self.api_version
                )));
            }
            _ if known.is_some() || shared => {
                let internal = if self.group.is_empty() {
                    "core"
                } else {
                    self.group.split('.').next().unwrap_or_default()
                };
                format!(
                    "converting ({version}.{said_kind}) to ({internal}.{}): unknown conversion",
                    self.kind
                )
            }
            _ => format!(
                "no kind {said_kind:?} is registered for version {said_version:?} in scheme \"pkg/runtime/scheme.go:111\""
            ),
        };
        Err(Status::bad_request(format!(
            "{said_kind} in version {version:?} cannot be handled as a {}: {problem}",
            self.kind
        )))
    }

    fn check_custom_type(&self, api_version: &str, kind: &str, name: &Value) -> Result<(), Status> {
        if api_version != self.api_version {
            return Err(Status::bad_request(format!(
                "the API version in the data ({api_version}) does not match the expected API version ({})",
                self.api_version
            )));
        }
        if kind == self.kind {
            return Ok(());
        }
        let error = FieldError::invalid("kind", kind, format!("must be {}", self.kind));
        Err(Status::invalid(&self.group, kind, name.as_str().unwrap_or_default(), &[error]))
    }

    /// The body cannot be read as an object of this kind.
    pub(crate) fn unrecognized(&self, problem: &str, body: &[u8]) -> Status {
        Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): {problem} ({})",
            self.kind,
            summary(body)
        ))
    }

    pub(crate) fn decode_error(&self, value: &Value) -> Option<String> {
        match &self.origin {
            Origin::Builtin { .. } => schema::decode_error(&self.kind, &self.version, self.schema(), value),
            Origin::Custom(_) => None,
        }
    }

    /// Unknown and duplicate fields, in the words of the strict decoder.
    pub(crate) fn strict_problems(&self, value: &Value, raw: Option<&[u8]>) -> Vec<String> {
        let unknown = || {
            schema::unknown_fields(self.schema(), value)
                .into_iter()
                .map(|path| format!("unknown field {path:?}"))
        };
        if let Some(raw) = raw.filter(|raw| !codec::is_json(raw)) {
            return codec::yaml_duplicate(raw).into_iter().chain(unknown()).collect();
        }
        match (&self.origin, raw) {
            (Origin::Builtin { .. }, Some(raw)) => schema::strict::strict_errors(self.schema(), raw),
            (Origin::Builtin { .. }, None) => unknown().collect(),
            (Origin::Custom(_), raw) => {
                let mut problems = raw.map(schema::strict::duplicate_fields).unwrap_or_default();
                problems.extend(unknown());
                problems
            }
        }
    }

    pub(crate) fn strict_decoding_error(&self, problems: &[String]) -> String {
        // What the YAML reader found comes with its own introduction.
        let told = |problem: &String| match problem.starts_with("line ") {
            true => format!("yaml: unmarshal errors:\n  {problem}"),
            false => problem.clone(),
        };
        let list = problems.iter().map(told).collect::<Vec<_>>().join(", ");
        let (kind, version) = (&self.kind, &self.version);
        format!("{kind} in version {version:?} cannot be handled as a {kind}: strict decoding error: {list}")
    }

    /// Drops what the schema does not know and brings the rest into canonical form.
    pub(crate) fn prune(&self, value: &mut Value) -> Result<(), Status> {
        if self.custom_part().is_some() {
            schema::objectmeta::coerce(self.schema(), value).map_err(|problem| {
                Status::bad_request(format!(
                    "{} in version {:?} cannot be handled as a {}: {problem}",
                    self.kind, self.version, self.kind
                ))
            })?;
        }
        schema::prune(self.schema(), value);
        Ok(())
    }
}

/// Versions of the past that the real server still reads.
fn old_version(group: &str, api_version: &str) -> bool {
    matches!(
        (group, api_version),
        ("apps", "apps/v1beta1" | "apps/v1beta2")
            | ("batch", "batch/v1beta1")
            | ("policy", "policy/v1beta1")
            | ("events.k8s.io", "events.k8s.io/v1beta1")
            | ("coordination.k8s.io", "coordination.k8s.io/v1beta1")
    )
}

/// The beginning of a body, as messages show it.
fn summary(body: &[u8]) -> String {
    const SHOWN: usize = 30;
    let head = &body[..body.len().min(SHOWN)];
    let text = match body.first() {
        None => return "<empty>".to_owned(),
        Some(b'{') => String::from_utf8_lossy(head).into_owned(),
        Some(_) => head.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    if body.len() > SHOWN { format!("{text} ...") } else { text }
}
