//! `agentcube bundle fetch`: what the init container of a code bundle runs; and `agentcube bundle run`, which then becomes
//! the program, for a sandbox that has no init containers. Says what it does on standard output, and on
//! standard error, last, why it failed: that is what the Task's condition shows.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use agentcube_bundle::download::{Digest, Patience};
use agentcube_bundle::path::Relative;
use agentcube_bundle::{Limits, Order, Origin};
use clap::{Args, Subcommand};

use crate::exit::Outcome;
use crate::output;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Put the code of a Task where it is to run
    Fetch(Fetch),
    /// The same, and then run a program in its directory
    Run(Run),
}

#[derive(Args)]
pub(crate) struct Run {
    #[command(flatten)]
    fetch: Fetch,
    /// Program, and its arguments
    #[arg(last = true, required = true, num_args = 1.., value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Args)]
pub(crate) struct Fetch {
    /// Directory that gets the code, in its directory `code`
    #[arg(long)]
    into: PathBuf,
    /// The most bytes that the code may measure
    #[arg(long)]
    limit: u64,
    /// File that is to be run
    #[arg(long, allow_hyphen_values = true)]
    entrypoint: Relative,
    /// File that has to be there too
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    require: Vec<Relative>,
    /// File to copy from the code to the directory above it, if it is there
    #[arg(long, value_name = "FILE", allow_hyphen_values = true)]
    lift: Vec<Relative>,
    /// Address of a zip archive
    #[arg(long, conflicts_with = "from", required_unless_present = "from")]
    url: Option<String>,
    /// SHA-256 that the archive must have
    #[arg(long, requires = "url")]
    sha256: Option<Digest>,
    /// Directory that keeps archives by their SHA-256
    #[arg(long, requires = "sha256")]
    cache: Option<PathBuf>,
    /// Directory to copy the code from
    #[arg(long)]
    from: Option<PathBuf>,
    /// Name of a file of that directory, and the path that it gets
    #[arg(long = "file", value_name = "NAME=PATH", requires = "from", value_parser = renamed, allow_hyphen_values = true)]
    files: Vec<(String, Relative)>,
}

fn renamed(text: &str) -> Result<(String, Relative), String> {
    let (name, path) = text.split_once('=').ok_or("write NAME=PATH")?;
    Ok((name.into(), path.parse().map_err(|error| format!("{error}"))?))
}

impl Fetch {
    fn order(self) -> Order {
        let origin = match (self.url, self.from) {
            (Some(address), _) => Origin::Url { address, sha256: self.sha256, cache: self.cache },
            (None, from) => Origin::Directory {
                path: from.unwrap_or_default(),
                renamed: self.files.into_iter().collect::<BTreeMap<_, _>>(),
            },
        };
        Order {
            origin,
            into: self.into,
            limits: Limits::of(self.limit),
            required: [self.entrypoint].into_iter().chain(self.require).collect(),
            lifted: self.lift,
            patience: Patience::default(),
        }
    }
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let (fetch, program) = match arguments.command {
        Command::Fetch(fetch) => (fetch, Vec::new()),
        Command::Run(Run { fetch, program }) => (fetch, program),
    };
    let code = fetch.into.join("code");
    let tell = |line: String| {
        // A closed output is no reason not to fetch.
        let _ = output::write(format!("{line}\n").as_bytes());
    };
    // Each error tells its cause itself.
    fetch.order().carry_out(&tell).await.map_err(|error| anyhow::anyhow!("{error}"))?;
    let Some((program, arguments)) = program.split_first() else { return Ok(Outcome::Done) };
    // Comes back only if it fails: the program takes the place of this process, and gets its signals.
    let error = std::process::Command::new(program).args(arguments).current_dir(code).exec();
    Err(anyhow::anyhow!("cannot run {}: {error}", program.display()))
}

#[cfg(test)]
mod tests {
    use agentcube_api::Task;
    use agentcube_instance::spec::{Config, render};
    use clap::Parser;
    use serde_json::{Value, json};

    use super::*;
    use crate::cli::{self, Cli};

    /// The order that the init container of such a Task carries out.
    fn order_of(code: Value) -> Order {
        let task: Task = serde_json::from_value(json!({
            "metadata": { "name": "agent", "namespace": "prod" },
            "spec": { "deployment": { "type": "code-bundle", "codeBundle": code } },
        }))
        .unwrap();
        let cache = json!({ "size": "1Gi" });
        let config: Config = serde_json::from_value(json!({ "bundleCache": cache })).unwrap();
        let rendered = render(&task, &config).unwrap();
        let cli = Cli::try_parse_from(rendered.prepare[0].command.as_ref().unwrap()).unwrap();
        let cli::Command::Bundle(Arguments { command: Command::Fetch(fetch) }) = cli.command else {
            panic!("another command")
        };
        fetch.order()
    }

    #[test]
    fn what_tasks_render_to_is_understood() {
        let python = json!({ "name": "python3.11" });
        let order = order_of(json!({
            "zipUrl": "https://bucket.example/code.zip", "sha256": "ab".repeat(32), "sizeLimit": "1Mi",
            "entrypoint": "main.py", "codeRuntime": python, "dependencies": {},
        }));
        let Origin::Url { address, sha256, cache } = order.origin else { panic!("{order:?}") };
        assert_eq!(address, "https://bucket.example/code.zip");
        assert_eq!(sha256.unwrap().to_string(), "ab".repeat(32));
        assert_eq!(cache.unwrap(), PathBuf::from("/cache"));
        assert_eq!(order.limits, Limits::of(1 << 20));
        let required: Vec<&str> = order.required.iter().map(Relative::as_str).collect();
        assert_eq!(required, ["main.py", "requirements.txt"]);

        let order = order_of(json!({
            "inline": { "a=b.py": "x", "-x.py": "y" }, "entrypoint": "-x.py", "codeRuntime": python,
        }));
        let Origin::Directory { path, renamed } = order.origin else { panic!("{order:?}") };
        assert_eq!(path, PathBuf::from("/source"));
        assert_eq!(renamed["file-0"].as_str(), "-x.py");
        assert_eq!(renamed["file-1"].as_str(), "a=b.py");
    }
}
