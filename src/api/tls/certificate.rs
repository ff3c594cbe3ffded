//! The fields that are read of a certificate: the names of its subject, its key, and the end of its validity. Whether
//! it is to be trusted is not decided here.

use yasna::models::TaggedDerValue;
use yasna::tags::TAG_UTCTIME;
use yasna::{ASN1Error, ASN1ErrorKind, ASN1Result, BERReader, BERReaderSeq, Tag, TagClass};

use tallystone_domain::Timestamp;

/// The name of the extension with the alternative names of the subject, 2.5.29.17, as it stands in a certificate.
const ALTERNATIVE_NAMES: [u8; 5] = [0x06, 0x03, 0x55, 0x1D, 0x11];
/// The kinds of alternative names that are read.
const DNS_NAME: Tag = Tag { tag_class: TagClass::ContextSpecific, tag_number: 2 };
const URI: Tag = Tag { tag_class: TagClass::ContextSpecific, tag_number: 6 };

/// The fields of a certificate (RFC 5280).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CertificateFields {
    /// The first moment at which it is not valid any more. The last second that it names is part of its validity.
    pub expires: Timestamp,
    /// The bits of the subject's key, without its algorithm.
    pub public_key: Vec<u8>,
    pub names: AlternativeNames,
}

/// The alternative names of a subject.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct AlternativeNames {
    /// The first URI.
    pub uri: Option<String>,
    /// The first DNS name.
    pub dns: Option<String>,
}

impl CertificateFields {
    /// Reads a certificate in DER.
    pub fn read(certificate: &[u8]) -> ASN1Result<Self> {
        yasna::parse_der(certificate, |reader| {
            reader.read_sequence(|reader| {
                let fields = reader.next().read_sequence(signed_fields)?;
                let _signature_algorithm = reader.next().read_der()?;
                let _signature = reader.next().read_der()?;
                Ok(fields)
            })
        })
    }
}

/// Reads what the issuer has signed.
fn signed_fields(reader: &mut BERReaderSeq<'_, '_>) -> ASN1Result<CertificateFields> {
    let number = |reader: BERReader<'_, '_>| reader.read_u8();
    let _version = reader.read_optional(|reader| reader.read_tagged(Tag::context(0), number))?;
    let _serial_number = reader.next().read_der()?;
    let _signature_algorithm = reader.next().read_der()?;
    let _issuer = reader.next().read_der()?;
    let last_second = reader.next().read_sequence(|reader| {
        let _not_before = reader.next().read_der()?;
        seconds(reader.next())
    })?;
    let _subject = reader.next().read_der()?;
    let public_key = reader.next().read_sequence(|reader| {
        let _algorithm = reader.next().read_der()?;
        let (bytes, _bits) = reader.next().read_bitvec_bytes()?;
        Ok(bytes)
    })?;
    for unique_id in [Tag::context(1), Tag::context(2)] {
        let bits = |reader: BERReader<'_, '_>| reader.read_bitvec_bytes();
        let _unique_id = reader.read_optional(|reader| reader.read_tagged_implicit(unique_id, bits))?;
    }
    let names = reader.read_optional(|reader| reader.read_tagged(Tag::context(3), names_in_extensions))?;
    let names = names.flatten().unwrap_or_default();
    Ok(CertificateFields { expires: Timestamp::from_secs(last_second + 1), public_key, names })
}

/// A time in seconds since 1970.
fn seconds(reader: BERReader<'_, '_>) -> ASN1Result<i64> {
    // Until 2049 in the one form, from then on in the other.
    match reader.lookahead_tag()? {
        TAG_UTCTIME => Ok(reader.read_utctime()?.datetime().unix_timestamp()),
        // What is no time is refused by it.
        _ => Ok(reader.read_generalized_time()?.datetime().unix_timestamp()),
    }
}

/// Reads the alternative names among the extensions; none if there are none. They may stand there once.
fn names_in_extensions(reader: BERReader<'_, '_>) -> ASN1Result<Option<AlternativeNames>> {
    let mut found = None;
    reader.read_sequence_of(|reader| {
        let (name, value) = reader.read_sequence(|reader| {
            let name = reader.next().read_der()?;
            let flag = |reader: BERReader<'_, '_>| reader.read_bool();
            let _is_critical = reader.read_optional(flag)?;
            Ok((name, reader.next().read_bytes()?))
        })?;
        if name != ALTERNATIVE_NAMES {
            return Ok(());
        }
        match found.replace(yasna::parse_der(&value, alternative_names)?) {
            None => Ok(()),
            Some(_) => Err(ASN1Error::new(ASN1ErrorKind::Invalid)),
        }
    })?;
    Ok(found)
}

