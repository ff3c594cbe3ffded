impl OutputOnly for crate::admin::v1::CreateNamespaceRequest {
    fn output_only(&self) -> Option<String> {
        within("namespace", self.namespace.as_ref())
    }
}
impl OutputOnly for crate::admin::v1::Namespace {
    fn output_only(&self) -> Option<String> {
        first_set(&[("id", self.id != 0), ("create_time", self.create_time.is_some()), ("update_time", self.update_time.is_some()), ("version", self.version != 0)])
    }
}
impl OutputOnly for crate::admin::v1::UpdateNamespaceRequest {
    fn output_only(&self) -> Option<String> {
        within("namespace", self.namespace.as_ref())
    }
}
impl OutputOnly for crate::experiment::v1::CompareExperimentRequest {
    fn output_only(&self) -> Option<String> {
        within("experiment", self.experiment.as_ref())
    }
}
impl OutputOnly for crate::experiment::v1::CreateExperimentRequest {
    fn output_only(&self) -> Option<String> {
        within("experiment", self.experiment.as_ref())
    }
}
impl OutputOnly for crate::experiment::v1::Experiment {
    fn output_only(&self) -> Option<String> {
        first_set(&[("state", self.state != 0), ("create_time", self.create_time.is_some()), ("update_time", self.update_time.is_some()), ("stop_time", self.stop_time.is_some()), ("version", self.version != 0)])
    }
}
impl OutputOnly for crate::experiment::v1::UpdateExperimentRequest {
    fn output_only(&self) -> Option<String> {
        within("experiment", self.experiment.as_ref())
    }
}
impl OutputOnly for crate::queue::v1::BatchEnqueueRequest {
    fn output_only(&self) -> Option<String> {
        within_each("messages", &self.messages)
    }
}
impl OutputOnly for crate::queue::v1::CreateQueueRequest {
    fn output_only(&self) -> Option<String> {
        within("queue", self.queue.as_ref())
    }
}
impl OutputOnly for crate::queue::v1::EnqueueRequest {
    fn output_only(&self) -> Option<String> {
        within("message", self.message.as_ref())
    }
}
impl OutputOnly for crate::queue::v1::Message {
    fn output_only(&self) -> Option<String> {
        first_set(&[("message_key", !self.message_key.is_empty()), ("state", self.state != 0), ("version", self.version != 0), ("attempts_left", self.attempts_left != 0), ("attempt_number", self.attempt_number != 0), ("enqueue_time", self.enqueue_time.is_some()), ("first_lease_time", self.first_lease_time.is_some()), ("ttl_left", self.ttl_left.is_some()), ("lease_expire_time", self.lease_expire_time.is_some()), ("lease_start_time", self.lease_start_time.is_some()), ("cancel_requested", self.cancel_requested), ("cancel_reason", !self.cancel_reason.is_empty()), ("error", self.error.is_some()), ("payload_bytes", self.payload_bytes != 0), ("end_time", self.end_time.is_some()), ("worker_label", !self.worker_label.is_empty()), ("session_ref", !self.session_ref.is_empty())])
    }
}
impl OutputOnly for crate::queue::v1::Queue {
    fn output_only(&self) -> Option<String> {
        first_set(&[("id", !self.id.is_empty()), ("version", self.version != 0), ("create_time", self.create_time.is_some()), ("update_time", self.update_time.is_some())])
    }
}
impl OutputOnly for crate::queue::v1::UpdateQueueRequest {
    fn output_only(&self) -> Option<String> {
        within("queue", self.queue.as_ref())
    }
}
impl OutputOnly for crate::rule::v1::CreateRuleRequest {
    fn output_only(&self) -> Option<String> {
        within("rule", self.rule.as_ref())
    }
}
impl OutputOnly for crate::rule::v1::Rule {
    fn output_only(&self) -> Option<String> {
        first_set(&[("fired_through", self.fired_through != 0), ("generation", self.generation != 0), ("last_message_id", !self.last_message_id.is_empty()), ("last_fired_time", self.last_fired_time.is_some()), ("uncertain", self.uncertain != 0), ("pending", self.pending.is_some()), ("problem", !self.problem.is_empty()), ("create_time", self.create_time.is_some())])
    }
}
