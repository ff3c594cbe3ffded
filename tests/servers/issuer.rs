//! An issuer of tokens: keys of its own, tokens that it signs, and a server that publishes its keys.
//!
//! It signs with the cryptography itself, not with the library by which the product verifies. So neither covers a mistake of the
//! other.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeySize, PublicKeyComponents};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _, RSA_PKCS1_SHA256, RsaKeyPair,
};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};

/// A key of an issuer.
pub struct TokenKey {
    /// Its id in tokens and in the set.
    pub kid: String,
    pair: TokenKeyPair,
}

enum TokenKeyPair {
    Rs256(Box<RsaKeyPair>),
    Es256(EcdsaKeyPair),
    EdDsa(Ed25519KeyPair),
}

/// A part of a token as it is written.
pub fn encoded(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The seconds since 1970, some seconds from now.
pub fn seconds_from_now(seconds: i64) -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    i64::try_from(now.as_secs()).expect("it is before the end of time") + seconds
}

impl TokenKey {
    pub fn rs256(kid: &str) -> Self {
        let pair = RsaKeyPair::generate(KeySize::Rsa2048).expect("a key");
        Self { kid: kid.to_owned(), pair: TokenKeyPair::Rs256(Box::new(pair)) }
    }

    pub fn es256(kid: &str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("a key");
        Self { kid: kid.to_owned(), pair: TokenKeyPair::Es256(pair) }
    }

    pub fn eddsa(kid: &str) -> Self {
        Self { kid: kid.to_owned(), pair: TokenKeyPair::EdDsa(Ed25519KeyPair::generate().expect("a key")) }
    }

    fn algorithm(&self) -> &'static str {
        match &self.pair {
            TokenKeyPair::Rs256(_) => "RS256",
            TokenKeyPair::Es256(_) => "ES256",
            TokenKeyPair::EdDsa(_) => "EdDSA",
        }
    }

    /// The public key in a set.
    pub fn jwk(&self) -> Value {
        let mut jwk = match &self.pair {
            TokenKeyPair::Rs256(pair) => {
                let public = PublicKeyComponents::<Vec<u8>>::from(pair.public_key());
                json!({"kty": "RSA", "n": encoded(&public.n), "e": encoded(&public.e)})
            }
            TokenKeyPair::Es256(pair) => {
                let point = pair.public_key().as_ref();
                json!({"kty": "EC", "crv": "P-256", "x": encoded(&point[1..33]), "y": encoded(&point[33..])})
            }
            TokenKeyPair::EdDsa(pair) => json!({"kty": "OKP", "crv": "Ed25519", "x": encoded(pair.public_key())}),
        };
        (jwk["kid"], jwk["use"], jwk["alg"]) = (json!(self.kid), json!("sig"), json!(self.algorithm()));
        jwk
    }

    /// The bytes of the public key, as somebody might take them for a secret.
    pub fn public_bytes(&self) -> Vec<u8> {
        match &self.pair {
            TokenKeyPair::Rs256(pair) => pair.public_key().as_ref().to_vec(),
            TokenKeyPair::Es256(pair) => pair.public_key().as_ref().to_vec(),
            TokenKeyPair::EdDsa(pair) => pair.public_key().as_ref().to_vec(),
        }
    }

    /// A token with these claims.
    pub fn sign(&self, claims: &Value) -> String {
        self.sign_as(&json!({"alg": self.algorithm(), "kid": self.kid, "typ": "JWT"}), claims)
    }

    /// A token with this head, whatever it says.
    pub fn sign_as(&self, head: &Value, claims: &Value) -> String {
        self.sign_text(&head.to_string(), &claims.to_string())
    }

    /// The same of JSON that no value makes.
    pub fn sign_text(&self, head: &str, claims: &str) -> String {
        let text = format!("{}.{}", encoded(head), encoded(claims));
        let (message, random) = (text.as_bytes(), SystemRandom::new());
        let signature = match &self.pair {
            TokenKeyPair::Rs256(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).expect("it signs");
                signature
            }
            TokenKeyPair::Es256(pair) => pair.sign(&random, message).expect("it signs").as_ref().to_vec(),
            TokenKeyPair::EdDsa(pair) => pair.sign(message).as_ref().to_vec(),
        };
        format!("{text}.{}", encoded(signature))
    }
}

