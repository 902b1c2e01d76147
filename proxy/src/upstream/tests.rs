use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::sign::CertifiedKey;
use rustls_pki_types::PrivateKeyDer;

use super::*;
use crate::backend::Target;

fn tls(factory: &Arc<Factory>) -> Tls {
    let roots = Arc::clone(factory.system_trust());
    let name = ServerName::try_from("backend.internal").unwrap();
    Tls::new((factory, "team-a"), name, Vec::new(), vec![roots])
}

fn shows() -> Credentials {
    let made = rcgen::generate_simple_self_signed(["gateway".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let key = any_supported_type(&key).unwrap();
    let certified = Arc::new(CertifiedKey::new(vec![made.cert.der().clone()], key));
    Credentials::Certificate(Arc::new(ClientCertificate::new(certified)))
}

#[test]
fn a_configuration_is_made_once_per_certificate_and_protocols() {
    let factory = Arc::new(Factory::new().unwrap());
    let tls = tls(&factory);
    let none = Credentials::None;
    let first = tls.config(&none, Alpn::Both).unwrap();
    assert!(Arc::ptr_eq(&first, &tls.config(&none, Alpn::Both).unwrap()));
    assert!(!Arc::ptr_eq(
        &first,
        &tls.config(&none, Alpn::None).unwrap()
    ));
    assert_eq!(first.alpn_protocols, [&b"h2"[..], b"http/1.1"]);
    let missing = tls.config(&Credentials::Missing, Alpn::Both).unwrap_err();
    assert_eq!(missing, CloseReason::BackendTlsInvalid);
    let mut last = first;
    for _ in 0..2 * MAX_CONFIGS {
        let config = tls.config(&shows(), Alpn::Both).unwrap();
        assert!(!Arc::ptr_eq(&last, &config));
        last = config;
    }
    assert_eq!(tls.configs.lock().len(), MAX_CONFIGS);
}

#[test]
fn connections_of_other_settings_are_told_apart() {
    let factory = Arc::new(Factory::new().unwrap());
    let none = Credentials::None;
    let target = |tls| Target {
        tls,
        ..Target::default()
    };
    assert_eq!(identity(target(None).tls.as_ref(), &shows()), None);
    let (a, b) = (Arc::new(tls(&factory)), Arc::new(tls(&factory)));
    let (a, b) = (target(Some(a)), target(Some(b)));
    assert_eq!(
        identity(a.tls.as_ref(), &none),
        identity(a.clone().tls.as_ref(), &none)
    );
    assert_ne!(
        identity(a.tls.as_ref(), &none),
        identity(b.tls.as_ref(), &none)
    );
    let first = shows();
    let with = identity(a.tls.as_ref(), &first);
    assert_eq!(with, identity(a.tls.as_ref(), &first.clone()));
    assert_ne!(with, identity(a.tls.as_ref(), &none));
    assert_ne!(with, identity(a.tls.as_ref(), &shows()));
    assert_ne!(with, identity(a.tls.as_ref(), &Credentials::Missing));
}

#[test]
fn without_trust_it_is_closed() {
    let factory = Arc::new(Factory::new().unwrap());
    assert!(factory.system_trust().len() > 50);
    assert!(Tls::closed(&factory).is_closed());
    let name = ServerName::try_from("backend.internal").unwrap();
    let nobody = Tls::new(
        (&factory, "team-a"),
        name,
        Vec::new(),
        vec![RootCertStore::empty().into()],
    );
    assert!(nobody.is_closed());
    let refused = nobody.config(&Credentials::None, Alpn::None).unwrap_err();
    assert_eq!(refused, CloseReason::BackendTlsInvalid);
}
