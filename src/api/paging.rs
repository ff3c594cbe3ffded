//! Page sizes and page tokens.
//!
//! A page token is base64url over: 1 byte version, the cursor, 8 bytes xxh3 of (version, request, cursor). The request
//! is the method with its arguments, so a token serves only the request that it was created for. The token is opaque
//! but not secret: a forged token reveals nothing that the request would not.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use xxhash_rust::xxh3::Xxh3;

use tallystone_domain::limits::{PAGE_CURSOR_BYTES_MAX, PAGE_ROWS_DEFAULT, PAGE_ROWS_MAX};
use tallystone_domain::{Reason, Reject};

const VERSION: u8 = 1;
const CHECKSUM_BYTES: usize = 8;

/// Returns the number of rows of a page: 0 means the default, and a larger size than the maximum means the maximum.
pub fn rows(page_size: i32) -> Result<usize, Reject> {
    match usize::try_from(page_size) {
        Ok(0) => Ok(PAGE_ROWS_DEFAULT),
        Ok(rows) => Ok(rows.min(PAGE_ROWS_MAX)),
        Err(_negative) => Err(Reject::new(
            Reason::InvalidPageSize,
            format!("page_size is {page_size}; send 1 to {PAGE_ROWS_MAX}, or 0 for {PAGE_ROWS_DEFAULT}"),
        )),
    }
}

/// The request that page tokens are bound to.
pub struct PagedRequest {
    hash: Xxh3,
}

impl PagedRequest {
    /// Creates the request of a method. `arguments` are those that every page repeats, without page size and token.
    pub fn new(method: &str, arguments: &[&[u8]]) -> Self {
        let mut hash = Xxh3::new();
        for part in std::iter::once(method.as_bytes()).chain(arguments.iter().copied()) {
            hash.update(&(part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        Self { hash }
    }

    /// Returns the token of the page that begins after the cursor.
    pub fn token(&self, cursor: &[u8]) -> String {
        let mut bytes = Vec::with_capacity(1 + cursor.len() + CHECKSUM_BYTES);
        bytes.push(VERSION);
        bytes.extend_from_slice(cursor);
        bytes.extend_from_slice(&self.checksum(cursor));
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Returns the cursor of a token; none for the empty token of the first page.
    pub fn cursor(&self, token: &str) -> Result<Option<Vec<u8>>, Reject> {
        if token.is_empty() {
            return Ok(None);
        }
        if token.len() > 2 * (PAGE_CURSOR_BYTES_MAX + CHECKSUM_BYTES) {
            return Err(refuse());
        }
        let bytes = URL_SAFE_NO_PAD.decode(token).map_err(|_malformed| refuse())?;
        let (&version, rest) = bytes.split_first().ok_or_else(refuse)?;
        let at = rest.len().checked_sub(CHECKSUM_BYTES).ok_or_else(refuse)?;
        let (cursor, checksum) = rest.split_at(at);
        if version != VERSION || *checksum != self.checksum(cursor) {
            return Err(refuse());
        }
        Ok(Some(cursor.to_vec()))
    }

    fn checksum(&self, cursor: &[u8]) -> [u8; CHECKSUM_BYTES] {
        let mut hash = self.hash.clone();
        hash.update(&[VERSION]);
        hash.update(cursor);
        hash.digest().to_be_bytes()
    }
}

/// Refuses a token, also one whose cursor its method cannot read.
pub fn refuse() -> Reject {
    Reject::new(
        Reason::InvalidPageToken,
        "page_token does not belong to this request; send the next_page_token of the previous page with the same \
         arguments, or omit page_token to start over",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> PagedRequest {
        PagedRequest::new("ListCounters", &[b"default", b"views"])
    }

    #[test]
    fn a_token_answers_its_cursor() {
        for cursor in [&b""[..], b"views.home", &[0, 255, 7]] {
            let token = request().token(cursor);
            assert_eq!(request().cursor(&token), Ok(Some(cursor.to_vec())));
        }
        assert_eq!(request().cursor(""), Ok(None));
    }

    #[test]
    fn a_token_serves_only_its_own_request() {
        let token = request().token(b"views.home");
        for other in [
            PagedRequest::new("ListCounters", &[b"default", b""]),
            PagedRequest::new("ListCounters", &[b"defaultviews", b""]),
            PagedRequest::new("ListCounters", &[b"", b"defaultviews"]),
            PagedRequest::new("ListCountEvents", &[b"default", b"views"]),
        ] {
            assert_eq!(other.cursor(&token).expect_err("another request").reason, Reason::InvalidPageToken);
        }
    }

    #[test]
    fn a_forged_token_is_refused() {
        let token = request().token(b"views.home");
        for at in 0..token.len() {
            let mut forged = token.clone().into_bytes();
            forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
            let forged = String::from_utf8(forged).expect("letters");
            assert!(request().cursor(&forged).is_err(), "byte {at}: {forged}");
        }
        for forged in ["A", "====", "not a token", "AQ", &token[1..], &"A".repeat(100_000)] {
            assert!(request().cursor(forged).is_err(), "{forged}");
        }
    }

    #[test]
    fn page_sizes_default_and_clamp_and_never_go_below_zero() {
        assert_eq!(rows(0), Ok(100));
        assert_eq!(rows(1), Ok(1));
        assert_eq!(rows(i32::MAX), Ok(1_000));
        assert_eq!(rows(-1).expect_err("negative").reason, Reason::InvalidPageSize);
    }
}
