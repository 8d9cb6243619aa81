//! `agentcube apply`: makes objects as files say, by server-side apply. Goes on after a failure, and says for each what
//! became of it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use http::Method;
use serde_json::Value;

use crate::client::{Connection, Discovery, Error, Followed, Kind, Server, query};
use crate::environment::Environment;
use crate::exit::{Outcome, Usage, say};
use crate::manifest::{self, Document};
use crate::output::{self, progress};
use crate::readiness::{Readiness, readiness};

const FIELD_MANAGER: &str = "agentcube";
const APPLY_PATCH: &str = "application/apply-patch+yaml";
/// How long a definition may take to be served.
const SERVED_LIMIT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DryRun {
    /// The server does everything but keep the result
    Server,
}

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube apply -f agent.yaml
  agentcube apply -R -f ./manifests --wait
  kustomize build . | agentcube apply -f -
  agentcube apply -f agent.yaml --dry-run=server

Definitions and namespaces are applied before the rest. A file with an error is not applied at all; the others are.")]
pub(crate) struct Arguments {
    /// A file, a directory, or `-` for standard input; can be repeated
    #[arg(short, long, required = true, value_name = "FILE")]
    filename: Vec<PathBuf>,
    /// Look into the directories below as well
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Only try
    #[arg(long, value_name = "WHERE")]
    dry_run: Option<DryRun>,
    /// Wait until everything is ready
    #[arg(long)]
    wait: bool,
    /// How long to wait, in seconds
    #[arg(long, default_value_t = 300, value_name = "SECONDS")]
    timeout: u64,
    /// Take over fields that others have set
    #[arg(long)]
    force_conflicts: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Arguments {
    /// For whoever has documents and no files: ours, whoever else has written into them.
    pub(crate) fn whole(connection: Connection, wait: bool, timeout: u64) -> Arguments {
        Arguments {
            filename: Vec::new(),
            recursive: false,
            dry_run: None,
            wait,
            timeout,
            force_conflicts: true,
            connection,
        }
    }
}

pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let (documents, problems) = manifest::load(&arguments.filename, arguments.recursive);
    let failed = !problems.is_empty();
    problems.iter().for_each(|problem| say(&format!("error: {problem}")));
    if documents.is_empty() {
        return if failed {
            Ok(Outcome::Failed)
        } else {
            Err(Usage("the files hold no objects".into()).into())
        };
    }
    put(&arguments, documents, failed, environment).await
}

/// Applies documents; `failed` says whether something went wrong before.
pub(crate) async fn put(
    arguments: &Arguments,
    mut documents: Vec<Document>,
    mut failed: bool,
    environment: &Environment,
) -> anyhow::Result<Outcome> {
    documents.sort_by_key(|document| rank(&document.object));
    let server = arguments.connection.open(environment).await?;
    let discovery = Discovery::fetch(&server).await?;
    let mut applier = Applier { server, discovery, arguments, defined: false };
    let mut applied = Vec::new();
    for document in &documents {
        match applier.apply(document).await {
            Ok(done) => {
                output::write(format!("{} {}{}\n", done.called, done.verb, applier.suffix()).as_bytes())?;
                applied.push(done);
            }
            Err(Failure::Here(message)) => {
                say(&format!("error: {message}"));
                failed = true;
            }
            Err(Failure::Everywhere(error)) => return Err(error.into()),
        }
    }
    if arguments.wait && arguments.dry_run.is_none() {
        failed |= !wait(&applier.server, &applied, arguments.timeout, environment).await?;
    }
    Ok(if failed { Outcome::Failed } else { Outcome::Done })
}

/// Definitions come first, then namespaces, then the rest as it stands.
fn rank(object: &Value) -> u8 {
    match object["kind"].as_str() {
        Some("CustomResourceDefinition") => 0,
        Some("Namespace") => 1,
        _ => 2,
    }
}

/// Why an object was not applied.
enum Failure {
    /// The next one may fare better.
    Here(String),
    /// So will it be for all others.
    Everywhere(Error),
}

struct Applied {
    called: String,
    object: Followed,
    verb: &'static str,
}

struct Applier<'a> {
    server: Server,
    discovery: Discovery,
    arguments: &'a Arguments,
    /// Definitions were applied since the server was last asked what it serves.
    defined: bool,
}

