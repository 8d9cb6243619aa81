//! Watching: what is there, then every change, as encoded lines.

use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Api;
use super::read::{expired, in_future, parse_version};
use crate::faults::WatchFault;
use crate::output::Rendering;
use crate::request::{Query, Selection};
use crate::resource::Resource;
use crate::status::{FieldError, Status};
use crate::store::{Cursor, Event, EventKind, HistoryError, Object, Range, Revision};

/// Events taken from the log at a time; bounds what one watcher holds in memory.
const BATCH: usize = 128;
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
const LONGEST: Duration = Duration::from_secs(3600);

/// A watch as it was asked for.
#[derive(Debug, Clone)]
pub struct WatchRequest<'a> {
    pub namespace: Option<&'a str>,
    pub selection: Selection,
    start: Start,
    pub bookmarks: bool,
    pub timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// Every change after a revision.
    After(Revision),
    /// First what is there, as additions.
    Existing,
    /// The same, and a bookmark that says where the additions end.
    ExistingThenBookmark,
}

impl<'a> WatchRequest<'a> {
    pub fn parse(namespace: Option<&'a str>, query: &Query) -> Result<Self, Status> {
        let selection = Selection::parse(query)?;
        let mut errors = Vec::new();
        let matching = query.get("resourceVersionMatch");
        if query.has("sendInitialEvents") && matching != "NotOlderThan" {
            let detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
            errors.push(FieldError::forbidden("resourceVersionMatch", detail));
            if !matching.is_empty() {
                errors.push(FieldError::not_supported("resourceVersionMatch", matching, &["NotOlderThan"]));
            }
        }
        if !query.has("sendInitialEvents") && !matching.is_empty() {
            let detail = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
            errors.push(FieldError::forbidden("resourceVersionMatch", detail));
        }
        if !errors.is_empty() {
            return Err(Status::invalid("meta.k8s.io", "ListOptions", "", &errors));
        }
        let revision = parse_version(query.get("resourceVersion"))?;
        let start = match (query.flag("sendInitialEvents"), revision) {
            (true, _) => Start::ExistingThenBookmark,
            (false, 0) if query.has("sendInitialEvents") => Start::After(0),
            (false, 0) => Start::Existing,
            (false, revision) => Start::After(revision),
        };
        let timeout = match query.number("timeoutSeconds")? {
            Some(seconds) if seconds > 0 => Duration::from_secs(seconds.unsigned_abs()),
            _ => LONGEST / 2,
        };
        Ok(Self {
            namespace,
            selection,
            start,
            bookmarks: query.flag("allowWatchBookmarks"),
            timeout: timeout.min(LONGEST),
        })
    }
}

impl WatchRequest<'_> {
    /// Narrows the watch to one object.
    pub fn only(&mut self, name: &str) {
        self.selection.fields.require("metadata.name", name);
    }
}

/// A watch under way: yields lines until its time is up.
pub struct Watcher {
    resource: Arc<Resource>,
    namespace: Option<String>,
    selection: Selection,
    rendering: Rendering,
    cursor: Cursor,
    /// Lines that are ready.
    ready: Option<Bytes>,
    bookmarks: bool,
    next_bookmark: Instant,
    end: Instant,
    ended: bool,
    fault: WatchFault,
}

impl Api {
    pub fn watch(
        &self,
        resource: &Arc<Resource>,
        request: &WatchRequest<'_>,
        rendering: Rendering,
    ) -> Result<Watcher, Status> {
        self.check_selectable(resource, &request.selection)?;
        let store = self.store();
        let (cursor, existing) = match request.start {
            Start::After(0) => (store.watch(&resource.storage, store.revision()), None),
            Start::After(revision) => (store.watch(&resource.storage, revision), None),
            Start::Existing | Start::ExistingThenBookmark => {
                let range = Range { namespace: request.namespace, ..Range::default() };
                let page = store
                    .list(&resource.storage, &range, |object| resource.selects(&request.selection, object))
                    .map_err(|error| expired(error.to_string()))?;
                (store.watch(&resource.storage, page.revision), Some(page))
            }
        };
        let cursor = cursor.map_err(|error| match error {
            HistoryError::TooOld { .. } => expired(error.to_string()),
            HistoryError::InFuture { asked, current } => in_future(asked, current),
        })?;
        let now = Instant::now();
        let mut watcher = Watcher {
            resource: resource.clone(),
            namespace: request.namespace.map(str::to_owned),
            selection: request.selection.clone(),
            rendering,
            cursor,
            ready: None,
            bookmarks: request.bookmarks,
            next_bookmark: now + BOOKMARK_EVERY,
            end: now + request.timeout,
            ended: false,
            fault: self.faults().watch(),
        };
        if let Some(page) = existing {
            let mut lines = BytesMut::new();
            for object in &page.items {
                watcher.line(&mut lines, "ADDED", object);
            }
            if request.start == Start::ExistingThenBookmark && request.bookmarks {
                let annotations = json!({"k8s.io/initial-events-end": "true"});
                watcher.bookmark(&mut lines, page.revision, Some(annotations));
            }
            watcher.ready = (!lines.is_empty()).then(|| lines.freeze());
        }
        Ok(watcher)
    }
}

