//! TLS to Postgres with the modes of libpq: `require`, `verify-ca`, `verify-full`.

use std::{path::Path, sync::Arc};

use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    client::{WebPkiServerVerifier, verify_server_name},
    crypto::CryptoProvider,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
    server::ParsedCertificate,
};

use crate::{config::ConfigError, printable::printable};

/// What is verified of the server's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verify {
    /// Encrypt only: `require` without a CA file.
    Nothing,
    /// The chain up to the CA, not the host name: `verify-ca`, or `require` with a CA file.
    Chain,
    /// Chain and host name: `verify-full`.
    Full,
}

/// Selects the crypto provider of rustls: needed once per process, before the first TLS connection.
pub(crate) fn install_provider() {
    // An error means that it is installed already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

/// Returns a rustls configuration that verifies against `ca_file` or the system's CAs.
pub(crate) fn client_config(
    verify: Verify,
    ca_file: Option<&Path>,
) -> Result<ClientConfig, ConfigError> {
    install_provider();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder();
    if verify == Verify::Full {
        return Ok(builder.with_root_certificates(roots(ca_file)?).with_no_client_auth());
    }
    let chain = match verify {
        Verify::Chain => {
            let built = WebPkiServerVerifier::builder(Arc::new(roots(ca_file)?)).build();
            Some(
                built
                    .map_err(|error| ConfigError::invalid(format!("postgres.ca_file: {error}")))?,
            )
        }
        _ => None,
    };
    let verifier = Arc::new(WithoutHostName { chain, provider });
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

/// Loads the CAs of `postgres.ca_file`, or those of the system.
fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, ConfigError> {
    let mut store = RootCertStore::empty();
    let Some(path) = ca_file else {
        store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(store);
    };
    let invalid = |reason: String| {
        let path = printable(&path.display().to_string());
        ConfigError::invalid(format!("postgres.ca_file {path} {reason}"))
    };
    let certificates = CertificateDer::pem_file_iter(path)
        .map_err(|error| invalid(format!("cannot be read: {error}")))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| invalid(format!("is not PEM: {error}")))?;
        store
            .add(certificate)
            .map_err(|error| invalid(format!("contains an invalid certificate: {error}")))?;
    }
    if store.is_empty() {
        return Err(invalid("contains no certificate".into()));
    }
    Ok(store)
}

/// Always verifies signatures, the chain if there is a CA to verify against, and never the host name.
#[derive(Debug)]
struct WithoutHostName {
    chain: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for WithoutHostName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(chain) = &self.chain else {
            return Ok(ServerCertVerified::assertion());
        };
        let verdict =
            chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        // webpki verifies the chain first: if only the name is wrong, the chain is valid.
        let name_is_wrong = ParsedCertificate::try_from(end_entity)
            .is_ok_and(|parsed| verify_server_name(&parsed, server_name).is_err());
        match verdict {
            Err(Error::InvalidCertificate(
                rustls::CertificateError::NotValidForName
                | rustls::CertificateError::NotValidForNameContext { .. },
            )) if name_is_wrong => Ok(ServerCertVerified::assertion()),
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
