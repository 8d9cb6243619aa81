//! The test programs: built by one call of cargo for all suites that are to run, because a selection of packages of its own
//! gives dependencies features of its own, and builds them again.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{ONLY_BY_NAME, SUITES, Suite, Tests};
use crate::Settings;
use crate::process::cargo;

/// The features that test programs need, by package. Those that only add tests which take too long are not among them.
const FEATURES: &[(&str, &str)] = &[
    ("agentcube-containerd", "containerd-tests"),
    ("agentcube-extproc", "official-clients"),
    ("agentcube-janitor", "containerd-tests"),
    ("agentcube-router", "official-clients"),
    ("agentcube-runtime", "oci-tests"),
    ("agentcube-testkit", "router"),
    ("agentcube-testkit", "fastpath"),
    ("agentcube-testkit", "generate"),
];
/// The package of the binary, which many suites run, and a test program of it: cargo builds the one with the other.
const PRODUCT: (&str, &str) = ("agentcube", "cli");
/// The same of the program that writes generated files.
const GENERATOR: (&str, &str) = ("generate", "durability");

/// Something that was built.
pub(super) struct Program {
    pub(super) package: String,
    pub(super) name: String,
    pub(super) executable: PathBuf,
    /// `test`, `lib`, `bin`, as cargo calls it.
    kind: String,
    is_test: bool,
    directory: PathBuf,
}

impl Program {
    /// Whether a suite runs it.
    pub(super) fn is_of(&self, suite: &Suite) -> bool {
        let all = || SUITES.iter().chain(ONLY_BY_NAME).flat_map(|suite| suite.tests);
        let is_named = |tests: &Tests| {
            matches!(tests, Tests::Program(package, name)
                if self.kind == "test" && self.package == *package && self.name == *name)
        };
        let is_of_package =
            |tests: &Tests| matches!(tests, Tests::Package(package) if self.package == *package);
        let takes = |tests: &Tests| match tests {
            Tests::Program(..) => is_named(tests),
            Tests::Package(_) => is_of_package(tests) && !all().any(is_named),
            Tests::OtherPackages => !all().any(|tests| is_named(tests) || is_of_package(tests)),
        };
        self.is_test && suite.tests.iter().any(takes)
    }

    /// Its place in the order of a suite; those that are not named come last.
    pub(super) fn place_in(&self, suite: &Suite) -> usize {
        let named = |tests: &Tests| matches!(tests, Tests::Program(_, name) if self.name == *name);
        suite.tests.iter().position(named).unwrap_or(usize::MAX)
    }

    /// Whether it is the binary that users run.
    pub(super) fn is_the_product(&self) -> bool {
        !self.is_test && self.kind == "bin" && self.package == PRODUCT.0 && self.name == PRODUCT.0
    }

    /// Starts it as cargo would.
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.directory);
        command
    }
}

/// Builds what these suites run.
pub(super) fn build(settings: &Settings, suites: &[&Suite]) -> Result<Vec<Program>> {
    let mut command = with_features(settings);
    select(&mut command, suites);
    eprintln!("== building the tests");
    built(command)
}

/// The product and the generator of files, as the suites have them: so nothing is built twice.
pub(crate) struct Tools {
    pub(crate) product: PathBuf,
    pub(crate) generator: PathBuf,
}

pub(crate) fn tools(settings: &Settings) -> Result<Tools> {
    let mut command = with_features(settings);
    command.args([PRODUCT.1, GENERATOR.1].iter().flat_map(|name| ["--test", name]));
    let programs = built(command)?;
    let find = |what: fn(&Program) -> bool| {
        let found = programs.iter().find(|program| what(program));
        found.map(|program| program.executable.clone()).context("cargo did not build what it was asked for")
    };
    let is_generator = |it: &Program| !it.is_test && it.kind == "bin" && it.name == GENERATOR.0;
    Ok(Tools { product: find(Program::is_the_product)?, generator: find(is_generator)? })
}

/// All packages with all features, however few of their programs are wanted: so each finds what another has built.
fn with_features(settings: &Settings) -> Command {
    let mut command = cargo(&settings.root);
    command.args(["test", "--no-run", "--locked", "--message-format=json-render-diagnostics"]);
    let features = FEATURES.iter().map(|(package, feature)| format!("{package}/{feature}"));
    command.arg("--workspace").args(["--features", &features.collect::<Vec<_>>().join(",")]);
    command
}

