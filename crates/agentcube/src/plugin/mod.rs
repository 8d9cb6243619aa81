//! `agentcube plugin`: for whoever writes recipes of middleware. Checks one, renders it as the controllers would, and shows what
//! it would change of what runs.

mod diff;
mod files;
mod lint;
mod render;
mod schema;
mod test;

use clap::{Args, Subcommand};

use crate::environment::Environment;
use crate::exit::Outcome;

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube plugin lint plugin.yaml
  agentcube plugin render plugin.yaml --app app.yaml
  agentcube plugin render plugin.yaml --set maxmemory=2gb --runtime 7.2
  agentcube plugin test plugin.yaml -A         # what would change, of everything that uses it

Files hold a Plugin, and the ConfigMaps of its templates if it has some.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say all that is wrong with a Plugin
    Lint(lint::Arguments),
    /// Print the objects that it makes
    Render(render::Arguments),
    /// Show how they differ from those that run
    Test(test::Arguments),
}

pub(crate) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    match arguments.command {
        Command::Lint(arguments) => lint::run(arguments).await,
        Command::Render(arguments) => render::run(arguments).await,
        Command::Test(arguments) => test::run(arguments, environment).await,
    }
}
