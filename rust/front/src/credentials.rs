//! Who may call: the server's certificate, the CAs of callers, and the tokens that are accepted.
//!
//! The control plane reads the files and sends their contents, again whenever they change. Credentials that cannot be used
//! never replace those in force.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use engine::log::{Level, Line};
use engine::rpc::bearer::{HeaderFault, is_equal, token_of};
use http::HeaderMap;
use ring::digest::{SHA256, digest};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use crate::messages;

/// The credentials in force; by default plain text, and no token is needed.
#[derive(Default)]
pub struct Credentials(Mutex<Arc<Current>>);

#[derive(Default)]
struct Current {
    tls: Option<Arc<ServerConfig>>,
    token_digests: Vec<Vec<u8>>,
}

impl Credentials {
    /// Fails if the certificate, its key or the CAs cannot be used.
    pub fn new(sent: &messages::Credentials) -> Result<Self, String> {
        let current = Current { tls: tls_of(sent)?, token_digests: sent.token_digests.clone() };
        Ok(Self(Mutex::new(Arc::new(current))))
    }

    /// Replace the credentials. A certificate or CA that cannot be used is reported, and the one in force stays.
    pub fn replace(&self, sent: &messages::Credentials) {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let tls = tls_of(sent).unwrap_or_else(|error| {
            Line::new(Level::Error, "certificate not replaced, the old one stays").with("error", error).write();
            current.tls.clone()
        });
        *current = Arc::new(Current { tls, token_digests: sent.token_digests.clone() });
    }

    /// The configuration for a new connection; nothing for plain text.
    pub fn tls(&self) -> Option<Arc<ServerConfig>> {
        self.current().tls.clone()
    }

    /// Return why a call is refused; nothing if it may be served.
    pub fn fault(&self, headers: &HeaderMap) -> Option<&'static str> {
        let current = self.current();
        if current.token_digests.is_empty() {
            return None;
        }
        match token_of(headers) {
            Ok(token) => {
                let digest = digest(&SHA256, token);
                // Compare all of them, so that the time does not tell which one it is.
                let found =
                    current.token_digests.iter().fold(false, |found, known| found | is_equal(known, digest.as_ref()));
                if found { None } else { Some("the call's token is not, or no longer, accepted") }
            }
            Err(HeaderFault::Missing) => {
                Some("the call has no token; send \"authorization: Bearer <token>\" in its metadata")
            }
            Err(HeaderFault::Malformed) => {
                Some("the call's \"authorization\" is no token; it has the form \"Bearer <token>\", once")
            }
        }
    }

    fn current(&self) -> Arc<Current> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn tls_of(sent: &messages::Credentials) -> Result<Option<Arc<ServerConfig>>, String> {
    if sent.certificate_chain.is_empty() { Ok(None) } else { tls_config(sent).map(Arc::new).map(Some) }
}

fn tls_config(sent: &messages::Credentials) -> Result<ServerConfig, String> {
    let provider = Arc::new(default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let builder = if sent.client_cas.is_empty() {
        builder.with_no_client_auth()
    } else {
        let mut cas = RootCertStore::empty();
        for certificate in certificates(&sent.client_cas, "of the callers' CAs")? {
            cas.add(certificate)
                .map_err(|error| format!("a certificate of the callers' CAs cannot be used: {error}"))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(cas), provider).build();
        builder
            .with_client_cert_verifier(verifier.map_err(|error| format!("the callers' CAs cannot be used: {error}"))?)
    };
    let key = PrivateKeyDer::from_pem_slice(&sent.private_key)
        .map_err(|error| format!("the private key cannot be read: {error}"))?;
    let mut config = builder
        .with_single_cert(certificates(&sent.certificate_chain, "of the server")?, key)
        .map_err(|error| format!("the certificate and its key cannot be used: {error}"))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn certificates(pem: &[u8], whose: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    found.map_err(|error| format!("the certificates {whose} cannot be read: {error}"))
}

/// Report a TLS handshake that failed, at the debug level: every client that can reach the port can cause it.
pub fn report_failed_handshake(peer: Option<SocketAddr>, error: impl std::fmt::Display) {
    let peer = peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string());
    Line::new(Level::Debug, "TLS handshake failed").with("peer", peer).with("error", error).write();
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::header::AUTHORIZATION;

    fn accepting(tokens: &[&str]) -> Credentials {
        let token_digests = tokens.iter().map(|token| digest(&SHA256, token.as_bytes()).as_ref().to_vec()).collect();
        Credentials::new(&messages::Credentials { token_digests, ..<_>::default() }).unwrap()
    }

    fn is_refused(credentials: &Credentials, value: &str) -> bool {
        credentials.fault(&HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())])).is_some()
    }

    #[test]
    fn every_accepted_token_is_let_in_and_no_other() {
        let credentials = accepting(&["old", "new"]);
        for (value, expected) in [("Bearer old", false), ("Bearer new", false), ("Bearer ol", true), ("old", true)] {
            assert_eq!(is_refused(&credentials, value), expected, "{value}");
        }
        assert!(credentials.fault(&HeaderMap::new()).is_some());
        assert!(accepting(&[]).fault(&HeaderMap::new()).is_none(), "no token is asked for");
    }

    #[test]
    fn a_token_is_revoked_also_beside_a_certificate_that_cannot_be_used() {
        let credentials = accepting(&["old"]);
        let token_digests = vec![digest(&SHA256, b"new").as_ref().to_vec()];
        let sent = messages::Credentials { certificate_chain: b"x".to_vec(), token_digests, ..<_>::default() };
        assert!(Credentials::new(&sent).is_err());
        credentials.replace(&sent);
        assert_eq!(["old", "new"].map(|token| is_refused(&credentials, &format!("Bearer {token}"))), [true, false]);
    }
}