fn built(mut command: Command) -> Result<Vec<Program>> {
    let mut child = command.stdout(Stdio::piped()).spawn().context("cannot run cargo")?;
    let output = child.stdout.take().context("cargo has no standard output")?;
    let mut programs = Vec::new();
    for line in BufReader::new(output).lines() {
        programs.extend(program(&serde_json::from_str(&line?).context("cargo does not speak JSON")?));
    }
    ensure!(child.wait()?.success(), "the tests do not build");
    Ok(programs)
}

fn select(command: &mut Command, suites: &[&Suite]) {
    let tests = suites.iter().flat_map(|suite| suite.tests);
    let names: Option<Vec<&str>> = tests
        .map(|tests| match tests {
            Tests::Program(_, name) => Some(*name),
            Tests::Package(_) | Tests::OtherPackages => None,
        })
        .collect();
    // Of a package nothing less than all can be chosen.
    if let Some(names) = names {
        command.args(names.into_iter().chain([PRODUCT.1]).flat_map(|name| ["--test", name]));
    }
}

/// What one line of cargo's says was built, if it can be run.
fn program(message: &Value) -> Option<Program> {
    let executable = message["executable"].as_str()?;
    let manifest = Path::new(message["manifest_path"].as_str()?);
    // `path+file:///…/crates/api#agentcube-api@0.1.0`, or without the name where the directory is called so.
    let id = message["package_id"].as_str()?;
    let (directory, named) = id.rsplit_once('#')?;
    let package = match named.split_once('@') {
        Some((package, _)) => package,
        None => directory.rsplit('/').next()?,
    };
    Some(Program {
        package: package.to_owned(),
        name: message["target"]["name"].as_str()?.to_owned(),
        executable: executable.into(),
        kind: message["target"]["kind"][0].as_str()?.to_owned(),
        is_test: message["profile"]["test"].as_bool()?,
        directory: manifest.parent()?.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn built(package: &str, kind: &str, name: &str) -> Program {
        let manifest = "/tree/crates/some/Cargo.toml";
        let message = json!({
            "reason": "compiler-artifact",
            "package_id": format!("path+file:///tree/crates/some#{package}@0.1.0"),
            "manifest_path": manifest,
            "target": { "kind": [kind], "name": name },
            "profile": { "test": true },
            "executable": "/tree/target/debug/deps/some",
        });
        program(&message).expect("it can be run")
    }

    fn suites_of(program: &Program) -> Vec<&'static str> {
        let all = SUITES.iter().chain(ONLY_BY_NAME);
        all.filter(|suite| program.is_of(suite)).map(|suite| suite.name).collect()
    }

    #[test]
    fn every_program_is_of_the_suite_that_names_it_most_closely() {
        assert_eq!(suites_of(&built("agentcube-testkit", "test", "conformance")), ["conformance", "cluster"]);
        assert_eq!(
            suites_of(&built("agentcube-testkit", "test", "stories")),
            ["stories", "cluster", "cluster-bulk"]
        );
        assert_eq!(suites_of(&built("agentcube-testkit", "test", "fleet")), ["fastpath", "fleet"]);
        assert_eq!(suites_of(&built("agentcube-testkit", "test", "task_faults")), ["task-faults", "cluster"]);
        assert_eq!(suites_of(&built("agentcube-testkit", "lib", "agentcube_testkit")), ["unit"]);
        assert_eq!(suites_of(&built("agentcube-runtime", "test", "oci")), ["oci"]);
        assert_eq!(suites_of(&built("agentcube-runtime", "lib", "oci")), ["runtime"]);
        assert_eq!(suites_of(&built("agentcube-template", "test", "go")), ["templates"]);
        assert_eq!(suites_of(&built("agentcube-template", "test", "cases")), ["unit"]);
        assert_eq!(suites_of(&built("agentcube-extproc", "test", "fuzz")), ["unit"]);
        assert_eq!(suites_of(&built("some-crate", "test", "some")), ["unit"]);
    }

    #[test]
    fn knows_packages_that_are_called_like_their_directory() {
        let message = json!({
            "package_id": "path+file:///tree/xtask#0.1.0",
            "manifest_path": "/tree/xtask/Cargo.toml",
            "target": { "kind": ["bin"], "name": "xtask" },
            "profile": { "test": true },
            "executable": "/tree/target/debug/deps/xtask",
        });
        assert_eq!(program(&message).expect("it can be run").package, "xtask");
        assert!(program(&json!({ "reason": "build-finished", "success": true })).is_none());
    }
}
