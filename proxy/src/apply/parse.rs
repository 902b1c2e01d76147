//! Owns the step from wire messages to typed values. Everything that passes here can be put in force.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::sync::Arc;

use vestibule_model::endpoint::EndpointRules;
use vestibule_model::hostname::HostPattern;
use vestibule_model::hostname_grant::MAX_CONNECTION_SHARES;
use vestibule_model::path::PathPrefix;
use vestibule_model::send_proxy::HeaderVersion;
use vestibule_stream::proto;

use super::clients::{ClientMode, ValidationSpec};
use super::reject::RejectReason;
use super::resource_names::{required, route_name, segments, two_segments};
use crate::attached_names::AttachedNames;
use crate::backend;
use crate::backend::Target;
use crate::bind::{BindKey, Transport};
use crate::listener::Layer;
use crate::quota::TenantLimits;
use crate::table::SelectionKey;

/// A listener that can be put in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ListenerSpec {
    pub(super) gateway: String,
    pub(super) tenant: String,
    pub(super) bind: BindKey,
    /// The port to which clients connect, which is not that of the bind.
    pub(super) port: u16,
    pub(super) pattern: HostPattern,
    pub(super) protocol: Protocol,
    /// Whether it serves by the settings of its Gateway.
    pub(super) needs_settings: bool,
}

impl ListenerSpec {
    pub(super) fn selection_key(&self) -> SelectionKey {
        (self.bind, self.protocol.layer(), self.pattern.clone())
    }
}

/// The protocol of a listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Protocol {
    Passthrough,
    Terminate(TerminateSpec),
    Http,
    Https(TerminateSpec),
    Tcp,
    Udp,
}

/// How a listener terminates TLS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TerminateSpec {
    /// Names of certificates in order of preference.
    pub(super) certificates: Vec<String>,
    pub(super) validation: Option<ValidationSpec>,
}

impl Protocol {
    pub(super) fn layer(&self) -> Layer {
        match self {
            Self::Http => Layer::Plain,
            Self::Passthrough | Self::Terminate(_) | Self::Https(_) => Layer::Tls,
            Self::Tcp | Self::Udp => Layer::Bytes,
        }
    }

    fn transport(&self) -> Transport {
        match self {
            Self::Udp => Transport::Udp,
            _ => Transport::Tcp,
        }
    }
}

/// A route that can be put in force.
#[derive(Debug)]
pub(super) struct RouteSpec {
    pub(super) tenant: String,
    pub(super) created: i64,
    /// By name of the listener.
    pub(super) attachments: Vec<(String, AttachedNames)>,
    /// Backend name (`None`: invalid reference) and weight.
    pub(super) backends: Vec<(Option<String>, u32)>,
}

pub(super) fn listener(name: &str, wire: &proto::Listener) -> Result<ListenerSpec, RejectReason> {
    use proto::{listener::Protocol as Wire, tls_listener::Mode};

    let parts: Vec<&str> = segments(name).collect();
    if parts.len() != 4 || !matches!(parts.first(), Some(&("Gateway" | "ListenerSet"))) {
        return Err(RejectReason::InvalidName(
            "<Gateway|ListenerSet>/<namespace>/<object>/<listener>",
        ));
    }
    let unknown = |what| Err(RejectReason::UnknownResource(what));
    let protocol = match &wire.protocol {
        None => return unknown("the listener's protocol"),
        Some(Wire::Tls(tls)) => match &tls.mode {
            None => return unknown("the listener's TLS mode"),
            Some(Mode::Passthrough(_)) => Protocol::Passthrough,
            Some(Mode::Terminate(tls)) => Protocol::Terminate(terminate(tls)?),
        },
        Some(Wire::Http(http)) => match &http.terminate {
            None => Protocol::Http,
            Some(tls) => Protocol::Https(terminate(tls)?),
        },
        Some(Wire::Tcp(_)) => Protocol::Tcp,
        Some(Wire::Udp(_)) => Protocol::Udp,
    };
    if matches!(protocol, Protocol::Tcp | Protocol::Udp) && !wire.hostname.is_empty() {
        return Err(RejectReason::NamedBytes(wire.hostname.clone()));
    }
    let bind = bind(wire.bind.as_ref(), protocol.transport())?;
    let invalid = || RejectReason::InvalidBind(format!("{} is not a port", wire.port));
    Ok(ListenerSpec {
        gateway: required(&wire.gateway, "gateway")?,
        tenant: required(&wire.tenant, "tenant")?,
        bind,
        port: match wire.port {
            0 => bind.port,
            other => port(other).ok_or_else(invalid)?,
        },
        pattern: pattern(&wire.hostname)?,
        protocol,
        needs_settings: wire.needs_gateway_settings,
    })
}

