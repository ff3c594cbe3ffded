//! The generated protocol: messages, clients, servers, and the descriptors of all of it.

/// The encoded descriptor set of all protos, for reflection and for JSON.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// The full name of each method with the number of its role in `tallystone.access.v1.Role`, as its proto declares it, in
/// the order of names.
pub const METHOD_ROLES: &[(&str, u32)] = include!(concat!(env!("OUT_DIR"), "/method_roles.rs"));

/// The full name of each method with the number of its class in `tallystone.access.v1.CallClass`, as its proto declares it, in
/// the order of names.
pub const METHOD_CLASSES: &[(&str, u32)] = include!(concat!(env!("OUT_DIR"), "/method_classes.rs"));

/// The metadata in which a rollup signal shows the secret of the member that sends it.
pub const SECRET_METADATA: &str = "tallystone-member-secret-bin";

/// `tallystone.counter`
pub mod counter {
    /// `tallystone.counter.v1`
    #[allow(missing_docs, clippy::all, clippy::pedantic)]
    pub mod v1 {
        tonic::include_proto!("tallystone.counter.v1");
    }
}

/// `tallystone.admin`
pub mod admin {
    /// `tallystone.admin.v1`
    #[allow(missing_docs, clippy::all, clippy::pedantic)]
    pub mod v1 {
        tonic::include_proto!("tallystone.admin.v1");
    }
}

/// `tallystone.access`
pub mod access {
    /// `tallystone.access.v1`
    #[allow(missing_docs, clippy::all, clippy::pedantic)]
    pub mod v1 {
        tonic::include_proto!("tallystone.access.v1");
    }
}

/// `tallystone.error`
pub mod error {
    /// `tallystone.error.v1`
    #[allow(missing_docs, clippy::all, clippy::pedantic)]
    pub mod v1 {
        tonic::include_proto!("tallystone.error.v1");
    }
}

/// `tallystone.queue`
pub mod queue {
    /// `tallystone.queue.v1`
    #[allow(missing_docs, clippy::all, clippy::pedantic)]
    pub mod v1 {
        tonic::include_proto!("tallystone.queue.v1");
    }
}

/// `tallystone.history`
pub mod history {
    /// `tallystone.history.v1`
    #[allow(missing_docs, clippy::all, clippy::pedantic)]
    pub mod v1 {
        tonic::include_proto!("tallystone.history.v1");
    }
}

/// `tallystone.rule`
pub mod rule {
    /// `tallystone.rule.v1`
    #[allow(missing_docs, clippy::all, clippy::pedantic)]
    pub mod v1 {
        tonic::include_proto!("tallystone.rule.v1");
    }
}

/// `tallystone.experiment`
pub mod experiment {
    /// `tallystone.experiment.v1`
    #[allow(missing_docs, clippy::all, clippy::pedantic)]
    pub mod v1 {
        tonic::include_proto!("tallystone.experiment.v1");
    }
}

/// `tallystone.internal`
pub mod internal {
    /// `tallystone.internal.v1`
    #[allow(missing_docs, clippy::all, clippy::pedantic)]
    pub mod v1 {
        tonic::include_proto!("tallystone.internal.v1");
    }
}
