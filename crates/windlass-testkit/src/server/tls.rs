//! Temporary certificates.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose,
};

/// The files of a certificate authority and a server certificate that it signed.
#[derive(Debug)]
pub(super) struct TlsFiles {
    pub(super) ca: PathBuf,
    pub(super) certificate: PathBuf,
    pub(super) key: PathBuf,
}

impl TlsFiles {
    /// Writes new certificates, valid for `localhost` and `127.0.0.1`, to `folder`.
    pub(super) fn generate(folder: &Path) -> io::Result<Self> {
        let files = Self {
            ca: folder.join("ca.crt"),
            certificate: folder.join("server.crt"),
            key: folder.join("server.key"),
        };
        let (ca, certificate, key) = sign().map_err(io::Error::other)?;
        fs::write(&files.ca, ca)?;
        fs::write(&files.certificate, certificate)?;
        fs::write(&files.key, key)?;
        Ok(files)
    }
}

/// The PEM texts of authority, server certificate and server key.
fn sign() -> Result<(String, String, String), rcgen::Error> {
    let mut authority = CertificateParams::new(Vec::<String>::new())?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    authority
        .distinguished_name
        .push(DnType::CommonName, "Windlass test authority");
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;

    let mut server = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()])?;
    server
        .distinguished_name
        .push(DnType::CommonName, "Windlass test server");
    server.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let server = server.signed_by(&key, &authority)?;
    Ok((authority.pem(), server.pem(), key.serialize_pem()))
}
