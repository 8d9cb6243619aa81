//! `agentcube app describe` and `tasks`: once, or as it changes.

use std::time::Duration;

use clap::Args;
use serde_json::json;
use tokio::time::Instant;

use super::tree;
use super::world::{World, news};
use crate::client::Connection;
use crate::environment::Environment;
use crate::exit::{Outcome, say};
use crate::output::{self, Machine, Paint};

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube app describe sessions
  agentcube app describe sessions --watch --timeout 600
  agentcube app describe sessions -o json | jq .tree

With --watch it ends when nothing is under way any more: with 0 if the App runs as wanted, with 1 if it does not.")]
pub(super) struct Arguments {
    /// The App
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    how: How,
}

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube app tasks sessions
  agentcube app tasks sessions --all -o json
  agentcube app tasks sessions --watch

With --watch it ends when all tasks are over: with 0 if the App runs as wanted, with 1 if it does not.")]
pub(super) struct TasksArguments {
    /// The App
    #[arg(value_name = "NAME")]
    name: String,
    /// Those of earlier changes as well, as far as they are kept
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    how: How,
}

#[derive(Args)]
#[group(skip)]
struct How {
    /// Show changes as they happen, until nothing is under way
    #[arg(short, long)]
    watch: bool,
    /// How long to watch, in seconds [default: without end]
    #[arg(long, value_name = "SECONDS", requires = "watch")]
    timeout: Option<u64>,
    /// Print for machines
    #[arg(short, long)]
    output: Option<Machine>,
    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn run(arguments: Arguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let paint = Paint::on(environment.stdout);
    let machine = arguments.how.output;
    let draw = |world: &World| match machine {
        Some(machine) => machine.render(&tree::machine_form(world)),
        None => {
            let tree = tree::render(&tree::tree(world), paint);
            let tasks = tree::tasks(&world.app, false, paint);
            format!("{}\n{tree}\n{tasks}", tree::summary(&world.app))
        }
    };
    show(&arguments.name, &arguments.how, environment, draw).await
}

pub(super) async fn tasks(arguments: TasksArguments, environment: &Environment) -> anyhow::Result<Outcome> {
    let (paint, machine, all) = (Paint::on(environment.stdout), arguments.how.output, arguments.all);
    let draw = |world: &World| match machine {
        Some(machine) => {
            let tasks = world.app.status.as_ref().map(|status| status.tasks.as_slice()).unwrap_or_default();
            let shown: Vec<_> = if all { tasks.iter().collect() } else { super::latest(tasks).collect() };
            machine.render(&json!(shown))
        }
        None => tree::tasks(&world.app, all, paint),
    };
    show(&arguments.name, &arguments.how, environment, draw).await
}

async fn show(
    name: &str,
    how: &How,
    environment: &Environment,
    draw: impl Fn(&World) -> String,
) -> anyhow::Result<Outcome> {
    let server = how.connection.open(environment).await?;
    let mut world = World::read(&server, name).await?;
    let mut screen = Screen { lines: 0, last: String::new(), environment, machine: how.output };
    screen.show(&draw(&world))?;
    if !how.watch {
        return Ok(Outcome::Done);
    }
    let deadline = how.timeout.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    while !world.is_settled() {
        let far = || Instant::now() + Duration::from_secs(86_400);
        let deadline = deadline.unwrap_or_else(far);
        if tokio::time::timeout_at(deadline, news(&server, &world, name)).await.is_err() {
            say(&format!("error: {name} is still not settled; it goes on without being watched"));
            return Ok(Outcome::Failed);
        }
        world = World::read(&server, name).await?;
        screen.show(&draw(&world))?;
    }
    Ok(if world.has_failed() { Outcome::Failed } else { Outcome::Done })
}

/// What is shown again and again: in the same place on a terminal, below each other elsewhere, and only if it differs.
struct Screen<'a> {
    lines: usize,
    last: String,
    environment: &'a Environment,
    machine: Option<Machine>,
}

impl Screen<'_> {
    fn show(&mut self, text: &str) -> anyhow::Result<()> {
        if text == self.last {
            return Ok(());
        }
        let mut shown = String::new();
        if self.environment.stdout.terminal && self.machine.is_none() {
            let (columns, rows) = size();
            shown.push_str(&back(self.lines, rows));
            self.lines = text.lines().map(|line| height(line, columns)).sum();
        } else if !self.last.is_empty() {
            shown.push_str(if self.machine == Some(Machine::Yaml) { "---\n" } else { "\n" });
        }
        shown.push_str(text);
        output::write(shown.as_bytes())?;
        text.clone_into(&mut self.last);
        Ok(())
    }
}

/// Columns and rows of the terminal; nothing, where it does not say.
fn size() -> (usize, usize) {
    match rustix::termios::tcgetwinsize(std::io::stdout()) {
        Ok(size) => (size.ws_col.into(), size.ws_row.into()),
        Err(_) => (0, 0),
    }
}

/// How many lines of a terminal a line takes.
fn height(line: &str, columns: usize) -> usize {
    if columns == 0 { 1 } else { output::width(line).div_ceil(columns).max(1) }
}

/// Back to the first line of before, and away with everything below it. What was longer than the terminal has scrolled: then all of it goes.
fn back(lines: usize, rows: usize) -> String {
    match lines {
        0 => String::new(),
        _ if rows > 0 && lines >= rows => "\x1b[H\x1b[2J".into(),
        _ => format!("\x1b[{lines}A\x1b[J"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_too_long_take_several() {
        assert_eq!([height("", 10), height("1234567890", 10), height("12345678901", 10)], [1, 1, 2]);
        assert_eq!((height("\x1b[1m1234567890\x1b[0m", 10), height("12345678901", 0)), (1, 1));
    }

    #[test]
    fn what_was_shown_is_taken_away_wherever_it_is() {
        assert_eq!(back(0, 24), "");
        assert_eq!(back(5, 24), "\x1b[5A\x1b[J");
        assert_eq!(back(24, 24), "\x1b[H\x1b[2J");
        assert_eq!(back(30, 0), "\x1b[30A\x1b[J");
    }
}
