//! `agentcube middleware-archive`: packs the data of a middleware in the Pod of a Backup, and unpacks them in the first Pods of an
//! App that is made from it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use agentcube_middleware_agent::archive::{self, Pack, Unpack};
use anyhow::Context;
use clap::{Args, Subcommand};

use crate::exit::Outcome;
use crate::output;

#[derive(Args)]
#[command(after_help = "Examples:
  agentcube middleware-archive pack --name monday --into /backups --command 'redis-cli --rdb $(DIRECTORY)/dump.rdb'
  agentcube middleware-archive unpack --from /backups/monday.tar.gz --sha256 SUM --into /data

For the Pods of plugins. Commands are words, not lines for a shell; $(DIRECTORY) is where their files are. An archive is whole
or not there, and data that are there are never overwritten.")]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Have files made by commands, and pack them
    Pack {
        /// Name of the archive, without its ending
        #[arg(long)]
        name: String,
        /// Directory that archives are kept in
        #[arg(long, value_name = "DIRECTORY")]
        into: PathBuf,
        /// Command to run before, so that the data are consistent
        #[arg(long, value_name = "COMMAND")]
        consistency: Option<String>,
        /// Longest time for it, in seconds
        #[arg(long, value_name = "SECONDS", default_value_t = 60)]
        consistency_seconds: u64,
        /// Command that puts files into $(DIRECTORY); may be given several times
        #[arg(long = "command", value_name = "COMMAND", required = true)]
        commands: Vec<String>,
        /// Longest time for each command, in seconds
        #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
        seconds: u64,
        /// How hard to compress, 0 to 9
        #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u32).range(0..=9))]
        level: u32,
        /// File to say in what was made, or what went wrong
        #[arg(long, value_name = "FILE", default_value = "/dev/termination-log")]
        say: PathBuf,
    },
    /// Unpack an archive where there are no data yet
    Unpack {
        /// The archive
        #[arg(long, value_name = "FILE")]
        from: PathBuf,
        /// Its SHA-256, in hexadecimal
        #[arg(long, value_name = "SUM")]
        sha256: String,
        /// Directory of the data
        #[arg(long, value_name = "DIRECTORY")]
        into: PathBuf,
        /// Command to run when the files are in $(DIRECTORY); may be given several times
        #[arg(long = "command", value_name = "COMMAND")]
        commands: Vec<String>,
        /// Longest time for each command, in seconds
        #[arg(long, value_name = "SECONDS", default_value_t = 3600)]
        seconds: u64,
    },
    /// Copy this program, for containers whose image does not have it
    Program {
        /// Directory to put it into; made if it is not there
        #[arg(long, value_name = "DIRECTORY")]
        into: PathBuf,
    },
}

pub(crate) async fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    match arguments.command {
        Command::Pack { name, into, consistency, consistency_seconds, commands, seconds, level, say } => {
            let consistency = consistency.map(|command| (command, Duration::from_secs(consistency_seconds)));
            let limit = Duration::from_secs(seconds);
            let packed = archive::pack(&Pack { name, into, consistency, commands, limit, level }).await;
            match packed {
                Ok(archive) => tell(&say, &serde_json::to_string(&archive)?)?,
                Err(error) => {
                    tell(&say, &error.to_string())?;
                    return Err(error.into());
                }
            }
        }
        Command::Unpack { from, sha256, into, commands, seconds } => {
            let limit = Duration::from_secs(seconds);
            let place = into.display().to_string();
            match archive::unpack(&Unpack { from, sha256, into, commands, limit }).await? {
                true => eprintln!("{place} has what was in the archive"),
                false => eprintln!("{place} has data already: they stay as they are"),
            }
        }
        Command::Program { into } => copy_program(&into)?,
    }
    Ok(Outcome::Done)
}

/// Under its own name at once, or not at all: a Pod that is killed meanwhile begins anew.
fn copy_program(into: &Path) -> anyhow::Result<()> {
    let own = std::env::current_exe().context("cannot find this program")?;
    std::fs::create_dir_all(into).with_context(|| format!("cannot make {}", into.display()))?;
    let (partial, whole) = (into.join(".agentcube.partial"), into.join("agentcube"));
    std::fs::copy(&own, &partial).with_context(|| format!("cannot write {}", partial.display()))?;
    std::fs::rename(&partial, &whole).with_context(|| format!("cannot name {}", whole.display()))
}

/// Whoever made the Pod reads it there when the Pod has ended.
fn tell(file: &Path, text: &str) -> anyhow::Result<()> {
    output::write(format!("{text}\n").as_bytes())?;
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
