//! The one place where errors become responses: gRPC statuses with google.rpc details, and item errors of batches.
//!
//! Every error becomes an `ApiError` first. Its reason, from the closed list, decides code and HTTP status. Its message
//! says what is wrong and what to do. Invariant: every error that leaves the service has an `ErrorInfo` with a reason
//! and the domain `tallystone`.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::time;
use tallystone_domain::access::{AccessDenial, QuotaRefusal};
use tallystone_domain::limits::{BODY_BYTES_MAX, ERROR_MESSAGE_BYTES_MAX};
use tallystone_domain::{Reason, Reject};
use tallystone_engine::access::KeyError;
use tallystone_engine::adoption::AdoptionError;
use tallystone_engine::call_limiter::CallRefusal;
use tallystone_engine::counting::CountingError;
use tallystone_engine::experiments::ExperimentError;
use tallystone_engine::namespaces::NamespaceError;
use tallystone_engine::queues::QueueError;
use tallystone_engine::rules::RuleError;
use tallystone_ports::{StoreError, text_with_causes};
use tallystone_proto::error::v1::ItemError;

/// The domain of every `ErrorInfo`.
pub const ERROR_DOMAIN: &str = "tallystone";

/// The message about a field of a request that only the service sets.
pub const SET_BY_SERVICE: &str = "only the service sets this field; leave it out";

/// An error of a call, with all parts of its response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ApiError {
    pub reason: Reason,
    /// The message: what is wrong and what to do.
    pub message: String,
    /// The fields of the request that are at fault, where they are known, and what is wrong with each.
    pub fields: Vec<(String, String)>,
    /// The retry delay, if it is known.
    pub retry_after: Option<Duration>,
    /// Values for programs.
    pub metadata: Vec<(&'static str, String)>,
}

impl ApiError {
    /// An error for a reason with a message. The advice of the reason is appended if its row has one.
    pub fn new(reason: Reason, what: impl Into<String>) -> Self {
        let mut message = what.into();
        if let Some(advice) = reason.info().advice {
            message.push_str("; ");
            message.push_str(advice);
        }
        if message.len() > ERROR_MESSAGE_BYTES_MAX {
            message.truncate(message.floor_char_boundary(ERROR_MESSAGE_BYTES_MAX - '…'.len_utf8()));
            message.push('…');
        }
        let fields = reason.info().field.map(|field| (field.to_owned(), message.clone())).into_iter().collect();
        Self { reason, message, fields, retry_after: None, metadata: Vec::new() }
    }

    /// Names the field at fault.
    #[must_use]
    pub fn at(mut self, field: impl Into<String>) -> Self {
        self.fields = vec![(field.into(), self.message.clone())];
        self
    }

    /// Adds a value for programs.
    #[must_use]
    pub fn with(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.metadata.push((key, value.into()));
        self
    }

    /// States that this call changed nothing, for a reason that leaves it open.
    #[must_use]
    pub fn without_effect(self) -> Self {
        self.with("effect", "nothing")
    }

    /// Returns the gRPC code.
    pub fn code(&self) -> Code {
        Code::from_i32(self.reason.info().code as i32)
    }
}

impl From<Reject> for ApiError {
    fn from(reject: Reject) -> Self {
        let refusal = Self::new(reject.reason, reject.message);
        if reject.fields.is_empty() { refusal } else { Self { fields: reject.fields, ..refusal } }
    }
}

impl From<AccessDenial> for ApiError {
    fn from(denial: AccessDenial) -> Self {
        match denial {
            // In all parts as a queue that does not exist.
            AccessDenial::HiddenQueue(name) => QueueError::not_found(&name).into(),
            other => Reject::from(other).into(), // a reject has all parts of the others
        }
    }
}

impl From<QuotaRefusal> for ApiError {
    fn from(refusal: QuotaRefusal) -> Self {
        let refused = Self::new(Reason::RetryLater, refusal.to_string()).with("quota", refusal.quota.word());
        Self { retry_after: Some(refusal.retry_after), ..refused }
    }
}

