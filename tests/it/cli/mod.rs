//! The command line as a user meets it: the real binary, against a real server.

mod activity;
mod answers;
mod check;
mod cut_answers;
mod dead_letters;
mod demo;
mod examples;
mod exits;
mod experiments;
mod gone_readers;
mod help;
mod history;
mod hot_counters;
mod hung;
mod queues;
mod rules;
mod series;
mod settings;
mod status;
mod tables;
mod units;
mod words;
mod work;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

use crate::support::harness::{Launch, Server};

/// A namespace that keeps series.
const VIEWS: &str = "name = \"views\"\n\n[[series]]\nstep = \"10s\"\nkeep = \"1d\"\n";
/// A namespace that takes totals.
const TOTALS: &str = "name = \"totals\"\ntemporality = \"CUMULATIVE\"\n";

/// Settings of a server that keeps nothing.
const SETTINGS: &str = "[server]\nlisten = \"127.0.0.1:0\"\n\n[auth]\nmode = \"off\"\n\n[counters]\nengine = \"memory\"\n\n[queues]\nengine = \"memory\"\n";

/// A server, and a folder to work in.
struct Desk {
    server: Server,
    folder: TempDir,
}

/// How a command ended.
struct Ran {
    code: i32,
    out: String,
    err: String,
}

impl Desk {
    /// A fresh server with the namespaces `default`, `views` and `totals`.
    fn set() -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let server = Launch::dev(&folder.path().join("data")).start();
        let desk = Self { server, folder };
        desk.write("tallystone.toml", SETTINGS);
        for (file, text) in [("views.toml", VIEWS), ("totals.toml", TOTALS)] {
            desk.write(file, text);
            desk.run(&["apply", "-f", file]).ok();
        }
        desk
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.folder.path().join(file), text).expect("the folder takes files");
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tallystone"));
        self.ended(command.args(arguments))
    }

    /// Runs a line as a shell does.
    fn shell(&self, line: &str) -> Ran {
        let binary = Path::new(env!("CARGO_BIN_EXE_tallystone")).parent().expect("it lies in a folder");
        let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap_or_default());
        self.ended(Command::new("sh").args(["-c", line]).env("PATH", path))
    }

    fn ended(&self, command: &mut Command) -> Ran {
        let command = command.current_dir(self.folder.path()).stdin(Stdio::null());
        let command = command.env("TALLYSTONE_SERVER", self.server.address.to_string()).env("USER", "ada");
        Ran::from(command.output().expect("the command starts"))
    }
}

impl Ran {
    /// What it printed, if it went well.
    fn ok(self) -> String {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self.out
    }
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("the command line prints text");
        Self {
            code: output.status.code().expect("no signal ended it"),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }
}
