//! The rows from which those of the table of reasons differ.

use super::{Code, Effect, ReasonInfo, Retry};

/// The base of all rows.
pub(super) const ROW: ReasonInfo = ReasonInfo {
    name: "",
    code: Code::Unknown,
    http: 500,
    retry: Retry::Never,
    effect: Effect::Nothing,
    field: None,
    advice: None,
    help: "",
};
pub(super) const INVALID: ReasonInfo = ReasonInfo { code: Code::InvalidArgument, http: 400, ..ROW };
pub(super) const PRECONDITION: ReasonInfo = ReasonInfo { code: Code::FailedPrecondition, http: 412, ..ROW };
pub(super) const NOT_FOUND: ReasonInfo = ReasonInfo { code: Code::NotFound, http: 404, ..ROW };
pub(super) const EXISTS: ReasonInfo = ReasonInfo { code: Code::AlreadyExists, http: 409, ..ROW };
pub(super) const DENIED: ReasonInfo = ReasonInfo { code: Code::PermissionDenied, http: 403, ..ROW };
pub(super) const UNAUTHENTICATED: ReasonInfo =
    ReasonInfo { code: Code::Unauthenticated, http: 401, effect: Effect::Unknown, ..ROW };
pub(super) const EXHAUSTED: ReasonInfo =
    ReasonInfo { code: Code::ResourceExhausted, http: 429, retry: Retry::SameToken, ..ROW };
pub(super) const UNAVAILABLE: ReasonInfo =
    ReasonInfo { code: Code::Unavailable, http: 503, retry: Retry::SameToken, ..ROW };

/// Makes the enum and the table from the rows, so that no reason is in one and not in the other.
macro_rules! reasons {
    ($($variant:ident => $info:expr,)*) => {
        /// The reason of a refused call. `ReasonInfo::name` is the name on the wire.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[allow(missing_docs, reason = "the row of each variant says what it means")]
        pub enum Reason {
            $($variant,)*
        }

        impl Reason {
            /// Every reason, in the order of the proto.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];
        }

        /// One row for each reason, in the order of the enum.
        pub(super) const TABLE: &[ReasonInfo] = &[$($info,)*];
    };
}

pub(super) use reasons;
