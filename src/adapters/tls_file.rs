//! Files of certificates and private keys.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use tallystone_domain::limits::TLS_FILE_BYTES_MAX;

/// A file, unless it is larger than one of these is.
pub fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(file)?.take(TLS_FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > TLS_FILE_BYTES_MAX {
        return Err(io::Error::other(format!("it has more than {TLS_FILE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}
