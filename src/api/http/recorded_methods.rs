//! Which calls are acts of operators.

/// The calls that are recorded, as ends of their full names: those that change settings, that destroy, and that copy everything.
/// `ClearCount` is one if it is known who calls, by a key or by a claim.
const RECORDED: [&str; 28] = [
    "QueueService.CreateQueue",
    "QueueService.UpdateQueue",
    "QueueService.DeleteQueue",
    "QueueService.PurgeQueue",
    "QueueService.RedriveMessages",
    "QueueService.DiscardMessages",
    "QueueService.CancelMessage",
    "QueueService.CancelMessages",
    "QueueService.SetValueLimit",
    "QueueService.CancelOperation",
    "QueueService.ResetQueueClock",
    "NamespaceService.CreateNamespace",
    "NamespaceService.UpdateNamespace",
    "NamespaceService.DeleteNamespace",
    "NamespaceService.ApplyNamespace",
    "RuleService.CreateRule",
    "RuleService.DeleteRule",
    "KeyService.CreateKey",
    "KeyService.UpdateKey",
    "KeyService.RotateKey",
    "KeyService.DeleteKey",
    "ExperimentService.CreateExperiment",
    "ExperimentService.UpdateExperiment",
    "ExperimentService.StopExperiment",
    "ExperimentService.DeleteExperiment",
    "BackupService.CreateBackup",
    "BridgeService.AdoptStore",
    CLEAR,
];
/// The call that clears a counter.
pub const CLEAR: &str = "CounterService.ClearCount";

/// Whether a method may be recorded, by its full name.
pub fn is_recorded(full_name: &str) -> bool {
    RECORDED.iter().any(|name| full_name.ends_with(name))
}

#[cfg(test)]
mod tests {
    use prost_reflect::DescriptorPool;

    use super::*;

    #[test]
    fn every_recorded_call_exists_and_names_its_target() {
        let pool = DescriptorPool::decode(tallystone_proto::DESCRIPTORS).expect("descriptors of this build decode");
        let methods: Vec<_> = pool.services().flat_map(|service| service.methods().collect::<Vec<_>>()).collect();
        for name in RECORDED {
            let method = methods.iter().find(|method| method.full_name().ends_with(name));
            let input = method.unwrap_or_else(|| panic!("there is no {name}")).input();
            let fields = ["queue", "namespace", "name", "rule", "operation_id", "dry_run", "document", "experiment"];
            let is_of_all = name.ends_with("CreateBackup");
            assert!(is_of_all || fields.iter().any(|field| input.get_field_by_name(field).is_some()), "{name}");
        }
    }

    #[test]
    fn every_call_that_destroys_or_copies_everything_is_recorded() {
        let pool = DescriptorPool::decode(tallystone_proto::DESCRIPTORS).expect("descriptors of this build decode");
        let words =
            ["Delete", "Purge", "Discard", "Clear", "CancelMessage", "Reset", "CreateBackup", "Rotate", "Export"];
        let is_such = |name: &str| words.iter().any(|word| name.starts_with(word));
        let methods = pool.services().flat_map(|service| service.methods().collect::<Vec<_>>());
        let such: Vec<_> = methods.filter(|method| is_such(method.name())).collect();
        assert!(such.len() >= 12, "{such:?}");
        for method in such {
            assert!(is_recorded(method.full_name()), "{}", method.full_name());
        }
    }
}
