//! What a container can do and see: no more than by the other runtimes.

use agentcube_runtime::spec::{Mount, Resources, Root, Source, User};
use anyhow::{Result, ensure};

use crate::world::World;

pub(crate) async fn restricts_as_the_other_runtimes_do(world: &mut World) -> Result<()> {
    let node = world.node().await?;
    let (sandbox, _sockets) = node.sandbox("my-pod").await?;
    let mut spec = node.spec("a", &sandbox, &["status"]);
    spec.user = User { uid: 1000, gid: 2000, groups: vec![3000] };
    spec.cwd = "/tmp".into();
    let (_, output) = node.run(spec).await?;
    let expected = [
        "Uid: 1000 1000 1000 1000\nGid: 2000 2000 2000 2000\n",
        "Groups: 3000",
        "CapPrm: 0000000000000000\nCapEff: 0000000000000000\nCapBnd: 0000000000000000\nCapAmb: 0000000000000000\n",
        "NoNewPrivs: 1\nSeccomp: 2\n",
        "hostname my-pod\ncwd /tmp\n",
        // Itself, and what holds its namespaces.
        "processes 2\n",
        // The network is the one that it was given.
        "devices lo",
    ];
    for line in expected {
        ensure!(output.contains(line), "{line:?}: {output}");
    }
    for attempt in [
        "unshare",
        "kill-holder",
        "touch-holder",
        "kcore",
        "sysrq",
        "cgroup",
        "mount",
        "set-hostname",
        "raw-socket",
    ] {
        for user in [0, 1000] {
            let mut spec = node.spec("b", &sandbox, &["try", attempt]);
            spec.user = User { uid: user, gid: user, groups: Vec::new() };
            let (exit, output) = node.run(spec).await?;
            ensure!(exit.code == 0, "{attempt} as {user}: {output}");
        }
    }
    node.stop().await;
    Ok(())
}

pub(crate) async fn limits_memory_and_processes(world: &mut World) -> Result<()> {
    let node = world.node().await?;
    let (sandbox, _sockets) = node.sandbox("pod").await?;
    let mut spec = node.spec("hungry", &sandbox, &["memory", "512"]);
    spec.resources =
        Resources { memory_bytes: Some(64 << 20), cpu_millis: Some(900), ..Resources::default() };
    let (exit, output) = node.run(spec).await?;
    ensure!((exit.code, exit.out_of_memory) == (137, true), "{exit:?} {output}");
    let mut spec = node.spec("many", &sandbox, &["fork"]);
    spec.resources = Resources { processes: Some(20), ..Resources::default() };
    let (exit, output) = node.run(spec).await?;
    let made: u32 = output.trim().trim_start_matches("made ").parse()?;
    ensure!(exit.code == 0 && (10..20).contains(&made), "{output}");
    let (exit, _) = node.run(node.spec("after", &sandbox, &["exit", "3"])).await?;
    ensure!((exit.code, exit.out_of_memory) == (3, false), "{exit:?}");
    node.stop().await;
    Ok(())
}

pub(crate) async fn mounts_and_read_only_roots(world: &mut World) -> Result<()> {
    let node = world.node().await?;
    let (sandbox, _sockets) = node.sandbox("pod").await?;
    let volume = tempfile::tempdir()?;
    std::fs::write(volume.path().join("file"), "of the volume")?;
    let spec = |words: &[&str], read_only: bool| {
        let mut spec = node.spec("a", &sandbox, words);
        spec.read_only_root = read_only;
        let bind = |target: &str, read_only| Mount {
            target: target.into(),
            source: Source::Bind(volume.path().to_owned()),
            read_only,
        };
        let memory =
            Mount { target: "/memory".into(), source: Source::Tmpfs { bytes: 1 << 20 }, read_only: false };
        spec.mounts = vec![bind("/data", false), bind("/fixed", true), memory];
        spec
    };
    let refused = "Read-only file system (os error 30)\n";
    let table: [(&[&str], bool, &str); 9] = [
        (&["read", "/data/file"], false, "of the volume"),
        (&["write", "/data/new", "x"], false, "written\n"),
        (&["write", "/fixed/new", "x"], false, refused),
        (&["write", "/memory/new", "x"], true, "written\n"),
        (&["read", "/etc/given"], true, "by the image"),
        (&["write", "/etc/made", "x"], false, "written\n"),
        // Of another container, which is gone.
        (&["read", "/etc/made"], false, "No such file or directory (os error 2)\n"),
        (&["write", "/etc/made", "x"], true, refused),
        (&["write", "/data/new", "y"], true, "written\n"),
    ];
    for (words, read_only, expected) in table {
        let (_, output) = node.run(spec(words, read_only)).await?;
        ensure!(output == expected, "{words:?}, read-only: {read_only}: {output}");
    }
    ensure!(std::fs::read_to_string(volume.path().join("new"))? == "y");
    // A directory of this machine as root, as images of the node's own store are.
    let root = tempfile::tempdir()?;
    std::fs::create_dir_all(root.path().join("etc"))?;
    std::fs::write(root.path().join("etc/given"), "by the directory")?;
    for (words, expected) in
        [(["write", "/etc/made", "x"].as_slice(), "written\n"), (&["read", "/etc/given"], "by the directory")]
    {
        let mut spec = node.spec("b", &sandbox, words);
        spec.root = Root::Directory(root.path().to_owned());
        for entry in ["/usr", "/bin", "/lib", "/lib64"].map(std::path::Path::new) {
            if let Ok(to) = std::fs::read_link(entry) {
                let _there = std::os::unix::fs::symlink(to, root.path().join(entry.strip_prefix("/")?));
            } else if entry.is_dir() {
                spec.mounts.push(Mount {
                    target: entry.into(),
                    source: Source::Bind(entry.into()),
                    read_only: true,
                });
            }
        }
        let program = std::env::current_exe()?;
        spec.mounts.push(Mount { target: "/probe".into(), source: Source::Bind(program), read_only: true });
        let scratch = spec.scratch.clone();
        let (_, output) = node.run(spec).await?;
        ensure!(output == expected && !scratch.exists(), "{words:?}: {output}");
    }
    ensure!(!root.path().join("etc/made").exists(), "the image was written to");
    node.stop().await;
    Ok(())
}
