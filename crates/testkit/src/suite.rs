//! Runs the trials of a suite and reports them the way `cargo test` does, with a closing line that
//! `cargo xtask test` adds up. A suite has a main function of its own, and only that reads the environment.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use crate::cluster::Binaries;

/// What the user asked of a suite: `[--record] [--only embedded|real] [--cluster] [FILTER]`.
#[derive(Debug, Default)]
pub struct Options {
    pub record: bool,
    pub only: Option<String>,
    /// The real server is that of the whole cluster which `cargo xtask cluster up` has started; nothing else is wanted.
    pub cluster: bool,
    pub filter: Option<String>,
    /// Nothing may be skipped.
    pub strict: bool,
    pub cache: PathBuf,
    pub assets: Option<PathBuf>,
}

impl Options {
    /// Reads the command line and the environment; for `main` of a suite only.
    pub fn from_environment() -> Options {
        let variable =
            |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let home = || variable("HOME").unwrap_or_default().join(".cache");
        let cache = variable("AGENTCUBE_CACHE")
            .unwrap_or_else(|| variable("XDG_CACHE_HOME").unwrap_or_else(home).join("agentcube"));
        let mut options = Options {
            strict: std::env::var("CI").is_ok_and(|value| value == "true"),
            cache,
            assets: variable("KUBEBUILDER_ASSETS"),
            ..Options::default()
        };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--record" => options.record = true,
                "--only" => options.only = args.next(),
                "--cluster" => (options.cluster, options.only) = (true, Some(crate::Kind::Real.to_string())),
                // Flags of the standard harness, which cargo or an editor may pass.
                flag if flag.starts_with('-') => {}
                filter => options.filter = Some(filter.to_owned()),
            }
        }
        options
    }

    /// The programs of a real cluster, or why there are none.
    pub fn binaries(&self) -> Result<Binaries> {
        let binaries = Binaries::find(self.assets.clone(), &self.cache)?;
        let whole = self.cluster.then(|| crate::cluster::whole::kubeconfig(&self.cache));
        Ok(Binaries { whole, ..binaries })
    }

    /// Whether trials on this server are wanted.
    pub fn wants(&self, kind: crate::Kind) -> bool {
        self.only.as_ref().is_none_or(|only| *only == kind.to_string())
    }

    /// Whether a trial of this name is wanted.
    pub fn selects(&self, name: &str) -> bool {
        self.filter.as_ref().is_none_or(|filter| name.contains(filter.as_str()))
    }
}

/// The outcome of a suite so far.
#[derive(Debug, Default)]
pub struct Report {
    passed: usize,
    failed: BTreeSet<String>,
    skipped: usize,
}

impl Report {
    /// Notes and prints the outcome of one trial.
    pub fn note(&mut self, name: &str, outcome: Result<()>) {
        match outcome {
            Ok(()) => {
                self.passed += 1;
                println!("test {name} ... ok");
            }
            Err(error) => {
                self.failed.insert(name.to_owned());
                println!("test {name} ... FAILED\n    {error:#}");
            }
        }
    }

    /// Notes that something could not be tried here, and says so loudly.
    pub fn skip(&mut self, name: &str, trials: usize, why: &str) {
        self.skipped += trials;
        println!("SKIPPED: {name} ({trials} trials): {why}");
    }

    /// Takes over what another has noted, for trials that run beside each other.
    pub fn absorb(&mut self, other: Report) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self.skipped += other.skipped;
    }

    /// Prints the closing line. With `strict`, a skipped trial is a failure.
    pub fn close(self, strict: bool) -> ExitCode {
        for name in &self.failed {
            println!("    failed: {name}");
        }
        let ok = self.failed.is_empty() && !(strict && self.skipped > 0);
        if strict && self.skipped > 0 {
            println!("with CI=true nothing may be skipped");
        }
        println!(
            "test result: {}. {} passed; {} failed; {} ignored; 0 measured; 0 filtered out",
            if ok { "ok" } else { "FAILED" },
            self.passed,
            self.failed.len(),
            self.skipped
        );
        if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
