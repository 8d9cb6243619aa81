//! Reading: one object, or a consistent page of many.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::Api;
use crate::go_json;
use crate::request::{Query, Selection};
use crate::resource::Resource;
use crate::status::{FieldError, Status};
use crate::store::{HistoryError, Object, Range, Revision};

/// A list as it was asked for.
#[derive(Debug, Clone, Default)]
pub struct ListRequest<'a> {
    pub namespace: Option<&'a str>,
    pub selection: Selection,
    pub limit: usize,
    pub resume: Option<Continue>,
    /// Show exactly this revision.
    pub exact: Option<Revision>,
    /// Show this revision or a later one.
    pub at_least: Option<Revision>,
}

/// One page.
#[derive(Debug)]
pub struct Listing {
    pub items: Vec<Arc<Object>>,
    pub revision: Revision,
    pub resume: Option<Continue>,
    pub remaining: Option<usize>,
}

/// Where the next page starts, and which revision it shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Continue {
    #[serde(rename = "rv")]
    revision: Revision,
    #[serde(rename = "start")]
    after: String,
}

impl Continue {
    pub fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).expect("two plain fields always encode"))
    }

    fn decode(token: &str) -> Result<Self, Status> {
        let bad = |reason: String| {
            Status::bad_request(format!("invalid continue token: continue key is not valid: {reason}"))
        };
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|e| bad(e.to_string()))?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|_| bad(go_json::syntax_error(&bytes)))?;
        serde_json::from_value(value)
            .map_err(|_| bad("server does not recognize this encoded version ".into()))
    }
}

impl<'a> ListRequest<'a> {
    pub fn parse(namespace: Option<&'a str>, query: &Query) -> Result<Self, Status> {
        let selection = Selection::parse(query)?;
        let version = query.get("resourceVersion");
        let resume = match query.get("continue") {
            "" => None,
            _ if !matches!(version, "" | "0") => {
                return Err(Status::bad_request(
                    "specifying resource version is not allowed when using continue",
                ));
            }
            token => Some(Continue::decode(token)?),
        };
        check_match(query)?;
        let revision = parse_version(version)
            .map_err(|status| Status::bad_request(format!("invalid resource version: {}", status.message)))?;
        let limit = query.number("limit")?.unwrap_or(0).max(0);
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let exact = query.get("resourceVersionMatch") == "Exact";
        // As the real server: a limited list of a named revision without a match rule means that revision.
        let exact = exact || (limit > 0 && revision > 0 && !query.has("resourceVersionMatch"));
        Ok(Self {
            namespace,
            selection,
            limit,
            resume,
            exact: (exact && revision > 0).then_some(revision),
            at_least: (revision > 0).then_some(revision),
        })
    }
}

fn check_match(query: &Query) -> Result<(), Status> {
    let mut errors: Vec<FieldError> = match_error(query).into_iter().collect();
    if query.has("sendInitialEvents") {
        errors.push(FieldError::forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid("meta.k8s.io", "ListOptions", "", &errors))
}

fn match_error(query: &Query) -> Option<FieldError> {
    let version = query.get("resourceVersion");
    match query.get("resourceVersionMatch") {
        "" => None,
        _ if !query.get("continue").is_empty() => Some(FieldError::forbidden(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden when continue is provided",
        )),
        _ if version.is_empty() => Some(FieldError::forbidden(
            "resourceVersionMatch",
            "resourceVersionMatch is forbidden unless resourceVersion is provided",
        )),
        "Exact" if version == "0" => Some(FieldError::forbidden(
            "resourceVersionMatch",
            "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
        )),
        "Exact" | "NotOlderThan" => None,
        other => {
            Some(FieldError::not_supported("resourceVersionMatch", other, &["Exact", "NotOlderThan", ""]))
        }
    }
}

pub(super) fn parse_version(text: &str) -> Result<Revision, Status> {
    match text {
        "" => Ok(0),
        text => text.parse().map_err(|_| {
            let detail = format!("strconv.ParseUint: parsing {text:?}: invalid syntax");
            let error = FieldError::invalid("resourceVersion", text, detail);
            Status::new(StatusCode::INTERNAL_SERVER_ERROR, "", error.to_string())
        }),
    }
}

impl Api {
    pub fn list(&self, resource: &Resource, request: &ListRequest<'_>) -> Result<Listing, Status> {
        self.check_selectable(resource, &request.selection)?;
        if let Some(revision) = request.at_least
            && revision > self.store().revision()
        {
            return Err(in_future(revision, self.store().revision()));
        }
        let (after, at) = match &request.resume {
            Some(resume) => (Some(resume.after.as_str()), Some(resume.revision)),
            None => (None, request.exact),
        };
        let range = Range { namespace: request.namespace, after, at, limit: request.limit };
        let page = self
            .store()
            .list(&resource.storage, &range, |object| resource.selects(&request.selection, object))
            .map_err(|error| self.gone(request, error))?;
        let unselected = request.selection.labels.is_empty() && request.selection.fields.is_empty();
        let more = page.next.is_some();
        Ok(Listing {
            resume: page.next.map(|after| Continue { revision: page.revision, after: after.into() }),
            remaining: (more && unselected).then_some(page.remaining),
            items: page.items,
            revision: page.revision,
        })
    }

    pub(super) fn check_selectable(&self, resource: &Resource, selection: &Selection) -> Result<(), Status> {
        match selection.fields.names().find(|name| !resource.selectable(name)) {
            None => Ok(()),
            Some(name) => Err(Status::bad_request(resource.unsupported_field(name))),
        }
    }

    fn gone(&self, request: &ListRequest<'_>, error: HistoryError) -> Status {
        match (error, &request.resume) {
            (HistoryError::InFuture { asked, current }, _) => in_future(asked, current),
            (HistoryError::TooOld { .. }, Some(resume)) => {
                let again = Continue { revision: self.store().revision(), after: resume.after.clone() };
                let mut status = expired(
                    "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list.",
                );
                status.resume = Some(again.encode());
                status
            }
            (HistoryError::TooOld { .. }, None) => {
                expired("The resourceVersion for the provided list is too old.")
            }
        }
    }
}

pub(super) fn expired(message: impl Into<String>) -> Status {
    Status::new(StatusCode::GONE, "Expired", message)
}

pub(super) fn in_future(asked: Revision, current: Revision) -> Status {
    let message = format!("Too large resource version: {asked}, current: {current}");
    let mut status = Status::new(StatusCode::GATEWAY_TIMEOUT, "Timeout", format!("Timeout: {message}"));
    status.details.insert(
        "causes".into(),
        serde_json::json!([{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]),
    );
    status.details.insert("retryAfterSeconds".into(), 1.into());
    status
}
