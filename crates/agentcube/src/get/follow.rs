//! `get --watch`: what is there, then every change, until interrupted. A watch that ends is taken up again where it
//! ended; one that fell behind starts over with what is there.

use std::time::Duration;

use serde_json::Value;

use super::rows::{Layout, Rows};
use super::{Arguments, Format, TABLE, Target};
use crate::client::{Error, Server, query};
use crate::exit::Outcome;
use crate::output::{self, Machine};

/// Between attempts when the server cannot be reached any more.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) async fn run(
    arguments: &Arguments,
    server: &Server,
    target: &Target<'_>,
) -> anyhow::Result<Outcome> {
    let mut screen = Screen { arguments, target, widths: Vec::new(), rows: Rows::default(), header: true };
    let path = target.kind.path(arguments.place(server), None);
    let accept = screen.accept();
    let mut name = target.name.as_deref().map(|name| format!("metadata.name={name}"));
    if let (Some(name), Some(fields)) = (&mut name, &arguments.field_selector) {
        name.push_str(&format!(",{fields}"));
    }
    let fields = name.or_else(|| arguments.field_selector.clone());
    loop {
        let labels = arguments.selector.as_deref();
        let options = query(&[("labelSelector", labels), ("fieldSelector", fields.as_deref())]);
        let list = server.get_as(&format!("{path}{options}"), accept).await?;
        screen.list(&list)?;
        let mut version = list["metadata"]["resourceVersion"].as_str().unwrap_or_default().to_owned();
        loop {
            let options = query(&[
                ("labelSelector", labels),
                ("fieldSelector", fields.as_deref()),
                ("watch", Some("true")),
                ("allowWatchBookmarks", Some("true")),
                ("resourceVersion", Some(&version)),
            ]);
            match watch(&mut screen, server, &format!("{path}{options}"), &mut version).await {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => return Err(error),
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Shows events until the stream ends; `false` when the version is too old to go on from.
async fn watch(
    screen: &mut Screen<'_>,
    server: &Server,
    path: &str,
    version: &mut String,
) -> anyhow::Result<bool> {
    let mut lines = match server.lines(path, screen.accept()).await {
        Ok(lines) => lines,
        Err(Error::Refused(refusal)) if refusal.code == 410 => return Ok(false),
        Err(error) => return Err(error.into()),
    };
    while let Some(line) = lines.next().await? {
        let event: Value = serde_json::from_slice(&line)?;
        let object = &event["object"];
        if event["type"] == "ERROR" {
            return Ok(false);
        }
        let seen = object["metadata"]["resourceVersion"].as_str().filter(|version| !version.is_empty());
        let inner = object["rows"][0]["object"]["metadata"]["resourceVersion"].as_str();
        if let Some(seen) = seen.or(inner) {
            seen.clone_into(version);
        }
        if event["type"] != "BOOKMARK" {
            screen.event(object)?;
        }
    }
    Ok(true)
}

struct Screen<'a> {
    arguments: &'a Arguments,
    target: &'a Target<'a>,
    widths: Vec<usize>,
    rows: Rows,
    header: bool,
}

impl Screen<'_> {
    fn accept(&self) -> &'static str {
        match self.arguments.output {
            Some(Format::Json | Format::Yaml) => "application/json",
            _ => TABLE,
        }
    }

    fn list(&mut self, list: &Value) -> anyhow::Result<()> {
        if self.accept() == TABLE {
            return self.event(list);
        }
        for item in super::list_items(self.target.kind, list.clone()) {
            self.event(&item)?;
        }
        Ok(())
    }

    fn event(&mut self, object: &Value) -> anyhow::Result<()> {
        match self.arguments.output {
            Some(Format::Json) => Machine::Json.print(object)?,
            Some(Format::Yaml) => {
                // Documents of a stream begin with a mark of their own.
                let text = format!("---\n{}", Machine::Yaml.render(object));
                output::write(text.as_bytes())?;
            }
            _ => self.show(object)?,
        }
        Ok(())
    }

    fn show(&mut self, table: &Value) -> anyhow::Result<()> {
        self.rows.clear();
        self.rows.add(table);
        if self.rows.is_empty() {
            return Ok(());
        }
        let text = if self.arguments.output == Some(Format::Name) {
            self.rows.names().map(|name| format!("{}\n", self.target.kind.called(name))).collect()
        } else {
            let layout = Layout {
                wide: self.arguments.output == Some(Format::Wide),
                namespaces: self.arguments.all_namespaces && self.target.kind.namespaced,
                header: self.header && !self.arguments.no_headers,
                kind: None,
            };
            self.header = false;
            self.rows.table(&layout).render_within(&mut self.widths)
        };
        output::write(text.as_bytes())?;
        Ok(())
    }
}
