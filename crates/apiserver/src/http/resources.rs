//! The verbs on resources: one function each, the same for built-in and custom kinds.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, Method, Response, StatusCode, header};
use serde_json::Value;

use super::reply::{self, ReplyBody};
use super::{exec, options, portforward};
use crate::api::{Api, Body, Creation, DeleteOptions, ListRequest, Name, PatchKind, WatchRequest, Written};
use crate::builtin;
use crate::codec::{self, Media};
use crate::go_json;
use crate::hooks::LogOptions;
use crate::output::Rendering;
use crate::protobuf::{self, TypeName};
use crate::request::{Query, Target};
use crate::resource::Resource;
use crate::status::{FieldError, Status};

/// A request, with everything about it that the verbs need.
struct Call<'a> {
    api: &'a Api,
    resource: Arc<Resource>,
    target: &'a Target,
    parts: Parts,
    query: Query,
    body: Bytes,
    rendering: Rendering,
}

pub(super) async fn serve(
    api: &Api,
    target: Target,
    parts: Parts,
    body: Bytes,
) -> Result<Response<ReplyBody>, Status> {
    let registry = api.registry();
    let Some(resource) = registry.find(&target.group, &target.version, &target.resource) else {
        let known = registry.all().any(|r| r.is_builtin() && r.group == target.group);
        return Err(if known { Status::page_not_found() } else { Status::no_such_path() });
    };
    // A namespaced object is addressed through its namespace; only lists and watches go without.
    let scope_fits = match (&target.namespace, resource.namespaced) {
        (Some(_), namespaced) => namespaced,
        (None, true) => target.name.is_none(),
        (None, false) => true,
    };
    if !scope_fits {
        return Err(if resource.is_builtin() { Status::page_not_found() } else { Status::no_such_path() });
    }
    let query = Query::parse(parts.uri.query());
    let accept = parts.headers.get(header::ACCEPT).and_then(|v| v.to_str().ok());
    let rendering = Rendering::negotiate(accept, query.get("includeObject"));
    let is_log = target.subresource.as_deref() == Some("log");
    let rendering = match rendering {
        Some(rendering) => rendering,
        None if is_log => Rendering::Whole,
        None => return Err(not_acceptable(accept.unwrap_or_default(), query.flag("watch"))),
    };
    if !query.flag("watch") && !target.watch_prefix {
        check_plurality(&rendering, accept.unwrap_or_default(), &resource, target.name.is_none())?;
    }
    if matches!(rendering, Rendering::Table { .. }) {
        check_include(query.get("includeObject"))?;
    }
    let notice = resource.deprecation();
    let call = Call { api, resource, target: &target, parts, query, body, rendering };
    match (call.dispatch().await, notice) {
        (outcome, None) => outcome,
        (outcome, Some(notice)) => {
            let mut response = outcome.unwrap_or_else(|status| reply::failure(&status));
            reply::warn(&mut response, notice);
            Ok(response)
        }
    }
}

/// What the rows of a table may carry.
fn check_include(include: &str) -> Result<(), Status> {
    if matches!(include, "" | "None" | "Metadata" | "Object") {
        return Ok(());
    }
    let error =
        FieldError::invalid("includeObject", include, "must be 'Metadata', 'Object', 'None', or empty");
    Err(Status::bad_request(format!("Unable to convert to Table as requested: {error}")))
}

/// Metadata of one object and of a list are asked for under different names.
fn check_plurality(
    rendering: &Rendering,
    accept: &str,
    resource: &Resource,
    list: bool,
) -> Result<(), Status> {
    if *rendering != Rendering::Metadata {
        return Ok(());
    }
    let asked_for_list = accept.contains("as=PartialObjectMetadataList");
    let both = asked_for_list
        && accept.replace("PartialObjectMetadataList", "").contains("as=PartialObjectMetadata");
    if both || asked_for_list == list || !resource.is_builtin() {
        return Ok(());
    }
    let internal =
        if resource.group.is_empty() { "core" } else { resource.group.split('.').next().unwrap_or_default() };
    let message = match asked_for_list {
        true => format!(
            "you requested PartialObjectMetadataList, but the requested object is not a list (*{internal}.{})",
            resource.kind
        ),
        false => format!(
            "you requested PartialObjectMetadata, but the requested object is a list (*{internal}.{})",
            resource.list_kind
        ),
    };
    Err(Status::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message))
}

