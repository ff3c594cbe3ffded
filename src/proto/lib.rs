//! The generated protocol: messages, clients, servers, and the descriptors of all of it.
//!
//! `generated/` is made from `proto/` by the test in `tests/generated`, which also says when it is no longer true.

/// The encoded descriptor set of all protos, for reflection and for JSON.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");

/// The full name of each method with the number of its role in `tallystone.access.v1.Role`, as its proto declares it,
/// in the order of names.
pub const METHOD_ROLES: &[(&str, u32)] = include!("generated/method_roles.rs");

/// The full name of each method with the number of its class in `tallystone.access.v1.CallClass`, as its proto declares
/// it, in the order of names.
pub const METHOD_CLASSES: &[(&str, u32)] = include!("generated/method_classes.rs");

/// The full names of the methods whose calls are recorded as acts of operators, in the order of names.
pub const AUDITED_METHODS: &[&str] = include!("generated/audited_methods.rs");

/// The full names of the methods whose calls occupy a lasting resource, of which each caller has a share, in the order
/// of names.
pub const SHARE_TAKING_METHODS: &[&str] = include!("generated/share_taking_methods.rs");

/// The full names of the methods whose times say how busy the server is, in the order of names.
pub const TIMED_METHODS: &[&str] = include!("generated/timed_methods.rs");

/// The full names of the methods that may wait inside the server for an event, in the order of names.
pub const WAITING_METHODS: &[&str] = include!("generated/waiting_methods.rs");

/// The full name of each list in a request that has a bound of its own, with the bound, in the order of names.
pub const LIST_BOUNDS: &[(&str, u32)] = include!("generated/list_bounds.rs");

/// The full name of each field that only the service sets, as its comment begins with "Output only", in the order of
/// names.
pub const OUTPUT_ONLY_FIELDS: &[&str] = include!("generated/output_only_fields.rs");

/// A message of a request in which a caller may set fields that only the service sets.
pub trait OutputOnly {
    /// The path of a field that only the service sets, and that has another value than its default here.
    fn output_only(&self) -> Option<String>;
}

mod output_only {
    use super::OutputOnly;

    /// The first field that is set.
    fn first_set(fields: &[(&str, bool)]) -> Option<String> {
        fields.iter().find(|(_, is_set)| *is_set).map(|(field, _)| (*field).to_owned())
    }

    /// The first field that is set within a message.
    fn within(field: &str, message: Option<&impl OutputOnly>) -> Option<String> {
        message?.output_only().map(|path| format!("{field}.{path}"))
    }

    /// The first field that is set within the messages of a list.
    fn within_each(field: &str, messages: &[impl OutputOnly]) -> Option<String> {
        let mut paths = messages.iter().enumerate().map(|(at, message)| Some((at, message.output_only()?)));
        paths.find_map(|path| path).map(|(at, path)| format!("{field}[{at}].{path}"))
    }

    include!("generated/output_only_checks.rs");
}

/// The metadata in which a rollup signal shows the secret of the member that sends it.
pub const SECRET_METADATA: &str = "tallystone-member-secret-bin";

/// `tallystone.counter`
pub mod counter {
    /// `tallystone.counter.v1`
    #[allow(missing_docs, clippy::all, clippy::pedantic)]
    pub mod v1 {
        include!("generated/tallystone.counter.v1.rs");
    }
}

/// `tallystone.admin`
pub mod admin {
    /// `tallystone.admin.v1`
    #[allow(missing_docs, clippy::all, clippy::pedantic)]
    pub mod v1 {
        include!("generated/tallystone.admin.v1.rs");
    }
}

/// `tallystone.access`
pub mod access {
    /// `tallystone.access.v1`
    #[allow(missing_docs, clippy::all, clippy::pedantic)]
    pub mod v1 {
        include!("generated/tallystone.access.v1.rs");
    }
}

/// `tallystone.error`
pub mod error {
    /// `tallystone.error.v1`
    #[allow(missing_docs, clippy::all, clippy::pedantic)]
    pub mod v1 {
        include!("generated/tallystone.error.v1.rs");
    }
}

/// `tallystone.queue`
pub mod queue {
    /// `tallystone.queue.v1`
    #[allow(missing_docs, clippy::all, clippy::pedantic)]
    pub mod v1 {
        include!("generated/tallystone.queue.v1.rs");
    }
}

/// `tallystone.history`
pub mod history {
    /// `tallystone.history.v1`
    #[allow(missing_docs, clippy::all, clippy::pedantic)]
    pub mod v1 {
        include!("generated/tallystone.history.v1.rs");
    }
}

/// `tallystone.rule`
pub mod rule {
    /// `tallystone.rule.v1`
    #[allow(missing_docs, clippy::all, clippy::pedantic)]
    pub mod v1 {
        include!("generated/tallystone.rule.v1.rs");
    }
}

/// `tallystone.experiment`
pub mod experiment {
    /// `tallystone.experiment.v1`
    #[allow(missing_docs, clippy::all, clippy::pedantic)]
    pub mod v1 {
        include!("generated/tallystone.experiment.v1.rs");
    }
}

/// `tallystone.internal`
pub mod internal {
    /// `tallystone.internal.v1`
    #[allow(missing_docs, clippy::all, clippy::pedantic)]
    pub mod v1 {
        include!("generated/tallystone.internal.v1.rs");
    }
}
