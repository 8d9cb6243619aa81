//! `agentcube get`: objects as the server's own tables, or whole for machines; once, or as they change.

mod follow;
mod rows;

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use crate::client::{Connection, Discovery, Error, Kind, Server, query};
use crate::environment::Environment;
use crate::exit::{Outcome, Usage, say};
use crate::output::{self, Machine};
use rows::Rows;

const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
/// How many objects are asked for at a time.
const PAGE: &str = "500";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// All columns
    Wide,
    Json,
    Yaml,
    /// `kind/name` only
    Name,
}

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube get pods
  agentcube get pods,services -A
  agentcube get task support -o yaml
  agentcube get deploy/web sts/db
  agentcube get pods -l app=web --watch
  agentcube get events --field-selector involvedObject.name=web-0

Kinds go by plural, singular, short name or kind, with their group if need be: `events.events.k8s.io`.")]
pub(crate) struct Arguments {
    /// A kind, several with commas, or KIND/NAME
    #[arg(value_name = "KIND", required = true)]
    kind: String,
    /// Names, or more KIND/NAME
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// How to print
    #[arg(short, long, value_enum)]
    output: Option<Format>,
    /// Show changes as they happen
    #[arg(short, long, conflicts_with = "names")]
    watch: bool,
    /// Only objects with these labels: `app=web`, `tier in (a,b)`, `!old`
    #[arg(short = 'l', long, value_name = "LABELS")]
    selector: Option<String>,
    /// Only objects with these fields: `status.phase=Running`
    #[arg(long, value_name = "FIELDS")]
    field_selector: Option<String>,
    /// All namespaces
    #[arg(short = 'A', long)]
    all_namespaces: bool,
    /// Print no header
    #[arg(long)]
    no_headers: bool,
    #[command(flatten)]
    connection: Connection,
}

/// What to get: all objects of a kind, or one.
struct Target<'a> {
    kind: &'a Kind,
    name: Option<String>,
}

pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    check(&arguments)?;
    let server = arguments.connection.open(environment).await?;
    let discovery = Discovery::fetch(&server).await?;
    let targets = targets(&arguments, &discovery)?;
    if arguments.watch {
        let [target] = targets.as_slice() else {
            return Err(Usage("--watch follows one kind at a time".into()).into());
        };
        return follow::run(&arguments, &server, target).await;
    }
    match arguments.output {
        Some(Format::Json) => machine(&arguments, &server, &targets, Machine::Json).await,
        Some(Format::Yaml) => machine(&arguments, &server, &targets, Machine::Yaml).await,
        _ => tables(&arguments, &server, &targets).await,
    }
}

fn check(arguments: &Arguments) -> Result<(), Usage> {
    let named = !arguments.names.is_empty() || arguments.kind.contains('/');
    let selected = arguments.selector.is_some() || arguments.field_selector.is_some();
    if named && selected {
        return Err(Usage("give names or a selector, not both".into()));
    }
    if named && arguments.all_namespaces {
        return Err(Usage("a name is looked up in one namespace: leave out --all-namespaces".into()));
    }
    Ok(())
}

fn targets<'a>(arguments: &Arguments, discovery: &'a Discovery) -> anyhow::Result<Vec<Target<'a>>> {
    let words = || std::iter::once(&arguments.kind).chain(&arguments.names);
    if arguments.kind.contains('/') {
        let pair = |word: &String| match word.split_once('/') {
            Some((kind, name)) if !kind.is_empty() && !name.is_empty() => {
                Ok(Target { kind: discovery.find(kind)?, name: Some(name.to_owned()) })
            }
            _ => Err(Usage(format!("{word:?} is not KIND/NAME, as the first is")).into()),
        };
        return words().map(pair).collect();
    }
    let kinds = discovery.find_all(&arguments.kind)?;
    if arguments.names.is_empty() {
        return Ok(kinds.into_iter().map(|kind| Target { kind, name: None }).collect());
    }
    let named = |kind| arguments.names.iter().map(move |name| Target { kind, name: Some(name.clone()) });
    Ok(kinds.into_iter().flat_map(named).collect())
}

impl Arguments {
    fn place<'a>(&self, server: &'a Server) -> Option<&'a str> {
        (!self.all_namespaces).then_some(server.namespace.as_str())
    }

    fn selectors(&self) -> [(&str, Option<&str>); 2] {
        [("labelSelector", self.selector.as_deref()), ("fieldSelector", self.field_selector.as_deref())]
    }
}

