//! One object over time: as it is, then at every change. A watch, so that nothing is asked again and again.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use super::{Error, Kind, Server, query};

/// Before a watch that has ended is begun anew.
const PAUSE: Duration = Duration::from_millis(100);

/// Which object.
#[derive(Debug, Clone)]
pub(crate) struct Followed {
    pub(crate) kind: Kind,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Followed {
    /// Has each state judged until a judgement comes; there is `None` to judge while there is no such object. Looks at
    /// least once; `None` when the time is over.
    pub(crate) async fn until<T>(
        &self,
        server: &Server,
        deadline: Instant,
        mut judge: impl FnMut(Option<&Value>) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let path = self.kind.path(Some(&self.namespace), None);
        let only = format!("metadata.name={}", self.name);
        loop {
            let mut list = server.get(&format!("{path}{}", query(&[("fieldSelector", Some(&only))]))).await?;
            let mut object = list["items"].as_array_mut().and_then(Vec::pop);
            if let Some(object) = &mut object {
                // What is in a list does not say what it is.
                object["apiVersion"] = json!(self.kind.api_version());
                object["kind"] = json!(self.kind.kind);
            }
            if let Some(judgement) = judge(object.as_ref()) {
                return Ok(Some(judgement));
            }
            let options = query(&[
                ("fieldSelector", Some(&only)),
                ("watch", Some("true")),
                ("resourceVersion", list["metadata"]["resourceVersion"].as_str()),
            ]);
            let path = format!("{path}{options}");
            match timeout_at(deadline, changes(server, &path, &mut judge)).await {
                Ok(Ok(None)) => tokio::time::sleep(PAUSE).await,
                Ok(judgement) => return judgement,
                Err(_) => return Ok(None),
            }
        }
    }
}

/// `None` when the watch ends without a judgement.
async fn changes<T>(
    server: &Server,
    path: &str,
    judge: &mut impl FnMut(Option<&Value>) -> Option<T>,
) -> Result<Option<T>, Error> {
    let mut lines = match server.lines(path, "application/json").await {
        Ok(lines) => lines,
        Err(Error::Refused(refusal)) if refusal.code == 410 => return Ok(None),
        Err(error) => return Err(error),
    };
    while let Some(line) = lines.next().await? {
        let event: Value = serde_json::from_slice(&line).map_err(|error| Error::Garbled {
            address: server.address().to_owned(),
            reason: error.to_string(),
        })?;
        let judgement = match event["type"].as_str() {
            Some("ADDED" | "MODIFIED") => judge(Some(&event["object"])),
            Some("DELETED") => judge(None),
            Some("BOOKMARK") => None,
            _ => return Ok(None),
        };
        if judgement.is_some() {
            return Ok(judgement);
        }
    }
    Ok(None)
}
