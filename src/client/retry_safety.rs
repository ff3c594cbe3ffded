//! Decides whether a write may be repeated after an attempt with an unknown outcome.
//!
//! A namespace that keeps tokens counts a repeat once. A best-effort namespace keeps none, so a repeat there may
//! count twice. Before its first repeat of a write with an unknown outcome, the client asks for the type of the
//! namespace. It caches namespaces that keep tokens, and asks for the others each time.

use std::time::Duration;

use tonic::Status;

use crate::call::Hedge;
use crate::error::{is_retryable, may_be_applied};
use crate::retry::{CallKind, RetryPolicy, RetryProgress};
use crate::{Client, namespaces_on};
use tallystone_proto::admin::v1::{CounterType, GetNamespaceRequest};

impl Client {
    /// Whether a namespace deduplicates repeated writes by token. None: no server answered within the budget of a
    /// call. A caller without permission to read the settings of the namespace gets `Some(true)`, the answer for all
    /// types but one.
    ///
    /// `Some(false)` for a best-effort namespace: a write with an unknown outcome cannot be settled there, and a
    /// repeat may count twice.
    pub async fn recognises_repeats(&self, namespace: &str) -> Option<bool> {
        self.recognises_repeats_within(namespace, self.policy.total).await
    }

    /// Whether a write that failed with this status may be repeated. `within` bounds the time of the lookup.
    pub(super) async fn may_repeat(&self, namespace: &str, failed: &Status, within: Duration) -> bool {
        !may_be_applied(failed) || self.recognises_repeats_within(namespace, within).await == Some(true)
    }

    pub(super) async fn recognises_repeats_within(&self, namespace: &str, within: Duration) -> Option<bool> {
        if self.idempotent.has(namespace) {
            return Some(true);
        }
        let progress = RetryProgress::begin(RetryPolicy { total: within, ..self.policy }, CallKind::Read);
        let request = GetNamespaceRequest { name: namespace.to_owned() };
        let call = |channel, request| async move { namespaces_on(channel).get_namespace(request).await };
        let answer = self.call_with_progress(progress, Hedge::May, &request, call).await;
        let counter_type = match answer {
            Ok(answer) => answer.namespace?.counter_type(),
            // Nothing says that the namespace is best effort. Either it is missing, which the write itself will
            // report, or the caller may not read its settings.
            Err(error) if !is_retryable(&error.status) => return Some(true),
            Err(_) => return None,
        };
        let recognises = counter_type != CounterType::BestEffort;
        if recognises {
            self.idempotent.note(namespace, true);
        }
        Some(recognises)
    }
}
