//! Alerts of certificates, of issuers of tokens, and of the limit of calls: pages of a real server with other numbers, since
//! weeks and half hours do not pass in a test.

use std::time::Duration;

use super::firing::{Seen, TROUBLE, expect_firing, settled};
use super::queue_alerts::with;
use super::used_server;

const EXPIRY: &str = "tallystone_tls_certificate_expiry_timestamp_seconds";
const USABLE: &str = "tallystone_tls_files_usable";
const AGE: &str = "tallystone_issuer_keys_age_seconds{issuer=\"_none\"}";
/// In what is played to promtool, time begins at 0.
const TWO_WEEKS: Duration = Duration::from_secs(14 * 86_400);

#[test]
fn a_certificate_that_ends_files_that_do_not_fit_and_old_keys_of_an_issuer_raise_an_alert_each() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(folder.path());
    let page = settled(&server);
    let hour = Duration::from_secs(3_600);
    let later = (TWO_WEEKS + hour).as_secs_f64();
    let well = with(&page, EXPIRY, later);
    for (series, fine, bad, alert) in [
        // A server without TLS shows 0.
        (EXPIRY, 0.0, TWO_WEEKS.as_secs_f64(), "TlsCertificateExpires"),
        (USABLE, 1.0, 0.0, "TlsFilesUnusable"),
        (AGE, 1_790.0, 1_801.0, "IssuerKeysOld"),
    ] {
        let seen = |name, number| Seen::well(name, well.clone()).then(Some(with(&well, series, number)), TROUBLE);
        expect_firing(&[seen("a", bad), seen("b", fine)], &[(alert, "a")]);
    }
}

#[test]
fn a_limit_of_calls_that_stays_raises_an_alert() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = used_server(folder.path());
    let page = settled(&server);
    let limited = with(&page, "tallystone_call_limit", 64.0);
    let seen = |name, then: &String| Seen::well(name, page.clone()).then(Some(then.clone()), TROUBLE);
    expect_firing(&[seen("a", &limited), seen("b", &page)], &[("CallsTakeTooLong", "a")]);
}
