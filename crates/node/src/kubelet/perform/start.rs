//! Starts one run of a container.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use agentcube_runtime::spec::{ContainerId, ContainerSpec, Root, SandboxId};
use agentcube_runtime::{Error, Stdio, signals};
use k8s_openapi::api::core::v1::{Container, HostIP, Pod, PodIP};
use tokio::net::unix::pipe;

use super::{Loaded, Outcome, Parts, Started, blocking, uid};
use crate::kubelet::container::{self, Refusal, termination_message};
use crate::kubelet::environment;
use crate::kubelet::living::Run;
use crate::kubelet::logs;
use crate::kubelet::machine::Report;
use crate::kubelet::volumes::Prepared;
use crate::kubelet::worker::{Ground, about};
use agentcube_operator::events::Severity;

/// What a start needs.
#[derive(Clone)]
pub(crate) struct Start {
    pub(crate) parts: Arc<Parts>,
    pub(crate) pod: Arc<Pod>,
    pub(crate) spec: Container,
    pub(crate) attempt: u32,
    pub(crate) ground: Ground,
    pub(crate) image: Arc<Loaded>,
    pub(crate) prepared: Arc<Prepared>,
}

struct Ready {
    spec: ContainerSpec,
    stdio: Stdio,
    stdin: Option<OwnedFd>,
}

impl Start {
    pub(crate) async fn perform(self) -> Outcome {
        let _turn = self.parts.starts.acquire().await;
        let (name, id) = (self.spec.name.clone(), self.id());
        let this = self.clone();
        let ready = blocking(move || Ok(this.prepare()))
            .await
            .unwrap_or_else(|message| Err(Refusal { reason: "CreateContainerError", message }));
        let Ready { spec, stdio, stdin } = match ready {
            Ok(ready) => ready,
            Err(Refusal { reason, message }) => {
                self.say(Severity::Warning, "Failed", format!("Error: {message}"));
                return Outcome::Report(Report::Unstartable { container: name, reason, message });
            }
        };
        self.say(Severity::Normal, "Created", "Container created".to_owned());
        let (run_id, env) = (spec.id.clone(), Arc::new(spec.env.clone()));
        let process = match self.ground.runtime.start(spec, stdio).await {
            Ok(process) => process,
            Err(error) => return self.failed(id, &error),
        };
        self.say(Severity::Normal, "Started", "Container started".to_owned());
        let terminal = process.terminal.map(Arc::new);
        if let Some(terminal) = &terminal
            && let Err(error) = self.copy_terminal(terminal)
        {
            tracing::warn!(%error, container = self.spec.name, "what appears on its terminal is not in its log");
        }
        let run = Run {
            id: run_id,
            runtime: self.ground.runtime.clone(),
            env,
            stdin: stdin.map(Arc::new),
            terminal,
            stop_signal: self.stop_signal(),
        };
        Outcome::Started(Box::new(Started {
            container: name,
            attempt: self.attempt,
            run,
            exit: process.exit,
        }))
    }

    fn failed(&self, id: String, error: &Error) -> Outcome {
        let (container, message) = (self.spec.name.clone(), error.to_string());
        self.say(Severity::Warning, "Failed", format!("Error: {message}"));
        Outcome::Report(match error {
            Error::Unsupported(_) => {
                Report::Unstartable { container, reason: "CreateContainerError", message }
            }
            _ => Report::StartFailed { container, id, message },
        })
    }

    fn say(&self, severity: Severity, reason: &str, message: String) {
        self.parts.recorder.record(about(&self.pod, &self.spec), severity, reason, message);
    }

    /// Unique over all runs of all processes; it names directories, and shows whose it is.
    fn id(&self) -> String {
        format!("{}_{}_{}_{}", uid(&self.pod), self.spec.name, self.attempt, self.parts.boot)
    }

    fn stop_signal(&self) -> i32 {
        let own = self.spec.lifecycle.as_ref().and_then(|lifecycle| lifecycle.stop_signal.as_deref());
        let image = Some(self.image.image.config.stop_signal.as_str());
        own.or(image).and_then(signals::number).unwrap_or(signals::TERM)
    }

