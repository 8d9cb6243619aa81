//! What this machine offers to Tasks: its own programs as the image `host`, the interpreters among them as runtimes of
//! code bundles, and the runtimes that were found as kinds of isolation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use agentcube_instance::spec::{Config, Guard, Isolation, Program, Runtime};

/// The image of this machine's own programs.
pub(super) const HOST: &str = "host";
/// What the image shows of this machine, besides what it was told to show.
const SHOWN: [&str; 4] = ["/usr", "/bin", "/sbin", "/opt"];
/// Where programs are looked for, whatever PATH says.
const USUAL: [&str; 3] = ["/usr/local/bin", "/usr/bin", "/bin"];

/// Where programs of Pods are looked for if nothing says otherwise.
const IN_PODS: [&str; 6] = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// Where things are on this machine.
pub(super) struct Machine<'a> {
    /// Namespace of the operator.
    pub(super) namespace: &'a str,
    /// Our own program, as Pods see it.
    pub(super) program: &'a str,
    /// Where programs are looked for.
    pub(super) path: Vec<PathBuf>,
    /// What else the image `host` shows.
    pub(super) host_directories: &'a [PathBuf],
    /// Names of the runtimes that Pods can choose.
    pub(super) handlers: &'a [String],
}

/// The configuration of the providers.
pub(super) fn config(machine: &Machine<'_>) -> Config {
    let offered = Config::default();
    Config {
        namespace: machine.namespace.into(),
        program: Program { image: HOST.into(), path: machine.program.into() },
        runtimes: runtimes(machine, offered.runtimes),
        isolations: isolations(machine.handlers, &offered.isolations),
        default_isolation: "native".into(),
        // Without root there is no other user than one's own.
        sandbox_user: None,
        ..Config::default()
    }
}

/// The runtimes whose interpreter is here, whatever version it has. Its name stays as it is: a Task that brings an image
/// of its own has it elsewhere.
fn runtimes(machine: &Machine<'_>, offered: BTreeMap<String, Runtime>) -> BTreeMap<String, Runtime> {
    let here = offered.into_iter().filter_map(|(name, mut runtime)| {
        let program = runtime.command.first()?;
        let found = find(machine, program)?;
        if usual(machine, program).as_ref() != Some(&found) {
            let path = format!("{}:{}", found.parent()?.to_str()?, IN_PODS.join(":"));
            runtime.env.entry("PATH".into()).or_insert(path);
        }
        runtime.image = HOST.into();
        Some((name, runtime))
    });
    here.collect()
}

/// A program that Pods of the image `host` can run.
fn find(machine: &Machine<'_>, program: &str) -> Option<PathBuf> {
    let places = machine.path.iter().map(PathBuf::as_path).chain(USUAL.iter().map(Path::new));
    first(machine, program, places)
}

/// The program that such a Pod runs if it is told the name only.
fn usual(machine: &Machine<'_>, program: &str) -> Option<PathBuf> {
    first(machine, program, IN_PODS.iter().map(Path::new))
}

fn first<'a>(
    machine: &Machine<'_>,
    program: &str,
    mut places: impl Iterator<Item = &'a Path>,
) -> Option<PathBuf> {
    let visible = |path: &Path| {
        let mut shown =
            SHOWN.iter().map(Path::new).chain(machine.host_directories.iter().map(PathBuf::as_path));
        shown.any(|directory| path.starts_with(directory))
    };
    places.find_map(|place| {
        let path = place.join(program);
        let real = path.canonicalize().ok()?;
        (visible(&path) && real.is_file() && visible(&real)).then_some(path)
    })
}

/// The runtimes that are here under their own names, and those of other names that they can stand for.
fn isolations(handlers: &[String], offered: &BTreeMap<String, Isolation>) -> BTreeMap<String, Isolation> {
    let isolation = |class: &str, guard| Isolation {
        runtime_class: class.into(),
        guard,
        image: Some(HOST.into()),
        annotations: BTreeMap::new(),
    };
    let own = handlers.iter().filter(|name| !name.is_empty()).map(|name| {
        let guard = if matches!(name.as_str(), "runsc" | "gvisor") { Guard::Gvisor } else { Guard::Other };
        (name.clone(), isolation(name, guard))
    });
    let known = offered.iter().filter(|(_, offered)| handlers.contains(&offered.runtime_class));
    let known = known.map(|(name, offered)| (name.clone(), isolation(&offered.runtime_class, offered.guard)));
    own.chain(known).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_programs_that_pods_see_are_offered() {
        let directory = tempfile::tempdir().unwrap();
        let (seen, unseen) = (directory.path().join("seen"), directory.path().join("unseen"));
        for place in [&seen, &unseen] {
            std::fs::create_dir(place).unwrap();
            std::fs::write(place.join("interpreter"), "").unwrap();
        }
        symlink(unseen.join("interpreter"), seen.join("elsewhere")).unwrap();
        let machine = Machine {
            namespace: "ns",
            program: "/p",
            path: vec![unseen, seen.clone()],
            host_directories: std::slice::from_ref(&seen),
            handlers: &[],
        };
        assert_eq!(find(&machine, "interpreter"), Some(seen.join("interpreter")));
        assert_eq!(find(&machine, "elsewhere"), None);
        assert_eq!(find(&machine, "nothing-of-this-name"), None);

        // By name, since the images of Tasks have it elsewhere.
        let runtime = |program: &str| Runtime {
            image: "python:3".into(),
            command: vec![program.into(), "{entrypoint}".into()],
            env: BTreeMap::new(),
            installer: None,
        };
        let offered = ["interpreter", "sh", "missing-here"].map(|name| (name.to_owned(), runtime(name)));
        let runtimes = runtimes(&machine, offered.into());
        assert_eq!(runtimes.keys().collect::<Vec<_>>(), ["interpreter", "sh"]);
        assert!(runtimes.iter().all(|(name, it)| it.command[0] == *name && it.image == HOST));
        assert_eq!(runtimes["sh"].env, BTreeMap::new());
        assert!(runtimes["interpreter"].env["PATH"].starts_with(&format!("{}:/usr/", seen.display())));
    }

    #[test]
    fn runtimes_of_the_machine_become_isolations() {
        let handlers = ["", "native", "runsc", "gvisor"].map(str::to_owned);
        let isolations = isolations(&handlers, &Config::default().isolations);
        assert_eq!(isolations.keys().collect::<Vec<_>>(), ["gvisor", "native", "runsc"]);
        assert_eq!(isolations["gvisor"].guard, Guard::Gvisor);
        assert_eq!(isolations["native"].guard, Guard::Other);
    }
}