fn alternative_names(reader: BERReader<'_, '_>) -> ASN1Result<AlternativeNames> {
    let mut names = AlternativeNames::default();
    reader.read_sequence_of(|reader| {
        let name = reader.read_tagged_der()?;
        let first = match name.tag() {
            URI => &mut names.uri,
            DNS_NAME => &mut names.dns,
            _ => return Ok(()), // other kinds of names name no principal
        };
        let text = text_of(&name)?;
        first.get_or_insert(text);
        Ok(())
    })?;
    Ok(names)
}

/// The text of a name, which is ASCII.
fn text_of(name: &TaggedDerValue) -> ASN1Result<String> {
    let text = str::from_utf8(name.value()).ok().filter(|text| text.is_ascii());
    text.map(str::to_owned).ok_or_else(|| ASN1Error::new(ASN1ErrorKind::Invalid))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, CustomExtension, KeyPair, SanType, date_time_ymd};

    use super::*;

    fn certificate(change: impl FnOnce(&mut CertificateParams)) -> (Vec<u8>, KeyPair) {
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![SanType::DnsName("orders".try_into().expect("ASCII"))];
        params.not_after = date_time_ymd(2001, 9, 9);
        change(&mut params);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        (certificate.der().to_vec(), key)
    }

    #[test]
    fn names_key_and_end_are_read() {
        let (bytes, key) = certificate(|_| ());
        let fields = CertificateFields::read(&bytes).expect("it can be read");
        assert_eq!(fields.public_key, key.public_key_raw());
        assert_eq!(fields.names, AlternativeNames { uri: None, dns: Some("orders".to_owned()) });
        for (year, last_second) in [(2049, 2_493_072_000), (2050, 2_524_608_000), (9999, 253_370_764_800)] {
            let (bytes, _) = certificate(|params| params.not_after = date_time_ymd(year, 1, 1));
            let fields = CertificateFields::read(&bytes).expect("it can be read");
            assert_eq!(fields.expires, Timestamp::from_secs(last_second + 1), "{year}");
        }
    }

    #[test]
    fn a_certificate_without_extensions_has_no_names() {
        let (bytes, _) = certificate(|params| params.subject_alt_names.clear());
        assert_eq!(CertificateFields::read(&bytes).map(|fields| fields.names), Ok(AlternativeNames::default()));
    }

    #[test]
    fn names_that_stand_twice_or_are_no_text_are_refused() {
        let again = |content: &[u8]| CustomExtension::from_oid_content(&[2, 5, 29, 17], content.to_vec());
        let good = [0x30, 0x03, 0x82, 0x01, b'a'];
        let (twice, _) = certificate(|params| params.custom_extensions = vec![again(&good)]);
        assert!(CertificateFields::read(&twice).is_err());
        let contents: [(&[u8], bool); 6] = [
            (&good, true),
            (&[0x30, 0x00], true),
            (&[0x30, 0x03, 0x86, 0x01, 0xFF], false),
            (&[0x30, 0x04, 0x82, 0x02, 0xC3, 0xA4], false),
            (&[0x30, 0x03, 0x82, 0x05, b'a'], false),
            (&[], false),
        ];
        for (content, is_good) in contents {
            let (bytes, _) = certificate(|params| {
                params.subject_alt_names.clear();
                params.custom_extensions = vec![again(content)];
            });
            assert_eq!(CertificateFields::read(&bytes).is_ok(), is_good, "{content:?}");
        }
    }

    #[test]
    fn a_part_of_a_certificate_or_one_with_more_behind_it_is_refused() {
        let (bytes, _) = certificate(|_| ());
        for length in 0..bytes.len() {
            assert!(CertificateFields::read(&bytes[..length]).is_err(), "{length} bytes");
        }
        assert!(CertificateFields::read(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn whatever_byte_is_wrong_nothing_worse_than_a_refusal_happens() {
        let (bytes, _) = certificate(|_| ());
        for at in 0..bytes.len() {
            for wrong in [0x00, 0x01, 0x30, 0x7F, 0x80, 0x84, 0xFF] {
                let mut bytes = bytes.clone();
                bytes[at] = wrong;
                // Some bytes, as those of the signature, may be any.
                let _ = CertificateFields::read(&bytes);
            }
        }
    }
}
