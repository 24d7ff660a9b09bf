//! TLS to Postgres, with the modes of libpq, and to Redis and S3: valid certificates work, others are
//! refused. The servers use certificates of a temporary CA.

mod postgres;
mod redis;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

use crate::support::servers::Folder;

/// Creates `ca.pem`, `other-ca.pem` (which signed nothing), and a server's `cert.pem` and `key.pem`,
/// which are valid for the name localhost but not for 127.0.0.1; and `client.pem` and `client-key.pem` for
/// the user postgres.
fn certificates() -> Folder {
    certificates_for("localhost")
}

/// The same, with the server at this name or address.
fn certificates_for(server: &str) -> Folder {
    let folder = Folder::new("tls");
    let authority = |name: &str| {
        let mut params = CertificateParams::new([]).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("key");
        let certificate = params.self_signed(&key).expect("CA");
        (certificate.pem(), Issuer::new(params, key))
    };
    let (ca, issuer) = authority("the right CA");
    let (other_ca, other_issuer) = authority("another CA");
    folder.write("ca.pem", &ca);
    folder.write("other-ca.pem", &other_ca);
    let leaf = |names: &[&str], user: &str, issuer, files: [&str; 2]| {
        let key = KeyPair::generate().expect("key");
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, user);
        let certificate = params.signed_by(&key, issuer).expect("certificate");
        folder.write(files[0], &certificate.pem());
        folder.write(files[1], &key.serialize_pem());
    };
    leaf(&[server], "server", &issuer, ["cert.pem", "key.pem"]);
    leaf(&[], "postgres", &issuer, ["client.pem", "client-key.pem"]);
    leaf(&[], "postgres", &other_issuer, ["other-client.pem", "other-client-key.pem"]);
    folder
}
