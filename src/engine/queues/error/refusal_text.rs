//! Texts for what a shard refuses: what is wrong, and what to do.

use std::borrow::Cow;

use tallystone_domain::queue::MessageState;
use tallystone_domain::queue::command::{Refusal, ShardCapacity};
use tallystone_domain::queue::invalid_command::InvalidCommandPart;
use tallystone_domain::queue::session_records::Ending;

/// The text of a refusal.
pub fn refusal_text(refusal: &Refusal) -> String {
    match refusal {
        Refusal::Invalid(invalid) => return invalid_text(*invalid).into_owned(),
        Refusal::WrongState(state) => return wrong_state_text(*state),
        Refusal::VersionMismatch(version) => {
            return format!("the version of the message is {version}, not the expected_version of the call");
        }
        Refusal::EnqueueBlocked(why) => {
            return format!(
                "enqueues are blocked: {why}; nothing was enqueued: retry with the same id after the queue \
                is unblocked"
            );
        }
        Refusal::DequeueBlocked(why) => {
            return format!(
                "dequeues are blocked: {why}; existing leases can be settled: retry after the queue is \
                unblocked"
            );
        }
        Refusal::NotFound => "there is no such message: it was never enqueued, its retention is over, or it was purged or discarded",
        Refusal::LeaseLost => "the lease has ended or never existed; nothing was changed",
        Refusal::SessionNotFound => {
            "there is no such session: it ended long ago, or was never opened; open a new \
            session"
        }
        Refusal::SessionEnded(Ending::Replaced) => {
            "another session was opened with the same label, which ended this session and its leases; open a new \
             session"
        }
        Refusal::SessionEnded(Ending::Closed) => "the session was closed; open a new session",
        Refusal::SessionEnded(Ending::Expired) => {
            "the session sent nothing for longer than its lease, and its confirmed leases have ended; open a new \
             session"
        }
        Refusal::SequenceTooOld => {
            "this call is older than the session's latest call, and its response is no longer stored; nothing was \
             leased: retry with a higher sequence"
        }
        Refusal::TryBarred => {
            "a later try of this call has arrived; nothing was leased: wait for the response of the \
            later try"
        }
        Refusal::TokenReused => "a message with this id was enqueued with other content",
        Refusal::TokenExpired => {
            "the time of the id is older than the dedupe window; nothing was enqueued. An id in the form of a UUIDv7 is \
             read as a time: put a prefix such as order- before a business id of this form, which makes it a plain id. \
             If the id was made just now, the server's clock was ahead earlier: see tallystone queue reset-clock"
        }
        Refusal::NotEmpty => "this setting changes only while the queue is empty",
        Refusal::ValueHeld => {
            "other messages of its exclusivity value are leased or come first, or the limit of the value is 0: see \
             which with ExplainMessage (tallystone msg explain -q QUEUE MESSAGE); wait for them, or \
             raise the limit of the value with SetValueLimit (tallystone queue limit QUEUE VALUE N)"
        }
        Refusal::Deleted => "the queue was deleted",
        Refusal::Full(full) => full_text(*full),
    }
    .to_owned()
}

/// Says what the state of a message forbids, and what may be done instead. The command line puts the names that it
/// knows in the place of QUEUE and MESSAGE.
fn wrong_state_text(state: MessageState) -> String {
    let step = match state {
        MessageState::Invisible | MessageState::Pending => {
            "it is not served yet, and only errored messages can be redriven or discarded"
        }
        MessageState::Running => {
            "wait for the end of its lease, or ask its worker to stop with CancelMessage (tallystone msg cancel -q QUEUE \
             --id MESSAGE)"
        }
        MessageState::Completed => "to repeat the work, enqueue it with another id",
        MessageState::Canceled => "if the work is still needed, enqueue it with another id",
        MessageState::Errored => {
            "to retry it, redrive it with RedriveMessages (tallystone dlq redrive -q QUEUE MESSAGE)"
        }
    };
    format!("the message is {state}, which does not allow this call: {step}")
}

