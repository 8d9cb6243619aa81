//! Why a patch or an apply was refused, and what the client is told.

use http::StatusCode;
use serde_json::{Value, json};

use crate::status::Status;

/// A patch of any kind but apply that could not be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch itself is malformed; the text is what the client reads.
    #[error("{0}")]
    Malformed(String),
    #[error("The allowed maximum operations in a JSON patch is {limit}, got {got}")]
    TooManyOperations { limit: usize, got: usize },
    /// The patch is well formed but does not fit the object. Clients are not told the detail.
    #[error("{0}")]
    DoesNotApply(String),
    /// A strategic merge patch that contradicts the kind or itself; the real server calls it its own failure.
    #[error("{0}")]
    Contradiction(String),
}

impl From<PatchError> for Status {
    fn from(error: PatchError) -> Self {
        let text = error.to_string();
        match error {
            PatchError::Malformed(_) => Self::bad_request(text),
            PatchError::TooManyOperations { .. } => Self::new(
                StatusCode::PAYLOAD_TOO_LARGE,
                "RequestEntityTooLarge",
                format!("Request entity too large: {text}"),
            ),
            PatchError::DoesNotApply(_) => Self::bare(
                StatusCode::UNPROCESSABLE_ENTITY,
                "Invalid",
                "the server rejected our request due to an error in our request",
            ),
            PatchError::Contradiction(_) => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", text),
        }
    }
}

/// A field that somebody else owns with another value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The owner as messages name it: `"kubectl" using apps/v1`.
    pub owner: String,
    /// The path as messages print it: `.spec.replicas`.
    pub field: String,
}

/// A server-side apply that was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ApplyError {
    #[error("{0}")]
    BadRequest(String),
    /// The configuration does not fit the schema of its kind.
    #[error("{0}")]
    Mistyped(String),
    /// Ordered by owner, then by field.
    #[error("{}", conflict_message(.0))]
    Conflicts(Vec<Conflict>),
}

impl From<ApplyError> for Status {
    fn from(error: ApplyError) -> Self {
        let text = error.to_string();
        match error {
            ApplyError::BadRequest(_) => Self::bad_request(text),
            ApplyError::Mistyped(_) => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "", text),
            ApplyError::Conflicts(conflicts) => {
                let causes: Vec<Value> = conflicts.iter().map(cause).collect();
                let mut status = Self::new(StatusCode::CONFLICT, "Conflict", text);
                status.details.insert("causes".into(), Value::Array(causes));
                status
            }
        }
    }
}

fn cause(conflict: &Conflict) -> Value {
    json!({
        "reason": "FieldManagerConflict",
        "message": format!("conflict with {}", conflict.owner),
        "field": conflict.field,
    })
}

fn conflict_message(conflicts: &[Conflict]) -> String {
    if let [one] = conflicts {
        return format!("Apply failed with 1 conflict: conflict with {}: {}", one.owner, one.field);
    }
    let mut lines = Vec::with_capacity(conflicts.len() + 1);
    let mut owner = None;
    for conflict in conflicts {
        if owner != Some(&conflict.owner) {
            owner = Some(&conflict.owner);
            lines.push(format!("conflicts with {}:", conflict.owner));
        }
        lines.push(format!("- {}", conflict.field));
    }
    format!("Apply failed with {} conflicts: {}", conflicts.len(), lines.join("\n"))
}
