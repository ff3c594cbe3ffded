//! The `tallystone` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    tallystone::app::cli::main()
}
