//! The credential that a client shows with every call: an API key.

use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Request, Status};

/// The metadata of the key.
const AUTHORIZATION: &str = "authorization";

/// A connection that shows the client's credential with every call. Cheap to clone.
pub type Connection = InterceptedService<Channel, Credential>;

/// The credential that a client shows. `Debug` does not show it.
#[derive(Clone, Debug, Default)]
pub struct Credential {
    bearer: Option<MetadataValue<Ascii>>,
}

/// A text that is no API key. It is not repeated here, because it may be one with a typing mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the API key cannot be sent: it is empty, or has characters that no key has")]
pub struct CredentialError;

impl Credential {
    /// Shows an API key. White space around it is left out.
    pub fn of_key(key: &str) -> Result<Self, CredentialError> {
        let key = key.trim();
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(CredentialError);
        }
        let mut bearer: MetadataValue<Ascii> = format!("Bearer {key}").parse().map_err(|_| CredentialError)?;
        // Neither logs nor the compression of headers keep it.
        bearer.set_sensitive(true);
        Ok(Self { bearer: Some(bearer) })
    }
}

impl Interceptor for Credential {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(bearer) = &self.bearer {
            request.metadata_mut().insert(AUTHORIZATION, bearer.clone());
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_shown_to_servers_only() {
        let mut credential = Credential::of_key(" ts_0123456789abcdef_secret\n").expect("a key");
        let request = credential.call(Request::new(())).expect("it refuses no call");
        let shown = request.metadata().get(AUTHORIZATION).expect("the key is shown");
        assert_eq!(shown.as_bytes(), b"Bearer ts_0123456789abcdef_secret");
        assert!(!format!("{credential:?} {request:?}").contains("secret"), "{credential:?}");
        let nobody = Credential::default().call(Request::new(())).expect("it refuses no call");
        assert!(nobody.metadata().is_empty());
        for text in ["", " ", "a b", "a\nb", "ä"] {
            assert_eq!(Credential::of_key(text).err(), Some(CredentialError), "{text:?}");
        }
    }
}
