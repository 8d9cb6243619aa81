//! Commands beside a container's program. What a command may do is read from what containerd has written down of its
//! container, so that a restarted agent executes as the first one did.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use agentcube_runtime::{ContainerId, Error, ExecSpec, Process, Stdio};
use serde_json::{Value, json};

use crate::client::{During, ask, or_gone};
use crate::container::{Containerd, paths, relay_input, unknown};
use crate::generated::containerd::services::containers::v1::GetContainerRequest;
use crate::generated::containerd::services::tasks::v1::{ExecProcessRequest, StartRequest};
use crate::generated::containerd::types::Any;
use crate::generated::containerd::v1::types::Status;
use crate::terminal::Terminal;

/// How containerd calls the description of a process.
const PROCESS: &str = "types.containerd.io/opencontainers/runtime-spec/1/Process";

impl Containerd {
    pub(crate) async fn execute(
        &self,
        id: &ContainerId,
        spec: ExecSpec,
        stdio: Stdio,
    ) -> Result<Process, Error> {
        if self.frozen.lock().contains(id) {
            return Err(Error::Invalid(format!("container {:?} is frozen: thaw it first", id.as_str())));
        }
        if self.status(id).await? != Status::Running {
            return Err(unknown(id));
        }
        let described = describe(&self.process_of(id).await?, &spec)?;
        // Of another agent of this container, before us, there may be some still.
        let number = self.executed.fetch_add(1, Ordering::Relaxed);
        let command = format!("exec-{}-{number}", std::process::id());
        let terminal = spec.terminal.then(Terminal::open).transpose().map_err(|error| no_terminal(&error))?;
        let (streams, input) = match &terminal {
            Some(terminal) => (terminal.streams().map_err(|error| no_terminal(&error))?, None),
            None => relay_input([stdio.stdin, stdio.stdout, stdio.stderr])?,
        };
        let pid = self.run(id, &command, described, spec.terminal, streams).await?;
        if let Some(input) = input {
            input.serve(self.client.clone(), id.clone(), command.clone());
        }
        let exit = self.client.command_exit(id, &command);
        let master =
            terminal.map(|terminal| terminal.serve(self.client.clone(), id.clone(), command)).transpose();
        Ok(Process { pid, terminal: master.map_err(|error| no_terminal(&error))?, exit })
    }

    async fn run(
        &self,
        id: &ContainerId,
        command: &str,
        described: Vec<u8>,
        terminal: bool,
        streams: [Option<OwnedFd>; 3],
    ) -> Result<u32, Error> {
        let [stdin, stdout, mut stderr] = paths(&streams);
        if terminal {
            stderr.clear();
        }
        let request = ExecProcessRequest {
            container_id: id.to_string(),
            stdin,
            stdout,
            stderr,
            terminal,
            spec: Some(Any { type_url: PROCESS.into(), value: described }),
            exec_id: command.to_owned(),
        };
        ask(self.client.tasks().exec(self.client.request(request))).await.during("executing the program")?;
        let request = StartRequest { container_id: id.to_string(), exec_id: command.to_owned() };
        match ask(self.client.tasks().start(self.client.request(request))).await {
            Ok(started) => Ok(started.pid),
            Err(status) => {
                self.client.forget(id, command).await;
                Err(status).during("executing the program")
            }
        }
    }

    /// The first process of a container, as its configuration has it.
    async fn process_of(&self, id: &ContainerId) -> Result<Value, Error> {
        let request = GetContainerRequest { id: id.to_string() };
        let got = or_gone(ask(self.client.containers().get(self.client.request(request))).await);
        let container = got.during("asking for the container")?.and_then(|answer| answer.container);
        let config = container.and_then(|container| container.spec).ok_or_else(|| unknown(id))?;
        let mut config: Value = serde_json::from_slice(&config.value).map_err(|error| malformed(&error))?;
        Ok(config["process"].take())
    }
}

fn malformed(error: &serde_json::Error) -> Error {
    Error::Step { step: "reading the container's configuration", reason: error.to_string() }
}

fn no_terminal(error: &std::io::Error) -> Error {
    Error::Step { step: "opening a terminal", reason: error.to_string() }
}

/// One more program of a container, with no more rights than its first.
fn describe(first: &Value, spec: &ExecSpec) -> Result<Vec<u8>, Error> {
    let mut process = first.clone();
    if !process.is_object() {
        return Err(Error::Step {
            step: "reading the container's configuration",
            reason: "it says nothing of a process".into(),
        });
    }
    let own = |variable: &&Value| {
        let name = variable.as_str().and_then(|variable| variable.split_once('=')).map(|(name, _)| name);
        !spec.env.iter().any(|(key, _)| Some(key.as_str()) == name)
    };
    let kept = first["env"].as_array().into_iter().flatten().filter(own).cloned();
    let given = spec.env.iter().map(|(key, value)| json!(format!("{key}={value}")));
    process["env"] = kept.chain(given).collect();
    process["args"] = json!(spec.args);
    process["terminal"] = json!(spec.terminal);
    if let Some(cwd) = &spec.cwd {
        process["cwd"] = json!(cwd);
    }
    if let Some(user) = &spec.user {
        process["user"] = json!({"uid": user.uid, "gid": user.gid, "additionalGids": user.groups});
        if user.uid != 0 {
            process["capabilities"]["effective"] = json!([]);
            process["capabilities"]["permitted"] = json!([]);
        }
    }
    serde_json::to_vec(&process).map_err(|error| malformed(&error))
}

#[cfg(test)]
mod tests {
    use agentcube_runtime::spec::User;

    use super::*;

    #[test]
    fn a_command_is_as_restricted_as_its_container() {
        let first = json!({
            "terminal": false, "args": ["first"], "env": ["A=1", "B=2"], "cwd": "/home", "noNewPrivileges": true,
            "user": {"uid": 0, "gid": 0}, "capabilities": {"bounding": ["CAP_KILL"], "effective": ["CAP_KILL"]},
        });
        let mut spec = ExecSpec {
            args: vec!["second".into()],
            env: vec![("B".into(), "3".into())],
            cwd: None,
            user: None,
            terminal: true,
        };
        let read =
            |spec: &ExecSpec| -> Value { serde_json::from_slice(&describe(&first, spec).unwrap()).unwrap() };
        let process = read(&spec);
        assert_eq!(process["args"], json!(["second"]));
        assert_eq!(process["env"], json!(["A=1", "B=3"]));
        assert_eq!((&process["cwd"], &process["noNewPrivileges"]), (&json!("/home"), &json!(true)));
        assert_eq!(process["terminal"], json!(true));

        spec.user = Some(User { uid: 7, gid: 8, groups: vec![9] });
        spec.cwd = Some("/tmp".into());
        let process = read(&spec);
        assert_eq!(process["user"], json!({"uid": 7, "gid": 8, "additionalGids": [9]}));
        assert_eq!(process["cwd"], json!("/tmp"));
        assert_eq!(process["capabilities"]["effective"], json!([]));
        assert_eq!(process["capabilities"]["bounding"], json!(["CAP_KILL"]));
        assert!(describe(&Value::Null, &spec).is_err());
    }
}