fn terminate(wire: &proto::TlsTerminate) -> Result<TerminateSpec, RejectReason> {
    let validation = match &wire.client_validation {
        None => None,
        Some(wire) => Some(ValidationSpec {
            bundles: wire.trust_bundles.clone(),
            mode: match proto::ClientValidationMode::try_from(wire.mode) {
                Ok(proto::ClientValidationMode::AllowValidOnly) => ClientMode::ValidOnly,
                Ok(proto::ClientValidationMode::AllowInsecureFallback) => {
                    ClientMode::InsecureFallback
                }
                // An unknown mode is rejected instead of replaced by a known one, because one mode is stricter than
                // another.
                _ => return Err(RejectReason::UnknownResource("the client validation")),
            },
        }),
    };
    Ok(TerminateSpec {
        certificates: wire.certificates.clone(),
        validation,
    })
}

/// Reads a bind, and checks that it has the transport `wanted`.
pub(super) fn bind(wire: Option<&proto::Bind>, wanted: Transport) -> Result<BindKey, RejectReason> {
    let wire = wire.ok_or(RejectReason::MissingField("bind"))?;
    let transport = match proto::Transport::try_from(wire.transport) {
        Ok(proto::Transport::Tcp) => Transport::Tcp,
        Ok(proto::Transport::Udp) => Transport::Udp,
        _ => return Err(RejectReason::UnknownResource("the bind's transport")),
    };
    if transport != wanted {
        return Err(RejectReason::UnsupportedTransport);
    }
    let invalid = |what: String| RejectReason::InvalidBind(what);
    let address: IpAddr = wire
        .address
        .parse()
        .map_err(|_| invalid(format!("{:?} is not an IP address to bind", wire.address)))?;
    let port = port(wire.port).ok_or_else(|| invalid(format!("{} is not a port", wire.port)))?;
    if address.is_multicast() {
        return Err(invalid(format!("{address} is a multicast address")));
    }
    Ok(BindKey {
        address,
        port,
        transport,
    })
}

fn port(wire: u32) -> Option<u16> {
    u16::try_from(wire).ok().filter(|port| *port != 0)
}

pub(super) fn pattern(text: &str) -> Result<HostPattern, RejectReason> {
    HostPattern::parse(text).map_err(|error| RejectReason::InvalidHostname(text.to_owned(), error))
}

fn weighted(wire: &[proto::WeightedBackend]) -> Vec<(Option<String>, u32)> {
    let named = |of: &proto::WeightedBackend| (!of.backend.is_empty()).then(|| of.backend.clone());
    wire.iter().map(|of| (named(of), of.weight)).collect()
}

/// A TCP or a UDP route.
pub(super) fn port_route(name: &str, wire: &proto::TcpRoute) -> Result<RouteSpec, RejectReason> {
    route_name(name)?;
    let mut listeners = wire.listeners.iter().collect::<Vec<_>>();
    listeners.sort();
    listeners.dedup();
    let attachments = listeners.into_iter().map(|listener| {
        let (any, none) = (HostPattern::Any, Box::default());
        let everything = AttachedNames::new(any.clone(), any, false, none);
        Ok((required(listener, "listener")?, everything))
    });
    Ok(RouteSpec {
        tenant: required(&wire.tenant, "tenant")?,
        created: wire.created,
        attachments: attachments.collect::<Result<_, RejectReason>>()?,
        backends: weighted(&wire.backends),
    })
}

pub(super) fn route(name: &str, wire: &proto::TlsRoute) -> Result<RouteSpec, RejectReason> {
    route_name(name)?;
    let backends = weighted(&wire.backends);
    let attachments = attachments(&wire.attachments)?;
    if attachments
        .iter()
        .any(|(_, names)| !names.paths().is_empty())
    {
        let why = "are of a route that cannot see paths";
        return Err(RejectReason::InvalidPaths(why));
    }
    Ok(RouteSpec {
        tenant: required(&wire.tenant, "tenant")?,
        created: wire.created,
        attachments,
        backends,
    })
}

