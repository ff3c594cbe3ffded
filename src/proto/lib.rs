//! The generated protocol: messages, clients, servers, and the descriptors of all of it.
//!
//! `generated/` is made from `proto/` by the test in `tests/generated`, which also says when it is no longer true.

/// The encoded descriptor set of all protos, for reflection and for JSON.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");

/// The full name of each method with the number of its role in `tallystone.access.v1.Role`, as its proto declares it, in
/// the order of names.
pub const METHOD_ROLES: &[(&str, u32)] = include!("generated/method_roles.rs");

/// The full name of each method with the number of its class in `tallystone.access.v1.CallClass`, as its proto declares it, in
/// the order of names.
pub const METHOD_CLASSES: &[(&str, u32)] = include!("generated/method_classes.rs");

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
