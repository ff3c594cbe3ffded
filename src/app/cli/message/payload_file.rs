//! Payloads that are read from a file or from stdin.

use std::io::Read;
use std::path::Path;

use crate::Failure;
use tallystone_domain::limits::BODY_BYTES_MAX;

/// Opens a file; - is stdin.
pub fn open(file: &Path) -> Result<Box<dyn Read>, Failure> {
    if file == Path::new("-") {
        return Ok(Box::new(std::io::stdin()));
    }
    match std::fs::File::open(file) {
        Ok(opened) => Ok(Box::new(opened)),
        Err(error) => Err(unreadable(file, &error)),
    }
}

/// Reads a whole file. The server refuses a payload that is too long, so reading stops just above the limit.
pub fn payload_of(file: &Path) -> Result<Vec<u8>, Failure> {
    let mut payload = Vec::new();
    let most = u64::try_from(BODY_BYTES_MAX).unwrap_or(u64::MAX);
    open(file)?.take(most).read_to_end(&mut payload).map_err(|error| unreadable(file, &error))?;
    Ok(payload)
}

/// The failure to read a file.
pub fn unreadable(file: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!("cannot read {}: {error}", file.display()))
}