/// The set with these keys.
pub fn key_set(keys: &[&TokenKey]) -> String {
    json!({"keys": keys.iter().map(|key| key.jwk()).collect::<Vec<_>>()}).to_string()
}

/// What a server answers to whoever asks for the keys.
#[derive(Clone, Debug)]
pub enum Served {
    /// A document.
    Document(String),
    /// Another status than 200, with a document.
    Status(u16, String),
    /// So many bytes without an end of the document.
    Bytes(usize),
    /// Nothing, until the other side gives up.
    Nothing,
}

/// A server that publishes keys, over HTTP or over TLS.
pub struct KeyServer {
    /// Where it listens.
    pub address: SocketAddr,
    /// The certificate of its authority, as PEM. Empty without TLS.
    pub authority: String,
    state: Arc<KeyServerState>,
}

struct KeyServerState {
    served: Mutex<Served>,
    requests: AtomicUsize,
    stopped: AtomicBool,
    tls: Option<Arc<rustls::ServerConfig>>,
}

impl KeyServer {
    /// Serves over plain HTTP.
    pub fn start(served: Served) -> Self {
        Self::serve(served, None, String::new())
    }

    /// Serves over TLS, with a certificate of its own for 127.0.0.1.
    pub fn start_tls(served: Served) -> Self {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.expect("the defaults are valid").with_no_client_auth();
        let config = config.with_single_cert(vec![made.cert.der().clone()], key).expect("they belong together");
        Self::serve(served, Some(Arc::new(config)), made.cert.pem())
    }

    fn serve(served: Served, tls: Option<Arc<rustls::ServerConfig>>, authority: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let state = KeyServerState {
            served: Mutex::new(served),
            requests: AtomicUsize::new(0),
            stopped: AtomicBool::new(false),
            tls,
        };
        let state = Arc::new(state);
        let serving = Arc::clone(&state);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if serving.stopped.load(Ordering::Acquire) {
                    return;
                }
                let state = Arc::clone(&serving);
                thread::spawn(move || state.answer(stream));
            }
        });
        Self { address, authority, state }
    }

    /// The URL of the keys.
    pub fn url(&self) -> String {
        let scheme = if self.authority.is_empty() { "http" } else { "https" };
        format!("{scheme}://{}/jwks.json", self.address)
    }

    /// Answers this from now on.
    pub fn serves(&self, served: Served) {
        *self.state.served.lock().expect("no thread panics with it") = served;
    }

    /// How often it was asked.
    pub fn requests(&self) -> usize {
        self.state.requests.load(Ordering::Acquire)
    }
}

impl Drop for KeyServer {
    fn drop(&mut self) {
        self.state.stopped.store(true, Ordering::Release);
        // Wakes the listener, so that it sees that it is to end.
        drop(TcpStream::connect(self.address));
    }
}

impl KeyServerState {
    fn answer(&self, mut stream: TcpStream) {
        let limit = Some(Duration::from_secs(30));
        // A client that goes away ends its own connection only.
        let _ = stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit));
        let _ = match &self.tls {
            None => self.talk(&mut stream),
            Some(config) => {
                let mut session = rustls::ServerConnection::new(Arc::clone(config)).expect("valid settings");
                self.talk(&mut rustls::Stream::new(&mut session, &mut stream))
            }
        };
    }

    fn talk(&self, stream: &mut (impl Read + Write)) -> std::io::Result<()> {
        let mut request = Vec::new();
        let mut bytes = [0; 1_024];
        while !request.windows(4).any(|window| window == b"\r\n\r\n") {
            match stream.read(&mut bytes)? {
                0 => return Ok(()),
                read => request.extend_from_slice(&bytes[..read]),
            }
        }
        self.requests.fetch_add(1, Ordering::AcqRel);
        let served = self.served.lock().expect("no thread panics with it").clone();
        let (status, document) = match served {
            Served::Document(document) => (200, document),
            Served::Status(status, document) => (status, document),
            Served::Bytes(many) => (200, "x".repeat(many)),
            Served::Nothing => {
                // Ends when the other side has gone.
                while stream.read(&mut bytes)? > 0 {}
                return Ok(());
            }
        };
        let head = format!("HTTP/1.1 {status} X\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", document.len());
        stream.write_all(head.as_bytes())?;
        stream.write_all(document.as_bytes())?;
        stream.flush()
    }
}