/// All pages of a list, or the one object.
async fn fetch(
    arguments: &Arguments,
    server: &Server,
    target: &Target<'_>,
    accept: &str,
) -> Result<Vec<Value>, Error> {
    let path = target.kind.path(arguments.place(server), target.name.as_deref());
    if target.name.is_some() {
        return Ok(vec![server.get_as(&path, accept).await?]);
    }
    let mut pages = Vec::new();
    let mut token: Option<String> = None;
    loop {
        let [labels, fields] = arguments.selectors();
        let options = query(&[labels, fields, ("limit", Some(PAGE)), ("continue", token.as_deref())]);
        let page = server.get_as(&format!("{path}{options}"), accept).await?;
        token = page["metadata"]["continue"].as_str().filter(|token| !token.is_empty()).map(str::to_owned);
        pages.push(page);
        if token.is_none() {
            return Ok(pages);
        }
    }
}

/// What is missing is told, and the rest is still shown.
struct Missing(Vec<String>);

impl Missing {
    fn note(&mut self, error: Error, named: bool) -> anyhow::Result<()> {
        if named && error.is_not_found() {
            self.0.push(error.to_string());
            return Ok(());
        }
        Err(error.into())
    }

    fn tell(self) -> Outcome {
        self.0.iter().for_each(|message| say(&format!("error: {message}")));
        if self.0.is_empty() { Outcome::Done } else { Outcome::Absent }
    }
}

async fn machine(
    arguments: &Arguments,
    server: &Server,
    targets: &[Target<'_>],
    machine: Machine,
) -> anyhow::Result<Outcome> {
    let (mut items, mut missing) = (Vec::new(), Missing(Vec::new()));
    for target in targets {
        match fetch(arguments, server, target, "application/json").await {
            Ok(pages) if target.name.is_some() => items.extend(pages),
            Ok(pages) => items.extend(pages.into_iter().flat_map(|page| list_items(target.kind, page))),
            Err(error) => missing.note(error, target.name.is_some())?,
        }
    }
    match (targets, items.as_slice()) {
        ([Target { name: Some(_), .. }], [object]) => machine.print(object)?,
        ([Target { name: Some(_), .. }], []) => {}
        _ => machine.print(&json!({"apiVersion": "v1", "kind": "List", "metadata": {}, "items": items}))?,
    }
    Ok(missing.tell())
}

/// Items of a list do not say what they are; alone, they must.
fn list_items(kind: &Kind, mut page: Value) -> Vec<Value> {
    let Value::Array(mut items) = page["items"].take() else { return Vec::new() };
    for item in &mut items {
        item["apiVersion"] = json!(kind.api_version());
        item["kind"] = json!(kind.kind);
    }
    items
}

async fn tables(arguments: &Arguments, server: &Server, targets: &[Target<'_>]) -> anyhow::Result<Outcome> {
    let mut missing = Missing(Vec::new());
    let mut shown: Vec<(&Kind, Rows)> = Vec::new();
    for target in targets {
        match fetch(arguments, server, target, TABLE).await {
            Ok(pages) => {
                let mut rows = Rows::default();
                pages.iter().for_each(|page| rows.add(page));
                match shown.last_mut() {
                    Some((kind, before)) if *kind == target.kind => before.append(rows),
                    _ => shown.push((target.kind, rows)),
                }
            }
            Err(error) => missing.note(error, target.name.is_some())?,
        }
    }
    let several = targets.iter().any(|target| target.kind != targets[0].kind);
    shown.retain(|(_, rows)| !rows.is_empty());
    let mut text = String::new();
    for (index, (kind, rows)) in shown.iter().enumerate() {
        let prefix = several || arguments.output == Some(Format::Name);
        if arguments.output == Some(Format::Name) {
            rows.names().for_each(|name| text.push_str(&format!("{}\n", kind.called(name))));
            continue;
        }
        let layout = rows::Layout {
            wide: arguments.output == Some(Format::Wide),
            namespaces: arguments.all_namespaces && kind.namespaced,
            header: !arguments.no_headers,
            kind: prefix.then_some(*kind),
        };
        if index > 0 {
            text.push('\n');
        }
        text.push_str(&rows.table(&layout).render());
    }
    output::write(text.as_bytes())?;
    if shown.is_empty() && missing.0.is_empty() {
        say(&nothing(arguments, server, targets));
    }
    Ok(missing.tell())
}

fn nothing(arguments: &Arguments, server: &Server, targets: &[Target<'_>]) -> String {
    let namespaced = targets.iter().any(|target| target.kind.namespaced);
    if namespaced && !arguments.all_namespaces {
        format!("No resources found in {} namespace.", server.namespace)
    } else {
        "No resources found.".to_owned()
    }
}
