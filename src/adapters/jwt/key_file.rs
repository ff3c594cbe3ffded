//! The keys of an issuer in a file.

use std::path::PathBuf;

use async_trait::async_trait;
use tokio::fs::File;
use tokio::io::AsyncReadExt as _;

use tallystone_domain::limits::ISSUER_KEYS_BYTES_MAX;
use tallystone_ports::{KeyDocument, KeyDocumentError};

/// A file with a JSON Web Key Set.
#[derive(Clone, Debug)]
pub struct KeyFile(PathBuf);

impl KeyFile {
    /// The file at a path. It need not be there yet.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }
}

#[async_trait]
impl KeyDocument for KeyFile {
    async fn read(&self) -> Result<Vec<u8>, KeyDocumentError> {
        let failed = |error| KeyDocumentError(format!("cannot read {}: {error}", self.0.display()));
        let file = File::open(&self.0).await.map_err(failed)?;
        let mut document = Vec::new();
        file.take(ISSUER_KEYS_BYTES_MAX as u64 + 1).read_to_end(&mut document).await.map_err(failed)?;
        if document.len() > ISSUER_KEYS_BYTES_MAX {
            let what = format!("{} has more than {ISSUER_KEYS_BYTES_MAX} bytes", self.0.display());
            return Err(KeyDocumentError(what));
        }
        Ok(document)
    }
}
