//! `cargo demo`: builds AgentCube, starts it on a free loopback port, applies the definitions and an example,
//! shows them, and leaves it running.

use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::process::{cargo, find_program, quietly, succeeds};
use crate::{Settings, setup};

/// What the demonstration shows.
const EXAMPLES: [&str; 3] = [
    "examples/tasks/customer-support.yaml",
    "examples/gateways/default.yaml",
    "examples/sandboxes/pool.yaml",
];
const READY_LIMIT: Duration = Duration::from_secs(20);

/// Runs the demonstration.
pub(crate) fn run(settings: &Settings) -> Result<()> {
    eprintln!("building AgentCube (a few minutes the first time)");
    let built = succeeds(cargo(&settings.root).args(["build", "--quiet", "--release", "-p", "agentcube"]))?;
    ensure!(built, "agentcube does not build");
    let directory = settings.state.join("demo");
    stop_previous(&directory);
    std::fs::create_dir_all(&directory)?;
    let started = Instant::now();
    let (mut server, address) = start(settings, &directory)?;
    let kubeconfig = directory.join("kubeconfig");
    wait_ready(&mut server, &directory, address)?;
    println!("the API server answers at https://{address} after {} ms", started.elapsed().as_millis());
    std::fs::write(directory.join("pid"), server.id().to_string())?;
    show(settings, &kubeconfig)?;
    println!();
    println!("kubeconfig: {}", kubeconfig.display());
    println!("address:    https://{address}");
    println!("stop it:    kill {}", server.id());
    Ok(())
}

/// A demonstration that still runs is replaced, so that repeating the command leaves only one.
fn stop_previous(directory: &Path) {
    let Ok(pid) = std::fs::read_to_string(directory.join("pid")) else { return };
    let command = std::fs::read(format!("/proc/{}/cmdline", pid.trim())).unwrap_or_default();
    if String::from_utf8_lossy(&command).contains("agentcube") {
        let _ = Command::new("kill").arg(pid.trim()).status();
    }
    let _ = std::fs::remove_dir_all(directory);
}

fn start(settings: &Settings, directory: &Path) -> Result<(Child, std::net::SocketAddr)> {
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let log = File::create(directory.join("log"))?;
    let child = Command::new(settings.root.join("target/release/agentcube"))
        .arg("apiserver")
        .arg("--data-dir")
        .arg(directory.join("data"))
        .args(["--listen", &address.to_string()])
        .arg("--kubeconfig")
        .arg(directory.join("kubeconfig"))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("agentcube does not start")?;
    Ok((child, address))
}

fn wait_ready(server: &mut Child, directory: &Path, address: std::net::SocketAddr) -> Result<()> {
    let deadline = Instant::now() + READY_LIMIT;
    loop {
        let listening = std::net::TcpStream::connect_timeout(&address, Duration::from_millis(100)).is_ok();
        if listening && directory.join("kubeconfig").is_file() {
            return Ok(());
        }
        let log = || std::fs::read_to_string(directory.join("log")).unwrap_or_default();
        if let Some(status) = server.try_wait()? {
            bail!("agentcube ended ({status}):\n{}", log());
        }
        ensure!(Instant::now() < deadline, "agentcube does not answer at {address}:\n{}", log());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn show(settings: &Settings, kubeconfig: &Path) -> Result<()> {
    let Some(kubectl) = find_program(&settings.path, "kubectl").or_else(|| setup::kubectl(settings)) else {
        println!("(no kubectl on this machine: `cargo xtask setup` builds one; then try");
        println!("    kubectl --kubeconfig {} apply -f deploy/crds -f examples)", kubeconfig.display());
        return Ok(());
    };
    let run = |args: &[&str]| -> Result<String> {
        println!("\n$ kubectl {}", args.join(" "));
        let mut command = Command::new(&kubectl);
        command.current_dir(&settings.root).arg("--kubeconfig").arg(kubeconfig).args(args);
        let output = quietly(&mut command)?;
        print!("{output}");
        Ok(output)
    };
    run(&["apply", "--server-side", "-f", "deploy/crds"])?;
    run(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=20s"])?;
    for example in EXAMPLES {
        run(&["apply", "-f", example])?;
    }
    run(&["get", "tasks,taskgateways"])?;
    run(&["get", "sandboxpools"])?;
    Ok(())
}