impl From<CallRefusal> for ApiError {
    fn from(refusal: CallRefusal) -> Self {
        let refused = Self::new(Reason::RetryLater, refusal.to_string());
        let refused = refused.with("limit", "calls-in-progress").with("class", refusal.class.word());
        Self { retry_after: Some(refusal.class.retry_after()), ..refused }
    }
}

impl From<CountingError> for ApiError {
    fn from(error: CountingError) -> Self {
        if let CountingError::Store(error) = &error {
            report(error);
        }
        let mut refusal = Self::new(error.reason(), error.to_string());
        refusal.retry_after = error.retry_after();
        refusal.metadata = error.metadata();
        match error.server_time() {
            Some(server_time) => refusal.with("server_time", time::text(server_time)),
            None => refusal,
        }
    }
}

impl From<NamespaceError> for ApiError {
    fn from(error: NamespaceError) -> Self {
        match error {
            NamespaceError::Reject(reject) => reject.into(),
            NamespaceError::Quota(refusal) => refusal.into(),
            NamespaceError::Store(error) => error.into(),
        }
    }
}

impl From<KeyError> for ApiError {
    fn from(error: KeyError) -> Self {
        match error {
            KeyError::Reject(reject) => reject.into(),
            KeyError::Store(error) => error.into(),
        }
    }
}

impl From<ExperimentError> for ApiError {
    fn from(error: ExperimentError) -> Self {
        match error {
            ExperimentError::Reject(reject) => reject.into(),
            ExperimentError::Store(error) => error.into(),
            ExperimentError::Counting(error) => error.into(),
        }
    }
}

impl From<QueueError> for ApiError {
    fn from(error: QueueError) -> Self {
        let error = match error {
            QueueError::Reject(reject) => return reject.into(),
            other => other, // `QueueError` says the rest of the others
        };
        if let Some(refusal) = error.quota() {
            return refusal.into();
        }
        if let QueueError::Store(error) = &error {
            report(error);
        }
        let mut refusal = Self::new(error.reason(), error.to_string());
        refusal.metadata = error.metadata();
        if let Some(server_time) = error.server_time() {
            refusal = refusal.with("server_time", time::text(server_time));
        }
        match error.field() {
            Some(field) => refusal.at(field),
            None => refusal,
        }
    }
}

impl From<RuleError> for ApiError {
    fn from(error: RuleError) -> Self {
        match error {
            RuleError::Reject(reject) => reject.into(),
            RuleError::Counting(error) => error.into(),
            RuleError::Store(error) => error.into(),
            RuleError::Queue(error) => {
                let mut refusal = Self::from(error);
                // The message of a rule is part of the rule.
                let of_message = |field: &&mut String| field.starts_with("message.");
                refusal.fields.iter_mut().map(|(field, _)| field).filter(of_message).for_each(|field| {
                    field.insert_str(0, "rule.");
                });
                refusal
            }
            RuleError::NotFound { .. } | RuleError::Exists { .. } | RuleError::Taken { .. } | RuleError::NoQueues => {
                Self::new(error.reason(), error.to_string())
            }
        }
    }
}

