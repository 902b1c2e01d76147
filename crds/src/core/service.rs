//! Converts a Service.

use k8s_openapi::api::core::v1::Service;
use vestibule_model::finding::{Finding, Severity};
use vestibule_model::object;

use super::transport;
use crate::gateway_api::port;
use crate::meta;

/// Converts a Service. Ports that are not valid are left out, each with a warning.
pub(crate) fn convert(wire: Service) -> (object::Service, Vec<Finding>) {
    let name = meta::name(&wire.metadata);
    let spec = wire.spec.unwrap_or_default();
    let mut findings = Vec::new();
    let ports = spec
        .ports
        .unwrap_or_default()
        .into_iter()
        .enumerate()
        .filter_map(|(index, wire)| {
            let field = format!("spec.ports[{index}].port");
            Some(object::ServicePort {
                port: port(wire.port.into(), &field, &mut findings)?,
                name: wire.name.unwrap_or_default().into(),
                transport: transport(wire.protocol.as_deref()),
                app_protocol: wire.app_protocol.map(Into::into),
            })
        })
        .collect();
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
