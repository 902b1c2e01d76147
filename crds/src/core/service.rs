//! Converts a Service.

use k8s_openapi::api::core::v1::Service;
use vestibule_model::finding::{Finding, Severity};
use vestibule_model::object::{self, ServicePort};
use vestibule_model::protocol::{Port, Transport};
use vestibule_model::send_proxy::{
    ANNOTATION, AnnotationFault, HeaderVersion, MAX_VALUE, SendProxy,
};

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
    if let Err(fault) = read_headers(value, &mut ports) {
        for port in ports {
            port.send_proxy = SendProxy::Unreadable(fault);
        }
    }
}

/// Reads the value of the annotation for these TCP ports: a version for all of them, or `name=version` or
/// `number=version` for some, each at most once.
///
/// # Errors
/// The value is something else. Then some ports may have a header already, of which nobody knows whether it is right.
fn read_headers(value: &str, ports: &mut [&mut ServicePort]) -> Result<(), AnnotationFault> {
    if value.len() > MAX_VALUE {
        return Err(AnnotationFault::TooLong);
    }
    if let Ok(version) = value.trim().parse::<HeaderVersion>() {
        for port in ports {
            port.send_proxy = SendProxy::Header(version);
        }
        return Ok(());
    }
    for entry in value.split(',') {
        let (which, version) = entry.split_once('=').ok_or(AnnotationFault::Form)?;
        let (which, version) = (which.trim(), version.trim());
        let version = version.parse::<HeaderVersion>();
        let version = version.map_err(|_| AnnotationFault::Version)?;
        let number = which.parse::<Port>().ok();
        // The name of a port may consist of digits alone, so it can be the number of another port.
        let mut fitting = ports.iter_mut().filter(|port| {
            number == Some(port.port) || (!which.is_empty() && *port.name == *which)
        });
        let port = fitting.next().ok_or(AnnotationFault::NoSuchPort)?;
        if fitting.next().is_some() {
            return Err(AnnotationFault::Ambiguous);
        }
        if port.send_proxy != SendProxy::Off {
            return Err(AnnotationFault::Twice);
        }
        port.send_proxy = SendProxy::Header(version);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use vestibule_model::send_proxy::HeaderVersion::{V1, V2};

    use super::*;

    /// The expectations of a Service's ports, in order: smtp (25), imap (143), one without a name (993), and dns (53, UDP).
    fn expected(value: Option<&str>) -> Vec<SendProxy> {
        let ports = serde_json::json!([
            {"name": "smtp", "port": 25},
            {"name": "imap", "port": 143, "protocol": "TCP"},
            {"port": 993},
            {"name": "dns", "port": 53, "protocol": "UDP"},
        ]);
        expected_of(&ports, value)
    }

    /// The same for a Service with these ports.
    fn expected_of(ports: &serde_json::Value, value: Option<&str>) -> Vec<SendProxy> {
        let mut service = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "mail", "namespace": "red"},
        });
        service["spec"] = serde_json::json!({"ports": ports});
        if let Some(value) = value {
            service["metadata"]["annotations"] = serde_json::json!({ANNOTATION: value});
        }
        let (service, findings) = convert(serde_json::from_value(service).unwrap());
        assert_eq!(findings, []);
        service.ports.iter().map(|port| port.send_proxy).collect()
    }

    /// A value with as many spaces after it as give it this length.
    fn padded(value: &str, length: usize) -> String {
        format!("{value}{}", " ".repeat(length - value.len()))
    }

    #[test]
    fn ports_expect_the_headers_that_the_annotation_names() {
        use SendProxy::{Header, Off};
        // This is as long as a value may be.
        let longest = padded("imap=v1", MAX_VALUE);
        for (value, ports) in [
            (None, [Off, Off, Off, Off]),
            (Some("v1"), [Header(V1), Header(V1), Header(V1), Off]),
            (Some(" v2 "), [Header(V2), Header(V2), Header(V2), Off]),
            (Some("imap=v1"), [Off, Header(V1), Off, Off]),
            (Some(longest.as_str()), [Off, Header(V1), Off, Off]),
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
        use AnnotationFault::{Form, NoSuchPort, TooLong, Twice, Version};
        let too_long = padded("imap=v1", MAX_VALUE + 1);
        for (value, fault) in [
            ("", Form),
            ("true", Form),
            ("V2", Form),
            ("v3", Form),
            ("v1,v2", Form),
            ("imap", Form),
            ("imap=", Version),
            ("imap=V2", Version),
            ("imap=v1=v2", Version),
            ("=v2", NoSuchPort),
            ("imap=v2,", Form),
            // There are no such TCP ports.
            ("pop=v2", NoSuchPort),
            ("110=v2", NoSuchPort),
            ("dns=v2", NoSuchPort),
            ("53=v2", NoSuchPort),
            // One port has one header.
            ("imap=v1,143=v2", Twice),
            ("imap=v1,imap=v1", Twice),
            (too_long.as_str(), TooLong),
        ] {
            let unreadable = SendProxy::Unreadable(fault);
            let ports = [unreadable, unreadable, unreadable, SendProxy::Off];
            assert_eq!(expected(Some(value)), ports, "{value:?}");
        }
    }

    /// Names of ports may consist of digits alone.
    #[test]
    fn a_port_is_not_guessed_where_a_number_is_the_name_of_another_one() {
        use SendProxy::{Header, Off};
        let ports = serde_json::json!([
            {"name": "80", "port": 8080},
            {"name": "web", "port": 80},
            {"name": "443", "port": 443},
        ]);
        let unreadable = SendProxy::Unreadable(AnnotationFault::Ambiguous);
        for (value, expected) in [
            ("80=v2", [unreadable; 3]),
            ("443=v2,80=v2", [unreadable; 3]),
            ("8080=v1,web=v2", [Header(V1), Header(V2), Off]),
            // This is one port, whichever way it is meant.
            ("443=v2", [Off, Off, Header(V2)]),
        ] {
            assert_eq!(expected_of(&ports, Some(value)), expected, "{value}");
        }
    }
}
