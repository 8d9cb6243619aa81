//! `agentcube middleware-agent`: runs in each Pod of a middleware, as the parent of its process, and runs the plugin's tools for
//! the controllers.

use std::net::SocketAddr;
use std::path::PathBuf;

use agentcube_middleware_agent::words::{Variables, expand};
use agentcube_middleware_agent::{Agent, Options, Settings, ready};
use anyhow::Context;
use clap::Args;
use tokio::net::TcpListener;

use crate::exit::{Outcome, Usage};
use crate::router::shutdown;

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube middleware-agent --token-file /agent/token -- redis-server /config/redis.conf
  agentcube middleware-agent --token-file /agent/token --config /plugin/agent.yaml -- postgres -D /data

It starts the program after --, and ends with its code when it ends by itself. Whoever has the token may ask for what the plugin's
commands do: roles, failover, reload, orders. Commands are words, not lines for a shell. $(NAME) in the words of the program stands
for a variable of the environment: what is secret need not be in its own arguments.")]
pub(crate) struct Arguments {
    /// The file with the token that callers have to show: a Secret that is mounted
    #[arg(long, value_name = "FILE")]
    token_file: PathBuf,
    /// What the plugin says to the agent, in YAML
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where the process manager listens
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:50051")]
    process_listen: SocketAddr,
    /// Where the tool invoker listens
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:50052")]
    tools_listen: SocketAddr,
    /// Where probes ask whether it can serve, without a token: GET /ready
    #[arg(long, value_name = "ADDRESS")]
    ready_listen: Option<SocketAddr>,
    /// The program of the middleware, and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    words: Vec<String>,
}

impl Arguments {
    fn options(&self) -> anyhow::Result<Options> {
        let read = |path: &PathBuf| {
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
        };
        let token = read(&self.token_file)?.trim().to_owned();
        if token.is_empty() {
            return Err(Usage(format!("{} is empty: nobody could ask", self.token_file.display())).into());
        }
        let settings = match &self.config {
            Some(path) => {
                Settings::read(&read(path)?).map_err(|error| Usage(format!("{}: {error}", path.display())))?
            }
            None => Settings::default(),
        };
        let environment: Variables = crate::environment::variables().collect();
        let words = self.words.iter().map(|word| expand(word, &environment)).collect::<Result<_, _>>();
        let words = words.map_err(|error| Usage(format!("the program's words: {error}")))?;
        Ok(Options { words, settings, settings_file: self.config.clone(), token })
    }
}

/// Runs until it is told to stop, or the middleware ends.
pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let options = arguments.options()?;
    let shutdown = shutdown()?;
    let bind = async |address: SocketAddr| {
        TcpListener::bind(address).await.with_context(|| format!("cannot listen at {address}"))
    };
    let (processes, tools) = (bind(arguments.process_listen).await?, bind(arguments.tools_listen).await?);
    let agent = Agent::new(options);
    if let Some(address) = arguments.ready_listen {
        tokio::spawn(ready::serve(agent.clone(), bind(address).await?, shutdown.clone()));
    }
    let code = agent.run(processes, tools, shutdown).await?;
    Ok(Outcome::Remote(u8::try_from(code).unwrap_or(1)))
}
