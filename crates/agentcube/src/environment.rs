//! What the process finds around it: variables and terminals, read once by `main` and handed down.

use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::PathBuf;

/// One of the standard streams, as far as it matters to what is written there.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stream {
    pub(crate) terminal: bool,
    pub(crate) colour: bool,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Environment {
    pub(crate) home: Option<PathBuf>,
    pub(crate) state_home: Option<PathBuf>,
    /// `KUBECONFIG`, which may list several files.
    pub(crate) kubeconfig: Option<OsString>,
    pub(crate) path: OsString,
    /// `KUBERNETES_SERVICE_HOST`: where a Pod finds the API server.
    pub(crate) api_server: Option<String>,
    pub(crate) stdin: Stream,
    pub(crate) stdout: Stream,
    pub(crate) stderr: Stream,
}

impl Environment {
    pub(crate) fn read() -> Self {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        let plain = variable("NO_COLOR").is_some() || variable("TERM").is_some_and(|term| term == "dumb");
        let stream = |terminal: bool| Stream { terminal, colour: terminal && !plain };
        Self {
            home: variable("HOME").map(PathBuf::from),
            state_home: variable("XDG_STATE_HOME").map(PathBuf::from),
            kubeconfig: variable("KUBECONFIG"),
            path: variable("PATH").unwrap_or_default(),
            api_server: variable("KUBERNETES_SERVICE_HOST").and_then(|host| host.into_string().ok()),
            stdin: stream(std::io::stdin().is_terminal()),
            stdout: stream(std::io::stdout().is_terminal()),
            stderr: stream(std::io::stderr().is_terminal()),
        }
    }
}

/// All variables that are text, for a program whose words name some.
pub(crate) fn variables() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}
