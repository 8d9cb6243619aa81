//! `agentcube sandbox shell` as somebody has it who sits at a terminal: a pseudo-terminal, and a local shell that runs the
//! client on it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command};

use anyhow::{Context, Result, ensure};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize};
use tokio::sync::mpsc;

use crate::world::{LIMIT, World, name};

/// The local shell. It tells the client's code and stays: with it the terminal would lose its settings. What interrupts
/// the client interrupts it, too.
const LOCAL: &str = "\"$@\"; echo local-code-$?; read line";

struct Terminal {
    master: OwnedFd,
    slave: File,
    shown: mpsc::UnboundedReceiver<Vec<u8>>,
    /// What was shown and not looked for yet.
    rest: String,
}

impl Terminal {
    fn open(columns: u16, rows: u16) -> Result<Terminal> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let path = ptsname(&master, Vec::new())?.into_string()?;
        let slave = File::from(open(path, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?);
        // Settings that no terminal has by itself, so that they cannot come back by chance.
        let mut settings = tcgetattr(&slave)?;
        settings.local_modes.remove(LocalModes::ECHO | LocalModes::ECHOE);
        tcsetattr(&slave, OptionalActions::Now, &settings)?;
        let mut reader = File::from(master.try_clone()?);
        let (sender, shown) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // It fails when nobody has the other side any more.
            while let Ok(length @ 1..) = reader.read(&mut buffer) {
                let _unread = sender.send(buffer[..length].to_vec());
            }
        });
        let terminal = Terminal { master, slave, shown, rest: String::new() };
        terminal.resize(columns, rows)?;
        Ok(terminal)
    }

    /// As the window of a terminal does: the kernel tells whoever runs on it.
    fn resize(&self, columns: u16, rows: u16) -> Result<()> {
        let size = Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
        Ok(tcsetwinsize(&self.master, size)?)
    }

    fn settings(&self) -> Result<String> {
        let now = tcgetattr(self.slave.as_fd())?;
        Ok(format!(
            "{:?} {:?} {:?} {:?}",
            now.input_modes, now.output_modes, now.control_modes, now.local_modes
        ))
    }

    fn is_raw(&self) -> Result<bool> {
        Ok(!tcgetattr(self.slave.as_fd())?.local_modes.contains(LocalModes::ICANON))
    }

    /// Runs the client in a session of its own, whose terminal this is.
    fn run(&self, world: &World, args: &[&str]) -> Result<Child> {
        let mut command = world.for_users(Command::new("setsid"));
        command.args(["--ctty", "sh", "-c", LOCAL, "sh"]).arg(world.place.program()).args(args);
        let slave = || self.slave.try_clone();
        Ok(command.stdin(slave()?).stdout(slave()?).stderr(slave()?).spawn()?)
    }

    fn keys(&self, keys: &str) -> Result<()> {
        Ok(File::from(self.master.try_clone()?).write_all(keys.as_bytes())?)
    }

    /// Waits until this is shown. What is typed may be shown as well, and must not have it.
    async fn until(&mut self, words: &str) -> Result<()> {
        let looking = async {
            loop {
                if let Some(at) = self.rest.find(words) {
                    self.rest.drain(..at + words.len());
                    return Some(());
                }
                let more = self.shown.recv().await?;
                self.rest.push_str(&String::from_utf8_lossy(&more));
            }
        };
        let found = tokio::time::timeout(LIMIT, looking).await;
        found.ok().flatten().with_context(|| format!("{words:?} is not shown, but {:?}", self.rest))
    }
}

/// The client, which the local shell has started.
fn client(local: &Child) -> Result<Pid> {
    let pid = local.id();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let client = children.trim().parse().ok().and_then(Pid::from_raw);
    client.with_context(|| format!("the local shell has one child, not {children:?}"))
}

pub(crate) async fn shell(world: &World) -> Result<()> {
    let name = name(&world.create(&["--pool", "fast"], &["sleep", "1000"]).await?)?;
    let mut terminal = Terminal::open(100, 40)?;
    let before = terminal.settings()?;
    let mut local = terminal.run(world, &["sandbox", "shell", &name])?;
    terminal.keys("echo size $(stty size) of $HOSTNAME\n")?;
    terminal.until(&format!("size 40 100 of {name}")).await?;
    ensure!(terminal.is_raw()?, "while the shell runs, keys are its own");
    terminal.resize(120, 50)?;
    terminal.keys("until [ \"$(stty size)\" = '50 120' ]; do :; done; echo resized-$((6 * 7))\n")?;
    terminal.until("resized-42").await?;
    // What waits is interrupted, and nothing else is.
    terminal.keys("sh -c 'echo waits-$((6 * 7)); exec sleep 1000'; echo code-$?\n")?;
    terminal.until("waits-42").await?;
    terminal.keys("\x03")?;
    terminal.keys("echo after $?-$((6 * 7))\n")?;
    terminal.until("after 130-42").await?;
    terminal.keys("exit 3\n")?;
    terminal.until("local-code-3").await?;
    ensure!(terminal.settings()? == before, "{} was {before}", terminal.settings()?);
    terminal.keys("\n")?;
    let ended = tokio::task::spawn_blocking(move || local.wait());
    let ended = tokio::time::timeout(LIMIT, ended).await.context("the local shell stays")???;
    ensure!(ended.success(), "{ended}");
    world.well(&["rm", &name]).await?;
    world.gone(&name).await
}

/// Nothing of it goes on in the sandbox, and the terminal is as it was.
pub(crate) async fn ended(world: &World) -> Result<()> {
    let name = name(&world.create(&["--pool", "fast"], &["sleep", "1000"]).await?)?;
    let mut terminal = Terminal::open(80, 24)?;
    let before = terminal.settings()?;
    let mut local = terminal.run(world, &["sandbox", "shell", &name])?;
    terminal.keys("echo began-$((6 * 7)); exec sleep 4242\n")?;
    terminal.until("began-42").await?;
    kill_process(client(&local)?, Signal::TERM)?;
    terminal.until("local-code-143").await?;
    ensure!(terminal.settings()? == before, "{} was {before}", terminal.settings()?);
    terminal.keys("\n")?;
    let ended = tokio::task::spawn_blocking(move || local.wait());
    ensure!(tokio::time::timeout(LIMIT, ended).await.context("the local shell stays")???.success());
    let left = ["exec", &name, "--", "sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | grep -aq 42[4]2"];
    let gone = async {
        while world.sandbox(&left, "").await?.code == 0 {}
        anyhow::Ok(())
    };
    tokio::time::timeout(LIMIT, gone).await.context("what it ran is left")??;
    world.well(&["rm", &name]).await?;
    world.gone(&name).await
}
