use proptest::prelude::*;
use vestibule_model::certificate::AddressBlock;

use super::*;

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let name = HeaderName::from_static(name);
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    headers
}

fn trust(header: ForwardedHeader, hops: Option<u8>, blocks: &[&str]) -> ForwardedHeaders {
    let parse = |text: &&str| AddressBlock::parse(text).unwrap();
    let blocks = (!blocks.is_empty()).then(|| blocks.iter().map(parse).collect());
    ForwardedHeaders::new(header, hops, blocks).unwrap()
}

fn x(hops: Option<u8>, blocks: &[&str]) -> ForwardedHeaders {
    trust(ForwardedHeader::XForwardedFor, hops, blocks)
}

fn rfc(hops: Option<u8>, blocks: &[&str]) -> ForwardedHeaders {
    trust(ForwardedHeader::Forwarded, hops, blocks)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The client of a request from 10.0.0.1 with these lines of `X-Forwarded-For`.
fn client(trust: &ForwardedHeaders, lines: &[&str]) -> String {
    let pairs: Vec<_> = lines
        .iter()
        .map(|line| ("x-forwarded-for", *line))
        .collect();
    let said = HopInfo::read(&headers(&pairs), trust, ip("10.0.0.1"));
    said.map_or("nobody is trusted".into(), |said| said.client.to_string())
}

#[test]
fn a_list_is_followed_as_far_as_hops_are_trusted() {
    let list = ["203.0.113.9, 198.51.100.1", "10.0.0.2"];
    for (hops, blocks, expected) in [
        (Some(0), &[][..], "nobody is trusted"),
        (Some(1), &[], "10.0.0.2"),
        (Some(2), &[], "198.51.100.1"),
        (Some(3), &[], "203.0.113.9"),
        // A list that is shorter has nothing but what hops wrote.
        (Some(9), &[], "203.0.113.9"),
        (None, &["10.0.0.0/8"], "198.51.100.1"),
        (None, &["10.0.0.1"], "10.0.0.2"),
        (None, &["10.0.0.2"], "nobody is trusted"),
        (None, &["0.0.0.0/0"], "203.0.113.9"),
        (Some(1), &["10.0.0.0/8"], "10.0.0.2"),
        (Some(2), &["10.0.0.1"], "10.0.0.2"),
    ] {
        assert_eq!(
            client(&x(hops, blocks), &list),
            expected,
            "{hops:?} {blocks:?}"
        );
    }
    assert_eq!(client(&x(Some(1), &[]), &[]), "10.0.0.1");
    assert_eq!(client(&x(Some(1), &[]), &[" , ,"]), "10.0.0.1");
}

#[test]
fn entries_are_addresses_in_any_form_or_end_it() {
    for (entry, expected) in [
        ("198.51.100.1:1234", "198.51.100.1"),
        ("2001:db8::1", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("[2001:db8::1]:1234", "2001:db8::1"),
        ("::ffff:198.51.100.1", "198.51.100.1"),
        ("unknown", "10.0.0.1"),
        ("_hidden", "10.0.0.1"),
        ("198.51.100.1:port", "10.0.0.1"),
        ("198.51.100.1 198.51.100.2", "10.0.0.1"),
        ("[2001:db8::1", "10.0.0.1"),
        ("example.com", "10.0.0.1"),
        ("\"198.51.100.1\"", "10.0.0.1"),
    ] {
        let line = format!("203.0.113.9, {entry}");
        assert_eq!(client(&x(Some(1), &[]), &[&line]), expected, "{entry}");
        // Entries in front of it are not believed either.
        if expected == "10.0.0.1" {
            assert_eq!(client(&x(Some(2), &[]), &[&line]), expected, "{entry}");
        }
    }
}

#[test]
fn more_is_said_beside_the_list_once_or_not_at_all() {
    let trust = x(Some(1), &[]);
    let read = |pairs: &[(&'static str, &str)]| {
        HopInfo::read(&headers(pairs), &trust, ip("10.0.0.1")).unwrap()
    };
    let all = [
        ("x-forwarded-for", "198.51.100.1"),
        ("x-forwarded-proto", "HTTPS"),
        ("x-forwarded-host", "a.example.com:8443"),
        ("x-forwarded-port", "444"),
        ("x-request-id", "7b5c-1/2:3=+_."),
        ("forwarded", "for=203.0.113.9;proto=http;host=evil"),
    ];
    let said = read(&all);
    assert_eq!(said.client, ip("198.51.100.1"));
    assert_eq!(said.scheme, Some(Scheme::Https));
    assert_eq!(said.host.unwrap(), "a.example.com:8443");
    assert_eq!(said.port, Some(444));
    assert_eq!(said.request_id.unwrap(), "7b5c-1/2:3=+_.");
    assert_eq!(said.list.unwrap(), b"198.51.100.1");
    // Without a field for the port, the port of the host counts, and then that of the scheme.
    assert_eq!(read(&all[..3]).port, Some(8443));
    assert_eq!(read(&all[..2]).port, Some(443));
    assert_eq!(read(&all[..1]).port, None);
    let long = "x".repeat(MAX_REQUEST_ID + 1);
    for (name, value) in [
        ("x-forwarded-proto", "https, http"),
        ("x-forwarded-proto", "gopher"),
        ("x-forwarded-host", "a b"),
        ("x-forwarded-host", "user@a.example.com"),
        ("x-forwarded-host", "a.example.com, b.example.com"),
        ("x-forwarded-host", ""),
        ("x-forwarded-port", "0"),
        ("x-forwarded-port", "70000"),
        ("x-request-id", "a b"),
        ("x-request-id", "\"a\""),
        ("x-request-id", ""),
        ("x-request-id", &long),
    ] {
        let said = read(&[(name, value)]);
        let nothing = read(&[]);
        assert_eq!(said, nothing, "{name}: {value}");
    }
    for (name, value) in &all[1..5] {
        assert_eq!(read(&[(name, value), (name, value)]), read(&[]), "{name}");
    }
}

/// What a request from 10.0.0.1 says in these lines of `Forwarded`.
fn forwarded(trust: &ForwardedHeaders, lines: &[&str]) -> HopInfo {
    let pairs: Vec<_> = lines.iter().map(|line| ("forwarded", *line)).collect();
    HopInfo::read(&headers(&pairs), trust, ip("10.0.0.1")).unwrap()
}

#[test]
fn forwarded_says_it_all_in_one() {
    let line = "for=203.0.113.9, FOR=\"[2001:db8::1]:80\" ; Proto=https;host=\"a.example.com\"; by=_x, for=10.0.0.2;proto=http;host=inner";
    let said = forwarded(&rfc(Some(2), &[]), &[line]);
    assert_eq!(said.client, ip("2001:db8::1"));
    assert_eq!(said.scheme, Some(Scheme::Https));
    assert_eq!(said.host.unwrap(), "a.example.com");
    assert_eq!(said.port, Some(443));
    assert_eq!(said.list.unwrap(), line.as_bytes());
    let near = forwarded(&rfc(Some(1), &[]), &[line]);
    assert_eq!(
        (near.client, near.scheme),
        (ip("10.0.0.2"), Some(Scheme::Http))
    );
    let all = forwarded(&rfc(None, &["0.0.0.0/0", "::/0"]), &[line]);
    assert_eq!((all.client, all.scheme), (ip("203.0.113.9"), None));
    // The hop does not write the other header, so it is not believed.
    let other = headers(&[
        ("x-forwarded-for", "203.0.113.9"),
        ("x-forwarded-proto", "https"),
    ]);
    let said = HopInfo::read(&other, &rfc(Some(1), &[]), ip("10.0.0.1")).unwrap();
    assert_eq!(
        (said.client, said.list, said.scheme),
        (ip("10.0.0.1"), None, None)
    );
}

#[test]
fn client_text_in_front_does_not_reach_what_a_hop_wrote() {
    for front in [
        "for=\"",
        "for=\"\\",
        ",,,",
        "for=;",
        "\"",
        "for=1.2.3.4;for=5.6.7.8",
        "\\",
    ] {
        let line = format!("{front}, for=198.51.100.1;proto=https");
        let said = forwarded(&rfc(Some(1), &[]), &[&line]);
        assert_eq!(said.client, ip("198.51.100.1"), "{line}");
        assert_eq!(said.scheme, Some(Scheme::Https), "{line}");
        let in_lines = forwarded(&rfc(Some(1), &[]), &[front, "for=198.51.100.1;proto=https"]);
        assert_eq!(in_lines.client, ip("198.51.100.1"));
    }
    for bad in [
        "for=unknown",
        "for=\"198.51.100.1",
        "for=198.51.100.1;for=198.51.100.1",
        "for=198.51.100.1 for=198.51.100.2",
        "for=198\"51",
        "proto=https",
        "198.51.100.1",
    ] {
        let line = format!("for=203.0.113.9, {bad}");
        assert_eq!(
            forwarded(&rfc(Some(9), &[]), &[&line]).client,
            ip("10.0.0.1"),
            "{bad}"
        );
    }
}

#[test]
fn a_list_that_can_be_read_in_two_ways_loses_its_beginning() {
    for (list, kept) in [
        ("for=1.2.3.4", Some("for=1.2.3.4")),
        ("for=unknown, x", Some("for=unknown, x")),
        (
            r#"for="1.2.3.4, for=x";host="a\"b" ;proto=https, for=5.6.7.8"#,
            Some(r#"for="1.2.3.4, for=x";host="a\"b" ;proto=https, for=5.6.7.8"#),
        ),
        (r#"for="1.2.3.4, for=5.6.7.8"#, Some("for=5.6.7.8")),
        (
            r#"for="1.2.3.4, for=5.6.7.8;host="a", for=9.9.9.9"#,
            Some(r#"for=5.6.7.8;host="a", for=9.9.9.9"#),
        ),
        (r#"for=1.2.3.4"", for=5.6.7.8"#, Some("for=5.6.7.8")),
        (r#"for="1.2.3.4"x"#, None),
        (r#"for="1.2.3.4\"#, None),
        (r#"for=1.2.3.4, for=""#, None),
        ("\"", None),
    ] {
        let said = forwarded(&rfc(Some(1), &[]), &[list]);
        let said = said.list.map(|list| String::from_utf8(list).unwrap());
        assert_eq!(said.as_deref(), kept, "{list}");
    }
}

#[test]
fn an_element_is_read_by_who_reads_elements() {
    for (client, authority) in [
        ("198.51.100.1", Some("a.example.com:8443")),
        ("2001:db8::1", Some("[2001:db8::2]:80")),
        ("198.51.100.1", None),
    ] {
        let text = element(ip(client), Scheme::Https, authority);
        let said = forwarded(&rfc(Some(1), &[]), &[&text]);
        assert_eq!(said.client, ip(client));
        assert_eq!(said.scheme, Some(Scheme::Https));
        let host = said.host.as_ref().map(|host| host.to_str().unwrap());
        assert_eq!(host, authority);
    }
}

proptest! {
    /// Whatever a client writes, the entry that the hop appends counts, and nothing panics.
    #[test]
    fn the_hop_has_the_last_word(front in "[ -~\\t\u{80}-\u{ff}]{0,80}", in_one_line: bool) {
        let hop = "198.51.100.1";
        for (name, last, trust) in [
            ("x-forwarded-for", hop.to_owned(), x(Some(1), &[])),
            ("x-forwarded-for", hop.to_owned(), x(None, &["10.0.0.0/8"])),
            ("forwarded", format!("for={hop}"), rfc(Some(1), &[])),
            ("forwarded", format!("for={hop}"), rfc(None, &["10.0.0.0/8"])),
        ] {
            let front = HeaderValue::from_bytes(front.as_bytes()).unwrap();
            let mut map = HeaderMap::new();
            if in_one_line {
                let whole = [front.as_bytes(), b", ", last.as_bytes()].concat();
                map.append(name, HeaderValue::from_bytes(&whole).unwrap());
            } else {
                map.append(name, front);
                map.append(name, HeaderValue::from_str(&last).unwrap());
            }
            let said = HopInfo::read(&map, &trust, ip("10.0.0.1")).unwrap();
            prop_assert_eq!(said.client, ip(hop));
            if name == "forwarded" {
                prop_assert!(said.list.is_none_or(|list| is_quoted_well(&list)));
            }
        }
    }
}