impl From<AdoptionError> for ApiError {
    fn from(error: AdoptionError) -> Self {
        match error {
            AdoptionError::Queue(error) => error.into(),
            AdoptionError::Rule(error) => error.into(),
            AdoptionError::Store(error) => error.into(),
            AdoptionError::NoQueues | AdoptionError::Overtaken => Self::new(error.reason(), error.to_string()),
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        report(&error);
        Self::new(error.reason(), error.to_string())
    }
}

/// Logs the causes of a failed store call; the caller learns only its kind.
fn report(error: &StoreError) {
    let (reason, text) = (error.reason(), text_with_causes(error));
    if reason == Reason::Internal {
        tracing::error!(%reason, "{text}");
    } else {
        tracing::warn!(%reason, "{text}");
    }
}

impl From<ApiError> for Status {
    fn from(refusal: ApiError) -> Self {
        let code = refusal.code();
        let metadata: HashMap<String, String> =
            refusal.metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let mut details = ErrorDetails::with_error_info(refusal.reason.info().name, ERROR_DOMAIN, metadata);
        if refusal.retry_after.is_some() {
            details.set_retry_info(refusal.retry_after);
        }
        for (field, what) in refusal.fields {
            details.add_bad_request_violation(field, what);
        }
        Status::with_error_details(code, refusal.message, details)
    }
}

/// Adds our reason to a status of the gRPC library that lacks one.
///
/// The library refuses only requests that it cannot read: too large, truncated, compressed, not protobuf. How a message
/// is compressed is a matter of the protocol: its code and metadata stay, since clients fall back by them.
/// Source: the gRPC document on compression.
pub fn with_reason(status: Status) -> Status {
    if !status.details().is_empty() {
        return status;
    }
    let is_about_compression = status.code() == Code::Unimplemented || status.message().contains("compressed-flag");
    let told = told_by_reason(&status);
    match is_about_compression {
        true => {
            let details = Bytes::copy_from_slice(told.details());
            Status::with_details_and_metadata(status.code(), told.message(), details, status.metadata().clone())
        }
        false => told,
    }
}

fn told_by_reason(status: &Status) -> Status {
    let what = status.message();
    let refusal = match status.code() {
        Code::OutOfRange | Code::ResourceExhausted => {
            ApiError::new(Reason::InvalidBodyTooLarge, format!("the message is larger than {BODY_BYTES_MAX} bytes"))
        }
        Code::Unimplemented => ApiError::new(
            Reason::InvalidContentType,
            format!("the message cannot be read: {what}; send it uncompressed, or by gzip"),
        ),
        Code::Internal => ApiError::new(
            Reason::InvalidArgument,
            format!("the message cannot be read: {what}; send the request message of this method"),
        ),
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::InvalidArgument
        | Code::DeadlineExceeded
        | Code::NotFound
        | Code::AlreadyExists
        | Code::PermissionDenied
        | Code::FailedPrecondition
        | Code::Aborted
        | Code::Unavailable
        | Code::DataLoss
        | Code::Unauthenticated => {
            ApiError::new(Reason::InvalidArgument, format!("the message did not arrive in full: {what}; send it again"))
        }
    };
    refusal.into()
}

impl From<ApiError> for ItemError {
    fn from(refusal: ApiError) -> Self {
        let mut metadata: HashMap<String, String> =
            refusal.metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        if let Some((field, _)) = refusal.fields.into_iter().next() {
            metadata.insert("field".to_owned(), field);
        }
        if let Some(retry_after) = refusal.retry_after {
            metadata.insert("retry_after".to_owned(), format!("{}s", retry_after.as_secs_f64()));
        }
        let info = refusal.reason.info();
        Self { code: info.code as i32, reason: info.name.to_owned(), message: refusal.message, metadata }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tallystone_domain::Timestamp;
    use tallystone_domain::access::KeyQuota;
    use tallystone_domain::call_limit::CallClass;
    use tallystone_ports::StoreErrorKind;

    #[test]
    fn every_reason_travels_with_its_code_and_the_domain() {
        for &reason in Reason::ALL {
            let status = Status::from(ApiError::new(reason, "what is wrong"));
            assert_eq!(status.code() as i32, reason.info().code as i32, "{reason}");
            let info = status.get_details_error_info().expect("an ErrorInfo is there");
            assert_eq!((info.reason.as_str(), info.domain.as_str()), (reason.info().name, ERROR_DOMAIN));
            let item = ItemError::from(ApiError::new(reason, "what is wrong"));
            assert_eq!((item.code, item.reason.as_str()), (reason.info().code as i32, reason.info().name));
            assert!(!status.message().ends_with('.'), "{}", status.message());
        }
    }

    #[test]
    fn a_field_at_fault_is_a_violation() {
        let status = Status::from(ApiError::new(Reason::InvalidRange, "from must be before to").at("from"));
        let violations = status.get_details_bad_request().expect("a BadRequest is there").field_violations;
        assert_eq!(violations[0].field, "from");
        assert_eq!(violations[0].description, "from must be before to");
    }

    #[test]
    fn each_field_at_fault_is_a_violation_with_its_own_words() {
        let reject = Reject::new(Reason::InvalidSettings, "two are wrong").at("a", "a is 1").at("b", "b is 2");
        let status = Status::from(ApiError::from(reject.clone()));
        let violations = status.get_details_bad_request().expect("a BadRequest is there").field_violations;
        let told: Vec<_> = violations.iter().map(|one| (one.field.as_str(), one.description.as_str())).collect();
        assert_eq!(told, [("a", "a is 1"), ("b", "b is 2")]);
        assert_eq!(ItemError::from(ApiError::from(reject)).metadata["field"], "a");
    }

    #[test]
    fn a_refusal_for_clocks_shows_the_servers_clock() {
        let server_time = Timestamp::from_millis(1_728_139_680_123);
        let refusal = ApiError::from(CountingError::NotApplied { server_time });
        assert_eq!(refusal.metadata, [("server_time", "2024-10-05T14:48:00.123Z".to_owned())]);
    }

    #[test]
    fn a_delay_travels_as_retry_info() {
        let retry_after = Duration::from_millis(250);
        let status = Status::from(ApiError::from(CountingError::Pending { retry_after }));
        assert_eq!(status.get_details_retry_info().expect("a RetryInfo is there").retry_delay, Some(retry_after));
        let item = ItemError::from(ApiError::from(CountingError::Pending { retry_after }));
        assert_eq!(item.metadata["retry_after"], "0.25s");
    }

    #[test]
    fn a_used_up_quota_is_named_with_a_delay() {
        let retry_after = Duration::from_millis(10);
        let status = Status::from(ApiError::from(QuotaRefusal { quota: KeyQuota::Sessions, limit: 5, retry_after }));
        let info = status.get_details_error_info().expect("an ErrorInfo is there");
        assert_eq!((status.code(), info.reason.as_str()), (Code::ResourceExhausted, "RETRY_LATER"));
        assert_eq!(info.metadata["quota"], "sessions");
        assert!(status.message().contains("sessions, which is 5"), "{}", status.message());
        assert_eq!(status.get_details_retry_info().expect("a RetryInfo").retry_delay, Some(retry_after));
    }

    #[test]
    fn a_call_refused_for_the_load_is_told_the_limit_and_its_class() {
        let status = Status::from(ApiError::from(CallRefusal { class: CallClass::List, limit: 32 }));
        let info = status.get_details_error_info().expect("an ErrorInfo is there");
        assert_eq!((status.code(), info.reason.as_str()), (Code::ResourceExhausted, "RETRY_LATER"));
        assert_eq!((&*info.metadata["limit"], &*info.metadata["class"]), ("calls-in-progress", "list"));
        let delay = status.get_details_retry_info().expect("a RetryInfo").retry_delay;
        assert_eq!(delay, Some(CallClass::List.retry_after()));
    }

    #[test]
    fn a_long_message_is_cut_to_what_headers_hold() {
        let refusal = ApiError::new(Reason::InvalidSettings, "ä".repeat(2_000));
        assert!(refusal.message.len() <= ERROR_MESSAGE_BYTES_MAX && refusal.message.ends_with('…'));
    }

    #[test]
    fn what_the_library_refuses_gets_a_reason() {
        let reason = |status| with_reason(status).get_details_error_info().expect("an ErrorInfo").reason;
        assert_eq!(reason(Status::out_of_range("Error, decoded message length too large")), "INVALID_BODY_TOO_LARGE");
        assert_eq!(reason(Status::internal("failed to decode Protobuf message")), "INVALID_ARGUMENT");
        assert_eq!(reason(Status::unimplemented("Content is compressed with `br`")), "INVALID_CONTENT_TYPE");
        assert_eq!(reason(ApiError::new(Reason::Internal, "a defect").into()), "INTERNAL");
    }

    #[test]
    fn an_unknown_outcome_is_said_to_be_unknown() {
        let refusal = ApiError::from(StoreError::unknown(StoreErrorKind::Unavailable, "append"));
        assert_eq!(refusal.reason, Reason::OutcomeUnknown);
        assert!(refusal.message.contains("may have been applied"), "{}", refusal.message);
    }
}
