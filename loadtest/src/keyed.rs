//! Servers that ask for keys, and keys for their callers.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use tallystone_client::{ClientTls, Credential};

use crate::client::Connections;
use crate::target::Target;

/// The settings of a server that answers nobody without a key.
pub const ASKS_FOR_KEYS: [&str; 2] = ["--set", "auth.mode=keys"];

/// Makes the first key of a data directory, that of an admin, before its server starts.
pub fn first_key(binary: &Path, data: &Path) -> Result<String> {
    let data = data.to_str().context("the path of a data directory is text")?;
    printed(Command::new(binary).args(["key", "create", "admin", "--offline", "--data", data]))
}

/// Starts a server that asks for keys. Answers it with the key of an admin.
pub fn server(binary: &Path, data: &Path) -> Result<(Target, String)> {
    let admin = first_key(binary, data)?;
    Ok((Target::server_with(binary, data, &ASKS_FOR_KEYS)?, admin))
}

/// Makes a key with these roles, on everything.
pub fn new_key(binary: &Path, url: &str, admin: &str, name: &str, roles: &[&str]) -> Result<String> {
    let mut create = Command::new(binary);
    create.args(["key", "create", name, "--server", url]).env("TALLYSTONE_KEY", admin);
    for role in roles {
        create.args(["--grant", role]);
    }
    printed(&mut create)
}

/// Connections whose calls show a key, if there is one.
pub async fn connections(url: &str, key: Option<&str>, count: usize) -> Result<Connections> {
    let credential = key.map(Credential::of_key).transpose()?.unwrap_or_default();
    Connections::open_as(url, &ClientTls::default(), credential, count).await
}

fn printed(command: &mut Command) -> Result<String> {
    let ran = command.output()?;
    ensure!(ran.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ran.stderr));
    Ok(String::from_utf8(ran.stdout)?.trim().to_owned())
}
