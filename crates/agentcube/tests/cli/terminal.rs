//! `exec -it` on a real pseudo-terminal: raw while it lasts, and as it was after every way out.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};

use crate::cluster::Cluster;

struct Terminal {
    master: OwnedFd,
    slave: File,
}

impl Terminal {
    fn open(columns: u16, rows: u16) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        let slave = File::options().read(true).write(true).open(name).unwrap();
        let size = Winsize { ws_col: columns, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).unwrap();
        Self { master, slave }
    }

    fn is_raw(&self) -> bool {
        !tcgetattr(self.slave.as_fd()).unwrap().local_modes.contains(LocalModes::ICANON)
    }

    fn run(&self, cluster: &Cluster, args: &[&str]) -> Child {
        let mut command = cluster.home.command(args);
        let slave = || self.slave.try_clone().unwrap();
        command.stdin(slave()).stdout(slave()).stderr(slave()).spawn().unwrap()
    }

    fn reader(&self) -> BufReader<File> {
        BufReader::new(File::from(self.master.try_clone().unwrap()))
    }
}

fn cluster() -> Cluster {
    let cluster = Cluster::start();
    cluster.run(&["apply", "-f", "pods.yaml"]).well();
    cluster.bind("one");
    cluster
}

fn line(reader: &mut impl BufRead) -> String {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    line
}

#[test]
fn the_size_is_told_and_the_settings_come_back() {
    let cluster = cluster();
    let terminal = Terminal::open(100, 40);
    assert!(!terminal.is_raw());
    let mut child = terminal.run(&cluster, &["exec", "-it", "one", "--", "size"]);
    assert_eq!(line(&mut terminal.reader()).trim_end(), "100x40");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(!terminal.is_raw(), "the terminal is as it was");
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let cluster = cluster();
    for (variable, coloured) in
        [(None, true), (Some(("NO_COLOR", "1")), false), (Some(("TERM", "dumb")), false)]
    {
        let terminal = Terminal::open(80, 24);
        let mut command = cluster.home.command(&["describe", "pod", "one"]);
        command.envs(variable).stdout(terminal.slave.try_clone().unwrap());
        let mut child = command.spawn().unwrap();
        let shown: Vec<String> = terminal
            .reader()
            .lines()
            .map(Result::unwrap)
            .take_while(|line| !line.contains("Events:"))
            .collect();
        child.wait().unwrap();
        assert_eq!(shown.concat().contains("\x1b["), coloured, "{variable:?}");
    }
    assert!(!cluster.run(&["describe", "pod", "one"]).well().contains('\x1b'), "and not for pipes");
}

#[test]
fn keys_go_to_the_command_and_a_signal_leaves_the_terminal_right() {
    let cluster = cluster();
    let terminal = Terminal::open(80, 24);
    let mut child = terminal.run(&cluster, &["exec", "-it", "one", "--", "wait"]);
    let mut reader = terminal.reader();
    assert_eq!(line(&mut reader).trim_end(), "waiting");
    assert!(terminal.is_raw(), "while the command runs");
    // Ctrl-C is a key like any other: it is the command's, and ends nothing here.
    File::from(terminal.master.try_clone().unwrap()).write_all(b"\x03").unwrap();
    assert!(child.try_wait().unwrap().is_none());
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    assert!(!terminal.is_raw(), "the terminal is as it was");
}