impl Applier<'_> {
    fn suffix(&self) -> &'static str {
        if self.arguments.dry_run.is_some() { " (server dry run)" } else { "" }
    }

    async fn apply(&mut self, document: &Document) -> Result<Applied, Failure> {
        let kind = self.kind(document).await?;
        let stated = document.text(&["metadata", "namespace"]);
        let asked = self.arguments.connection.namespace.as_deref();
        if kind.namespaced && !stated.is_empty() && asked.is_some_and(|asked| asked != stated) {
            let place = document.place(Some("metadata.namespace"));
            return Err(Failure::Here(format!(
                "{place}: the namespace is {stated}, not {}",
                asked.unwrap_or_default()
            )));
        }
        let namespace = if stated.is_empty() { self.server.namespace.clone() } else { stated.to_owned() };
        let path = kind.path(Some(&namespace), Some(document.name()));
        let called = kind.called(document.name());
        let failure = |error: Error| explain(document, &called, error);
        let before = match self.server.get(&path).await {
            Ok(object) => Some(object),
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(failure(error)),
        };
        let options = query(&[
            ("fieldManager", Some(FIELD_MANAGER)),
            ("fieldValidation", Some("Strict")),
            ("force", self.arguments.force_conflicts.then_some("true")),
            ("dryRun", self.arguments.dry_run.map(|_| "All")),
        ]);
        let sent =
            self.server.send(Method::PATCH, &format!("{path}{options}"), APPLY_PATCH, &document.object).await;
        let (_, after) = sent.map_err(failure)?;
        let verb = match before {
            None => "created",
            Some(before) if same(&before, &after) => "unchanged",
            Some(_) => "configured",
        };
        if kind.kind == "CustomResourceDefinition" && self.arguments.dry_run.is_none() {
            self.defined = true;
            self.until_served(&path).await.map_err(|reason| Failure::Here(format!("{called}: {reason}")))?;
        }
        let object = Followed { kind, namespace, name: document.name().to_owned() };
        Ok(Applied { called, object, verb })
    }

    async fn kind(&mut self, document: &Document) -> Result<Kind, Failure> {
        let (version, kind) = (document.text(&["apiVersion"]), document.text(&["kind"]));
        if self.discovery.of(version, kind).is_none() && self.defined {
            self.discovery = Discovery::fetch(&self.server).await.map_err(Failure::Everywhere)?;
            self.defined = false;
        }
        self.discovery.of(version, kind).cloned().ok_or_else(|| {
            let place = document.place(Some("kind"));
            Failure::Here(format!(
                "{place}: the server has no {kind} in {version}; install its definition first"
            ))
        })
    }

    /// Objects of a new kind can follow at once.
    async fn until_served(&self, path: &str) -> Result<(), String> {
        let waiting = async {
            loop {
                let definition = self.server.get(path).await.map_err(|error| error.to_string())?;
                if readiness(&definition) == Readiness::Ready && definition["status"]["conditions"].is_array()
                {
                    return Ok(());
                }
                tokio::time::sleep(POLL).await;
            }
        };
        let late = |_| format!("not served after {} s", SERVED_LIMIT.as_secs());
        tokio::time::timeout(SERVED_LIMIT, waiting).await.map_err(late)?
    }
}

/// Whether a write changed nothing. A dry run leaves the version alone, so then the objects themselves tell.
fn same(before: &Value, after: &Value) -> bool {
    let stripped = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("managedFields");
            metadata.remove("resourceVersion");
        }
        object
    };
    let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
    version(before) == version(after) && stripped(before) == stripped(after)
}

/// What the server refused, at the line of the field that it names.
fn explain(document: &Document, called: &str, error: Error) -> Failure {
    let Some(refusal) = error.refusal() else { return Failure::Everywhere(error) };
    let field = refusal.causes.first().map(|(field, _)| field.clone()).filter(|field| !field.is_empty());
    let field = field.or_else(|| named_field(&refusal.message));
    let place = document.place(field.as_deref());
    let message = refusal.message.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let hint = if refusal.reason == "Conflict" {
        "; --force-conflicts takes these fields over"
    } else if refusal.code == 404 && message.starts_with("namespaces ") {
        "; create the namespace first"
    } else {
        ""
    };
    Failure::Here(format!("{place}: {called}: {message}{hint}"))
}

/// The field that a message is about, when the server does not say it apart.
fn named_field(message: &str) -> Option<String> {
    let quoted =
        message.split_once("field \"").and_then(|(_, rest)| rest.split_once('"')).map(|(field, _)| field);
    let declared = || {
        let before = message.split_once(": field not declared in schema")?.0;
        before.rsplit([' ', '(']).next()
    };
    quoted.or_else(declared).map(str::to_owned)
}

/// Waits until all are ready; `false` when one is not, which has been told.
async fn wait(
    server: &Server,
    applied: &[Applied],
    timeout: u64,
    environment: &Environment,
) -> anyhow::Result<bool> {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(timeout);
    let mut well = true;
    for Applied { called, object, .. } in applied {
        let what = format!("waiting for {called}");
        let mut reason = String::new();
        let ready = object.until(server, deadline, |object| {
            match object.map_or_else(|| Readiness::Failed("it was deleted".into()), readiness) {
                Readiness::Ready => Some(Ok(())),
                Readiness::Failed(why) => Some(Err(why)),
                Readiness::Waiting(why) => {
                    reason = why;
                    None
                }
            }
        });
        let told = match progress::during(environment, &what, ready).await? {
            Some(Ok(())) => continue,
            Some(Err(why)) => format!("{called}: {why}"),
            None => format!("{called} is not ready after {timeout} s: {reason}"),
        };
        say(&format!("error: {told}"));
        well = false;
    }
    Ok(well)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_in_messages() {
        for (message, expected) in [
            (
                "ConfigMap in version \"v1\": strict decoding error: unknown field \"spec.foo\"",
                Some("spec.foo"),
            ),
            (
                "failed to create typed patch object (default/a; /v1, Kind=Pod): .spec.foo: field not declared in schema",
                Some(".spec.foo"),
            ),
            ("nothing of the kind", None),
        ] {
            assert_eq!(named_field(message).as_deref(), expected, "{message}");
        }
    }
}