fn full_text(full: ShardCapacity) -> &'static str {
    match full {
        ShardCapacity::Messages => {
            "the queue reached its quota_messages, of which each shard has an equal part, and messages that are over keep \
             their places until their retention ends: remove those, if there are any, with PurgeQueue (tallystone queue \
             purge QUEUE --state completed), shorten the retention and the dedupe_window, or raise the quota; see what \
             fills it with ExplainQueue (tallystone queue explain QUEUE)"
        }
        ShardCapacity::Bytes => {
            "the queue reached its quota_bytes, of which each shard has an equal part, payloads of messages that are over \
             included: remove those, if there are any, with PurgeQueue (tallystone queue purge QUEUE --state completed), \
             shorten the retention and the dedupe_window, or raise the quota, which alone helps a payload larger than a \
             shard's part of it; see what fills it with ExplainQueue (tallystone queue explain QUEUE)"
        }
        ShardCapacity::Answers => {
            "the dedupe records of the queue reached its dedupe_max_bytes: raise dedupe_max_bytes, or retry in 10 \
             minutes"
        }
        ShardCapacity::Sessions => {
            "a shard of the queue has the maximum number of sessions: retry after some have ended"
        }
        ShardCapacity::ValueLimits => {
            "a shard of the queue has 10,000 exclusivity values with their own limit, the maximum: reset some of them \
             first"
        }
    }
}

/// The text for an invalid part of a command.
pub fn invalid_text(invalid: InvalidCommandPart) -> Cow<'static, str> {
    let text = match invalid {
        InvalidCommandPart::PayloadOfQueue(most) => {
            let what = "the payload_max_bytes of this queue; store the data elsewhere and send its address";
            return format!("the payload is larger than {most} bytes, {what}").into();
        }
        InvalidCommandPart::MetadataOfQueue(most) => {
            let what = "the metadata_max_bytes of this queue; send less, or move data into the payload";
            return format!("keys and values of the metadata are larger than {most} bytes together, {what}").into();
        }
        InvalidCommandPart::MessageId => "the message id must have 1 to 64 bytes and not begin with m.",
        InvalidCommandPart::Routing => "a shard key has 1 to 256 bytes",
        InvalidCommandPart::Metadata => {
            "metadata has at most 4 pairs with different keys; a key has 1 to 64 bytes, a value at most 256"
        }
        InvalidCommandPart::Payload => {
            "the payload is larger than 32,768 bytes; store the data elsewhere and send its address"
        }
        InvalidCommandPart::Priority => "the priority must be -2^53 to 2^53",
        InvalidCommandPart::PriorityClass => "the queue has no such priority class",
        InvalidCommandPart::Invisibility => "an invisibility or delay is at most 10 years",
        InvalidCommandPart::Lease => "a lease lasts 1 s to 12 h",
        InvalidCommandPart::Attempts => "max_attempts must be 1 to 10,000",
        InvalidCommandPart::Ttl => "a TTL is at most 10 years",
        InvalidCommandPart::TokenTime => "the id's time is more than 60 s ahead of the server's clock",
        InvalidCommandPart::Count => "the number of messages must be 1 to 100",
        InvalidCommandPart::ExclusivityValue => {
            "the queue is exclusive: the metadata must contain its exclusivity key with a value of 1 to 256 bytes"
        }
        InvalidCommandPart::ShardKey => {
            "an exclusive queue routes by exclusivity value and does not accept a shard key"
        }
        InvalidCommandPart::ValueLimit => "limit must be 0 to 10,000; omit it for the limit of the queue",
        InvalidCommandPart::NotExclusive => {
            "this is a simple queue; only a queue of type QUEUE_TYPE_EXCLUSIVE has limits of exclusivity values"
        }
        InvalidCommandPart::Filter => "a filter has at most 4 pairs; a key has 1 to 64 bytes, a value at most 256",
        InvalidCommandPart::Shape => "a filter shape has 1 to 4 different keys of 1 to 64 bytes",
        InvalidCommandPart::SessionLease => "the lease of a session lasts 1 s to 12 h",
        InvalidCommandPart::Sequence => {
            "sequence is missing: number the calls of a session 1, 2, 3, and repeat a call with its number"
        }
        InvalidCommandPart::Try => "try must be at least 1: number the tries of a call 1, 2, 3, or omit try",
        InvalidCommandPart::Received => {
            "received_up_to must be below sequence: send the number of the last call whose response has arrived"
        }
        InvalidCommandPart::Session => {
            "this session is only for replays: it ends with its server and accepts no heartbeats"
        }
        InvalidCommandPart::ErrorText => "an error's signature and text have at most 1,024 bytes each",
        InvalidCommandPart::CountedKeySets => {
            "the messages of this queue are counted under 64 different sets of keys, the maximum; use one of the earlier \
             sets, or try again when messages of old sets are gone"
        }
        InvalidCommandPart::Settings => "the settings are out of range or contradict each other",
    };
    text.into()
}
