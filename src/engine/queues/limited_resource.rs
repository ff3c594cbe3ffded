//! The resources of a caller that are limited in number, and the text of a refusal beyond the limit.

use crate::engine::caller_quota::QuotaExceeded;

/// What a caller holds for longer than a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LimitedResource {
    /// A session.
    Session,
    /// A purge, redrive or discard.
    Operation,
    /// A purge, redrive or discard with a request token, which the store keeps.
    KeptRequest,
    /// A queue that a template makes.
    TemplateQueue,
    /// A watch of a queue.
    Watch,
    /// A work stream.
    WorkStream,
}

pub fn no_room_text(of: LimitedResource, why: QuotaExceeded) -> String {
    let (what, advice) = match of {
        LimitedResource::Session => ("sessions", "close those that are not used, or wait until they are forgotten"),
        LimitedResource::Operation => {
            ("purges, redrives and discards that go on", "cancel some, or wait for their end")
        }
        LimitedResource::KeptRequest => {
            ("purges, redrives and discards with a request_token", "wait until they are forgotten, or send none")
        }
        LimitedResource::TemplateQueue => {
            ("queues made by templates", "delete some, or create the queue with CreateQueue")
        }
        LimitedResource::Watch => ("watches of queues", "end some"),
        LimitedResource::WorkStream => ("work streams", "end some"),
    };
    match why {
        QuotaExceeded::All(most) if of == LimitedResource::TemplateQueue => {
            format!("there are {most} queues, with which first enqueues make no more; nothing was done: {advice}")
        }
        QuotaExceeded::All(most) => {
            format!("the server has {most} {what}, the most there may be; nothing was done: {advice}")
        }
        QuotaExceeded::Own(most) => {
            format!("this caller has {most} {what}, the most that one caller may have; nothing was done: {advice}")
        }
    }
}
