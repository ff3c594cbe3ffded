//! The retry policy of a queue in a request: what it leaves out stays as it is.

use std::time::Duration;

use tallystone_domain::queue::setup::settings::MessageRetryPolicy;

/// The parts of a retry policy in a request; `None` for those left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RetryPolicyDraft {
    /// The delay after the first failure.
    pub initial: Option<Duration>,
    /// The factor for each further failure, in percent.
    pub factor_percent: Option<u32>,
    /// The longest delay before jitter.
    pub max: Option<Duration>,
    /// The maximum random addition, in percent of the delay.
    pub jitter_percent: Option<u32>,
}

impl RetryPolicyDraft {
    /// Changes the parts that it has. A first delay above the longest one raises that too, unless the request sets it.
    pub(in crate::queues) fn set(self, policy: &mut MessageRetryPolicy) {
        policy.max = match (self.max, self.initial) {
            (Some(max), _) => max,
            (None, Some(initial)) => policy.max.max(initial),
            (None, None) => policy.max,
        };
        policy.initial = self.initial.unwrap_or(policy.initial);
        policy.factor_percent = self.factor_percent.unwrap_or(policy.factor_percent);
        policy.jitter_percent = self.jitter_percent.unwrap_or(policy.jitter_percent);
    }
}

impl From<MessageRetryPolicy> for RetryPolicyDraft {
    fn from(policy: MessageRetryPolicy) -> Self {
        let MessageRetryPolicy { initial, factor_percent, max, jitter_percent } = policy;
        Self {
            initial: Some(initial),
            factor_percent: Some(factor_percent),
            max: Some(max),
            jitter_percent: Some(jitter_percent),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_part_of_a_policy_leaves_the_others_as_they_are() {
        let second = Duration::from_secs(1);
        let before = MessageRetryPolicy { initial: second, factor_percent: 200, max: 300 * second, jitter_percent: 20 };
        let after = |draft: RetryPolicyDraft| {
            let mut policy = before;
            draft.set(&mut policy);
            policy
        };
        let nothing = RetryPolicyDraft::default();
        assert_eq!(after(nothing), before);
        let cases = [
            (
                RetryPolicyDraft { jitter_percent: Some(0), ..nothing },
                MessageRetryPolicy { jitter_percent: 0, ..before },
            ),
            (
                RetryPolicyDraft { factor_percent: Some(100), ..nothing },
                MessageRetryPolicy { factor_percent: 100, ..before },
            ),
            (RetryPolicyDraft { max: Some(second), ..nothing }, MessageRetryPolicy { max: second, ..before }),
            (
                RetryPolicyDraft { initial: Some(2 * second), ..nothing },
                MessageRetryPolicy { initial: 2 * second, ..before },
            ),
            (
                RetryPolicyDraft { initial: Some(600 * second), ..nothing },
                MessageRetryPolicy { initial: 600 * second, max: 600 * second, ..before },
            ),
        ];
        for (draft, expected) in cases {
            assert_eq!(after(draft), expected, "{draft:?}");
        }
    }
}
