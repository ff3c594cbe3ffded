//! The numbers of tokens and their issuers on the metrics page.

use std::fmt;

use prometheus_client::encoding::DescriptorEncoder;

use super::{MetricSource, encode, encode_each};
use tallystone_engine::access::{IssuerGauges, Tokens, TokensInUse};
use tallystone_ports::{Metric, metrics};

const ISSUERS: &[Metric<IssuerGauges>] = metrics! { issuer:
    Gauge "tallystone_issuer_keys" = issuer.keys as f64, "Signing keys of an issuer of tokens that count; 0: its tokens are refused";
    Gauge "tallystone_issuer_keys_age_seconds" = issuer.age.map_or(0.0, |age| age.as_secs_f64()),
        "Time since the signing keys of an issuer were last read; 0 before the first time";
    Count "tallystone_issuer_keys_readings" = issuer.readings, "Attempts to read the signing keys of an issuer";
    Count "tallystone_issuer_keys_failures" = issuer.failures, "Failed attempts to read the signing keys of an issuer";
};

const TOKENS: &[Metric<TokensInUse>] = metrics! { tokens:
    Count "tallystone_tokens_verified" = tokens.verified, "Tokens verified by their signature; known ones are not verified again";
    Gauge "tallystone_tokens_known" = tokens.known as f64, "Verified tokens that are remembered";
};

const REFUSED: &[Metric<u64>] = metrics! { refused:
    Count "tallystone_tokens_refused" = *refused, "Calls refused because of their token, by what was wrong with it";
};

/// The label where there is no issuer; none is called so.
const NO_ISSUER: &str = "_none";

/// The issuers are as many as the settings list, so their labels are bounded.
impl MetricSource for Tokens {
    fn encode_metrics(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let issuers = self.issuers().iter().map(|issuer| (issuer.policy.name.to_string(), self.gauges(issuer)));
        let mut issuers: Vec<_> = issuers.collect();
        if issuers.is_empty() {
            issuers.push((NO_ISSUER.to_owned(), IssuerGauges::default()));
        }
        encode_each(encoder, ISSUERS, issuers.iter().map(|(name, issuer)| ([("issuer", name.as_str())], issuer)))?;
        let in_use = self.in_use();
        encode(encoder, TOKENS, &in_use)?;
        encode_each(encoder, REFUSED, in_use.refused.iter().map(|(one, count)| ([("why", one.word())], count)))
    }
}
