//! The floor: the same program as a plain process of the machine, without any container.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Result;

use super::bundle::{self, RootFs};
use super::oci::{self, Alive};
use super::times::Times;

pub struct Plain {
    program: PathBuf,
    sockets: PathBuf,
}

impl Plain {
    pub fn new(root: &RootFs) -> Result<Plain> {
        Ok(Plain { program: bundle::program()?, sockets: root.beside("sockets")? })
    }

    pub async fn start(&self, number: usize) -> Result<(Times, Alive)> {
        let socket = self.sockets.join(number.to_string());
        let mut command = Command::new(&self.program);
        command.arg(&socket).stdin(Stdio::null()).stderr(Stdio::piped());
        oci::start(command, socket).await
    }
}
