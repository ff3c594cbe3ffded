//! The server that the tests of this package start.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The server's binary beside that of this package; built if this package alone is tested.
pub fn server() -> PathBuf {
    let path = Path::new(env!("CARGO_BIN_EXE_loadtest")).with_file_name("tallystone");
    if !path.exists() {
        let built = Command::new(env!("CARGO"))
            .args(["build", "--locked", "--package", "tallystone", "--bin", "tallystone"])
            .status()
            .expect("cargo runs");
        assert!(built.success(), "the server is built");
    }
    path
}
