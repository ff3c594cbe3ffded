//! Host names under which a server answers browsers.
//!
//! A malicious page can resolve its own name to 127.0.0.1. The browser then calls the server under that name as the
//! same origin (DNS rebinding). Such a request carries the page's name in `host`. Addresses cannot be rebound, so they
//! pass, as does `localhost`. gRPC is not checked: browsers cannot send it.

use std::net::IpAddr;

use http::uri::Authority;
use http::{HeaderValue, Request, Version, header};

/// The host names that a server accepts in addition to addresses and `localhost`.
#[derive(Clone, Default, Debug)]
pub struct AllowedHosts {
    /// None: any name.
    names: Option<Vec<String>>,
}

impl AllowedHosts {
    /// Accepts only these names, in any letter case.
    pub fn only(names: impl IntoIterator<Item = String>) -> Self {
        let names = names.into_iter().map(|name| name.trim().to_ascii_lowercase());
        Self { names: Some(names.filter(|name| !name.is_empty()).collect()) }
    }

    /// Returns the request's host name if the server does not accept it.
    pub fn rejected_host<'a, B>(&self, request: &'a Request<B>) -> Option<&'a str> {
        let names = self.names.as_ref()?;
        let of_header = || request.headers().get(header::HOST).map(|value| value.to_str().unwrap_or("?"));
        let host = request.uri().authority().map(http::uri::Authority::as_str).or_else(of_header)?;
        let name = without_port(host);
        let is_address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
        let lower = name.to_ascii_lowercase();
        let is_local = lower == "localhost" || lower.ends_with(".localhost");
        (!is_address && !is_local && !names.contains(&lower)).then_some(host)
    }
}

/// The fault of the `host` of a request over HTTP/1.1, and what to do. None for other requests: HTTP/1.0 has no such
/// rule, and HTTP/2 names the host in `:authority`. Proxies and servers that take different hosts for that of a request
/// can be led astray by it. Source: RFC 9112, section 3.2.
pub fn bad_host<B>(request: &Request<B>) -> Option<&'static str> {
    if request.version() != Version::HTTP_11 {
        return None;
    }
    let mut sent = request.headers().get_all(header::HOST).iter();
    match (sent.next(), sent.next()) {
        (None, _) => Some(
            "the request has no host header, which HTTP/1.1 needs; send host: NAME:PORT, as in the address of the server\n",
        ),
        (Some(_), Some(_)) => {
            Some("the request has more than one host header; send one, with the address of the server\n")
        }
        (Some(one), None) if !is_host(one) => {
            Some("the host header is not NAME, NAME:PORT, ADDRESS or ADDRESS:PORT; send the address of the server\n")
        }
        (Some(_), None) => None,
    }
}

/// Whether a value is a host with or without a port. An empty one is: it says that the address has no host.
fn is_host(value: &HeaderValue) -> bool {
    let Ok(text) = value.to_str() else { return false };
    let is_port = |rest: &str| {
        rest.is_empty() || rest.strip_prefix(':').is_some_and(|port| port.bytes().all(|digit| digit.is_ascii_digit()))
    };
    let rest = match text.rsplit_once(']') {
        Some((_, rest)) => rest,
        None => text.find(':').map_or("", |at| &text[at..]),
    };
    text.is_empty() || (Authority::try_from(text).is_ok() && !text.contains('@') && is_port(rest))
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() => name,
        _ => host, // no port, or an address in brackets
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refuses(hosts: &AllowedHosts, host: &str) -> bool {
        let request = Request::builder().uri("/healthz").header(header::HOST, host).body(()).expect("a request");
        hosts.rejected_host(&request).is_some()
    }

    #[test]
    fn addresses_localhost_and_own_names_pass_and_names_of_pages_do_not() {
        let hosts = AllowedHosts::only(["Counts.example".to_owned(), String::new()]);
        for own in ["127.0.0.1:7450", "[::1]:7450", "[::1]", "localhost", "LOCALHOST:1", "a.localhost:7450", "10.0.0.1"]
        {
            assert!(!refuses(&hosts, own), "{own}");
        }
        assert!(!refuses(&hosts, "counts.EXAMPLE:7450"));
        for page in ["evil.example", "evil.example:7450", "127.0.0.1.evil.example", "localhost.evil.example", "", ":1"]
        {
            assert!(refuses(&hosts, page), "{page:?}");
        }
        assert!(!refuses(&AllowedHosts::default(), "evil.example"), "a server that is not for development");
    }

    #[test]
    fn a_host_is_a_name_or_an_address_with_or_without_a_port() {
        let is = |text: &'static str| is_host(&HeaderValue::from_static(text));
        for host in
            ["", "counts.example", "counts.example:7450", "10.0.0.1:1", "[::1]", "[::1]:7450", "a_b:", "localhost"]
        {
            assert!(is(host), "{host:?}");
        }
        for other in ["a b", "a/b", "ann@a", "a:b", "[::1", "[::1]x", "a:1:2", "http://a", "a?b", "a#b"] {
            assert!(!is(other), "{other:?}");
        }
        assert!(!is_host(&HeaderValue::from_bytes("ä.example".as_bytes()).expect("opaque bytes")));
    }
}
