//! TLS to Postgres with the modes of libpq: `require`, `verify-ca`, `verify-full`.

use std::{path::Path, sync::Arc};

use rustls::{
    ClientConfig, ConfigBuilder, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    client::{WantsClientCert, WebPkiServerVerifier, verify_server_name},
    crypto::CryptoProvider,
    pki_types::{
        CertificateDer, PrivateKeyDer, ServerName, UnixTime,
        pem::{self, PemObject},
    },
    server::ParsedCertificate,
};

use crate::{
    config::{ConfigError, Postgres},
    printable::printable,
};

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

/// Returns a rustls configuration that verifies against `postgres.ca_file` or the system's CAs, and has
/// the client certificate of the settings.
pub(crate) fn client_config(
    verify: Verify,
    settings: &Postgres,
) -> Result<ClientConfig, ConfigError> {
    install_provider();
    let builder = verifying(verify, settings.ca_file.as_deref())?;
    let (Some(certificate), Some(key)) = (&settings.client_cert_file, &settings.client_key_file)
    else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates("postgres.client_cert_file", certificate)?;
    let key = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| invalid("postgres.client_key_file", key, pem_reason(&error)))?;
    builder.with_client_auth_cert(chain, key).map_err(|error| {
        invalid("postgres.client_cert_file", certificate, format!("does not work: {error}"))
    })
}

/// Starts a configuration that verifies the server.
fn verifying(
    verify: Verify,
    ca_file: Option<&Path>,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, ConfigError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder();
    if verify == Verify::Full {
        return Ok(builder.with_root_certificates(roots(ca_file)?));
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
    Ok(builder.dangerous().with_custom_certificate_verifier(verifier))
}

/// Loads the CAs of `postgres.ca_file`, or those of the system.
fn roots(ca_file: Option<&Path>) -> Result<RootCertStore, ConfigError> {
    let mut store = RootCertStore::empty();
    let Some(path) = ca_file else {
        store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(store);
    };
    let key = "postgres.ca_file";
    for certificate in certificates(key, path)? {
        let added = store.add(certificate);
        added.map_err(|error| {
            invalid(key, path, format!("contains an invalid certificate: {error}"))
        })?;
    }
    Ok(store)
}

/// Reads the certificates of a PEM file; there is at least one.
fn certificates(key: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(certificates) if certificates.is_empty() => {
            Err(invalid(key, path, "contains no certificate".into()))
        }
        Ok(certificates) => Ok(certificates),
        Err(error) => Err(invalid(key, path, pem_reason(&error))),
    }
}

fn pem_reason(error: &pem::Error) -> String {
    match error {
        pem::Error::Io(error) => format!("cannot be read: {error}"),
        error => format!("is not PEM: {error}"),
    }
}

fn invalid(key: &str, path: &Path, reason: String) -> ConfigError {
    let path = printable(&path.display().to_string());
    ConfigError::invalid(format!("{key} {path} {reason}"))
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
