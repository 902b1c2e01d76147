//! Resources: what the configuration of a proxy consists of.

use std::net::{Ipv4Addr, SocketAddr};

use vestibule_stream::{Resource, proto};

use proto::resource::Resource as Wire;

/// A port of loopback.
pub fn bind(port: u16) -> proto::Bind {
    proto::Bind {
        address: Ipv4Addr::LOCALHOST.to_string(),
        port: port.into(),
        transport: proto::Transport::Tcp.into(),
    }
}

/// A listener of TLS called `name`, of the namespace that its name says: terminating if it has certificates.
pub fn listener_at(
    name: &str,
    bind: SocketAddr,
    hostname: &str,
    certificates: Option<&[&str]>,
) -> Resource {
    use proto::tls_listener::Mode;
    let mode = match certificates {
        None => Mode::Passthrough(proto::TlsPassthrough {}),
        Some(names) => Mode::Terminate(proto::TlsTerminate {
            certificates: names.iter().map(ToString::to_string).collect(),
            ..Default::default()
        }),
    };
    Resource::new(
        name,
        Wire::Listener(proto::Listener {
            gateway: "infra/edge".into(),
            bind: Some(proto::Bind {
                address: bind.ip().to_string(),
                port: bind.port().into(),
                transport: proto::Transport::Tcp.into(),
            }),
            hostname: hostname.into(),
            tenant: name.split('/').nth(1).unwrap().into(),
            protocol: Some(proto::listener::Protocol::Tls(proto::TlsListener {
                mode: Some(mode),
            })),
            ..Default::default()
        }),
    )
}

/// As [`listener_at`], of the ListenerSet `name` of team-a on a port of loopback.
pub fn listener(port: u16, name: &str, hostname: &str, certificate: Option<&str>) -> Resource {
    listener_at(
        &format!("ListenerSet/team-a/{name}/tls"),
        SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        hostname,
        certificate.as_ref().map(std::slice::from_ref),
    )
}

/// As [`listener`], for HTTP, or HTTPS with a certificate.
pub fn http(port: u16, name: &str, hostname: &str, certificate: Option<&str>) -> Resource {
    let mut resource = listener(port, name, hostname, None);
    if let Some(Wire::Listener(listener)) = &mut resource.resource {
        let terminate = certificate.map(|name| proto::TlsTerminate {
            certificates: vec![name.into()],
            ..Default::default()
        });
        let http = proto::HttpListener { terminate };
        listener.protocol = Some(proto::listener::Protocol::Http(http));
    }
    resource
}

/// Has a listener that terminates TLS validate its clients.
pub fn validating(
    mut resource: Resource,
    bundles: &[&str],
    mode: proto::ClientValidationMode,
) -> Resource {
    use proto::listener::Protocol;
    use proto::tls_listener::Mode;
    let Some(Wire::Listener(listener)) = &mut resource.resource else {
        panic!("no listener");
    };
    let terminate = match listener.protocol.as_mut().unwrap() {
        Protocol::Http(http) => http.terminate.as_mut().unwrap(),
        Protocol::Tls(tls) => match tls.mode.as_mut().unwrap() {
            Mode::Terminate(terminate) => terminate,
            Mode::Passthrough(_) => panic!("passthrough"),
        },
        Protocol::Tcp(_) | Protocol::Udp(_) => panic!("no TLS"),
    };
    terminate.client_validation = Some(proto::ClientValidation {
        trust_bundles: bundles.iter().map(|name| (*name).to_owned()).collect(),
        mode: mode.into(),
    });
    resource
}

/// A TLSRoute with one hostname on one listener and one backend, of the namespace that its name says.
pub fn tls_route(name: &str, listener: &str, hostname: &str, backend: &str) -> Resource {
    Resource::new(
        name,
        Wire::TlsRoute(proto::TlsRoute {
            tenant: name.split('/').next().unwrap().into(),
            created: 0,
            attachments: vec![proto::Attachment {
                listener: listener.into(),
                hostnames: vec![proto::RouteHostname {
                    r#match: hostname.into(),
                    rank: hostname.into(),
                    shared: false,
                    paths: Vec::new(),
                }],
            }],
            backends: vec![proto::WeightedBackend {
                backend: backend.into(),
                weight: 1,
            }],
        }),
    )
}

