//! The paths that are not resources: health, metrics, pages for debugging, version, discovery, OpenAPI.

use http::{HeaderMap, Method, Response, StatusCode, Uri, header};
use serde_json::json;

use super::reply::{self, ReplyBody};
use super::{discovery, openapi};
use crate::api::Api;
use crate::status::Status;

/// The Kubernetes version that this server speaks.
const MINOR: &str = "36";
const GIT_VERSION: &str = "v1.36.4+agentcube";

/// `None` when the path is a resource's.
pub(super) fn plain(
    api: &Api,
    method: &Method,
    uri: &Uri,
    headers: &HeaderMap,
) -> Result<Option<Response<ReplyBody>>, Status> {
    if uri.path().starts_with("//") {
        return Err(Status::no_such_path());
    }
    let path = uri.path().trim_end_matches('/');
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let accept = headers.get(header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let registry = api.registry();
    let answer = match segments.as_slice() {
        [] => reply::json(StatusCode::OK, &discovery::root(&registry)),
        ["healthz" | "livez" | "readyz", ..] => reply::text(StatusCode::OK, "ok"),
        ["metrics"] => match api.hooks().metrics {
            Some(metrics) => reply::metrics(metrics()),
            None => return Ok(None),
        },
        ["debug", page] => match api.hooks().debug.and_then(|debug| debug(page, uri.query())) {
            Some(Ok(page)) => reply::json(StatusCode::OK, &page),
            Some(Err(why)) => return Err(Status::bad_request(why)),
            None => return Ok(None),
        },
        ["version"] => reply::json(
            StatusCode::OK,
            &json!({
                "major": "1", "minor": MINOR, "gitVersion": GIT_VERSION, "gitCommit": "", "gitTreeState": "clean",
                "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "rustc",
                "platform": format!("{}/{}", std::env::consts::OS, go_architecture()),
                "emulationMajor": "1", "emulationMinor": MINOR,
                "minCompatibilityMajor": "1", "minCompatibilityMinor": "35",
            }),
        ),
        ["api"] | ["apis"] => discovery::groups(&registry, segments[0] == "api", accept),
        ["api", "v1"] => reply::json(StatusCode::OK, &discovery::version(&registry, "", "v1")?),
        ["apis", group] => reply::json(StatusCode::OK, &discovery::group(&registry, group)?),
        ["apis", group, version] => {
            reply::json(StatusCode::OK, &discovery::version(&registry, group, version)?)
        }
        ["openapi", "v3", rest @ ..] => openapi::serve(&registry, rest)?,
        _ => return Ok(None),
    };
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Err(Status::method_not_allowed(
            "the server does not allow this method on the requested resource",
        ));
    }
    Ok(Some(answer))
}

/// Below a built-in group the answer is a Status; elsewhere it is text.
pub(super) fn unknown(api: &Api, path: &str) -> Status {
    let mut segments = path.split('/').skip(1);
    let group = match segments.next() {
        Some("api") => Some(""),
        Some("apis") => segments.next(),
        _ => None,
    };
    let known = group.is_some_and(|group| api.registry().all().any(|r| r.is_builtin() && r.group == group));
    if known { Status::page_not_found() } else { Status::no_such_path() }
}

fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
