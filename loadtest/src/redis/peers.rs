//! Queue libraries that run on Redis without a server of their own, doing the same on the same machine: no mark, for comparison.
//!
//! Their programs lie in `loadtest/peers`. They are copied to a directory of the run, where their packages are fetched.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use super::server::Redis;
use crate::figures::{Figure, figure};

/// A library: its name, its files, how its packages are fetched, how it runs.
struct Peer {
    name: &'static str,
    files: &'static [(&'static str, &'static str)],
    prepare: &'static [&'static str],
    run: &'static [&'static str],
}

const PEERS: [Peer; 2] = [
    Peer {
        name: "BullMQ",
        files: &[
            ("package.json", include_str!("../../peers/bullmq/package.json")),
            ("main.mjs", include_str!("../../peers/bullmq/main.mjs")),
        ],
        prepare: &["npm", "install", "--no-audit", "--no-fund", "--silent"],
        run: &["node", "main.mjs"],
    },
    Peer {
        name: "asynq",
        files: &[
            ("go.mod", include_str!("../../peers/asynq/go.mod")),
            ("main.go", include_str!("../../peers/asynq/main.go")),
        ],
        prepare: &["sh", "-c", "go mod tidy && go build -o peer ."],
        run: &["./peer"],
    },
];

/// Runs those whose language is installed. Each prints the jobs that it has done.
pub async fn run(redis: &Redis, folder: &TempDir, seconds: u64) -> Result<Vec<Figure>> {
    let mut figures = Vec::new();
    for peer in PEERS {
        let place = folder.path().join(peer.name);
        std::fs::create_dir(&place)?;
        for (name, text) in peer.files {
            std::fs::write(place.join(name), text)?;
        }
        if let Err(error) = command(&place, peer.prepare).and_then(|mut command| Ok(command.status()?.success())) {
            eprintln!("{} is left out: {error}", peer.name);
            continue;
        }
        redis.ask("FLUSHALL")?;
        let before = redis.used()?.cpu;
        let output = command(&place, peer.run)?.arg(redis.address.to_string()).arg(seconds.to_string()).output()?;
        let used = redis.used()?.cpu - before;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{} failed: {}", peer.name, String::from_utf8_lossy(&output.stderr));
        let jobs: f64 = text.trim().parse().with_context(|| format!("{} prints its jobs: {text}", peer.name))?;
        let each = used.as_secs_f64() / jobs * 1_000_000.0;
        let rate = jobs / seconds as f64;
        let what = format!("{}, jobs added and done, 200 at once", peer.name);
        figures.push(figure(&what, format!("{rate:.0} jobs/s, {each:.0} us of Redis CPU a job"), "(beside)", true));
    }
    Ok(figures)
}

fn command(place: &Path, words: &[&str]) -> Result<Command> {
    let (program, arguments) = words.split_first().context("a program")?;
    let mut command = Command::new(if program.starts_with("./") { place.join(program) } else { program.into() });
    command.args(arguments).current_dir(place);
    Ok(command)
}
