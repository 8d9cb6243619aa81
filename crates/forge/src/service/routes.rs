//! The build service over HTTP. Every request shows a token, and nothing of what it brings is believed.

use std::sync::Arc;

use http::header::{RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, Method, Request, StatusCode};
use hyper::body::Incoming;
use serde_json::json;

use super::contract::{BUILDS, BuildStatus, Files, Order};
use super::queue::{Accepted, Queue, is_id};
use crate::hash;
use crate::http_server::{Answer, body, json as answer_json, refuse};
use crate::manifest::v1::{Manifest, judge};
use crate::token::Holder;

/// Bytes of an order. A manifest as large would not fit into a bundle.
const LARGEST_ORDER: usize = 1 << 20;

pub(super) async fn answer(queue: &Arc<Queue>, request: Request<Incoming>) -> Answer {
    let (parts, incoming) = request.into_parts();
    let Some(holder) = queue.options.key.of_request(&parts.headers) else {
        let mut refusal = refuse(StatusCode::UNAUTHORIZED, "it takes a token of a FrontendIntegration");
        refusal.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        return refusal;
    };
    let path = parts.uri.path();
    if path == BUILDS {
        return match parts.method {
            Method::POST => begin(queue, &holder, incoming).await,
            _ => refuse(StatusCode::METHOD_NOT_ALLOWED, "builds are begun by POST"),
        };
    }
    if parts.method != Method::GET {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "a build is only read");
    }
    let rest = path.strip_prefix(BUILDS).and_then(|rest| rest.strip_prefix('/')).unwrap_or_default();
    let (id, files) = match rest.split_once('/') {
        Some((id, "files")) => (id, true),
        Some(_) => ("", false),
        None => (rest, false),
    };
    match queue.look(id).filter(|_| is_id(id)) {
        None => refuse(StatusCode::NOT_FOUND, "there is no such build: begin it again"),
        Some(build) if !files => answer_json(StatusCode::OK, &json!(build)),
        Some(build) if build.status == BuildStatus::Succeeded => give(queue, id).await,
        Some(_) => refuse(StatusCode::NOT_FOUND, "the build has no files"),
    }
}

async fn begin(queue: &Arc<Queue>, holder: &Holder, incoming: Incoming) -> Answer {
    let bytes = match body(incoming, LARGEST_ORDER).await {
        Ok(bytes) => bytes,
        Err(refusal) => return refusal,
    };
    let accepted = match accept(&bytes, holder) {
        Ok(accepted) => accepted,
        Err((status, why)) => return refuse(status, &why),
    };
    match queue.take(accepted).await {
        Ok(build) if build.status == BuildStatus::Succeeded => answer_json(StatusCode::OK, &json!(build)),
        Ok(build) => answer_json(StatusCode::ACCEPTED, &json!(build)),
        Err(_) => {
            let mut refusal = refuse(StatusCode::SERVICE_UNAVAILABLE, "too many builds wait: come again");
            refusal.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            refusal
        }
    }
}

/// Looks at an order: whose it is, whether the hash is that of the manifest, and whether that is one.
fn accept(bytes: &[u8], holder: &Holder) -> Result<Accepted, (StatusCode, String)> {
    let wrong = |why: String| (StatusCode::BAD_REQUEST, why);
    let order: Order = serde_json::from_slice(bytes).map_err(|error| wrong(format!("the order: {error}")))?;
    if order.context.namespace != holder.namespace || order.context.frontend_integration != holder.name {
        return Err((StatusCode::FORBIDDEN, "the token is that of another FrontendIntegration".into()));
    }
    // Over the text as it is, which is canonical: what is read and printed again may be another number in the last digit.
    let hash = hash::of_text(&order.manifest);
    if hash != order.manifest_hash {
        return Err(wrong(format!("the hash of the manifest is {hash}, and not what the order says")));
    }
    let manifest: Manifest =
        serde_json::from_str(&order.manifest).map_err(|error| wrong(format!("the manifest: {error}")))?;
    judge(&manifest).map_err(|error| wrong(format!("the manifest: {error}")))?;
    if manifest.name != holder.name {
        return Err(wrong("the manifest is that of another FrontendIntegration".into()));
    }
    Ok(Accepted { manifest: order.manifest, hash })
}

async fn give(queue: &Arc<Queue>, id: &str) -> Answer {
    match queue.files(id).await {
        Ok(Some(files)) => answer_json(StatusCode::OK, &json!(Files { build_id: id.to_owned(), files })),
        Ok(None) => refuse(StatusCode::NOT_FOUND, "there is no such build any more: begin it again"),
        Err(error) => {
            tracing::error!(%error, id, "a result cannot be read");
            refuse(StatusCode::INTERNAL_SERVER_ERROR, "the result cannot be read")
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::canonical::canonical;

    fn manifest() -> Value {
        let spec = json!({ "integration": { "type": "iframe", "iframe": { "src": "https://example.com" } }, "routing": { "path": "a" } });
        crate::manifest::render("tasks", &spec).unwrap()
    }

    fn order(manifest: &str, hash: &str) -> Vec<u8> {
        let context = json!({ "namespace": "team", "frontendIntegration": "tasks" });
        json!({ "manifestHash": hash, "manifest": manifest, "context": context }).to_string().into_bytes()
    }

    #[test]
    fn nothing_is_believed() {
        let holder = Holder { namespace: "team".into(), name: "tasks".into() };
        let (manifest, hash) = (canonical(&manifest()), hash::of(&manifest()));
        let accepted = accept(&order(&manifest, &hash), &holder).ok().unwrap();
        assert_eq!((&accepted.hash, &accepted.manifest), (&hash, &manifest));
        let refused = |bytes: &[u8], holder: &Holder| accept(bytes, holder).err().unwrap();
        let other = Holder { namespace: "other".into(), ..holder.clone() };
        assert_eq!(refused(&order(&manifest, &hash), &other).0, StatusCode::FORBIDDEN);
        assert!(refused(&order(&manifest, &hash::of(&json!({}))), &holder).1.contains("the hash"));
        let with = |pointer: &str, value: Value| {
            let mut manifest: Value = serde_json::from_str(&manifest).unwrap();
            match pointer.rsplit_once('/') {
                Some((place, name)) => manifest.pointer_mut(place).unwrap()[name] = value,
                None => manifest = value,
            }
            refused(&order(&canonical(&manifest), &hash::of(&manifest)), &holder).1
        };
        for (pointer, value) in [
            ("/routes/0/path", json!("../../../etc/passwd")),
            ("/routes/0/path", json!("/a")),
            ("/pages/0/id", json!("../x")),
            ("/pages/0/props/src", json!("javascript:alert(1)")),
            ("/pages/0/entryComponent", json!("../../evil")),
            ("/name", json!("others")),
            ("/more", json!("unknown")),
            ("/pages", json!([])),
            ("", json!("text")),
        ] {
            assert!(with(pointer, value.clone()).starts_with("the manifest"), "{pointer} {value}");
        }
        assert!(accept(b"{", &holder).is_err());
    }
}