    /// Everything that comes before the runtime is asked. Blocks on the disk.
    fn prepare(&self) -> Result<Ready, Refusal> {
        let config = |message: String| Refusal { reason: "CreateContainerConfigError", message };
        let create = |message: String| Refusal { reason: "CreateContainerError", message };
        let uid = uid(&self.pod);
        let pod = self.pod_with_addresses();
        let env = environment::resolve(&pod, &self.spec, self.parts.lookup.as_ref())
            .map_err(|error| config(error.to_string()))?;
        let mut volumes =
            self.prepared.mounts(&self.spec, &env).map_err(|error| config(error.to_string()))?;
        if let Root::Host { .. } = self.image.image.root {
            volumes.extend(self.parts.options.host_mounts.iter().cloned());
        }
        let disk = |error: io::Error| create(format!("cannot prepare its directory: {error}"));
        let directory = self.parts.directories.run(&uid, &self.id()).map_err(disk)?;
        let message = termination_message(&directory);
        fs::File::create(&message)
            .and_then(|file| file.set_permissions(fs::Permissions::from_mode(0o666)))
            .map_err(disk)?;
        let files = self.parts.directories.etc(&uid).map_err(disk)?;
        let id = |error: Error| create(error.to_string());
        let run = container::Run {
            id: ContainerId::new(self.id()).map_err(id)?,
            sandbox: SandboxId::new(uid.clone()).map_err(id)?,
            root: self.image.image.root.clone(),
            config: &self.image.image.config,
            env,
            volumes,
            directory: &directory,
            files: &files,
            names: &self.ground.names,
            allowed: &self.parts.options.allowed,
        };
        let spec = container::describe(&pod, &self.spec, run)?;
        let (stdio, stdin) = self.stdio(&uid).map_err(disk)?;
        Ok(Ready { spec, stdio, stdin })
    }

    /// The Pod as its variables see it: the API may not have its addresses yet.
    fn pod_with_addresses(&self) -> Pod {
        let mut pod = self.pod.as_ref().clone();
        let status = pod.status.get_or_insert_default();
        let (address, host) = (self.ground.address.to_string(), self.parts.options.address.to_string());
        status.pod_ip = Some(address.clone());
        status.pod_ips = Some(vec![PodIP { ip: address }]);
        status.host_ip = Some(host.clone());
        status.host_ips = Some(vec![HostIP { ip: host }]);
        pod
    }

    /// Where the program's output and its errors go.
    fn log(&self, uid: &str) -> io::Result<(OwnedFd, OwnedFd)> {
        let run =
            logs::Run { pod_uid: uid.to_owned(), container: self.spec.name.clone(), attempt: self.attempt };
        self.parts.logs.forget_before(&run)?;
        self.parts.logs.begin(&run)
    }

    fn stdio(&self, uid: &str) -> io::Result<(Stdio, Option<OwnedFd>)> {
        if self.spec.tty == Some(true) {
            return Ok((Stdio::default(), None));
        }
        let (stdout, stderr) = self.log(uid)?;
        let (stdin, writer) = match self.spec.stdin {
            Some(true) => {
                let (reader, writer) = io::pipe()?;
                (Some(reader.into()), Some(writer.into()))
            }
            _ => (None, None),
        };
        Ok((Stdio { stdin, stdout: Some(stdout), stderr: Some(stderr), ..Stdio::default() }, writer))
    }

    /// What is written to a terminal is the container's log. Ends with the container.
    fn copy_terminal(&self, terminal: &OwnedFd) -> io::Result<()> {
        let (log, _) = self.log(&uid(&self.pod))?;
        rustix::io::ioctl_fionbio(terminal, true)?;
        // To tokio it is a pipe: all that matters is that it can be polled.
        let mut from = pipe::Receiver::from_owned_fd_unchecked(terminal.try_clone()?)?;
        let mut to = pipe::Sender::from_owned_fd(log)?;
        tokio::spawn(async move {
            // A terminal that nobody holds any more ends with an error.
            let _ended = tokio::io::copy(&mut from, &mut to).await;
        });
        Ok(())
    }
}