/// A TLSRoute of the same name as its [`listener`]. Without a backend, the reference is an invalid one.
pub fn route(name: &str, hostname: &str, backend: Option<&str>) -> Resource {
    let listener = format!("ListenerSet/team-a/{name}/tls");
    let backend = backend.unwrap_or_default();
    tls_route(&format!("team-a/{name}"), &listener, hostname, backend)
}

/// A listener of bytes, which the port alone selects.
pub fn tcp(port: u16, name: &str) -> Resource {
    let mut resource = listener(port, name, "", None);
    if let Some(Wire::Listener(listener)) = &mut resource.resource {
        listener.protocol = Some(proto::listener::Protocol::Tcp(proto::TcpListener {}));
    }
    resource
}

/// A TCPRoute on the listener `on`, with weighted backends; an empty name is an invalid reference.
pub fn tcp_route(name: &str, created: i64, on: &str, backends: &[(&str, u32)]) -> Resource {
    let weighted = |(backend, weight): &(&str, u32)| proto::WeightedBackend {
        backend: (*backend).into(),
        weight: *weight,
    };
    Resource {
        name: format!("team-a/{name}"),
        resource: Some(Wire::TcpRoute(proto::TcpRoute {
            tenant: "team-a".into(),
            created,
            listeners: vec![format!("ListenerSet/team-a/{on}/tls")],
            backends: backends.iter().map(weighted).collect(),
        })),
    }
}

/// A listener of datagrams on the port of UDP.
pub fn udp(port: u16, name: &str) -> Resource {
    let mut resource = listener(port, name, "", None);
    if let Some(Wire::Listener(listener)) = &mut resource.resource {
        listener.protocol = Some(proto::listener::Protocol::Udp(proto::UdpListener {}));
        let bind = listener.bind.as_mut().unwrap();
        bind.transport = proto::Transport::Udp.into();
    }
    resource
}

/// As [`tcp_route`], of a listener of datagrams.
pub fn udp_route(name: &str, created: i64, on: &str, backends: &[(&str, u32)]) -> Resource {
    let mut resource = tcp_route(name, created, on, backends);
    if let Some(Wire::TcpRoute(route)) = resource.resource.take() {
        resource.resource = Some(Wire::UdpRoute(route));
    }
    resource
}

/// The endpoint of a backend at an address.
pub fn endpoint(address: &SocketAddr) -> proto::Endpoint {
    proto::Endpoint {
        address: address.ip().to_string(),
        port: address.port().into(),
    }
}

/// A backend with these endpoints.
pub fn backend(name: &str, addresses: &[SocketAddr]) -> Resource {
    Resource {
        name: name.into(),
        resource: Some(Wire::Backend(proto::Backend {
            endpoints: addresses.iter().map(endpoint).collect(),
            ..Default::default()
        })),
    }
}

/// The owner of a hostname on the Gateway of all listeners.
pub fn owner(hostname: &str, tenant: &str) -> Resource {
    let owner = proto::HostnameOwner {
        gateway: "infra/edge".into(),
        hostname: hostname.into(),
        tenant: tenant.into(),
    };
    Resource::new(format!("infra/edge/{hostname}"), Wire::HostnameOwner(owner))
}

/// Has a listener serve by the settings of its Gateway.
pub fn needs_settings(mut listener: Resource) -> Resource {
    if let Some(Wire::Listener(listener)) = &mut listener.resource {
        listener.needs_gateway_settings = true;
    }
    listener
}

/// Settings of the Gateway of all listeners.
pub fn gateway_settings(settings: proto::GatewaySettings) -> Resource {
    Resource::new("infra/edge", Wire::GatewaySettings(settings))
}

/// A listener that serves by the settings of its Gateway, and these settings.
pub fn with_settings(listener: Resource, settings: proto::GatewaySettings) -> [Resource; 2] {
    [needs_settings(listener), gateway_settings(settings)]
}

/// How a namespace shares connections with others. 0 stands for no limit.
pub fn tenant(namespace: &str, connection_shares: u32, max_connections: u32) -> Resource {
    let tenant = proto::Tenant {
        connection_shares,
        max_connections,
    };
    Resource::new(namespace, Wire::Tenant(tenant))
}
