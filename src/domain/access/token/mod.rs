//! Tokens of identity providers: whom a verified token stands for, and what it allows.
//!
//! An issuer vouches for callers with tokens that it signs. An operator lists the issuers that count, each with the
//! claims in which its tokens say who calls and what is granted. Signatures are verified elsewhere. Invariant: what a
//! token says without being understood allows nothing.

mod algorithm;
mod issuer;
mod verified_token;

pub use algorithm::TokenAlgorithm;
pub use issuer::{GroupGrants, IssuerPolicy};
pub use verified_token::{ClaimValue, SigningKeyId, TokenCaller, TokenRefusal, VerifiedToken};
