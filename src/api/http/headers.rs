//! The limit of a request's headers, the same over HTTP/1.1 and HTTP/2.
//!
//! The layers below read up to `HEADERS_WIRE_BYTES_MAX` and end what is larger with a bare 431. So a request above the
//! limit is read whole, and its sender gets a reason.

use http::Request;

use crate::errors::ApiError;
use tallystone_domain::Reason;
use tallystone_domain::limits::HEADERS_BYTES_MAX;

/// The bytes that a field costs besides its name and value, by RFC 9113, section 6.5.2.
const FIELD_BYTES: usize = 32;
/// The headers that fit into the limit: each counts at least a name of one byte. So their number is no limit of its
/// own.
pub const HEADERS_THAT_FIT: usize = HEADERS_BYTES_MAX as usize / (FIELD_BYTES + 1);

/// The refusal of a request whose path and headers are too large.
pub fn too_large<B>(request: &Request<B>) -> Option<ApiError> {
    let path = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    let fields = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD_BYTES);
    let bytes = path + fields.sum::<usize>();
    (bytes > HEADERS_BYTES_MAX as usize).then(|| {
        let what = format!(
            "the path and the headers have {bytes} bytes, with {FIELD_BYTES} more for each header; at most \
             {HEADERS_BYTES_MAX} are allowed"
        );
        ApiError::new(Reason::InvalidHeadersTooLarge, what)
    })
}
