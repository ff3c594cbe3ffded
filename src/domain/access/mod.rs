//! Who calls: principals, and the API keys by which they are known.
//!
//! A principal is a name. Each API key stands for one principal. Of its secret only a hash is kept. Invariant: neither
//! `Debug` nor an error shows a secret.

mod access_key;
mod key_id;
mod key_text;
mod principal;

pub use access_key::{AccessKey, AccessKeySecret, AccessKeySpec, SecretHash};
pub use key_id::KeyId;
pub use key_text::ApiKey;
pub use principal::{Principal, PrincipalName};
