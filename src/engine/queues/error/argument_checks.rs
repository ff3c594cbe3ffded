//! Checks of arguments that several services have.

use crate::queues::error::QueueError;
use tallystone_domain::limits::{DESCRIPTION_BYTES_MAX, REQUEST_TOKEN_BYTES_MAX};
use tallystone_domain::{Reason, Reject};

/// Refuses a request token of an invalid length.
pub fn check_token(token: Option<&str>) -> Result<(), QueueError> {
    if token.is_none_or(|token| (1..=REQUEST_TOKEN_BYTES_MAX).contains(&token.len())) {
        return Ok(());
    }
    let what = format!("request_token must have 1 to {REQUEST_TOKEN_BYTES_MAX} bytes");
    Err(Reject::new(Reason::InvalidToken, what.as_str()).at("request_token", what.as_str()).into())
}

/// Refuses a reason that is too long.
pub fn check_reason(reason: &str) -> Result<(), QueueError> {
    if reason.len() <= DESCRIPTION_BYTES_MAX {
        return Ok(());
    }
    let what = format!("reason has {} bytes; at most {DESCRIPTION_BYTES_MAX} are allowed", reason.len());
    Err(Reject::new(Reason::InvalidArgument, what).into())
}
