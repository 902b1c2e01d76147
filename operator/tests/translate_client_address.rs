//! How the address of a client is found, as it is on the stream: from the parameters of a Gateway and of its class, in the
//! settings of the Gateway, and in those of no other one.

use std::sync::Arc;
use vestibule_model::certificate::AddressBlock;
use vestibule_model::client_address::{
    ClientAddress, ForwardedHeader, ForwardedHeaders, ProxyProtocol, ProxyProtocolMode,
};
use vestibule_model::condition::Reason;
use vestibule_model::finding::Finding;
use vestibule_model::object::Object;
use vestibule_model::parameters::GatewayParameters;
use vestibule_model::protocol::Protocol;
use vestibule_model::selector::NamespaceScope;
use vestibule_operator::translate::{Change, Translator};
use vestibule_operator_testing::objects::*;
use vestibule_operator_testing::parameters::{
    class_with, gateway_with, no_parameters, settings_of, unreadable_parameters,
};
use vestibule_stream::proto;

/// What the settings of a Gateway say.
fn said(translator: &Translator, gateway: &str) -> Option<proto::ClientAddress> {
    settings_of(translator, gateway).client_address
}

fn block(text: &str) -> AddressBlock {
    AddressBlock::parse(text).expect("a block")
}

fn protocol(mode: ProxyProtocolMode, trusted: &str) -> ProxyProtocol {
    ProxyProtocol {
        mode,
        trusted: vec![block(trusted)],
    }
}

fn parameters(name: &str, client_address: ClientAddress, findings: Vec<Finding>) -> Object {
    Object::GatewayParameters(Arc::new(GatewayParameters {
        client_address,
        findings,
        ..no_parameters(name)
    }))
}

fn gateway_on(name: &str, port: u16) -> Object {
    let own = vec![listener("web", port, Protocol::Http, "", None)];
    gateway(name, own, NamespaceScope::All)
}

const ONE: &str = "platform/one";
const TWO: &str = "platform/two";

/// Two Gateways, the first with a ListenerSet and parameters of its own.
fn world() -> Vec<Object> {
    let of_set = vec![listener(
        "s",
        8443,
        Protocol::Tls,
        "s.example.com",
        Some(Tls::Passthrough),
    )];
    let of_class = ClientAddress {
        proxy_protocol: Some(protocol(ProxyProtocolMode::Strict, "192.0.2.0/24")),
        forwarded: ForwardedHeaders::new(ForwardedHeader::Forwarded, Some(2), None),
    };
    vec![
        class_with(parameters_at("class")),
        parameters("class", of_class, Vec::new()),
        gateway_with(gateway_on("one", 80), "own"),
        gateway_on("two", 81),
        set("a", "web", 1, "one", of_set),
    ]
}

fn own(client_address: ClientAddress) -> Object {
    parameters("own", client_address, Vec::new())
}

fn strict(trusted: &str) -> proto::ProxyProtocol {
    proto::ProxyProtocol {
        mode: proto::ProxyProtocolMode::Strict.into(),
        trusted_cidrs: vec![trusted.into()],
    }
}

#[test]
fn each_part_is_the_gateways_or_else_its_classs() {
    let trusted = Some(vec![block("2001:db8::/32")]);
    let of_own = ClientAddress {
        proxy_protocol: None,
        forwarded: ForwardedHeaders::new(ForwardedHeader::XForwardedFor, None, trusted),
    };
    let translator = translated(world().into_iter().chain([own(of_own)]));
    let of_class = proto::ClientAddress {
        proxy_protocol: Some(strict("192.0.2.0/24")),
        forwarded_headers: Some(proto::ForwardedHeaders {
            header: proto::ForwardedHeader::Forwarded.into(),
            trusted_hops: Some(2),
            trusted: None,
        }),
    };
    assert_eq!(said(&translator, TWO), Some(of_class));
    let expected = proto::ClientAddress {
        proxy_protocol: Some(strict("192.0.2.0/24")),
        forwarded_headers: Some(proto::ForwardedHeaders {
            header: proto::ForwardedHeader::XForwardedFor.into(),
            trusted_hops: None,
            trusted: Some(proto::Cidrs {
                cidrs: vec!["2001:db8::/32".into()],
            }),
        }),
    };
    assert_eq!(said(&translator, ONE), Some(expected));
}

#[test]
fn an_edit_is_one_resource_of_the_gateway_alone() {
    let none = || own(ClientAddress::default());
    let mut translator = translated(world().into_iter().chain([none()]));
    let of_two = said(&translator, TWO);
    let off = ClientAddress {
        proxy_protocol: Some(protocol(ProxyProtocolMode::Disabled, "192.0.2.1")),
        forwarded: ForwardedHeaders::new(ForwardedHeader::XForwardedFor, Some(0), None),
    };
    let output = translator.apply([Change::Put(own(off))]);
    let mut changed: Vec<&str> = output.resources.keys().map(|key| &*key.name).collect();
    changed.sort_unstable();
    assert_eq!(changed, [ONE]);
    assert_eq!(said(&translator, ONE), None);
    // The same again is no news, and what says nothing leaves it to the class.
    assert_eq!(translator.apply([Change::Put(none())]).resources.len(), 1);
    assert!(translator.apply([Change::Put(none())]).resources.is_empty());
    assert_eq!(said(&translator, ONE), of_two);
    // It ends when a class comes to have none.
    translator.apply([Change::Put(our_class())]);
    for gateway in [ONE, TWO] {
        assert_eq!(said(&translator, gateway), None, "{gateway}");
    }
}

/// The parts that can be read count although the rest is refused: a typo elsewhere must not close every port.
#[test]
fn client_address_settings_count_although_another_parameter_is_refused() {
    let of_own = ClientAddress {
        proxy_protocol: Some(protocol(ProxyProtocolMode::Strict, "198.51.100.1")),
        forwarded: None,
    };
    let refused = Finding::refused(
        Reason::InvalidParameters,
        "spec.service.type",
        "is none",
        "",
    );
    let wrong = parameters("own", of_own, vec![refused]);
    let translator = translated(world().into_iter().chain([wrong]));
    let said = said(&translator, ONE).expect("it is said");
    assert_eq!(said.proxy_protocol, Some(strict("198.51.100.1/32")));
}

/// Parameters that cannot be read might believe nobody. So nobody is believed, whatever the class says.
#[test]
fn parameters_that_cannot_be_read_believe_nobody() {
    let hops = |hops| ClientAddress {
        proxy_protocol: None,
        forwarded: ForwardedHeaders::new(ForwardedHeader::XForwardedFor, Some(hops), None),
    };
    // They do not exist.
    let mut translator = translated(world());
    let of_two = said(&translator, TWO);
    assert!(of_two.is_some());
    assert_eq!(said(&translator, ONE), None);
    translator.apply([Change::Put(own(hops(1)))]);
    assert!(said(&translator, ONE).is_some());
    // They do not decode.
    translator.apply([Change::Put(unreadable_parameters("own"))]);
    assert_eq!(said(&translator, ONE), None);
    assert_eq!(said(&translator, TWO), of_two);
    // Those of the class are unknown: the Gateway's own ones still count, and nothing is added to them.
    translator.apply([
        Change::Put(own(hops(1))),
        Change::Put(unreadable_parameters("class")),
    ]);
    let of_own = said(&translator, ONE).expect("its own");
    assert_eq!(of_own.proxy_protocol, None);
    assert_eq!(
        of_own.forwarded_headers.and_then(|of| of.trusted_hops),
        Some(1)
    );
    assert_eq!(said(&translator, TWO), None);
}
