//! With a node that runs Pods: the example agent under `up`, reached, drained and brought back.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::cluster::{Background, Home};

fn agent() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/agents/workload.yaml");
    path.display().to_string()
}

fn line(reader: &mut impl BufRead) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    line
}

/// Starts forwarding; the port here.
fn forward(home: &Home, args: &[&str]) -> (Child, BufReader<ChildStdout>, u16) {
    let mut command = home.command(&[&["port-forward"], args].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let said = line(&mut stdout);
    let port = said.strip_prefix("Forwarding from 127.0.0.1:").and_then(|rest| rest.split_once(" -> "));
    let port = port.unwrap_or_else(|| panic!("{said}")).0.parse().unwrap();
    (child, stdout, port)
}

fn interrupt(mut child: Child) -> String {
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    said
}

fn get(port: u16, path: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn an_agent_is_reached_through_a_forwarded_port() {
    let home = Home::new();
    let _background = Background(&home);
    home.run(&["up", "--detach", "--memory"]).well();
    home.run(&["apply", "-f", &agent(), "--wait", "--timeout", "120"]).well();

    // By the Service's port, whose name leads to the container's; and several at once.
    let (child, mut stdout, port) = forward(&home, &["svc/hello", ":80", ":http"]);
    assert!(line(&mut stdout).ends_with(" -> 8080\n"));
    let together: Vec<_> = (0..4).map(|_| std::thread::spawn(move || get(port, "/healthz"))).collect();
    for answer in together {
        assert!(answer.join().unwrap().starts_with("HTTP/1.1 200"));
    }
    // The Pod that served is gone; the next connection goes to one that is there.
    home.run(&["delete", "pod", "hello-0", "--now"]).well();
    home.run(&["apply", "-f", &agent(), "--wait", "--timeout", "120"]).well();
    assert!(get(port, "/healthz").starts_with("HTTP/1.1 200"));
    assert_eq!(interrupt(child), "");

    for target in ["hello-1", "pod/hello-1", "sts/hello"] {
        let (child, _, port) = forward(&home, &[target, "0:http"]);
        assert!(get(port, "/readyz").starts_with("HTTP/1.1 200"), "{target}");
        assert_eq!(interrupt(child), "");
    }

    // Nobody listens there: each connection ends, and one line says why.
    let (child, _, port) = forward(&home, &["hello-1", ":9"]);
    assert_eq!(get(port, "/"), "");
    let told = interrupt(child);
    assert!(told.contains("port 9 of pod/hello-1") && told.lines().count() == 1, "{told}");

    // The port is taken here.
    let (child, _, port) = forward(&home, &["hello-1", ":8080"]);
    let told = home.run(&["port-forward", "hello-1", &format!("{port}:8080")]).fails(1);
    assert!(
        told.contains(&format!("cannot listen on 127.0.0.1:{port}")) && told.lines().count() == 1,
        "{told}"
    );
    interrupt(child);
}

/// `up` in the foreground; a test that fails leaves nothing running.
struct Up(Child);

impl Up {
    fn interrupt(&mut self) {
        kill_process_group(Pid::from_child(&self.0), Signal::INT).unwrap();
        assert_eq!(self.0.wait().unwrap().code(), Some(0));
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        // It may have ended already, as it should.
        let _ended = self.0.kill().and_then(|()| self.0.wait());
    }
}

#[test]
fn an_interrupt_from_the_terminal_lets_pods_end_well() {
    let home = Home::new();
    let data = home.path().join("data").display().to_string();
    let up = || {
        let mut command = home.command(&["up", "--data-dir", &data]);
        // As a shell does it: the terminal's Ctrl-C goes to all of the group.
        command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut up = Up(command.spawn().unwrap());
        let mut banner = BufReader::new(up.0.stdout.take().unwrap()).lines().map(Result::unwrap);
        assert!(banner.any(|line| line.contains("stop:")));
        up
    };
    let kubeconfig = format!("{data}/kubeconfig");
    let run = |args: &[&str]| {
        let (command, rest) = args.split_at(1);
        home.run(&[command, &["--kubeconfig", &kubeconfig], rest].concat()).well()
    };

    let mut first = up();
    run(&["apply", "-f", "ends-well.yaml", "--wait", "--timeout", "120"]);
    first.interrupt();

    // The Pod comes back, and tells how the one before it ended.
    let mut second = up();
    run(&["apply", "-f", "ends-well.yaml", "--wait", "--timeout", "120"]);
    assert_eq!(run(&["exec", "ends-well", "--", "cat", "/kept/how"]), "asked to end\n");
    second.interrupt();
}
