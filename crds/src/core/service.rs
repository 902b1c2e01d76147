//! Converts a Service.

use k8s_openapi::api::core::v1::Service;
use vestibule_model::finding::{Finding, Severity};
use vestibule_model::object::{self, ServicePort};
use vestibule_model::protocol::{Port, Transport};
use vestibule_model::send_proxy::{ANNOTATION, HeaderVersion, SendProxy};

use super::transport;
use crate::gateway_api::port;
use crate::meta;

/// Converts a Service. Ports that are not valid are left out, each with a warning.
pub(crate) fn convert(wire: Service) -> (object::Service, Vec<Finding>) {
    let name = meta::name(&wire.metadata);
    let spec = wire.spec.unwrap_or_default();
    let mut findings = Vec::new();
    let mut ports: Vec<ServicePort> = spec
        .ports
        .unwrap_or_default()
        .into_iter()
        .enumerate()
        .filter_map(|(index, wire)| {
            let field = format!("spec.ports[{index}].port");
            Some(ServicePort {
                port: port(wire.port.into(), &field, &mut findings)?,
                name: wire.name.unwrap_or_default().into(),
                transport: transport(wire.protocol.as_deref()),
                app_protocol: wire.app_protocol.map(Into::into),
                send_proxy: SendProxy::Off,
            })
        })
        .collect();
    let annotations = wire.metadata.annotations.as_ref();
    if let Some(value) = annotations.and_then(|all| all.get(ANNOTATION)) {
        expect_headers(value, &mut ports);
    }
    for finding in &mut findings {
        finding.severity = Severity::Warning;
    }
    let service = object::Service {
        name,
        meta: meta::convert(&wire.metadata),
        ports,
        external_name: spec.type_.as_deref() == Some("ExternalName"),
    };
    (service, findings)
}

/// Notes the PROXY headers that the ports expect by the [annotation](ANNOTATION). If its value cannot be read, it cannot
/// be known which ports it is about, so it is about every TCP port.
fn expect_headers(value: &str, ports: &mut [ServicePort]) {
    let of_tcp = |port: &&mut ServicePort| port.transport == Some(Transport::Tcp);
    let mut ports: Vec<&mut ServicePort> = ports.iter_mut().filter(of_tcp).collect();
    if read_headers(value, &mut ports).is_none() {
        for port in ports {
            port.send_proxy = SendProxy::Unreadable;
        }
    }
}

/// Reads the value of the annotation for these TCP ports: a version for all of them, or `name=version` or
/// `number=version` for some, each at most once. The result is `None` if that is not what the value is.
fn read_headers(value: &str, ports: &mut [&mut ServicePort]) -> Option<()> {
    if let Ok(version) = value.trim().parse::<HeaderVersion>() {
        for port in ports {
            port.send_proxy = SendProxy::Header(version);
        }
        return Some(());
    }
    for entry in value.split(',') {
        let (which, version) = entry.split_once('=')?;
        let (which, version) = (which.trim(), version.trim());
        let version = version.parse::<HeaderVersion>().ok()?;
        let number = which.parse::<Port>().ok();
        let port = ports.iter_mut().find(|port| {
            number == Some(port.port) || (!which.is_empty() && *port.name == *which)
        })?;
        if port.send_proxy != SendProxy::Off {
            return None;
        }
        port.send_proxy = SendProxy::Header(version);
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use vestibule_model::send_proxy::HeaderVersion::{V1, V2};

    use super::*;

    /// What the ports of a Service expect: smtp (25), imap (143), one without a name (993), and dns (53, UDP).
    fn expected(value: Option<&str>) -> Vec<SendProxy> {
        let mut service = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "mail", "namespace": "red"},
            "spec": {"ports": [
                {"name": "smtp", "port": 25},
                {"name": "imap", "port": 143, "protocol": "TCP"},
                {"port": 993},
                {"name": "dns", "port": 53, "protocol": "UDP"},
            ]},
        });
        if let Some(value) = value {
            service["metadata"]["annotations"] = serde_json::json!({ANNOTATION: value});
        }
        let (service, findings) = convert(serde_json::from_value(service).unwrap());
        assert_eq!(findings, []);
        service.ports.iter().map(|port| port.send_proxy).collect()
    }

    #[test]
    fn ports_expect_the_headers_that_the_annotation_names() {
        use SendProxy::{Header, Off};
        for (value, ports) in [
            (None, [Off, Off, Off, Off]),
            (Some("v1"), [Header(V1), Header(V1), Header(V1), Off]),
            (Some(" v2 "), [Header(V2), Header(V2), Header(V2), Off]),
            (Some("imap=v1"), [Off, Header(V1), Off, Off]),
            (
                Some("993=v2, smtp = v1"),
                [Header(V1), Off, Header(V2), Off],
            ),
        ] {
            assert_eq!(expected(value), ports, "{value:?}");
        }
    }

    #[test]
    fn a_value_that_cannot_be_read_is_about_every_tcp_port() {
        for value in [
            "",
            "true",
            "V2",
            "v3",
            "v1,v2",
            "imap",
            "imap=",
            "=v2",
            "imap=v2,",
            // There are no such TCP ports.
            "pop=v2",
            "110=v2",
            "dns=v2",
            "53=v2",
            // One port has one header.
            "imap=v1,143=v2",
            "imap=v1,imap=v1",
        ] {
            let unreadable = SendProxy::Unreadable;
            let ports = [unreadable, unreadable, unreadable, SendProxy::Off];
            assert_eq!(expected(Some(value)), ports, "{value:?}");
        }
    }
}
