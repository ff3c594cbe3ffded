//! Next steps for a queue or message: the call, and the command ready to paste into a shell.

use tallystone_domain::queue::activity::ReachedQuota;
use tallystone_domain::queue::messages::message::RoutingValue;
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::{MessageState, QueueName};
use tallystone_domain::shell_word::shell_word;

/// The possible next steps in one queue. Names of queues need no quotes.
#[derive(Clone, Copy)]
pub(in crate::queues) struct NextSteps<'a>(pub &'a QueueName);

impl NextSteps<'_> {
    pub fn make_visible(self, id: &MessageId) -> String {
        format!("UpdateMessage (tallystone msg update -q {} {} --invisibility 0s)", self.0, shell_word(&id.text()))
    }

    pub fn reprioritise(self, id: &MessageId) -> String {
        format!("UpdateMessage (tallystone msg update -q {} {} --priority N)", self.0, shell_word(&id.text()))
    }

    pub fn cancel(self, id: &MessageId) -> String {
        format!("CancelMessage (tallystone msg cancel -q {} --id {})", self.0, shell_word(&id.text()))
    }

    pub fn redrive(self, id: &MessageId) -> String {
        format!("RedriveMessages (tallystone dlq redrive -q {} {})", self.0, shell_word(&id.text()))
    }

    pub fn redrive_all(self) -> String {
        format!("RedriveMessages (tallystone dlq redrive -q {})", self.0)
    }

    pub fn dead_letters(self) -> String {
        format!("tallystone dlq ls -q {} --messages", self.0)
    }

    pub fn invisible(self) -> String {
        format!("tallystone msg ls -q {} --state invisible", self.0)
    }

    pub fn limit(self, value: &RoutingValue) -> String {
        format!("SetValueLimit (tallystone queue limit {} {} N)", self.0, shell_word(value.as_str()))
    }

    pub fn unblock(self) -> String {
        format!("UpdateQueue (tallystone queue unblock {})", self.0)
    }

    /// Removes the messages that are over, of these states.
    pub fn remove(self, states: &[MessageState]) -> String {
        let states = states.iter().map(|state| format!(" --state {state}")).collect::<String>();
        format!("PurgeQueue (tallystone queue purge {}{states})", self.0)
    }

    /// Shortens the retention of these states, and the dedupe window, than which no retention is shorter.
    pub fn keep_shorter(self, states: &[MessageState]) -> String {
        let states = states.iter().map(|state| format!(" --keep-{} TIME", state.to_string().to_lowercase()));
        let states = states.collect::<String>();
        format!("UpdateQueue (tallystone queue update {}{states} --dedupe-window TIME)", self.0)
    }

    pub fn raise_quota(self, quota: ReachedQuota) -> String {
        let flag = match quota {
            ReachedQuota::Messages => "--quota-messages N",
            ReachedQuota::Bytes => "--quota-bytes SIZE",
        };
        format!("UpdateQueue (tallystone queue update {} {flag})", self.0)
    }

    pub fn declare(self) -> String {
        format!("UpdateQueue (tallystone queue update {} --filter-shape KEY,KEY)", self.0)
    }

    pub fn explain_one(self) -> String {
        format!("ExplainMessage (tallystone msg explain -q {} MESSAGE)", self.0)
    }

    pub fn work(self) -> String {
        format!("tallystone work -q {} --exec COMMAND", self.0)
    }

    pub fn pull(self) -> String {
        format!("Dequeue (tallystone msg pull -q {})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pasted_names_its_queue_and_is_one_word_where_it_should_be() {
        let name = QueueName::new("mail/in").expect("a legal name");
        let cancel = |id: &str| NextSteps(&name).cancel(&MessageId::new(id).expect("a legal id"));
        assert_eq!(cancel("order-7"), "CancelMessage (tallystone msg cancel -q mail/in --id order-7)");
        assert_eq!(cancel("it's $1"), r"CancelMessage (tallystone msg cancel -q mail/in --id 'it'\''s $1')");
    }
}
