use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::sign::CertifiedKey;
use rustls_pki_types::PrivateKeyDer;

use super::*;
use crate::table::Mode;
use crate::tenants::Tenants;

fn listener(shown: Option<Arc<ClientCertificate>>) -> Listener {
    let (gateway, tenant): (Arc<str>, Arc<str>) = ("infra/edge".into(), "team-a".into());
    Listener {
        key: "ListenerSet/team-a/web/tls".into(),
        usage: Tenants::default().usage(&gateway, &tenant),
        gateway,
        tenant,
        port: 443,
        mode: Mode::Passthrough,
        backend_certificate: shown,
    }
}

fn tls(factory: &Arc<Factory>) -> Tls {
    let roots = Arc::clone(factory.system_trust());
    let name = ServerName::try_from("backend.internal").unwrap();
    Tls::new(factory, name, Vec::new(), roots)
}

fn certified() -> Arc<CertifiedKey> {
    let made = rcgen::generate_simple_self_signed(["gateway".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let key = any_supported_type(&key).unwrap();
    Arc::new(CertifiedKey::new(vec![made.cert.der().clone()], key))
}

#[test]
fn a_configuration_is_made_once_per_certificate_and_protocols() {
    let factory = Arc::new(Factory::new().unwrap());
    let tls = tls(&factory);
    let slot = Arc::new(ClientCertificate::default());
    let (bare, shows) = (listener(None), listener(Some(Arc::clone(&slot))));
    let first = tls.config(&bare, Alpn::Both).unwrap();
    assert!(Arc::ptr_eq(&first, &tls.config(&bare, Alpn::Both).unwrap()));
    assert!(!Arc::ptr_eq(
        &first,
        &tls.config(&bare, Alpn::None).unwrap()
    ));
    assert_eq!(first.alpn_protocols, [&b"h2"[..], b"http/1.1"]);
    let missing = tls.config(&shows, Alpn::Both).unwrap_err();
    assert_eq!(missing, CloseReason::BackendTlsInvalid);
    let mut last = first;
    for _ in 0..2 * MAX_CONFIGS {
        slot.set(Some(certified()));
        let config = tls.config(&shows, Alpn::Both).unwrap();
        assert!(!Arc::ptr_eq(&last, &config));
        last = config;
    }
    assert_eq!(tls.configs.lock().len(), MAX_CONFIGS);
}

#[test]
fn connections_of_other_settings_are_told_apart() {
    let factory = Arc::new(Factory::new().unwrap());
    let slot = Arc::new(ClientCertificate::default());
    let (bare, shows) = (listener(None), listener(Some(Arc::clone(&slot))));
    let target = |tls| Target {
        tls,
        ..Target::default()
    };
    assert_eq!(identity(&target(None), &shows), None);
    let (a, b) = (Arc::new(tls(&factory)), Arc::new(tls(&factory)));
    let (a, b) = (target(Some(a)), target(Some(b)));
    assert_eq!(identity(&a, &bare), identity(&a.clone(), &bare));
    assert_ne!(identity(&a, &bare), identity(&b, &bare));
    slot.set(Some(certified()));
    let with = identity(&a, &shows);
    assert_ne!(with, identity(&a, &bare));
    slot.set(Some(certified()));
    assert_ne!(with, identity(&a, &shows));
    slot.set(None);
    assert_ne!(with, identity(&a, &shows));
}

#[test]
fn without_trust_it_is_closed() {
    let factory = Arc::new(Factory::new().unwrap());
    assert!(factory.system_trust().len() > 50);
    assert!(Tls::closed(&factory).is_closed());
    let name = ServerName::try_from("backend.internal").unwrap();
    let nobody = Tls::new(&factory, name, Vec::new(), RootCertStore::empty().into());
    assert!(nobody.is_closed());
    let refused = nobody.config(&listener(None), Alpn::None).unwrap_err();
    assert_eq!(refused, CloseReason::BackendTlsInvalid);
}
