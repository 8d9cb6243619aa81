//! Extensions: pages that JSBundles bring. What a bundle has is read as whoever logged in, and checked; its code is handed
//! to a frame of its own ([`frames`](crate::frames)), never to our pages.

use http::header::HOST;
use http::{HeaderMap, Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::{self, Answer};
use crate::bundle::{self, Bundle};
use crate::frames::{self, Content};
use crate::kube_api;
use crate::server::State;
use crate::session::Session;

/// The page that shows another site. It needs none of the bundle's code.
const SITE: &str = "Iframe";

/// Which page of a bundle is to be shown.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    page: String,
    /// The version of the bundle that the page knows.
    version: String,
}

type Refusal = (StatusCode, String);

/// `GET <namespace>/<bundle>` gives what the bundle says it has, `POST <namespace>/<bundle>/frame` opens one of its pages.
pub(crate) async fn answer(
    state: &State,
    session: &Session,
    method: &Method,
    path: &str,
    headers: &HeaderMap,
    body: &[u8],
) -> Answer {
    let parts: Vec<&str> = path.split('/').collect();
    let answered = match (method, parts.as_slice()) {
        (&Method::GET, [namespace, name]) => manifest(state, session, namespace, name).await,
        (&Method::POST, [namespace, name, "frame"]) => {
            frame(state, session, (namespace, name), headers, body).await
        }
        _ => Err((StatusCode::NOT_FOUND, "there is nothing here".to_owned())),
    };
    match answered {
        Ok(value) => answer::json(StatusCode::OK, &value),
        Err((status, why)) => answer::refuse(status, &why),
    }
}

async fn manifest(state: &State, session: &Session, namespace: &str, name: &str) -> Result<Value, Refusal> {
    let (bundle, version) = read(state, session, namespace, name).await?;
    Ok(json!({ "manifest": bundle.manifest, "version": version }))
}

async fn frame(
    state: &State,
    session: &Session,
    (namespace, name): (&str, &str),
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Value, Refusal> {
    let wanted: Wanted = serde_json::from_slice(body)
        .map_err(|error| (StatusCode::BAD_REQUEST, format!("this names no page: {error}")))?;
    let (bundle, version) = read(state, session, namespace, name).await?;
    if version != wanted.version {
        return Err((StatusCode::CONFLICT, "the bundle was changed meanwhile".to_owned()));
    }
    let our_host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let content = content(bundle, &wanted.page, our_host)?;
    let isolated = matches!(content, Content::Code { .. });
    Ok(json!({ "path": state.frames.open(content), "isolated": isolated }))
}

/// What a page's frame holds.
fn content(bundle: Bundle, page: &str, our_host: &str) -> Result<Content, Refusal> {
    let refuse = |why: &str| (StatusCode::UNPROCESSABLE_ENTITY, why.to_owned());
    let pages = bundle.manifest["pages"].as_array();
    let found = pages.into_iter().flatten().find(|one| one["id"] == page);
    let found = found.ok_or_else(|| refuse("the bundle has no such page"))?;
    if found["entryComponent"] != SITE {
        return Ok(Content::Code { module: bundle.module });
    }
    let source = found["props"]["src"].as_str().ok_or_else(|| refuse("the page names no site"))?;
    let policy = frames::around(source, our_host).map_err(refuse)?;
    Ok(Content::Site { source: source.to_owned(), policy })
}

/// The bundle and its version, if all of it is what was built.
async fn read(
    state: &State,
    session: &Session,
    namespace: &str,
    name: &str,
) -> Result<(Bundle, String), Refusal> {
    let path = format!("/apis/frontend-forge.io/v1alpha1/namespaces/{namespace}/jsbundles/{name}");
    let object = kube_api::read(state, session, &path).await?;
    let bundle =
        bundle::read(&object).map_err(|error| (StatusCode::UNPROCESSABLE_ENTITY, error.to_string()))?;
    Ok((bundle, version(&object)))
}

/// Names one content of a bundle; changes of its status do not count. Pages make the same from its metadata.
fn version(object: &Value) -> String {
    let metadata = &object["metadata"];
    let generation = metadata["generation"].as_i64().unwrap_or_default();
    format!("{}/{generation}", metadata["uid"].as_str().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_page_is_code_or_a_site() {
        let bundle = |page: Value| Bundle {
            manifest: json!({ "pages": [page] }),
            module: Bytes::from_static(b"export {}"),
        };
        let opened = |page: Value, id: &str| content(bundle(page), id, "127.0.0.1:1");
        let table = json!({ "id": "a", "entryComponent": "CrdTable" });
        assert!(matches!(opened(table.clone(), "a"), Ok(Content::Code { .. })));
        assert!(opened(table, "b").is_err());
        let site =
            |source: &str| json!({ "id": "a", "entryComponent": "Iframe", "props": { "src": source } });
        assert!(matches!(opened(site("https://a/"), "a"), Ok(Content::Site { .. })));
        assert!(opened(site("http://127.0.0.1:1/"), "a").is_err(), "we are not shown in ourselves");
        assert!(opened(json!({ "id": "a", "entryComponent": "Iframe" }), "a").is_err());
    }
}
