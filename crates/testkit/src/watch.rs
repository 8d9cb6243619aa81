//! Waits for the state of objects by watching them, as a controller would: no polling, and always a deadline.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use http::Method;
use serde_json::Value;
use tokio::time::Instant;

use crate::http_client::{HttpClient, Line, Lines, Request};
use crate::inventory;

/// Objects by name.
pub type Objects = BTreeMap<String, Value>;

/// The objects of one collection, kept up to date.
pub struct Watch {
    path: String,
    pub objects: Objects,
    events: Lines,
}

impl Watch {
    /// Lists a collection and follows it from there.
    pub async fn start(http: &HttpClient, path: &str) -> Result<Watch> {
        let reply = inventory::list(http, path).await?;
        ensure!(reply.is_success(), "cannot list {path}: {}", reply.value());
        let list = reply.value();
        let items = list["items"].as_array().with_context(|| format!("{path} is no list"))?;
        let objects = items.iter().map(|item| Ok((name(item)?, item.clone()))).collect::<Result<_>>()?;
        let version = reply.text("/metadata/resourceVersion")?;
        let more = if path.contains('?') { '&' } else { '?' };
        let request = Request::new(Method::GET, format!("{path}{more}watch=true&resourceVersion={version}"));
        let events = http.stream(request).await?;
        ensure!(events.status == 200, "cannot watch {path}: status {}", events.status);
        Ok(Watch { path: path.to_owned(), objects, events })
    }

    /// Takes in the next event; `false` when none came before the deadline.
    pub async fn next(&mut self, deadline: Instant) -> Result<bool> {
        let text = match self.events.next(deadline).await? {
            Line::Text(text) => text,
            Line::Deadline => return Ok(false),
            Line::End => bail!("the watch of {} has ended", self.path),
        };
        let event: Value = serde_json::from_slice(&text)?;
        let object = &event["object"];
        match event["type"].as_str() {
            Some("ADDED" | "MODIFIED") => drop(self.objects.insert(name(object)?, object.clone())),
            Some("DELETED") => drop(self.objects.remove(&name(object)?)),
            Some("BOOKMARK") => {}
            _ => bail!("the watch of {} says {event}", self.path),
        }
        Ok(true)
    }

    /// Follows until the objects are as wanted.
    pub async fn until(
        &mut self,
        what: &str,
        limit: Duration,
        mut wanted: impl FnMut(&Objects) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + limit;
        while !wanted(&self.objects) {
            if !self.next(deadline).await? {
                let seconds = limit.as_secs();
                bail!("{what}: not within {seconds} s; {} has\n{}", self.path, summary(&self.objects));
            }
        }
        Ok(())
    }
}

/// Waits until a collection is as wanted, and returns it.
pub async fn until(
    http: &HttpClient,
    path: &str,
    what: &str,
    limit: Duration,
    wanted: impl FnMut(&Objects) -> bool,
) -> Result<Objects> {
    let mut watch = Watch::start(http, path).await?;
    watch.until(what, limit, wanted).await?;
    Ok(watch.objects)
}

fn name(object: &Value) -> Result<String> {
    let name = object["metadata"]["name"].as_str();
    Ok(name.with_context(|| format!("an object without a name: {object}"))?.to_owned())
}

/// One line for each object: enough to see who is late.
fn summary(objects: &Objects) -> String {
    let line = |(name, object): (&String, &Value)| {
        let mut status = object["status"].clone();
        if let Some(status) = status.as_object_mut() {
            status.remove("conditions");
        }
        let leaving = object["metadata"]["deletionTimestamp"].as_str().map_or("", |_| " (leaving)");
        format!("    {name}{leaving}: {status}")
    };
    objects.iter().map(line).collect::<Vec<_>>().join("\n")
}
