//! A node that starts and removes containers until it is killed, and says after each what it has done.

use std::io::Write;
use std::path::Path;

use agentcube_runtime::native::Native;
use agentcube_runtime::spawner::{Options, Spawner};
use agentcube_runtime::spec::{Resources, Root, User};
use agentcube_runtime::{
    ContainerId, ContainerSpec, Runtime, SandboxId, SandboxSpec, Sandboxes, Stdio, capabilities,
};

pub(crate) fn run(name: &str, directory: &str) {
    let options = Options::new(name, directory);
    let program = std::env::current_exe().expect("this program has a path");
    let spawner = Spawner::start(&program, &options).expect("the spawner starts");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let native = Native::new(prepare(spawner).await);
        for number in 0.. {
            // One that stays, and one that goes: at any time there are both.
            for kind in ["stays", "goes"] {
                let spec = spec(&options, &program, &format!("{kind}-{number}"), &["forever"]);
                native.start(spec, Stdio::default()).await.expect("a container starts");
                say(kind);
            }
            let goes = ContainerId::new(format!("goes-{number}")).expect("an id");
            native.remove(&goes).await.expect("a container is removed");
            say("gone");
        }
    });
}

async fn prepare(spawner: Spawner) -> agentcube_runtime::spawner::Handle {
    let handle = spawner.into_handle().expect("a handle");
    let spec = SandboxSpec {
        id: SandboxId::new("pod").expect("an id"),
        hostname: "pod".to_owned(),
        address: [10, 244, 0, 2].into(),
        name_server: [10, 96, 0, 10].into(),
    };
    handle.create(spec).await.expect("a sandbox");
    say("sandbox");
    handle
}

pub(crate) fn spec(options: &Options, program: &Path, name: &str, args: &[&str]) -> ContainerSpec {
    let id = ContainerId::new(name).expect("an id");
    let scratch = options.scratch(&id);
    let directory = program.parent().expect("a program lies in a directory").to_owned();
    ContainerSpec {
        id,
        sandbox: SandboxId::new("pod").expect("an id"),
        root: Root::Host { also: vec![directory] },
        read_only_root: false,
        scratch,
        args: std::iter::once(program.to_str().expect("text"))
            .chain(args.iter().copied())
            .map(str::to_owned)
            .collect(),
        env: Vec::new(),
        cwd: "/".into(),
        user: User::default(),
        mounts: Vec::new(),
        resources: Resources::default(),
        capabilities: capabilities::default_set(),
        no_new_privileges: true,
        seccomp: true,
        terminal: false,
        files: Vec::new(),
        tag: String::new(),
        labels: Default::default(),
    }
}

pub(crate) fn say(what: &str) {
    println!("{what}");
    std::io::stdout().flush().expect("somebody listens");
}
