//! Whether a write may be sent again after an attempt whose outcome is unknown.
//!
//! A namespace that keeps tokens counts a repeat once. A best-effort namespace keeps none: there a repeat may count twice, so
//! the client asks for the type of the namespace before its first repeat of such a write. It remembers namespaces that keep
//! tokens, and asks for the others each time.

use std::time::Duration;

use tonic::Status;

use crate::client::call::Hedge;
use crate::client::error::{is_retryable, may_be_applied};
use crate::client::retry::{CallKind, RetryPolicy, RetryProgress};
use crate::client::{Client, namespaces_on};
use crate::proto::admin::v1::{CounterType, GetNamespaceRequest};

impl Client {
    /// Whether a namespace recognises a repeated write by its token. None: no server answered within the budget of a call.
    /// A caller that may not read the settings of the namespace is answered `Some(true)`, as are all types but one.
    ///
    /// `Some(false)` for a best-effort namespace: a write there whose outcome is unknown cannot be settled, and sending it
    /// again may count it twice.
    pub async fn recognises_repeats(&self, namespace: &str) -> Option<bool> {
        self.recognises_repeats_within(namespace, self.policy.total).await
    }

    /// Whether a write that failed so may be sent again. `within` bounds the time of the question.
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
            // Nobody says that it is best effort: the namespace is missing, which the write is told, or the caller may not
            // read its settings.
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