impl Watcher {
    /// The next lines; `None` when the watch is over. Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(lines) = self.ready.take() {
                return Some(lines);
            }
            if self.ended || self.fault.drops() {
                return None;
            }
            self.fault.lag().await;
            match self.cursor.take(BATCH) {
                Err(_) => return Some(self.fall_behind()),
                Ok((events, seen)) => {
                    let mut lines = BytesMut::new();
                    for event in &events {
                        self.event(&mut lines, event);
                    }
                    if self.bookmarks && Instant::now() >= self.next_bookmark {
                        self.next_bookmark = Instant::now() + BOOKMARK_EVERY;
                        self.bookmark(&mut lines, seen, None);
                    }
                    if !lines.is_empty() {
                        return Some(lines.freeze());
                    }
                    if !events.is_empty() {
                        continue;
                    }
                }
            }
            let wake = if self.bookmarks { self.end.min(self.next_bookmark) } else { self.end };
            tokio::select! {
                () = self.cursor.changed() => {}
                () = tokio::time::sleep_until(wake) => {}
            }
            if Instant::now() >= self.end {
                self.ended = true;
            }
        }
    }

    /// The log has moved on past this watcher: it is told to list again.
    fn fall_behind(&mut self) -> Bytes {
        self.ended = true;
        let status = expired("The resourceVersion for the provided watch is too old.").to_json();
        let mut line = serde_json::to_vec(&json!({"type": "ERROR", "object": status})).unwrap_or_default();
        line.push(b'\n');
        line.into()
    }

    /// A change, as this watcher's selection sees it: what begins to match is added, what ceases is deleted.
    fn event(&mut self, lines: &mut BytesMut, event: &Event) {
        let within = |object: &Object| {
            self.namespace.as_deref().is_none_or(|namespace| object.namespace() == namespace)
                && self.resource.selects(&self.selection, object)
        };
        let before = event.previous.as_deref().is_some_and(within);
        let after = event.kind != EventKind::Deleted && within(&event.object);
        match (before, after) {
            (false, true) => self.line(lines, "ADDED", &event.object),
            (true, true) => self.line(lines, "MODIFIED", &event.object),
            (true, false) if event.kind == EventKind::Deleted => self.line(lines, "DELETED", &event.object),
            (true, false) => {
                // The last state that matched, under the revision at which it ceased to.
                if let Some(previous) = &event.previous {
                    let last = previous.at_revision(event.revision);
                    self.line(lines, "DELETED", &last);
                }
            }
            (false, false) => {}
        }
    }

    fn line(&mut self, lines: &mut BytesMut, kind: &str, object: &Object) {
        lines.put_slice(b"{\"type\":\"");
        lines.put_slice(kind.as_bytes());
        lines.put_slice(b"\",\"object\":");
        self.rendering.object(&self.resource, object, lines);
        self.rendering.after_first();
        lines.put_slice(b"}\n");
    }

    fn bookmark(&mut self, lines: &mut BytesMut, revision: Revision, annotations: Option<Value>) {
        let object = self.rendering.bookmark(&self.resource, revision, annotations);
        let line = serde_json::to_vec(&json!({"type": "BOOKMARK", "object": object})).unwrap_or_default();
        lines.put_slice(&line);
        lines.put_u8(b'\n');
    }
}