fn not_acceptable(accept: &str, watch: bool) -> Status {
    const TYPES: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";
    const STREAMS: &str = ", application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch";
    if accept.contains("application/json") {
        let message = format!("only the following media types are accepted: {TYPES}");
        return Status::new(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message);
    }
    let streams = if watch { STREAMS } else { "" };
    let message = format!("406: Not Acceptable\n\nAvailable representations: {TYPES}{streams}");
    Status::bare(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message)
}

fn method_not_allowed() -> Status {
    Status::method_not_allowed("the server does not allow this method on the requested resource")
}

impl Call<'_> {
    async fn dispatch(self) -> Result<Response<ReplyBody>, Status> {
        let verb = self.parts.method.clone();
        match (self.target.name.is_some(), self.target.subresource.as_deref()) {
            (false, _) => match verb {
                Method::GET if self.target.watch_prefix || self.query.flag("watch") => self.watch(),
                Method::GET => self.list(),
                Method::POST => self.create().await,
                Method::DELETE => self.delete_collection().await,
                _ => Err(method_not_allowed()),
            },
            (true, None) => match verb {
                Method::GET if self.target.watch_prefix => self.watch(),
                Method::GET => self.get(),
                Method::PUT => self.update("").await,
                Method::PATCH => self.patch("").await,
                Method::DELETE => self.delete().await,
                _ => Err(method_not_allowed()),
            },
            (true, Some(subresource)) => self.subresource(verb, subresource).await,
        }
    }

    async fn subresource(&self, verb: Method, subresource: &str) -> Result<Response<ReplyBody>, Status> {
        if !self.resource.has_subresource(subresource) {
            return Err(match (self.resource.is_builtin(), &self.target.name) {
                (false, Some(name)) => Status::not_found(&self.resource.group, &self.resource.plural, name),
                _ => Status::page_not_found(),
            });
        }
        match (subresource, verb) {
            ("status", Method::GET) => self.get(),
            ("status", Method::PUT) => self.update("status").await,
            ("status", Method::PATCH) => self.patch("status").await,
            ("scale", Method::GET) => {
                let scale = self.api.scale(&self.resource, &self.name()?)?;
                Ok(reply::json(StatusCode::OK, &scale))
            }
            ("scale", Method::PUT) => self.update_scale().await,
            ("scale", Method::PATCH) => self.patch_scale().await,
            ("log", Method::GET) => self.log().await,
            ("exec" | "attach", Method::GET | Method::POST) => {
                exec::serve(self.api, &self.resource, &self.name()?, &self.parts, &self.query, subresource)
                    .await
            }
            ("portforward", Method::GET | Method::POST) => {
                portforward::serve(self.api, &self.resource, &self.name()?, &self.parts, &self.query).await
            }
            ("binding", Method::POST) => self.bind().await,
            ("eviction", Method::POST) => self.evict().await,
            ("finalize", Method::PUT) => self.update("finalize").await,
            (_, verb) => Err(self.unsupported(&verb)),
        }
    }

    /// Custom resources say which verb they lack; the others only that they do.
    fn unsupported(&self, method: &Method) -> Status {
        let verb = match *method {
            Method::POST => "create",
            Method::DELETE => "delete",
            _ => "get",
        };
        if self.resource.is_builtin() {
            return method_not_allowed();
        }
        let what = crate::status::qualified(&self.resource.group, &self.resource.plural);
        let message = format!("{verb} is not supported on resources of kind {what:?}");
        Status::method_not_allowed(message).about("", &self.resource.group, &self.resource.plural)
    }

    fn namespace(&self) -> Option<&str> {
        self.target.namespace.as_deref()
    }

    fn name(&self) -> Result<Name<'_>, Status> {
        let name = self.target.name.as_deref().ok_or_else(Status::page_not_found)?;
        Ok(Name { namespace: self.namespace(), name })
    }

    fn get(&self) -> Result<Response<ReplyBody>, Status> {
        let version = self.query.get("resourceVersion");
        if !version.is_empty() && version.parse::<u64>().is_err() {
            let detail = format!("strconv.ParseUint: parsing {version:?}: invalid syntax");
            let error = FieldError::invalid("resourceVersion", version, detail);
            return Err(Status::new(StatusCode::INTERNAL_SERVER_ERROR, "", error.to_string()));
        }
        let object = self.api.find(&self.resource, &self.name()?)?;
        Ok(self.answer(StatusCode::OK, Body::Stored(object), &[]))
    }

    fn list(&self) -> Result<Response<ReplyBody>, Status> {
        let request = ListRequest::parse(self.namespace(), &self.query)?;
        let listing = self.api.list(&self.resource, &request)?;
        Ok(reply::list(&self.resource, listing, &self.rendering))
    }

    fn watch(&self) -> Result<Response<ReplyBody>, Status> {
        let mut request = WatchRequest::parse(self.namespace(), &self.query)?;
        if let Some(name) = &self.target.name {
            request.only(name);
        }
        match self.api.watch(&self.resource, &request, self.rendering.clone()) {
            Ok(watcher) => Ok(reply::watch(watcher)),
            // A watch that cannot start where it was asked to says so as its first and only event.
            Err(status) if status.code == StatusCode::GONE => {
                let event = serde_json::json!({"type": "ERROR", "object": status.to_json()});
                Ok(reply::json(StatusCode::OK, &event))
            }
            Err(status) => Err(status),
        }
    }

    async fn create(&self) -> Result<Response<ReplyBody>, Status> {
        let intent = options::intent("CreateOptions", &self.query, &self.parts.headers, false)?;
        if self.resource.namespaced && self.namespace().is_none() {
            return Err(method_not_allowed());
        }
        let creation = self.decode()?;
        let written = self.api.create(&self.resource, self.namespace(), creation, &intent).await?;
        Ok(self.written(written))
    }

    async fn update(&self, subresource: &str) -> Result<Response<ReplyBody>, Status> {
        let intent = options::intent("UpdateOptions", &self.query, &self.parts.headers, false)?;
        let body = self.decode()?;
        let written = self.api.update(&self.resource, &self.name()?, subresource, body, &intent).await?;
        Ok(self.written(written))
    }

    async fn patch(&self, subresource: &str) -> Result<Response<ReplyBody>, Status> {
        let kind = self.patch_kind()?;
        let apply = matches!(kind, PatchKind::Apply { .. });
        let intent = options::intent("PatchOptions", &self.query, &self.parts.headers, apply)?;
        let patch = self.decode_patch(kind)?;
        let written =
            self.api.patch(&self.resource, &self.name()?, subresource, kind, patch, &intent).await?;
        Ok(self.written(written))
    }

    async fn delete(&self) -> Result<Response<ReplyBody>, Status> {
        let options = self.delete_options()?;
        let body = self.api.delete(&self.resource, &self.name()?, &options).await?;
        Ok(self.answer(StatusCode::OK, body, &[]))
    }

    async fn delete_collection(&self) -> Result<Response<ReplyBody>, Status> {
        if !self.resource.deletes_collections() || (self.resource.namespaced && self.namespace().is_none()) {
            return Err(method_not_allowed());
        }
        let options = self.delete_options()?;
        let request = ListRequest::parse(self.namespace(), &self.query)?;
        let listing = self.api.delete_collection(&self.resource, &request, &options).await?;
        Ok(reply::list(&self.resource, listing, &self.rendering))
    }

    async fn update_scale(&self) -> Result<Response<ReplyBody>, Status> {
        let intent = options::intent("UpdateOptions", &self.query, &self.parts.headers, false)?;
        let scale = self.decode()?.value;
        let scale = self.api.update_scale(&self.resource, &self.name()?, scale, &intent).await?;
        Ok(reply::json(StatusCode::OK, &scale))
    }

    async fn patch_scale(&self) -> Result<Response<ReplyBody>, Status> {
        let kind = self.patch_kind()?;
        let intent = options::intent("PatchOptions", &self.query, &self.parts.headers, false)?;
        let patch = self.decode_patch(kind)?.value;
        let scale = self.api.patch_scale(&self.resource, &self.name()?, kind, &patch, &intent).await?;
        Ok(reply::json(StatusCode::OK, &scale))
    }

    async fn bind(&self) -> Result<Response<ReplyBody>, Status> {
        let intent = options::intent("CreateOptions", &self.query, &self.parts.headers, false)?;
        let binding = self.decode()?.value;
        let done = self.api.bind(&self.resource, &self.name()?, &binding, &intent).await?;
        Ok(reply::json(StatusCode::CREATED, &done))
    }

    async fn evict(&self) -> Result<Response<ReplyBody>, Status> {
        let eviction = self.decode()?.value;
        let intent = options::intent("CreateOptions", &self.query, &self.parts.headers, false)?;
        let mut options = DeleteOptions::parse(&eviction["deleteOptions"])?;
        options.dry_run |= intent.dry_run;
        self.api.delete(&self.resource, &self.name()?, &options).await?;
        let done = serde_json::json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201});
        Ok(reply::json(StatusCode::CREATED, &done))
    }

    async fn log(&self) -> Result<Response<ReplyBody>, Status> {
        let number = |key: &str| self.query.number(key).map(|n| n.and_then(|n| u64::try_from(n).ok()));
        let text = |key: &str| Some(self.query.get(key)).filter(|s| !s.is_empty()).map(str::to_owned);
        let options = LogOptions {
            container: text("container"),
            follow: self.query.flag("follow"),
            previous: self.query.flag("previous"),
            timestamps: self.query.flag("timestamps"),
            tail_lines: number("tailLines")?,
            limit_bytes: number("limitBytes")?,
            since_seconds: number("sinceSeconds")?,
            since_time: text("sinceTime"),
        };
        match self.api.logs(&self.resource, &self.name()?, options).await? {
            Some(chunks) => Ok(reply::log(chunks)),
            None => Ok(reply::nothing()),
        }
    }

    fn answer(&self, code: StatusCode, body: Body, warnings: &[String]) -> Response<ReplyBody> {
        reply::object(code, &self.resource, body, &self.rendering, warnings)
    }

    fn written(&self, written: Written) -> Response<ReplyBody> {
        let code = if written.created { StatusCode::CREATED } else { StatusCode::OK };
        self.answer(code, written.body, &written.warnings)
    }

    fn decode(&self) -> Result<Creation, Status> {
        let media = Media::of(content_type(&self.parts.headers))?;
        if media == Media::Protobuf {
            return self.decode_protobuf().map(Creation::from);
        }
        let value = codec::decode(media, &self.body).map_err(|problem| {
            let problem = match media {
                Media::Json => format!("couldn't get version/kind; json parse error: {problem}"),
                Media::Yaml | Media::Protobuf => problem,
            };
            self.resource.unrecognized(&problem, &self.body)
        })?;
        let value = match value {
            // Nothing at all is an object with nothing in it.
            Value::Null if self.resource.is_builtin() => serde_json::json!({}),
            value => value,
        };
        if !value.is_object() && !value.is_null() {
            let problem = format!(
                "couldn't get version/kind; json parse error: json: cannot unmarshal {} into Go value of type struct \
                 {{ APIVersion string \"json:\\\"apiVersion,omitempty\\\"\"; Kind string \"json:\\\"kind,omitempty\\\"\" }}",
                go_json::type_name(&value)
            );
            return Err(self.resource.unrecognized(&problem, &self.body));
        }
        if !self.resource.is_builtin() && value["kind"].as_str().unwrap_or_default().is_empty() {
            let problem = format!("Object 'Kind' is missing in '{}'", String::from_utf8_lossy(&self.body));
            return Err(self.resource.unrecognized(&problem, &self.body));
        }
        Ok(Creation { value, raw: (media != Media::Protobuf).then(|| self.body.clone()) })
    }

    /// What the body has to be.
    fn expected(&self) -> TypeName<'_> {
        match self.target.subresource.as_deref() {
            Some("scale") => TypeName { api_version: "autoscaling/v1", kind: "Scale" },
            Some("eviction") => TypeName { api_version: "policy/v1", kind: "Eviction" },
            Some("binding") => TypeName { api_version: "v1", kind: "Binding" },
            _ => TypeName { api_version: &self.resource.api_version, kind: &self.resource.kind },
        }
    }

    fn decode_protobuf(&self) -> Result<Value, Status> {
        let expected = self.expected();
        let own = expected.kind == self.resource.kind && expected.api_version == self.resource.api_version;
        // The real server breaks off the connection here; what it says of other formats is the answer it lacks.
        if own && !self.resource.is_builtin() {
            return Err(Media::unsupported());
        }
        let value = protobuf::decode(&self.body, expected).map_err(|error| match &error {
            protobuf::Error::Message { api_version, kind, .. } => {
                cannot_handle(TypeName { api_version, kind }, expected, &error.to_string())
            }
            _ => self.resource.unrecognized(&error.to_string(), &self.body),
        })?;
        let text = |key: &str| value[key].as_str().unwrap_or_default();
        let said = TypeName { api_version: text("apiVersion"), kind: text("kind") };
        // Objects are checked where they are admitted; what else is sent is checked here.
        if own || said == expected {
            return Ok(value);
        }
        let problem = match builtin::by_kind(said.api_version, said.kind) {
            Some(other) => {
                let group = expected.api_version.split_once('/').map_or("core", |(group, _)| group);
                let (version, kind) = (other.version, expected.kind);
                format!("converting ({version}.{}) to ({group}.{kind}): unknown conversion", other.kind)
            }
            None => unregistered(said.kind, said.api_version),
        };
        Err(cannot_handle(said, expected, &problem))
    }

    /// Nothing else is known where the body of a DELETE is read.
    fn protobuf_options(&self) -> Result<Value, Status> {
        let options = TypeName { api_version: "v1", kind: "DeleteOptions" };
        protobuf::decode(&self.body, options).map_err(|error| {
            Status::bad_request(match &error {
                protobuf::Error::Message { api_version, kind, .. } if kind != options.kind => {
                    unregistered(kind, api_version)
                }
                _ => error.to_string(),
            })
        })
    }

    fn patch_kind(&self) -> Result<PatchKind, Status> {
        let essence =
            content_type(&self.parts.headers).unwrap_or_default().split(';').next().unwrap_or_default();
        match essence.trim() {
            "application/json-patch+json" => Ok(PatchKind::Json),
            "application/merge-patch+json" => Ok(PatchKind::Merge),
            "application/strategic-merge-patch+json" if self.resource.is_builtin() => {
                Ok(PatchKind::Strategic)
            }
            "application/apply-patch+yaml" => Ok(PatchKind::Apply { force: self.query.flag("force") }),
            _ if self.resource.is_builtin() => Err(Status::bare(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "UnsupportedMediaType",
                "415: Unsupported Media Type",
            )),
            _ => Err(codec::unsupported_media(&[
                "application/json-patch+json",
                "application/merge-patch+json",
                "application/apply-patch+yaml",
            ])),
        }
    }

    fn decode_patch(&self, kind: PatchKind) -> Result<Creation, Status> {
        let yaml = matches!(kind, PatchKind::Apply { .. }) && !self.body.trim_ascii_start().starts_with(b"{");
        let media = if yaml { Media::Yaml } else { Media::Json };
        let value = codec::decode(media, &self.body).map_err(|problem| match kind {
            PatchKind::Apply { .. } => {
                Status::bad_request(format!("error decoding YAML: error converting YAML to JSON: {problem}"))
            }
            _ => Status::bad_request(format!("error decoding patch: {problem}")),
        })?;
        if matches!(kind, PatchKind::Apply { .. }) && !value.is_object() && !value.is_null() {
            return Err(Status::bad_request(format!(
                "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {} into Go \
                 value of type map[string]interface {{}}",
                go_json::type_name(&value)
            )));
        }
        Ok(Creation { value, raw: (media == Media::Json).then(|| self.body.clone()) })
    }

    fn delete_options(&self) -> Result<DeleteOptions, Status> {
        let mut value = match self.body.is_empty() {
            true => Value::Null,
            false => {
                let media = Media::of(content_type(&self.parts.headers))?;
                match media {
                    Media::Protobuf => self.protobuf_options()?,
                    Media::Json | Media::Yaml => codec::decode(media, &self.body).map_err(|problem| {
                        Status::bad_request(format!("couldn't get version/kind; json parse error: {problem}"))
                    })?,
                }
            }
        };
        check_options_type(&value)?;
        if value.is_null() {
            value = serde_json::json!({});
            if let Some(grace) = self.query.number("gracePeriodSeconds")? {
                value["gracePeriodSeconds"] = grace.into();
            }
            if self.query.has("propagationPolicy") {
                value["propagationPolicy"] = self.query.get("propagationPolicy").into();
            }
            if self.query.has("orphanDependents") {
                value["orphanDependents"] = self.query.flag("orphanDependents").into();
            }
        }
        let mut errors: Vec<FieldError> = Vec::new();
        let dry_run = options::dry_run(&self.query, &mut errors);
        if !errors.is_empty() {
            return Err(Status::invalid("meta.k8s.io", "DeleteOptions", "", &errors));
        }
        let mut parsed = DeleteOptions::parse(&value)?;
        parsed.dry_run |= dry_run;
        Ok(parsed)
    }
}

/// The body of a DELETE is `DeleteOptions`, of the group or of `v1`, or nothing.
fn check_options_type(value: &Value) -> Result<(), Status> {
    let kind = value["kind"].as_str().unwrap_or("DeleteOptions");
    if kind == "DeleteOptions" {
        return Ok(());
    }
    let version = value["apiVersion"].as_str().unwrap_or("v1");
    Err(Status::bad_request(unregistered(kind, version)))
}

fn unregistered(kind: &str, version: &str) -> String {
    format!("no kind {kind:?} is registered for version {version:?} in scheme \"pkg/runtime/scheme.go:111\"")
}

/// The body says what it is, and it is not this.
fn cannot_handle(said: TypeName<'_>, wanted: TypeName<'_>, problem: &str) -> Status {
    let version = said.api_version.rsplit('/').next().unwrap_or_default();
    Status::bad_request(format!(
        "{} in version {version:?} cannot be handled as a {}: {problem}",
        said.kind, wanted.kind
    ))
}

fn content_type(headers: &HeaderMap) -> Option<&str> {
    headers.get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok())
}
