//! Tests of annotations about certificates: each is read as cert-manager's own support reads it.

use super::*;

fn read(pairs: &[(&str, &str)]) -> CertificateAnnotations {
    annotations(&ObjectMeta {
        annotations: Some(
            pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect(),
        ),
        ..ObjectMeta::default()
    })
}

fn texts(list: &[Arc<str>]) -> Vec<&str> {
    list.iter().map(AsRef::as_ref).collect()
}

#[test]
fn everything_that_cert_manager_reads_is_read() {
    let read = read(&[
        ("cert-manager.io/common-name", "a.example.com"),
        ("cert-manager.io/duration", "2160h"),
        ("cert-manager.io/renew-before", "1440h30m"),
        (
            "cert-manager.io/usages",
            "digital signature, key encipherment,server auth",
        ),
        ("cert-manager.io/revision-history-limit", "7"),
        ("cert-manager.io/private-key-algorithm", "ECDSA"),
        ("cert-manager.io/private-key-encoding", "PKCS8"),
        ("cert-manager.io/private-key-size", "384"),
        ("cert-manager.io/private-key-rotation-policy", "Always"),
        (
            "cert-manager.io/subject-organizations",
            r#"Company 1,"Company, 2","a ""b""""#,
        ),
        (
            "cert-manager.io/subject-serialnumber",
            "10978342379280287615",
        ),
        (
            "cert-manager.io/secret-template",
            r#"{"annotations":{"a":"b"},"labels":{"c":"d"}}"#,
        ),
        ("cert-manager.io/ignore-tls-listeners", "one, two,"),
        ("vestibule.dev/ignore-tls-listeners", "three"),
        ("acme.cert-manager.io/http01-parentreffallback", "true"),
        ("acme.cert-manager.io/http01-ingress-class", "traefik"),
    ]);
    assert_eq!(read.findings, []);
    let options = &read.options;
    assert_eq!(options.common_name.as_deref(), Some("a.example.com"));
    assert_eq!(options.duration, Some(Duration::from_hours(2160)));
    assert_eq!(
        options.renew_before,
        Some(Duration::from_mins(1440 * 60 + 30))
    );
    assert_eq!(
        texts(&options.usages),
        ["digital signature", "key encipherment", "server auth"]
    );
    assert_eq!(options.revision_history_limit, Some(7));
    assert_eq!(
        options.private_key,
        PrivateKeyOptions {
            algorithm: Some(KeyAlgorithm::Ecdsa),
            encoding: Some(KeyEncoding::Pkcs8),
            size: Some(384),
            rotation: Some(KeyRotation::Always),
        }
    );
    assert_eq!(
        texts(&options.subject.organizations),
        ["Company 1", "Company, 2", "a \"b\""]
    );
    assert_eq!(
        options.subject.serial_number.as_deref(),
        Some("10978342379280287615")
    );
    assert_eq!(options.secret_annotations["a"], "b");
    assert_eq!(options.secret_labels["c"], "d");
    let ignored: Vec<Arc<str>> = options.ignored_listeners.iter().cloned().collect();
    assert_eq!(texts(&ignored), ["one", "two"]);
    let ignored: Vec<Arc<str>> = options.acme_ignored_listeners.iter().cloned().collect();
    assert_eq!(texts(&ignored), ["three"]);
    assert!(options.http01_parent_fallback);
    assert_eq!(options.http01_ingress_class.as_deref(), Some("traefik"));
}

#[test]
fn a_bad_value_is_a_finding_at_its_annotation() {
    for (name, value) in [
        ("alt-names", "*.example.com"),
        ("alt-names", "a.example.com,,b.example.com"),
        ("alt-names", "192.0.2.1"),
        ("alt-names", &vec!["a.example.com"; 33].join(",")),
        ("ip-sans", "192.0.2.1,www.example.com"),
        ("ip-sans", "192.0.2.0/24"),
        ("ip-sans", "::ffff:192.0.2.1"),
        ("email-sans", "Ops <ops@example.com>"),
        ("email-sans", "*@example.com"),
        ("duration", "90d"),
        ("duration", "-2h"),
        ("duration", "30m"),
        ("renew-before", "1m"),
        ("renew-before", "2160h"),
        ("renew-before-percentage", "0"),
        ("renew-before-percentage", "100"),
        ("renew-before-percentage", "a third"),
        ("usages", "server auth,fishing"),
        ("usages", ""),
        ("revision-history-limit", "0"),
        ("revision-history-limit", "99999999999"),
        ("private-key-algorithm", "rsa"),
        ("private-key-encoding", "DER"),
        ("private-key-size", "1024"),
        ("private-key-size", "256"),
        ("private-key-rotation-policy", "Sometimes"),
        ("subject-countries", "DE,\"FR"),
        ("subject-countries", ""),
        ("subject-countries", "DE\nFR"),
        ("secret-template", "{"),
        ("secret-template", r#"{"data":{}}"#),
        (
            "secret-template",
            r#"{"annotations":{"cert-manager.io/certificate-name":"x"}}"#,
        ),
        (
            "secret-template",
            r#"{"labels":{"vestibule.dev/acme":"true"}}"#,
        ),
    ] {
        let key = format!("cert-manager.io/{name}");
        let read = read(&[(&key, value)]);
        let [finding] = &read.findings[..] else {
            panic!("{name}={value:?}: {:?}", read.findings);
        };
        assert!(finding.refuses());
        assert_eq!(finding.reason, Reason::InvalidAnnotation);
        assert_eq!(finding.field, format!("metadata.annotations[{key}]"));
    }
}

#[test]
fn names_beside_the_listeners_are_read_in_one_form() {
    let read = read(&[
        (
            "cert-manager.io/alt-names",
            "B.example.com., a.example.com,b.example.com",
        ),
        ("cert-manager.io/ip-sans", "192.0.2.1, 2001:DB8:0::1"),
        ("cert-manager.io/email-sans", " Ops@Example.com"),
    ]);
    assert_eq!(read.findings, []);
    let names = &read.options.alternative_names;
    let texts: Vec<&str> = names.hostnames.iter().map(Hostname::as_str).collect();
    assert_eq!(texts, ["a.example.com", "b.example.com"]);
    let texts: Vec<String> = names.addresses.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["192.0.2.1", "2001:db8::1"]);
    let texts: Vec<String> = names.mailboxes.iter().map(ToString::to_string).collect();
    assert_eq!(texts, ["Ops@example.com"]);
}

#[test]
fn nothing_said_is_nothing_asked() {
    for pairs in [
        &[][..],
        &[
            ("cert-manager.io/alt-names", ""),
            ("cert-manager.io/common-name", ""),
        ],
        &[
            ("cert-manager.io/issuer", "a"),
            ("example.com/duration", "x"),
        ],
    ] {
        assert_eq!(read(pairs), CertificateAnnotations::default());
    }
}

#[test]
fn durations_are_gos() {
    for (text, nanos) in [
        ("0", 0),
        ("+5s", 5_000_000_000),
        ("1.5h", 5_400_000_000_000),
        (".5s", 500_000_000),
        ("1h2m3s4ms5us6ns", 3_723_004_005_006),
    ] {
        assert_eq!(duration(text), Some(Duration::from_nanos(nanos)), "{text}");
    }
    for text in ["", "5", "h", "1.2.3s", "1d", "1 h", "-1h", "9999999h", "."] {
        assert_eq!(duration(text), None, "{text}");
    }
}
