//! The resources of a caller that are limited in number, and the text of a refusal beyond the limit.

use crate::caller_quota::QuotaExceeded;

/// A resource that a caller holds for longer than a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LimitedResource {
    Session,
    /// A purge, cancel, redrive or discard.
    Operation,
    /// A purge, cancel, redrive or discard with a request token, which the store keeps.
    KeptRequest,
    TemplateQueue,
    /// A watch of a queue.
    Watch,
    WorkStream,
}

/// The text of a refusal, with advice.
pub fn no_room_text(of: LimitedResource, why: QuotaExceeded) -> String {
    let (what, advice) = match of {
        LimitedResource::Session => ("sessions", "close unused sessions, or wait until ended ones are forgotten"),
        LimitedResource::Operation => {
            ("running purges, cancels, redrives and discards", "cancel some, or wait for their end")
        }
        LimitedResource::KeptRequest => (
            "purges, cancels, redrives and discards with a request_token",
            "wait until old ones are forgotten, or send no request_token",
        ),
        LimitedResource::TemplateQueue => {
            ("queues made by templates", "delete some, or create the queue with CreateQueue")
        }
        LimitedResource::Watch => ("watches of queues", "end some"),
        LimitedResource::WorkStream => ("work streams", "end some"),
    };
    match why {
        QuotaExceeded::All(most) if of == LimitedResource::TemplateQueue => {
            format!(
                "there are {most} queues, the maximum for queues made by a first enqueue; nothing was done: {advice}"
            )
        }
        QuotaExceeded::OfKey(refusal) => refusal.to_string(),
        QuotaExceeded::All(most) => {
            format!("the server has {most} {what}, the maximum; nothing was done: {advice}")
        }
        QuotaExceeded::Own(most) => {
            format!("this caller has {most} {what}, the maximum per caller; nothing was done: {advice}")
        }
    }
}
