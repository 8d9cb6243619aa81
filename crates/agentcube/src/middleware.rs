//! How the controllers of middleware are configured from a command line: a file as operators know it, options over it.

use std::io::Read;
use std::path::{Path, PathBuf};

use agentcube_middleware::options::{Options, Settings};
use anyhow::Context;
use clap::Args;
use k8s_openapi::api::networking::v1::NetworkPolicyPeer;

use crate::exit::Usage;

/// The largest file of settings that is read.
const LARGEST: u64 = 1 << 20;

#[derive(Args, Debug)]
#[command(next_help_heading = "Middleware")]
#[group(skip)]
pub(crate) struct Arguments {
    /// Do not look after Apps
    #[arg(long)]
    no_middleware: bool,
    /// Settings of the controllers of Apps: workers, periods, time-outs, batches, as YAML
    #[arg(long, value_name = "FILE")]
    middleware_config: Option<PathBuf>,
    /// One of these settings, over the file, like app.workers=3; may be given several times
    #[arg(long, value_name = "PATH=VALUE")]
    middleware_set: Vec<String>,
    /// Look after the Apps of this namespace only [default: all]
    #[arg(long, value_name = "NAME", env = "WATCH_NAMESPACE", hide_env_values = true)]
    watch_namespace: Option<String>,
    /// Do not close the Pods of Apps to other namespaces, nor their agents to everybody but the controllers
    #[arg(long)]
    no_middleware_policies: bool,
}

impl Arguments {
    /// What controllers work with, if they are to run; `peers` are these themselves, as the network knows them.
    pub(crate) fn options(
        &self,
        namespace: &str,
        peers: Vec<NetworkPolicyPeer>,
    ) -> anyhow::Result<Option<Options>> {
        let settings = self.settings()?;
        if self.no_middleware {
            return Ok(None);
        }
        Ok(Some(Options {
            settings,
            system_namespace: namespace.to_owned(),
            watch_namespace: self.watch_namespace.clone().filter(|name| !name.is_empty()),
            agent_peers: (!self.no_middleware_policies).then_some(peers),
        }))
    }

    fn settings(&self) -> anyhow::Result<Settings> {
        let mut settings = match &self.middleware_config {
            Some(path) => read(path)?,
            None => Settings::default(),
        };
        for one in &self.middleware_set {
            settings = settings.with(one).map_err(|error| Usage(format!("--middleware-set {error}")))?;
        }
        Ok(settings)
    }
}

fn read(path: &Path) -> anyhow::Result<Settings> {
    let mut text = String::new();
    let file = std::fs::File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_string(&mut text));
    let length = file.with_context(|| format!("cannot read {}", path.display()))?;
    if length as u64 > LARGEST {
        return Err(Usage(format!("{} is larger than {} MiB", path.display(), LARGEST >> 20)).into());
    }
    let wrong = |error| Usage(format!("{}, {error}: mend it, or leave it out for the usual", path.display()));
    Ok(Settings::read(&text).map_err(wrong)?)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: Arguments,
    }

    fn options(words: &[&str]) -> anyhow::Result<Option<Options>> {
        let line = Line::try_parse_from([&["controllers"], words].concat())?;
        line.arguments.options("here", Vec::new())
    }

    #[test]
    fn options_count_more_than_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("controllers.yaml");
        let file = file.to_str().unwrap();
        std::fs::write(file, "controllers:\n  app:\n    workers: 7\n    maxRetries: 9\n").unwrap();
        let words =
            ["--middleware-config", file, "--middleware-set", "app.workers=8", "--watch-namespace", ""];
        let made = options(&words).unwrap().unwrap();
        assert_eq!((made.settings.app.workers, made.settings.app.max_retries), (8, 9));
        assert_eq!((made.watch_namespace, made.system_namespace.as_str()), (None, "here"));
        assert_eq!(made.agent_peers, Some(Vec::new()));
        assert!(options(&["--no-middleware"]).unwrap().is_none());
        assert_eq!(options(&["--no-middleware-policies"]).unwrap().unwrap().agent_peers, None);
    }

    #[test]
    fn a_mistake_is_told_in_one_line_with_its_place() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("controllers.yaml");
        let file = file.to_str().unwrap();
        std::fs::write(file, "controllers:\n  app:\n    worker: 7\n").unwrap();
        let error = options(&["--middleware-config", file]).unwrap_err();
        let told = crate::exit::one_line(&error);
        assert!(error.is::<Usage>() && told.starts_with(&format!("{file}, line 3, column ")), "{told}");
        assert!(told.contains("worker") && told.contains("mend it"), "{told}");
        let error = options(&["--middleware-set", "app.workers=many"]).unwrap_err().to_string();
        assert_eq!(error, "--middleware-set app.workers: \"many\" is not like 5");
    }

    #[test]
    fn the_example_is_one() {
        let text = include_str!("../../../examples/middleware/controller-manager.yaml");
        let documents = crate::manifest::parse("controller-manager.yaml", text).unwrap();
        let settings = documents[0].text(&["data", "controllers.yaml"]);
        assert_eq!(Settings::read(settings), Ok(Settings::default()));
        let container = &documents[1].object["spec"]["template"]["spec"]["containers"][0];
        let line = ["command", "args"].into_iter().flat_map(|name| container[name].as_array().unwrap());
        let parsed = crate::cli::Cli::try_parse_from(line.map(|word| word.as_str().unwrap()));
        assert!(parsed.is_ok(), "{:?}", parsed.err());
    }
}
