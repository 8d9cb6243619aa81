//! Wrong command lines, absent servers, and what needs no server.

use std::net::TcpListener;
use std::process::{Command, Stdio};

use crate::cluster::Home;

#[test]
fn wrong_command_lines_exit_with_2() {
    let home = Home::new();
    for args in [
        &[][..],
        &["nonsense"],
        &["get"],
        &["get", "pods", "--nonsense"],
        &["get", "pods", "-o", "nonsense"],
        &["apply"],
        &["exec", "pod"],
        &["up", "--listen", "nonsense"],
        &["up", "--detach", "--background"],
        &["router", "--admin-token-file", "x"],
        &["logs"],
        &["port-forward", "pod"],
        &["port-forward", "pod", "80:HTTP"],
    ] {
        let said = home.run(args);
        assert_eq!(said.code, Some(2), "{args:?}: {}", said.stderr);
        assert!(said.stderr.contains("--help"), "{args:?}: {}", said.stderr);
    }
}

#[test]
fn without_a_cluster_it_says_how_to_get_one() {
    let home = Home::new();
    for args in
        [&["get", "pods"][..], &["apply", "-f", "config.yaml"], &["logs", "x"], &["exec", "x", "--", "y"]]
    {
        let told = home.run(args).fails(3);
        assert!(told.contains("`agentcube up` starts one") && told.lines().count() == 1, "{told}");
    }
}

#[test]
fn a_server_that_is_not_there_is_named() {
    let home = Home::new();
    // Taken and given back: nobody listens there for now.
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let kubeconfig = home.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: \"https://{address}\"}}}}]\n\
         users: [{{name: u, user: {{token: t}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n"
    );
    std::fs::write(&kubeconfig, text).unwrap();
    let path = kubeconfig.display().to_string();
    for args in
        [&["get", "pods"][..], &["apply", "-f", "config.yaml"], &["delete", "cm", "x"], &["logs", "x"]]
    {
        let args = [args, &["--kubeconfig", &path]].concat();
        let told = home.run(&args).fails(1);
        assert!(told.contains(&format!("cannot reach https://{address}: ")), "{told}");
        assert!(told.contains("refused") && told.lines().count() == 1, "{told}");
    }
    let told = home.run(&["exec", "x", "--kubeconfig", &path, "--", "y"]).fails(1);
    assert!(told.contains("refused") && told.lines().count() == 1, "{told}");
    let said = home.run(&["version", "--kubeconfig", &path]);
    assert!(said.stderr.contains("cannot reach"), "{}", said.stderr);
    assert!(said.well().starts_with("agentcube "));
    // The environment names it as well as the argument does, and files that do not exist are passed over.
    let mut command = home.command(&["get", "pods"]);
    command.env("KUBECONFIG", format!("/no/such/file:{path}"));
    let told = crate::cluster::finish(command, b"").fails(1);
    assert!(told.contains(&address.to_string()), "{told}");
}

#[test]
fn completion_for_every_shell() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = home.run(&["completion", shell]).well();
        assert!(script.contains("describe"), "{shell}");
    }
    home.run(&["completion", "nonsense"]).fails(2);
}

#[test]
fn doctor_speaks_to_machines_and_leaves_nothing() {
    let home = Home::new();
    let child = home.command(&["doctor", "-o", "json"]).stdout(Stdio::piped()).spawn().unwrap();
    let cgroup = format!("doctor-{}", child.id());
    let output = child.wait_with_output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(if report["ready"] == true { 0 } else { 1 }));
    let names: Vec<&str> =
        report["checks"].as_array().unwrap().iter().filter_map(|c| c["name"].as_str()).collect();
    for name in ["Linux kernel", "overlay", "nf_tables", "memory limits", "cgroups", "data directory"] {
        assert!(names.contains(&name), "{names:?}");
    }
    let text = home.run(&["doctor"]).stdout;
    assert!(text.contains("Linux kernel") && !text.contains('\x1b'), "{text}");
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0, "the home is as it was");
    let find =
        Command::new("find").args(["/sys/fs/cgroup", "-name", &format!("*{cgroup}*")]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&find.stdout), "", "no cgroup is left");
}

#[test]
fn the_reference_is_up_to_date() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/CLI.md");
    let written = std::fs::read_to_string(path).unwrap_or_default();
    let home = Home::new();
    assert!(home.run(&["__reference"]).well() == written, "docs/CLI.md is old: run `cargo xtask gen`");
}
