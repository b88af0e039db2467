//! The market's own certificate authority, which issues one certificate to each gateway.
//!
//! A gateway enrols with a one-time code and a public key, and gets a certificate for that key; from then on
//! TLS proves that it has the private key. The server identifies a gateway by the hash of its certificate. So a
//! certificate is useless once it is replaced or its gateway has left, although its signature is valid.

use std::sync::Arc;

use fairweir_daemon::StateDir;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm,
};
use ring::agreement::{ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde::{Deserialize, Serialize};

use crate::hex;

/// Errors of keys and certificates.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A certificate cannot be made or read.
    #[error("cannot make or read a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// TLS refuses a key or a certificate.
    #[error("TLS refuses a key or certificate: {0}")]
    Tls(#[from] rustls::Error),
    /// The verifier of clients cannot be built.
    #[error("cannot verify clients: {0}")]
    Verifier(#[from] rustls::server::VerifierBuilderError),
    /// The state directory cannot be used.
    #[error(transparent)]
    State(#[from] fairweir_daemon::Error),
    /// The text is not a public key.
    #[error("the public key must be a P-256 point of 65 bytes in hexadecimal digits")]
    PublicKey,
    /// A certificate that is not written in hexadecimal digits.
    #[error("a certificate is not in hexadecimal digits")]
    Digits,
    /// The market's authority is missing or incomplete.
    #[error(
        "{0} is missing, or the two files of the market's authority do not belong together; gateways trust no \
         other: copy `{KEY_FILE}` and `{CERTIFICATE_FILE}` from a backup or from another server of the market"
    )]
    Lost(String),
    /// The kernel gives no random numbers.
    #[error("the kernel gives no random numbers")]
    Random,
}

/// The authority of a market.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
}

const KEY_FILE: &str = "ca-key.pem";
/// File of the authority's certificate, which is public: gateways pin it.
pub const CERTIFICATE_FILE: &str = "ca.der";
const FILE_SIZE_MAX: u64 = 64 << 10;

impl Authority {
    /// Opens the authority in a state directory.
    ///
    /// # Errors
    /// If it is missing or incomplete, or cannot be read.
    pub fn open(dir: &StateDir) -> Result<Authority, IdentityError> {
        let lost = |name| IdentityError::Lost(dir.path_of(name).display().to_string());
        let read = |name| dir.read(name, FILE_SIZE_MAX)?.ok_or_else(|| lost(name));
        let key = KeyPair::from_pem(&String::from_utf8_lossy(&read(KEY_FILE)?))?;
        let certificate = read(CERTIFICATE_FILE)?;
        let public = key.public_key_raw();
        if !certificate.windows(public.len()).any(|bytes| bytes == public) {
            return Err(lost(KEY_FILE));
        }
        let issuer = Issuer::new(params_of_authority(), key);
        Ok(Authority { issuer, certificate: certificate.into() })
    }

    /// Whether a state directory has any file of an authority.
    pub fn exists(dir: &StateDir) -> bool {
        [KEY_FILE, CERTIFICATE_FILE].iter().any(|name| dir.path_of(name).exists())
    }

    /// Removes the authority from a state directory.
    ///
    /// # Errors
    /// If the file system refuses.
    pub fn remove(dir: &StateDir) -> Result<(), IdentityError> {
        Ok([KEY_FILE, CERTIFICATE_FILE].iter().try_for_each(|name| dir.remove(name))?)
    }

    /// Copies the authority of a state directory into another one.
    ///
    /// # Errors
    /// If it is missing or incomplete, or cannot be written.
    pub fn copy(from: &StateDir, to: &StateDir) -> Result<(), IdentityError> {
        Authority::open(from)?;
        for name in [KEY_FILE, CERTIFICATE_FILE] {
            to.write(name, &from.read(name, FILE_SIZE_MAX)?.unwrap_or_default())?;
        }
        Ok(())
    }

    /// Creates an authority in a state directory that has none.
    ///
    /// # Errors
    /// If its files cannot be written.
    pub fn create(dir: &StateDir) -> Result<Authority, IdentityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = params_of_authority().self_signed(&key)?.der().clone();
        dir.write(KEY_FILE, key.serialize_pem().as_bytes())?;
        dir.write(CERTIFICATE_FILE, &certificate)?;
        Ok(Authority { issuer: Issuer::new(params_of_authority(), key), certificate })
    }

    /// The authority's certificate, which gateways pin.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Issues a certificate for a gateway's public key, in DER.
    ///
    /// # Errors
    /// If `public_key` is not a public key.
    pub fn certify(&self, public_key: &str) -> Result<Vec<u8>, IdentityError> {
        let point = unhex(public_key).filter(|p| p.len() == 65 && p[0] == 4 && is_on_curve(p));
        let point = Point(point.ok_or(IdentityError::PublicKey)?);
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "fairweir gateway");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        Ok(params.signed_by(&point, &self.issuer)?.der().to_vec())
    }

    /// The server's TLS configuration for a host name or address. A client may show no certificate, in order
    /// to enrol; if it shows one, it must be issued by this authority.
    ///
    /// # Errors
    /// If a key cannot be made.
    pub fn server_config(&self, name: &str) -> Result<Arc<ServerConfig>, IdentityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = CertificateParams::new([name.to_owned()])?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &self.issuer)?.der().clone();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let roots = Arc::new(roots(&self.certificate)?);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider))
            .allow_unauthenticated()
            .build()?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![certificate], private_key(&key))?;
        Ok(Arc::new(config))
    }
}

