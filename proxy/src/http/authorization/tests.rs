//! Tests of what is read of an authorization server, and of what it gets.

use super::envoy::{
    DeniedResponse, Header, HeaderOption, HttpStatus, Ignored, OkResponse, RpcStatus,
};
use super::*;

fn verdict(answer: &CheckResponse) -> Result<AuthorizationResult, NoAnswer> {
    AuthorizationResult::of_message(&answer.encode_to_vec())
}

fn status(code: i32) -> RpcStatus {
    RpcStatus { code }
}

fn field(key: &str, value: &str) -> HeaderOption {
    HeaderOption {
        header: Some(Header {
            key: key.into(),
            value: value.into(),
            raw_value: Vec::new(),
        }),
        append: None,
        append_action: 0,
    }
}

#[test]
fn ok_with_its_changes_lets_a_request_pass() {
    let answer = CheckResponse {
        status: Some(status(0)),
        ok: Some(OkResponse {
            headers: vec![field("x-user", "alice"), field("host", "other.example.com")],
            headers_to_remove: vec!["authorization".into(), ":path".into(), "host".into()],
            response_headers_to_add: vec![field("set-cookie", "a=b")],
            ..Default::default()
        }),
        denied: None,
    };
    let Ok(AuthorizationResult::Allowed { request, response }) = verdict(&answer) else {
        panic!("the answer is OK");
    };
    let names = |changes: &[FieldChange]| {
        changes
            .iter()
            .map(|c| c.name().to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(names(&request), ["x-user", "authorization"]);
    assert_eq!(names(&response), ["set-cookie"]);
}

/// An answer that does not clearly say yes means no.
#[test]
fn an_answer_without_a_clear_yes_lets_nothing_pass() {
    let contradictory = CheckResponse {
        status: Some(status(0)),
        denied: Some(DeniedResponse::default()),
        ok: None,
    };
    let silent = CheckResponse::default();
    let unsure = CheckResponse {
        ok: Some(OkResponse::default()),
        ..Default::default()
    };
    for answer in [contradictory, silent, unsure] {
        let Ok(AuthorizationResult::Denied(response)) = verdict(&answer) else {
            panic!("{answer:?} is no permission");
        };
        assert_eq!(response.status(), StatusCode::FORBIDDEN);
    }
    assert!(matches!(
        AuthorizationResult::of_message(b"\xff\xff"),
        Err(NoAnswer::Invalid)
    ));
}

proptest::proptest! {
    /// Every tenant chooses their server, so an answer can have any bytes.
    #[test]
    fn any_bytes_are_read(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..256)) {
        let read = CheckResponse::decode(&*bytes);
        let is_allowed = matches!(AuthorizationResult::of_message(&bytes), Ok(AuthorizationResult::Allowed { .. }));
        let is_clear = read.is_ok_and(|answer| answer.status.is_some_and(|status| status.code == 0));
        proptest::prop_assert!(is_clear || !is_allowed);
    }
}

#[test]
fn a_change_of_the_query_is_not_passed_over() {
    let answer = CheckResponse {
        status: Some(status(0)),
        ok: Some(OkResponse {
            query_parameters_to_set: vec![Ignored {}],
            ..Default::default()
        }),
        denied: None,
    };
    assert!(matches!(verdict(&answer), Err(NoAnswer::Unsupported)));
}

/// A server is a tenant's own, and each change costs time on a worker that others share.
#[test]
fn an_answer_has_no_more_changes_than_one_in_http() {
    let answer = |removed: usize| CheckResponse {
        status: Some(status(0)),
        ok: Some(OkResponse {
            headers_to_remove: vec!["a".into(); removed],
            ..Default::default()
        }),
        denied: None,
    };
    assert!(matches!(
        verdict(&answer(MOST_CHANGES)),
        Ok(AuthorizationResult::Allowed { .. })
    ));
    assert!(matches!(
        verdict(&answer(MOST_CHANGES + 1)),
        Err(NoAnswer::Invalid)
    ));
}

#[test]
fn a_refusal_has_the_status_of_the_server_or_403() {
    for (code, expected) in [
        (401, 401),
        (302, 302),
        (0, 403),
        (100, 403),
        (700, 403),
        (-1, 403),
    ] {
        let answer = CheckResponse {
            status: Some(status(7)),
            denied: Some(DeniedResponse {
                status: Some(HttpStatus { code }),
                headers: vec![
                    field("www-authenticate", "Basic"),
                    field("content-length", "9"),
                ],
                body: "go away".into(),
            }),
            ok: None,
        };
        let Ok(AuthorizationResult::Denied(response)) = verdict(&answer) else {
            panic!("{code}");
        };
        assert_eq!(response.status(), expected, "{code}");
        assert_eq!(response.headers().len(), 1);
    }
}

#[test]
fn the_path_for_a_server_has_its_prefix() {
    for (prefix, path, expected) in [
        ("", "/a?b=c", "/a?b=c"),
        ("/auth", "/a?b=c", "/auth/a?b=c"),
        ("/auth", "/", "/auth/"),
        ("/auth", "*", "/auth/"),
    ] {
        let path = PathAndQuery::from_static(path);
        assert_eq!(prefixed(prefix, &path).unwrap(), expected);
    }
    // It is never left out.
    let long = PathAndQuery::try_from(format!("/{}", "a".repeat(65_000))).unwrap();
    assert_eq!(prefixed(&format!("/{}", "b".repeat(1_000)), &long), None);
}

#[test]
fn a_server_is_called_by_the_name_of_its_service() {
    assert_eq!(host_of_service("team-a/auth:9000"), "auth.team-a.svc:9000");
    assert_eq!(host_of_service("odd"), "");
}

#[test]
fn a_body_is_text_if_it_can_be() {
    let attributes = envoy::CheckRequest {
        attributes: Some(envoy::AttributeContext {
            request: Some(envoy::AttributeRequest {
                time: None,
                http: Some(envoy::HttpRequest::default()),
            }),
            ..Default::default()
        }),
    };
    for (body, text, raw) in [
        (&b"hello"[..], "hello", &b""[..]),
        (b"\xff\x00", "", b"\xff\x00"),
    ] {
        let room = Room::of(&"team-a".into());
        let whole = Whole::of(Bytes::copy_from_slice(body), room);
        let data = call(attributes.clone(), Some(&whole));
        assert_eq!(data[0], 0);
        let length = u32::from_be_bytes(data[1..PREFIX].try_into().unwrap());
        assert_eq!(usize::try_from(length).unwrap(), data.len() - PREFIX);
        let sent = envoy::CheckRequest::decode(&data[PREFIX..]).unwrap();
        let http = sent.attributes.unwrap().request.unwrap().http.unwrap();
        assert_eq!((&*http.body, &*http.raw_body), (text, raw));
        assert_eq!(http.size, i64::try_from(body.len()).unwrap());
    }
}
