//! Tokens made by the client: UUIDv7 by the local clock, corrected by the server's clock.
//!
//! A clock that is far off makes tokens that the server refuses for good: their time is already closed, or too far
//! ahead. The error contains the server's time, so one error corrects all later tokens.
//!
//! Each token is greater than those made before it, even within a millisecond. The server orders changes by their
//! tokens, so a clear covers the earlier changes of this client, and none of the later ones.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tonic::Status;
use uuid::{ContextV7, Timestamp, Uuid};

use crate::error::{metadata_of, reason_of};
use tallystone_proto::counter::v1::IdempotencyToken;

/// Tokens do not follow a correction that goes back by less, so that they keep their order.
const BACKWARD_MS_MAX: i64 = 1_000;

/// Makes tokens. Clones share the correction and the order.
#[derive(Clone, Default)]
pub(super) struct TokenMaker {
    state: Arc<Mutex<TokenMakerState>>,
}

#[derive(Default)]
struct TokenMakerState {
    /// The lead of the server's clock, in milliseconds.
    ahead_ms: i64,
    /// The time of the newest token.
    newest_ms: i64,
    /// Orders the tokens of a millisecond; while time goes back it stays at the newest one.
    order: ContextV7,
}

impl TokenMaker {
    /// Makes a unique token.
    pub fn make(&self) -> IdempotencyToken {
        self.make_at(now_ms())
    }

    fn make_at(&self, now_ms: i64) -> IdempotencyToken {
        let mut state = self.lock();
        let now_ms = now_ms.saturating_add(state.ahead_ms);
        state.newest_ms = state.newest_ms.max(now_ms);
        let now = Duration::from_millis(u64::try_from(now_ms).unwrap_or(0));
        let uuid = Uuid::new_v7(Timestamp::from_unix(&state.order, now.as_secs(), now.subsec_nanos()));
        IdempotencyToken { token: uuid.to_string(), generation_time: None }
    }

    /// Takes over the server's time from a refusal that is about clocks, and says whether a new token may replace the
    /// refused one. Too far ahead settles only this call: an earlier one of the same token may have met another clock.
    pub fn learn_from(&self, status: &Status, may_be_applied: bool) -> bool {
        let Some(reason) = reason_of(status) else { return false };
        self.learn(&reason, metadata_of(status, "server_time").as_deref(), may_be_applied)
    }

    /// The same from the reason of a refusal and the server's time in it.
    pub fn learn(&self, reason: &str, server_time: Option<&str>, may_be_applied: bool) -> bool {
        match reason {
            "NOT_APPLIED" => {}
            "INVALID_FUTURE_TIME" if !may_be_applied => {}
            _ => return false,
        }
        let Some(server_ms) = server_time.and_then(millis_of) else { return false };
        let mut state = self.lock();
        state.ahead_ms = server_ms.saturating_sub(now_ms());
        if server_ms < state.newest_ms.saturating_sub(BACKWARD_MS_MAX) {
            // Tokens at the newest time would be refused again.
            state.newest_ms = server_ms;
            state.order = ContextV7::new();
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, TokenMakerState> {
        // Nothing is ever half-done under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn millis_of(rfc_3339: &str) -> Option<i64> {
    let time: prost_types::Timestamp = rfc_3339.parse().ok()?;
    time.seconds.checked_mul(1_000)?.checked_add(i64::from(time.nanos) / 1_000_000)
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tonic::Code;
    use tonic_types::{ErrorDetails, StatusExt};

    use super::*;

    fn refusal(reason: &str, server_time: &str) -> Status {
        let metadata = HashMap::from([("server_time".to_owned(), server_time.to_owned())]);
        let details = ErrorDetails::with_error_info(reason, "tallystone", metadata);
        Status::with_error_details(Code::FailedPrecondition, "refused", details)
    }

    fn time_of(token: &IdempotencyToken) -> u64 {
        let uuid = Uuid::parse_str(&token.token).expect("a UUID");
        let (seconds, nanos) = uuid.get_timestamp().expect("a UUIDv7").to_unix();
        seconds * 1_000 + u64::from(nanos) / 1_000_000
    }

    #[test]
    fn a_final_refusal_teaches_the_servers_clock() {
        let maker = TokenMaker::default();
        let ours = time_of(&maker.make());
        assert!(maker.clone().learn_from(&refusal("NOT_APPLIED", "1970-01-02T00:00:00.5Z"), true));
        let corrected = time_of(&maker.make());
        assert!((86_400_500..86_460_500).contains(&corrected), "{corrected}");
        assert!(corrected < ours);
    }

    #[test]
    fn nothing_is_learnt_from_what_is_not_final() {
        let maker = TokenMaker::default();
        for status in [
            refusal("PENDING", "1970-01-02T00:00:00Z"),
            refusal("NOT_APPLIED", "yesterday"),
            Status::unavailable("gone"),
        ] {
            assert!(!maker.learn_from(&status, false));
        }
        let ahead = refusal("INVALID_FUTURE_TIME", "1970-01-02T00:00:00Z");
        assert!(!maker.learn_from(&ahead, true), "an earlier attempt may have been applied");
        assert!(maker.learn_from(&ahead, false));
    }

    #[test]
    fn each_token_is_greater_while_the_clock_stands_still_or_goes_back_a_little() {
        let maker = TokenMaker::default();
        let mut newest = String::new();
        for round in 0..1_000 {
            let now_ms = 1_800_000_000_000 - round % 3;
            let made = maker.clone().make_at(now_ms).token;
            assert!(made > newest, "{made} after {newest}");
            newest = made;
        }
    }

    #[test]
    fn a_correction_that_goes_back_a_little_keeps_the_order() {
        let maker = TokenMaker::default();
        let ahead = now_ms() + 60_000;
        let newest = maker.make_at(ahead);
        let near = prost_types::Timestamp { seconds: (ahead - 500) / 1_000, nanos: 999_000_000 };
        assert!(maker.learn_from(&refusal("NOT_APPLIED", &near.to_string()), true));
        assert!(maker.make().token > newest.token);
        let far = prost_types::Timestamp { seconds: ahead / 1_000 - 30, nanos: 0 };
        assert!(maker.learn_from(&refusal("INVALID_FUTURE_TIME", &far.to_string()), false));
        assert!(maker.make().token < newest.token);
    }
}
