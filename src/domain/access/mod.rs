//! Callers, and what they may do: principals, the API keys and tokens by which they are known, grants, and quotas.
//!
//! A principal is a name. Each API key stands for one principal and has grants, which say what it allows. Of its secret
//! only a hash is kept. Invariant: neither `Debug` nor an error shows a secret.

mod access_key;
mod grant;
mod issuer_name;
mod key_id;
mod key_text;
mod principal;
mod quota;
mod rights;
mod role;
mod token;
mod token_bucket;

pub use access_key::{AccessKey, AccessKeySecret, AccessKeySpec, SecretHash};
pub use grant::{AccessResource, Grant, GrantEffect, Grants, NamePattern, ResourceKind};
pub use issuer_name::IssuerName;
pub use key_id::KeyId;
pub use key_text::ApiKey;
pub use principal::{Principal, PrincipalName};
pub use quota::{KeyQuota, KeyQuotas, QuotaLimits, QuotaRefusal};
pub use rights::{
    AccessDenial, AccessProof, Asked, AskedName, CallRights, CounterScope, EveryOne, ListRights, Permitted, Sealed,
};
pub use role::AccessRole;
pub use token::{
    ClaimValue, GroupGrants, IssuerPolicy, SigningKeyId, TokenAlgorithm, TokenCaller, TokenRefusal, VerifiedToken,
};
pub use token_bucket::TokenBucket;
