//! Host names under which a server answers browsers.
//!
//! A malicious page can resolve its own name to 127.0.0.1. The browser then calls the server under that name as the
//! same origin (DNS rebinding). Such a request carries the page's name in `host`. Addresses cannot be rebound, so they
//! pass, as does `localhost`. gRPC is not checked: browsers cannot send it.

use std::net::IpAddr;

use http::{Request, header};

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
}
