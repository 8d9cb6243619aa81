//! The command line and the environment: the image's defaults, and what the Pod puts in their place.

use agentcube_runtime::image::Config;
use k8s_openapi::api::core::v1::Container;

use super::Refusal;
use crate::kubelet::environment::expand;

/// What a program finds if nobody says otherwise.
pub(super) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A command of the Pod replaces both parts of the image's; arguments alone replace the second.
pub(super) fn command(
    container: &Container,
    config: &Config,
    env: &[(String, String)],
) -> Result<Vec<String>, Refusal> {
    let find = |name: &str| env.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str());
    let expanded = |words: &Option<Vec<String>>| -> Result<Option<Vec<String>>, Refusal> {
        let Some(words) = words.as_ref().filter(|words| !words.is_empty()) else { return Ok(None) };
        let words: Result<Vec<String>, _> = words.iter().map(|word| expand(word, find)).collect();
        words.map(Some).map_err(|error| Refusal::config(format!("an argument is {error}")))
    };
    let (entrypoint, arguments) = (expanded(&container.command)?, expanded(&container.args)?);
    let defaults = if entrypoint.is_none() && arguments.is_none() { config.cmd.clone() } else { Vec::new() };
    let mut words = entrypoint.unwrap_or_else(|| config.entrypoint.clone());
    words.extend(arguments.unwrap_or(defaults));
    if words.is_empty() {
        return Err(Refusal::create(format!(
            "no command specified: set the command of container {:?}, as its image has none",
            container.name
        )));
    }
    if words.iter().any(|word| word.contains('\0')) {
        return Err(Refusal::create("arguments cannot have NUL bytes"));
    }
    Ok(words)
}