/// A gateway's key, and its certificate once it has one.
pub struct Identity {
    key: KeyPair,
    certificate: Option<Vec<u8>>,
}

impl Identity {
    /// A new key.
    ///
    /// # Errors
    /// If the kernel gives no random numbers.
    pub fn generate() -> Result<Identity, IdentityError> {
        Ok(Identity { key: KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?, certificate: None })
    }

    /// The public key in the form that enrolment needs.
    pub fn public_key(&self) -> String {
        hex(self.key.public_key_raw())
    }

    /// Sets the certificate that enrolment returned.
    pub fn set_certificate(&mut self, der: Vec<u8>) {
        self.certificate = Some(der);
    }

    /// The gateway's TLS configuration for a market with this authority.
    ///
    /// # Errors
    /// If the authority's certificate, or the gateway's own, cannot be used.
    pub fn client_config(&self, authority: &[u8]) -> Result<Arc<ClientConfig>, IdentityError> {
        let roots = roots(&CertificateDer::from(authority.to_vec()))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots);
        let config = match &self.certificate {
            None => builder.with_no_client_auth(),
            Some(der) => {
                let chain = vec![CertificateDer::from(der.clone())];
                builder.with_client_auth_cert(chain, private_key(&self.key))?
            }
        };
        Ok(Arc::new(config))
    }
}

/// What a gateway stores after it has enrolled; in one file, so that it is complete or absent.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Enrolment {
    /// Host and port of the server.
    pub server: String,
    /// The name in the server's certificate.
    pub name: String,
    /// The gateway's pseudonym.
    pub gateway: String,
    key: String,
    /// The gateway's certificate: DER in hexadecimal digits.
    certificate: String,
    /// The certificate of the market's authority, in the same form.
    authority: String,
}

const ENROLMENT_FILE: &str = "enrolment.json";

impl Enrolment {
    /// The data of a gateway that has enrolled.
    pub fn new(
        server: &str,
        name: &str,
        authority: &[u8],
        gateway: &str,
        identity: &Identity,
    ) -> Enrolment {
        Enrolment {
            server: server.to_owned(),
            name: name.to_owned(),
            gateway: gateway.to_owned(),
            key: identity.key.serialize_pem(),
            certificate: hex(identity.certificate.as_deref().unwrap_or_default()),
            authority: hex(authority),
        }
    }

    /// Loads the enrolment from a state directory; `None` if the gateway has not enrolled.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn load(dir: &StateDir) -> Result<Option<Enrolment>, fairweir_daemon::Error> {
        let Some(bytes) = dir.read(ENROLMENT_FILE, FILE_SIZE_MAX)? else { return Ok(None) };
        let path = dir.path_of(ENROLMENT_FILE);
        let invalid = |e| fairweir_daemon::Error::Refused(format!("{}: {e}", path.display()));
        serde_json::from_slice(&bytes).map(Some).map_err(invalid)
    }

    /// Stores the enrolment in a state directory.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn store(&self, dir: &StateDir) -> Result<(), fairweir_daemon::Error> {
        let text = serde_json::to_vec(self).expect("invariant: texts are JSON");
        dir.write(ENROLMENT_FILE, &text)
    }

    /// Removes the enrolment from a state directory.
    ///
    /// # Errors
    /// If the file system refuses.
    pub fn remove(dir: &StateDir) -> Result<(), fairweir_daemon::Error> {
        dir.remove(ENROLMENT_FILE)
    }

    /// The TLS configuration for connections to the market.
    ///
    /// # Errors
    /// If the key or a certificate cannot be used.
    pub fn client_config(&self) -> Result<Arc<ClientConfig>, IdentityError> {
        let bytes = |text: &str| unhex(text).ok_or(IdentityError::Digits);
        let certificate = Some(bytes(&self.certificate)?);
        let identity = Identity { key: KeyPair::from_pem(&self.key)?, certificate };
        identity.client_config(&bytes(&self.authority)?)
    }
}

/// A one-time code: 128 random bits.
///
/// # Errors
/// If the kernel gives no random numbers.
pub fn new_code() -> Result<String, IdentityError> {
    let mut bytes = [0; 16];
    SystemRandom::new().fill(&mut bytes).map_err(|_| IdentityError::Random)?;
    Ok(hex(&bytes))
}

fn params_of_authority() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.distinguished_name.push(DnType::CommonName, "fairweir market");
    params
}

fn roots(authority: &CertificateDer<'static>) -> Result<RootCertStore, rustls::Error> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone())?;
    Ok(roots)
}

fn private_key(key: &KeyPair) -> PrivateKeyDer<'static> {
    PrivatePkcs8KeyDer::from(key.serialize_der()).into()
}

/// Decodes hexadecimal digits.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// Whether a point is a valid public key: key exchange is impossible with a point that is not on the curve.
fn is_on_curve(point: &[u8]) -> bool {
    let key = EphemeralPrivateKey::generate(&ECDH_P256, &SystemRandom::new());
    let exchange = |key| agree_ephemeral(key, &UnparsedPublicKey::new(&ECDH_P256, point), |_| ());
    key.and_then(exchange).is_ok()
}

/// A public key in the form that TLS uses.
struct Point(Vec<u8>);

impl PublicKeyData for Point {
    fn der_bytes(&self) -> &[u8] {
        &self.0
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &PKCS_ECDSA_P256_SHA256
    }
}
