//! The retry budget: the retries of a client on top of its calls, so that retries do not keep a service down.
//!
//! A successful call earns a tenth of a retry, and a retry costs a whole one. The budget starts at its maximum of 20
//! (as in gRPC's retry throttling, proposal A6). So a client of a service that fails altogether soon sends each call
//! only once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The initial and maximum budget, in tenths of a retry.
const TENTHS_MAX: u32 = 200;
const REPEAT_TENTHS: u32 = 10;

/// The budget. Clones share it.
#[derive(Clone)]
pub(super) struct RetryBudget {
    tenths: Arc<AtomicU32>,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self { tenths: Arc::new(AtomicU32::new(TENTHS_MAX)) }
    }
}

impl RetryBudget {
    /// Records a successful call.
    pub fn earn(&self) {
        let earned = |tenths: u32| (tenths < TENTHS_MAX).then_some(tenths + 1);
        // It is full.
        let _ = self.tenths.fetch_update(Ordering::Relaxed, Ordering::Relaxed, earned);
    }

    /// Takes a retry, if one is left.
    pub fn spend(&self) -> bool {
        let spent = |tenths: u32| tenths.checked_sub(REPEAT_TENTHS);
        self.tenths.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spent).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_service_gets_twenty_repeats_and_then_one_for_ten_successes() {
        let budget = RetryBudget::default();
        assert_eq!((0..100).filter(|_| budget.clone().spend()).count(), 20);
        for _ in 0..25 {
            budget.earn();
        }
        assert_eq!((0..100).filter(|_| budget.spend()).count(), 2);
        for _ in 0..10_000 {
            budget.earn();
        }
        assert_eq!((0..100).filter(|_| budget.spend()).count(), 20, "no more than at the beginning is saved up");
    }
}
