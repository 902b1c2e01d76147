//! Converts an EndpointSlice.

use std::net::IpAddr;

use k8s_openapi::api::discovery::v1::EndpointSlice;
use vestibule_model::condition::Reason;
use vestibule_model::finding::{Finding, Severity};
use vestibule_model::object;

use super::transport;
use crate::gateway_api::port;
use crate::meta;
use crate::text::quote;

/// Label that names the Service of a slice.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";
/// How many addresses of an endpoint are read. By the API, only the first one is used (`discovery/v1` Endpoint,
/// "consumers should ignore additional addresses").
const ADDRESSES: usize = 1;
/// Most findings about addresses of one slice. More of them would add nothing.
const MAX_FINDINGS: usize = 8;

/// Converts a slice: addresses that are ready, those that are terminating and still serve, all other addresses, and
/// ports. Parts that cannot be read are left out with a warning.
pub(crate) fn convert(wire: EndpointSlice) -> object::EndpointSlice {
    let name = meta::name(&wire.metadata);
    let mut findings = Vec::new();
    let fits: fn(&IpAddr) -> bool = match wire.address_type.as_str() {
        "IPv4" => IpAddr::is_ipv4,
        "IPv6" => IpAddr::is_ipv6,
        other => {
            findings.push(Finding::warning(
                Reason::UnsupportedValue,
                "addressType",
                format!(
                    "{} is not supported, so the slice has no address",
                    quote(other)
                ),
                "use IPv4 or IPv6",
            ));
            |_| false
        }
    };
    let understood = findings.is_empty();
    let (mut addresses, mut terminating, mut idle) = (Vec::new(), Vec::new(), Vec::new());
    for (index, endpoint) in wire.endpoints.unwrap_or_default().into_iter().enumerate() {
        // By the API, conditions that are absent are true, except `terminating`.
        let conditions = endpoint.conditions.unwrap_or_default();
        let list = if conditions.ready.unwrap_or(true) {
            &mut addresses
        } else if conditions.terminating.unwrap_or(false) && conditions.serving.unwrap_or(true) {
            &mut terminating
        } else {
            &mut idle
        };
        if !understood {
            continue;
        }
        for (at, text) in endpoint.addresses.iter().take(ADDRESSES).enumerate() {
            match text.parse::<IpAddr>() {
                Ok(address) if fits(&address) => list.push(address),
                _ if findings.len() >= MAX_FINDINGS => {}
                _ => findings.push(Finding::warning(
                    Reason::InvalidValue,
                    format!("endpoints[{index}].addresses[{at}]"),
                    format!(
                        "{} is not an address of type {}, so it is left out",
                        quote(text),
                        wire.address_type
                    ),
                    "write the address of the endpoint",
                )),
            }
        }
    }
    let before = findings.len();
    let ports = wire
        .ports
        .unwrap_or_default()
        .into_iter()
        .enumerate()
        .filter_map(|(index, wire)| {
            let field = format!("ports[{index}].port");
            Some(object::EndpointPort {
                number: port(wire.port?.into(), &field, &mut findings)?,
                name: wire.name.unwrap_or_default().into(),
                transport: transport(wire.protocol.as_deref()),
            })
        })
        .collect();
    for finding in findings.iter_mut().skip(before) {
        finding.severity = Severity::Warning;
    }
    object::EndpointSlice {
        name,
        service: wire
            .metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(SERVICE_LABEL))
            .map(|service| service.as_str().into()),
        ports,
        addresses,
        terminating,
        idle,
        findings,
    }
}