/// The names for which a route is on which listener.
pub(super) fn attachments(
    wire: &[proto::Attachment],
) -> Result<Vec<(String, AttachedNames)>, RejectReason> {
    let mut attachments = Vec::new();
    for attachment in wire {
        let listener = required(&attachment.listener, "an attachment's listener")?;
        for hostname in &attachment.hostnames {
            let (matched, rank) = (pattern(&hostname.r#match)?, pattern(&hostname.rank)?);
            let paths = shared_paths(hostname, &matched)?;
            let names = AttachedNames::new(matched, rank, hostname.shared, paths);
            attachments.push((listener.clone(), names));
        }
    }
    Ok(attachments)
}

/// The paths of a name to which a route is restricted. If empty, it has the whole name.
fn shared_paths(
    wire: &proto::RouteHostname,
    names: &HostPattern,
) -> Result<Box<[PathPrefix]>, RejectReason> {
    if wire.paths.is_empty() {
        return Ok(Box::default());
    }
    if !matches!(names, HostPattern::Exact(_)) {
        return Err(RejectReason::InvalidPaths("are of no single hostname"));
    }
    if wire.shared {
        return Err(RejectReason::InvalidPaths(
            "are of a name that is shared whole",
        ));
    }
    let parts = wire.paths.iter().map(|text| PathPrefix::parse(text));
    let parts: Result<Vec<_>, _> = parts.collect();
    let mut parts = parts.map_err(|_| RejectReason::InvalidPaths("are none"))?;
    parts.sort();
    parts.dedup();
    Ok(parts.into())
}

/// The owner of the names of a pattern on a Gateway.
#[derive(Debug)]
pub(super) struct OwnerSpec {
    pub(super) gateway: String,
    pub(super) names: HostPattern,
    pub(super) tenant: String,
}

pub(super) fn owner(name: &str, wire: &proto::HostnameOwner) -> Result<OwnerSpec, RejectReason> {
    let (gateway, names) = owned(name)?;
    // The name of the resource must agree, because a removal carries only the name.
    if gateway != wire.gateway || names != pattern(&wire.hostname)? {
        return Err(RejectReason::InvalidName(OWNED));
    }
    Ok(OwnerSpec {
        gateway: gateway.to_owned(),
        names,
        tenant: required(&wire.tenant, "tenant")?,
    })
}

const OWNED: &str = "<namespace>/<gateway>/<hostname>";

/// Gateway and pattern, from the name of a resource that tells the owner of hostnames.
pub(super) fn owned(name: &str) -> Result<(&str, HostPattern), RejectReason> {
    let invalid = || RejectReason::InvalidName(OWNED);
    let (gateway, hostname) = name.rsplit_once('/').ok_or_else(invalid)?;
    two_segments(gateway, OWNED)?;
    Ok((gateway, pattern(hostname)?))
}

pub(super) fn tenant(name: &str, wire: proto::Tenant) -> Result<TenantLimits, RejectReason> {
    if segments(name).count() != 1 {
        return Err(RejectReason::InvalidName("<namespace>"));
    }
    // A later release may allow more shares. The limit on connections counts all the same.
    let shares = wire.connection_shares.clamp(1, MAX_CONNECTION_SHARES);
    let shares = u8::try_from(shares).unwrap_or(u8::MAX);
    Ok(TenantLimits {
        shares,
        most_connections: NonZeroU32::new(wire.max_connections),
    })
}

/// A backend that can be put in force.
#[derive(Debug)]
pub(super) struct BackendSpec {
    pub(super) target: Target,
    /// The endpoints that it was to have and may not, if there are any.
    pub(super) left_out: Option<LeftOut>,
}

/// Endpoints that are left out of a backend.
#[derive(Debug)]
pub(super) struct LeftOut {
    pub(super) count: u64,
    /// Why the first of them is left out.
    pub(super) first: RejectReason,
}

pub(super) fn backend(
    name: &str,
    wire: &proto::Backend,
    rules: &EndpointRules,
) -> Result<BackendSpec, RejectReason> {
    let form = "<namespace>/<service>:<port>[/udp]";
    let of_port = name.strip_suffix("/udp").unwrap_or(name);
    two_segments(of_port, form)?;
    let number = of_port.rsplit_once(':').map(|(_, number)| number);
    if number.and_then(|n| n.parse().ok()).and_then(port).is_none() {
        return Err(RejectReason::InvalidName(form));
    }
    let protocol = match proto::BackendProtocol::try_from(wire.protocol) {
        Ok(proto::BackendProtocol::Unspecified) => backend::Protocol::Any,
        Ok(proto::BackendProtocol::H2c) => backend::Protocol::H2c,
        Ok(proto::BackendProtocol::Websocket) => backend::Protocol::WebSocket,
        Err(_) => return Err(RejectReason::UnknownResource("the backend's protocol")),
    };
    let send_proxy = match proto::SendProxyProtocol::try_from(wire.send_proxy_protocol) {
        Ok(proto::SendProxyProtocol::Unspecified) => None,
        Ok(proto::SendProxyProtocol::V1) => Some(HeaderVersion::V1),
        Ok(proto::SendProxyProtocol::V2) => Some(HeaderVersion::V2),
        Err(_) => return Err(RejectReason::UnknownResource("the backend's PROXY header")),
    };
    let (endpoints, left_out) = endpoints(&wire.endpoints, rules)?;
    let target = Target {
        endpoints,
        protocol,
        send_proxy,
        // TLS settings are read elsewhere, because they depend on the trust bundles that are held.
        tls: None,
        certificate_of: wire
            .certificate_of
            .iter()
            .map(|gateway| gateway.as_str().into())
            .collect(),
    };
    Ok(BackendSpec { target, left_out })
}

/// The endpoints that a backend may have, and what is left out because it may not have it. If nothing remains, the backend
/// is rejected: then the operator hears why, and the status of its routes says it.
fn endpoints(
    wire: &[proto::Endpoint],
    rules: &EndpointRules,
) -> Result<(Arc<[SocketAddr]>, Option<LeftOut>), RejectReason> {
    let mut endpoints = Vec::with_capacity(wire.len());
    let mut left_out: Option<LeftOut> = None;
    for one in wire {
        match endpoint(one, rules) {
            Ok(endpoint) => endpoints.push(endpoint),
            Err(first) => {
                left_out.get_or_insert(LeftOut { count: 0, first }).count += 1;
            }
        }
    }
    match left_out {
        Some(LeftOut { first, .. }) if endpoints.is_empty() => Err(first),
        left_out => Ok((endpoints.into(), left_out)),
    }
}

fn endpoint(wire: &proto::Endpoint, rules: &EndpointRules) -> Result<SocketAddr, RejectReason> {
    let invalid = |why: &str| {
        RejectReason::InvalidEndpoint(format!("endpoint {:?}:{} {why}", wire.address, wire.port))
    };
    let address: IpAddr = wire
        .address
        .parse()
        .map_err(|_| invalid("has no IP address"))?;
    let port = port(wire.port).ok_or_else(|| invalid("has no port"))?;
    let address = address.to_canonical();
    // The operator judges by the same rules, so it sends such an endpoint only while its settings are other ones. It also
    // judges by the addresses of Gateways and of the release's pods, which the stream does not have.
    if let Some(denied) = rules.denies(address) {
        return Err(invalid(&denied.to_string()));
    }
    Ok(SocketAddr::new(address, port))
}

#[cfg(test)]
mod tests {
    use vestibule_model::certificate::AddressBlock;
    use vestibule_model::hostname::HostnameError;

    use super::super::reject::REASONS;
    use super::*;

    fn wire() -> proto::Listener {
        proto::Listener {
            gateway: "infra/edge".into(),
            bind: Some(proto::Bind {
                address: "::".into(),
                port: 10443,
                transport: proto::Transport::Tcp.into(),
            }),
            hostname: "*.Example.com.".into(),
            tenant: "team-a".into(),
            protocol: Some(proto::listener::Protocol::Tls(proto::TlsListener {
                mode: Some(proto::tls_listener::Mode::Passthrough(
                    proto::TlsPassthrough {},
                )),
            })),
            ..Default::default()
        }
    }

    const NAME: &str = "ListenerSet/team-a/web/tls";

    #[test]
    fn listener_is_normalised() {
        let spec = listener(NAME, &wire()).unwrap();
        assert_eq!(spec.pattern.to_string(), "*.example.com");
        assert_eq!(spec.bind.to_string(), "[::]:10443");
        assert_eq!(spec.protocol, Protocol::Passthrough);
    }

    #[test]
    fn http_is_https_with_certificates() {
        let with = |terminate| {
            let http = proto::HttpListener { terminate };
            let protocol = Some(proto::listener::Protocol::Http(http));
            let wire = proto::Listener { protocol, ..wire() };
            listener(NAME, &wire).unwrap().selection_key().1
        };
        assert_eq!(with(None), Layer::Plain);
        assert_eq!(with(Some(proto::TlsTerminate::default())), Layer::Tls);
    }

    #[test]
    fn bad_listeners_say_why() {
        type Edit = fn(&mut proto::Listener);
        let cases: [(&str, Edit); 13] = [
            ("UnknownResource", |l| l.protocol = None),
            ("UnknownResource", |l| {
                l.protocol = Some(proto::listener::Protocol::Tls(proto::TlsListener {
                    mode: None,
                }));
            }),
            ("MissingField", |l| l.bind = None),
            ("MissingField", |l| l.gateway = String::new()),
            ("MissingField", |l| l.tenant = String::new()),
            ("InvalidHostname", |l| l.hostname = "a..b".into()),
            ("InvalidHostname", |l| l.hostname = "192.0.2.1".into()),
            ("InvalidBind", |l| l.bind.as_mut().unwrap().port = 0),
            ("InvalidBind", |l| l.bind.as_mut().unwrap().port = 65_536),
            ("InvalidBind", |l| {
                l.bind.as_mut().unwrap().address = "localhost".into();
            }),
            ("UnsupportedTransport", |l| {
                l.bind.as_mut().unwrap().transport = proto::Transport::Udp.into();
            }),
            ("UnsupportedTransport", |l| {
                l.hostname = String::new();
                l.protocol = Some(proto::listener::Protocol::Udp(proto::UdpListener {}));
            }),
            ("InvalidHostname", |l| {
                l.protocol = Some(proto::listener::Protocol::Udp(proto::UdpListener {}));
            }),
        ];
        for (reason, edit) in cases {
            let mut wire = wire();
            edit(&mut wire);
            let error = listener(NAME, &wire).unwrap_err();
            assert_eq!(error.reason(), reason, "{error}");
        }
        for name in [
            "",
            "a",
            "Gateway/a/b",
            "Gateway/a//c",
            "Other/a/b/c",
            "Gateway/a/b/\n",
        ] {
            let error = listener(name, &wire()).unwrap_err();
            assert_eq!(error.reason(), "InvalidName", "{name:?}");
        }
    }

    #[test]
    fn every_reason_is_a_metric_label() {
        let bind = listener(NAME, &wire()).unwrap().bind;
        let all = [
            RejectReason::UnknownResource(""),
            RejectReason::InvalidName(""),
            RejectReason::MissingField(""),
            RejectReason::InvalidHostname(String::new(), HostnameError::Empty),
            RejectReason::InvalidBind(String::new()),
            RejectReason::UnsupportedTransport,
            RejectReason::InvalidEndpoint(String::new()),
            RejectReason::InvalidCertificate(0, String::new()),
            RejectReason::InvalidKey,
            RejectReason::KeyMismatch,
            RejectReason::Expired(String::new()),
            RejectReason::InvalidChallenge(""),
            RejectReason::NoListener(bind, Layer::Tls),
            RejectReason::InvalidTrustBundle(0, String::new()),
            RejectReason::TooLarge(""),
            RejectReason::InvalidMatch(""),
            RejectReason::InvalidRegex(String::new()),
            RejectReason::InvalidFilter(""),
            RejectReason::InvalidBlock(String::new()),
            RejectReason::HostnameConflict(bind),
            RejectReason::ProtocolConflict(bind, Layer::Tls),
            RejectReason::PortUnavailable(bind, std::io::ErrorKind::AddrInUse.into()),
        ];
        assert_eq!(all.map(|reason| reason.reason()), REASONS);
    }

    #[test]
    fn bad_endpoints_and_names_say_why() {
        let with = |address: &str, port| proto::Backend {
            endpoints: vec![proto::Endpoint {
                address: address.into(),
                port,
            }],
            ..Default::default()
        };
        let name = "team-a/web:443";
        let rules = EndpointRules::with_loopback();
        for (address, port) in [
            ("x", 1),
            ("127.0.0.1", 0),
            ("0.0.0.0", 1),
            ("::", 1),
            ("::ffff:0.0.0.0", 1),
        ] {
            let error = backend(name, &with(address, port), &rules).unwrap_err();
            assert_eq!(error.reason(), "InvalidEndpoint", "{address} {port}");
        }
        let mapped = backend(name, &with("::ffff:127.0.0.1", 443), &rules).unwrap();
        assert_eq!(
            mapped.target.endpoints,
            [SocketAddr::from(([127, 0, 0, 1], 443))].into()
        );
        for name in ["team-a/dns:53", "team-a/dns:53/udp"] {
            assert!(backend(name, &with("::1", 53), &rules).is_ok(), "{name}");
        }
        for name in [
            "team-a/web",
            "team-a/web:0",
            "web:443",
            "team-a/web:99999",
            "team-a/web:443/tcp",
            "team-a/web/udp",
        ] {
            let error = backend(name, &with("::1", 443), &rules).unwrap_err();
            assert_eq!(error.reason(), "InvalidName", "{name}");
        }
    }

    #[test]
    fn a_backend_expects_a_header_that_this_release_knows() {
        let read = |send_proxy_protocol| {
            let wire = proto::Backend {
                send_proxy_protocol,
                ..Default::default()
            };
            let read = backend("team-a/web:443", &wire, &EndpointRules::default());
            read.map(|spec| spec.target.send_proxy)
        };
        assert_eq!(read(0).unwrap(), None);
        assert_eq!(read(1).unwrap(), Some(HeaderVersion::V1));
        assert_eq!(read(2).unwrap(), Some(HeaderVersion::V2));
        // A connection without the header would be refused, or be that of another client.
        assert!(matches!(read(3), Err(RejectReason::UnknownResource(_))));
    }

    #[test]
    fn endpoints_are_judged_by_the_rules_of_the_release() {
        let with = |addresses: &[&str]| proto::Backend {
            endpoints: addresses
                .iter()
                .map(|address| proto::Endpoint {
                    address: (*address).into(),
                    port: 443,
                })
                .collect(),
            ..Default::default()
        };
        let cluster = EndpointRules {
            denied: vec![AddressBlock::parse("10.96.0.0/12").unwrap()],
            ..EndpointRules::default()
        };
        let read = |addresses: &[&str], rules: &EndpointRules| {
            backend("team-a/web:443", &with(addresses), rules)
        };
        for (address, why) in [
            ("127.0.0.1", "is a loopback address"),
            ("::1", "is a loopback address"),
            ("::ffff:127.0.0.1", "is a loopback address"),
            ("10.97.0.1", "is in 10.96.0.0/12, which the platform denies"),
            ("169.254.169.254", "is a link-local address"),
            ("168.63.129.16", "is where a cloud serves metadata"),
        ] {
            // Alone, it has the backend rejected.
            let error = read(&[address], &cluster).unwrap_err();
            assert_eq!(error.reason(), "InvalidEndpoint", "{address}");
            assert!(error.to_string().ends_with(why), "{error}");
            // Beside others, it is left out.
            let spec = read(&[address, "10.0.0.1", address, "fd00::1"], &cluster).unwrap();
            let others = ["10.0.0.1:443", "[fd00::1]:443"];
            let others = others.map(|text| text.parse::<SocketAddr>().unwrap());
            assert_eq!(spec.target.endpoints[..], others, "{address}");
            let left_out = spec.left_out.unwrap();
            assert_eq!(left_out.count, 2, "{address}");
            assert!(left_out.first.to_string().ends_with(why), "{address}");
        }
        // A laptop allows its own host, and what no release denies.
        let laptop = EndpointRules::with_loopback();
        for address in ["127.0.0.1", "::1", "10.97.0.1"] {
            let spec = read(&[address], &laptop).unwrap();
            assert_eq!(spec.target.endpoints.len(), 1, "{address}");
            assert!(spec.left_out.is_none(), "{address}");
        }
        assert!(read(&["169.254.169.254"], &laptop).is_err());
        // A backend without endpoints is one.
        let none = read(&[], &cluster).unwrap();
        assert!(none.target.endpoints.is_empty() && none.left_out.is_none());
    }
}
