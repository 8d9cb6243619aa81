//! How the controllers of front ends are configured from a command line.

use agentcube_forge::Options;
use agentcube_forge::options::{Access, Limits};
use agentcube_forge::token::Key;
use agentcube_instance::token;
use anyhow::Context;
use clap::Args;
use kube::Client;

use crate::exit::Usage;

/// The Secret with the key that tokens of runners are made by, in the operator's namespace.
pub(crate) const KEY_SECRET: &str = "agentcube-forge-key";
/// The Service of the build service, there too.
pub(crate) const SERVICE: &str = "agentcube-build-service";

#[derive(Args, Debug)]
#[command(next_help_heading = "Front ends")]
#[group(skip)]
pub(crate) struct Arguments {
    /// Do not look after FrontendIntegrations
    #[arg(long)]
    no_forge: bool,
    /// Where Jobs find the build service [default: the Service agentcube-build-service of the operator's namespace]
    #[arg(long, value_name = "URL")]
    build_service: Option<String>,
    /// The Secret of the operator's namespace with the key of runners' tokens; made if there is none
    #[arg(long, value_name = "NAME", default_value = KEY_SECRET)]
    forge_key_secret: String,
}

impl Arguments {
    /// What controllers work with, if they are to run. Jobs run `program` in `image`.
    pub(crate) async fn options(
        &self,
        client: &Client,
        namespace: &str,
        image: &str,
        program: &str,
    ) -> anyhow::Result<Option<Options>> {
        if self.no_forge {
            return Ok(None);
        }
        let usual = || format!("http://{SERVICE}.{namespace}.svc:8080");
        let build_service = self.build_service.clone().unwrap_or_else(usual);
        if !build_service.starts_with("http://") {
            let message =
                format!("--build-service {build_service:?}: write it like http://name.namespace.svc:8080");
            return Err(Usage(message).into());
        }
        Ok(Some(Options {
            image: image.to_owned(),
            program: program.to_owned(),
            build_service,
            key: key(client, namespace, &self.forge_key_secret).await?,
            access: Access::ServiceAccounts,
            restricted: true,
            watch_namespace: None,
            limits: Limits::default(),
        }))
    }
}

/// The key, which is made if there is none.
pub(crate) async fn key(client: &Client, namespace: &str, secret: &str) -> anyhow::Result<Key> {
    let text = token::ensure_token(client.clone(), namespace, secret).await?;
    Key::new(&text).with_context(|| format!("the key in Secret {secret} is too short"))
}
