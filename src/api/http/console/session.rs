//! Sign-in: where callers must show an API key, a browser keeps one in a cookie until it is closed. A browser that
//! shows the certificate of a client needs none.
//!
//! The cookie holds the key itself, so every server of a fleet knows it, and it ends when the key ends. Scripts cannot
//! read it, and no page of another site makes a browser send it. Invariant: the key is checked with each request, by
//! the check of the gateway.

use std::sync::Arc;

use http::{HeaderMap, HeaderValue, header};

use super::query::PageQuery;
use super::view::{ActionForm, ActionLink, FormField, Page, Section};
use crate::errors::ApiError;
use crate::http::identity::IdentityCheck;
use crate::tls::ClientCertificate;
use tallystone_engine::access::Identity;

const COOKIE: &str = "tallystone-key";

/// Finds out who sent a request: by its header `authorization`, else by its cookie, else by the certificate of its
/// connection. None: callers need not say.
pub async fn caller(
    check: &IdentityCheck,
    sent: &HeaderMap,
    certificate: Option<&ClientCertificate>,
) -> Result<Option<Arc<Identity>>, ApiError> {
    if sent.contains_key(header::AUTHORIZATION) {
        return check.caller(sent).await;
    }
    if let Some(key) = key_of(sent) {
        return caller_with(check, Some(key)).await;
    }
    // A browser shows its certificate with the requests of any site, unlike a cookie.
    check.caller_on(&HeaderMap::new(), certificate.filter(|_| !is_of_other_site(sent))).await
}

/// Whether a browser says that a page of another site, or of another origin of this site, made a request.
pub fn is_of_other_site(sent: &HeaderMap) -> bool {
    let site = sent.get("sec-fetch-site").map(HeaderValue::as_bytes);
    site.is_some_and(|site| ![&b"same-origin"[..], b"none"].contains(&site))
}

/// Whether a request has a key in its cookies, valid or not.
pub fn has_cookie(sent: &HeaderMap) -> bool {
    key_of(sent).is_some()
}

/// Finds out who has a key.
async fn caller_with(check: &IdentityCheck, key: Option<&str>) -> Result<Option<Arc<Identity>>, ApiError> {
    let mut shown = HeaderMap::new();
    if let Some(mut bearer) = key.and_then(|key| HeaderValue::from_str(&format!("Bearer {key}")).ok()) {
        bearer.set_sensitive(true);
        shown.insert(header::AUTHORIZATION, bearer);
    }
    check.caller(&shown).await
}

/// The key in the cookies of a request.
fn key_of(sent: &HeaderMap) -> Option<&str> {
    let lines = sent.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, key)| key)
}

/// Checks the key of a form. Answers the cookie that keeps it; none where callers need no key.
pub async fn sign_in(
    check: &IdentityCheck,
    form: &PageQuery,
    sent: &HeaderMap,
) -> Result<Option<HeaderValue>, ApiError> {
    let key = form.text("key").trim();
    let found = caller_with(check, Some(key).filter(|key| !key.is_empty())).await?;
    Ok(found.and_then(|_| cookie(key, sent)))
}

/// The cookie that takes the place of the one with the key, and ends at once.
pub fn sign_out(sent: &HeaderMap) -> Option<HeaderValue> {
    cookie("; Max-Age=0", sent)
}

/// A cookie without a path belongs to the folder of the page that sets it, also behind a proxy with a prefix.
fn cookie(value: &str, sent: &HeaderMap) -> Option<HeaderValue> {
    let is_https = sent.get("x-forwarded-proto").is_some_and(|scheme| scheme == "https");
    let secure = if is_https { "; Secure" } else { "" };
    let mut cookie = HeaderValue::from_str(&format!("{COOKIE}={value}; HttpOnly; SameSite=Strict{secure}")).ok()?;
    cookie.set_sensitive(true);
    Some(cookie)
}

/// The page that asks for a key, and leads to a place afterwards.
pub fn page(to: &str, refused: Option<&str>) -> Page {
    let to = place_of(to);
    let mut page = Page::new("sign-in", "Sign in");
    page.nav.clear();
    page.lead =
        "This server asks for an API key. The browser keeps it until you sign out or close the browser.".to_owned();
    if let Some(refused) = refused {
        page.notice("bad", refused);
    }
    let fields = vec![
        FormField { name: "to", value: to.clone(), hidden: true, ..FormField::default() },
        FormField { label: "API key".to_owned(), name: "key", required: true, secret: true, ..FormField::default() },
    ];
    let action = ActionForm { action: "sign-in", fields, submit: "Sign in".to_owned(), ..ActionForm::default() };
    // A link of another site opens a page without the cookie; a link of this page has it.
    let on = ActionLink { href: to, text: "Signed in already? Go on", enabled: true, ..ActionLink::default() };
    page.sections.push(Section { action: Some(action), links: vec![on], ..Section::default() });
    page
}

/// A place of the console from a form or query: the name of a page and a query. Anything else is the overview.
pub fn place_of(to: &str) -> String {
    let (page, query) = to.split_once('?').unwrap_or((to, ""));
    let is_page = page == "./" || page.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
    let is_plain = query.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_page || !is_plain || page.starts_with("sign-") {
        return "./".to_owned();
    }
    let page = if page.is_empty() { "./" } else { page };
    if query.is_empty() { page.to_owned() } else { format!("{page}?{query}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_cookies(lines: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(header::COOKIE, HeaderValue::from_static(line));
        }
        headers
    }

    #[test]
    fn the_key_is_found_among_other_cookies() {
        assert_eq!(key_of(&with_cookies(&["a=b; tallystone-key=ts_1; c=d"])), Some("ts_1"));
        assert_eq!(key_of(&with_cookies(&["a=b", "tallystone-key=ts_2"])), Some("ts_2"));
        for none in [vec![], vec!["a=b"], vec!["other-tallystone-key=ts_1"], vec!["tallystone-key"]] {
            assert_eq!(key_of(&with_cookies(&none)), None, "{none:?}");
        }
    }

    #[test]
    fn a_cookie_is_for_encrypted_connections_where_the_proxy_says_so() {
        let plain = cookie("ts_1", &HeaderMap::new()).expect("a cookie");
        assert_eq!(plain.to_str().ok(), Some("tallystone-key=ts_1; HttpOnly; SameSite=Strict"));
        let mut headers = HeaderMap::new();
        headers.insert("x-forwarded-proto", HeaderValue::from_static("https"));
        let secure = cookie("ts_1", &headers).expect("a cookie");
        assert_eq!(secure.to_str().ok(), Some("tallystone-key=ts_1; HttpOnly; SameSite=Strict; Secure"));
        assert!(cookie("a\nb", &headers).is_none());
    }

    #[test]
    fn a_sign_in_leads_only_to_pages_of_the_console() {
        for own in ["./", "queue?name=a%2Fb", "act?do=purge&queue=mail", "audit", "./?sort=name"] {
            assert_eq!(place_of(own), own);
        }
        assert_eq!(place_of("?sort=name"), "./?sort=name");
        for other in
            ["//evil.example", "http://evil.example", "/", "..", "../x", "\\\\evil", "a b", "sign-in", "x?a\nb", ""]
        {
            assert_eq!(place_of(other), "./", "{other:?}");
        }
    }
}
