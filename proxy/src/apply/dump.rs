//! Owns the view of the configuration in force that the admin endpoint shows. It never contains a private key.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use vestibule_model::send_proxy::HeaderVersion;

use super::http::HeldHttpRoute;
use super::routes::HeldRoute;
use super::{CertificateInfo, HeldListener, State};
use crate::attached_names::AttachedNames;
use crate::backend::Backend;
use crate::bounds::Overrides;
use crate::http_route::route::Rule;
use crate::limits::{EscapedSlashes, Underscores};
use crate::slot_map::Slot;
use crate::table::Generation;

/// Everything in force.
#[derive(Debug, serde::Serialize)]
pub struct StateDump {
    /// The generation applied last.
    pub generation: Generation,
    /// By name.
    pub listeners: Vec<ListenerDump>,
    /// By name.
    pub routes: Vec<RouteDump>,
    /// By name.
    pub http_routes: Vec<HttpRouteDump>,
    /// gRPC routes, in the form of the former: the path of a match is `/service/method`.
    pub grpc_routes: Vec<HttpRouteDump>,
    /// By name.
    pub tcp_routes: Vec<PortRouteDump>,
    /// By name.
    pub udp_routes: Vec<PortRouteDump>,
    /// By name. Those that are not held, and to which routes refer, are included.
    pub backends: Vec<BackendDump>,
    /// By name.
    pub certificates: Vec<NamedCertificate>,
    /// By name.
    pub trust_bundles: Vec<TrustDump>,
    /// By name.
    pub challenges: Vec<ChallengeDump>,
    /// By Gateway and hostname.
    pub hostname_owners: Vec<OwnerDump>,
    /// By name: namespaces with shares or a limit of their own.
    pub tenants: Vec<TenantDump>,
    /// By name. The settings themselves are shown with the listeners.
    pub gateway_settings: Vec<GatewaySettingsDump>,
}

/// A listener.
#[derive(Debug, serde::Serialize)]
pub struct ListenerDump {
    /// `<Gateway|ListenerSet>/<namespace>/<object>/<listener>`.
    pub name: String,
    /// `<namespace>/<name>`.
    pub gateway: String,
    /// Namespace.
    pub tenant: String,
    /// `address:port`, with `/udp` at the end for UDP.
    pub bind: String,
    /// Pattern; empty for everything.
    pub hostname: String,
    /// `Passthrough`, `Terminate`, `Http`, `Https`, `Tcp` or `Udp`.
    pub mode: &'static str,
    /// The certificates of a listener that terminates TLS, in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificates: Option<Vec<String>>,
    /// Trust bundles by which a listener validates its clients, if it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_validation: Option<Vec<String>>,
    /// Limits of its Gateway that replace those of the release.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<LimitsDump>,
    /// Whether connections begin with a PROXY header, and from which addresses it is believed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub proxy_protocol: Option<ProxyProtocolDump>,
    /// Which hops are believed about requests, if any is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forwarded_headers: Option<ForwardedHeadersDump>,
    /// Whether connections are served. This is false if the listener terminates TLS and has no usable certificate, or
    /// has nothing by which to validate clients, or if the settings of its Gateway are not held.
    pub serving: bool,
    /// Whether the Gateway's client certificate is shown only to backends that name the Gateway.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub selective_backend_certificate: bool,
}

/// Limits of a Gateway that replace those of the release. 0 means that there is no limit.
#[derive(Debug, serde::Serialize)]
pub struct LimitsDump {
    /// Longest time without a byte of a request or its response, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_idle_ms: Option<u64>,
    /// Longest time of a request, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_ms: Option<u64>,
    /// Longest time without a byte in a tunnel, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tunnel_idle_ms: Option<u64>,
    /// Age at which a connection is ended, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connection_age_ms: Option<u64>,
    /// Largest body of a request, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_body_bytes: Option<u64>,
}

impl LimitsDump {
    fn of(set: &Overrides) -> Self {
        let millis = |time: Option<Duration>| {
            time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
        };
        Self {
            stream_idle_ms: millis(set.stream_idle),
            request_ms: millis(set.request),
            tunnel_idle_ms: millis(set.tunnel_idle),
            connection_age_ms: millis(set.connection_age),
            request_body_bytes: set.request_body,
        }
    }
}

/// How connections to a listener's bind begin.
#[derive(Debug, serde::Serialize)]
pub struct ProxyProtocolDump {
    /// `Strict` or `Optional`.
    pub mode: &'static str,
    /// Blocks of addresses.
    pub trusted: Vec<String>,
}

/// Which hops are believed about requests to a listener's bind.
#[derive(Debug, serde::Serialize)]
pub struct ForwardedHeadersDump {
    /// The header in which they list addresses.
    pub header: &'static str,
    /// How many hops are believed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hops: Option<u8>,
    /// Blocks of addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trusted: Option<Vec<String>>,
}

/// A route.
#[derive(Debug, serde::Serialize)]
pub struct RouteDump {
    /// `<namespace>/<name>`.
    pub name: String,
    /// Namespace.
    pub tenant: String,
    /// Seconds since the Unix epoch.
    pub created: i64,
    /// Where it is attached.
    pub attachments: Vec<AttachmentDump>,
    /// In the order written.
    pub backends: Vec<WeightDump>,
}

/// A TCP or UDP route. Its listeners are selected by port alone.
#[derive(Debug, serde::Serialize)]
pub struct PortRouteDump {
    /// `<namespace>/<name>`.
    pub name: String,
    /// Namespace.
    pub tenant: String,
    /// Seconds since the Unix epoch. If a listener has several routes, the oldest gets all connections or sessions.
    pub created: i64,
    /// Where it is attached.
    pub listeners: Vec<String>,
    /// In the order written.
    pub backends: Vec<WeightDump>,
}

/// An HTTP route.
#[derive(Debug, serde::Serialize)]
pub struct HttpRouteDump {
    /// `<namespace>/<name>`.
    pub name: String,
    /// Namespace.
    pub tenant: String,
    /// Seconds since the Unix epoch.
    pub created: i64,
    /// Where it is attached.
    pub attachments: Vec<AttachmentDump>,
    /// In the order written.
    pub rules: Vec<RuleDump>,
}

/// A rule of an HTTP route.
#[derive(Debug, serde::Serialize)]
pub struct RuleDump {
    /// May be empty.
    pub name: String,
    /// `METHOD path` of each match, with `~` before a regular expression, and `/` after a prefix.
    pub matches: Vec<String>,
    /// How many filters act before a backend is chosen.
    pub filters: usize,
    /// In the order written.
    pub backends: Vec<WeightDump>,
    /// Most retries of a request, if the route has a retry policy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retries: Option<u32>,
    /// Backends that get copies of requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<String>,
    /// The carrier of the session token, if the rule has session persistence: `cookie <name>` or `header <name>`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
}

/// One hostname of a route on one listener.
#[derive(Debug, serde::Serialize)]
pub struct AttachmentDump {
    /// Name of the listener.
    pub listener: String,
    /// Pattern matched against the server name.
    #[serde(rename = "match")]
    pub pattern: String,
    /// The hostname as written.
    pub rank: String,
    /// Whether the route shares the names with their owner.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shared: bool,
    /// The paths of the name to which the route is restricted. If empty, it serves the whole name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<String>,
}

/// A weighted backend reference.
#[derive(Debug, serde::Serialize)]
pub struct WeightDump {
    /// `null` for an invalid reference, which keeps its share.
    pub backend: Option<String>,
    /// Its share.
    pub weight: u32,
}

/// A backend.
#[derive(Debug, serde::Serialize)]
pub struct BackendDump {
    /// `<namespace>/<service>:<port>`, with `/udp` at the end for UDP.
    pub name: String,
    /// False if routes refer to it and the operator did not send it.
    pub held: bool,
    /// `None` for plaintext. False if no connection is made, because the policy is not valid or its trust bundles are
    /// not held.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<bool>,
    /// The version of the PROXY header with which connections to it begin; `None` if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub send_proxy_protocol: Option<&'static str>,
    /// `address:port`.
    pub endpoints: Vec<String>,
    /// Those Gateways that show their client certificate only to chosen backends, and have chosen this one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub certificate_of: Vec<String>,
}

/// A trust bundle.
#[derive(Debug, serde::Serialize)]
pub struct TrustDump {
    /// `<ConfigMap|Secret>/<namespace>/<name>`.
    pub name: String,
    /// How many certificates it has.
    pub certificates: usize,
}

/// A challenge.
#[derive(Debug, serde::Serialize)]
pub struct ChallengeDump {
    /// `<namespace>/<gateway>/<type>/<hostname>[/<token>]`.
    pub name: String,
    /// Namespace.
    pub tenant: String,
    /// `address:port`.
    pub bind: String,
    /// SHA-256 of the certificate or the key authorization, in hexadecimal.
    pub sha256: String,
}

/// The owner of hostnames.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct OwnerDump {
    /// `<namespace>/<name>`.
    pub gateway: String,
    /// Pattern. An empty one stands for every name that no other namespace owns.
    pub hostname: String,
    /// Namespace.
    pub tenant: String,
}

/// How a namespace shares connections with others.
#[derive(Debug, serde::Serialize)]
pub struct TenantDump {
    /// Namespace.
    pub name: String,
    /// Equal shares of the guaranteed connections for which it counts.
    pub connection_shares: u8,
    /// Most connections of its clients, if they have a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_connections: Option<u32>,
}

/// Settings of a Gateway.
#[derive(Debug, serde::Serialize)]
pub struct GatewaySettingsDump {
    /// `<namespace>/<name>` of the Gateway.
    pub name: String,
    /// Its treatment of paths with escaped slashes or backslashes, if it sets one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub escaped_slashes: Option<&'static str>,
    /// Its treatment of headers whose name has an underscore, if it sets one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub underscores: Option<&'static str>,
}

/// A certificate.
#[derive(Debug, serde::Serialize)]
pub struct NamedCertificate {
    /// `<namespace>/<secret>`.
    pub name: String,
    /// Public facts.
    #[serde(flatten)]
    pub info: Option<CertificateInfo>,
}

fn texts(names: &[Arc<str>]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

impl State {
    /// The configuration in force.
    #[must_use]
    pub fn dump(&self) -> StateDump {
        StateDump {
            generation: self.snapshot.generation(),
            listeners: self.dump_listeners(),
            routes: self.dump_routes(),
            http_routes: self.dump_http_routes(&self.http_routes),
            grpc_routes: self.dump_http_routes(&self.grpc_routes),
            tcp_routes: self.dump_port_routes(&self.tcp_routes),
            udp_routes: self.dump_port_routes(&self.udp_routes),
            backends: self
                .backends
                .iter()
                .map(|(name, held)| {
                    let target = self.snapshot.backend(held.slot).map(|of| &of.target);
                    let tls = target.and_then(|target| target.tls.as_ref());
                    let send_proxy = target.and_then(|target| target.send_proxy);
                    let endpoints = target.iter().flat_map(|target| target.endpoints.iter());
                    let shown = target.iter().flat_map(|target| &target.certificate_of);
                    BackendDump {
                        name: name.to_string(),
                        held: held.held,
                        tls: tls.map(|tls| !tls.is_closed()),
                        send_proxy_protocol: send_proxy.map(HeaderVersion::as_str),
                        endpoints: endpoints.map(ToString::to_string).collect(),
                        certificate_of: shown.map(ToString::to_string).collect(),
                    }
                })
                .collect(),
            certificates: self
                .certificates
                .iter()
                .map(|(name, certificate)| NamedCertificate {
                    name: name.to_string(),
                    info: certificate.info(),
                })
                .collect(),
            trust_bundles: self
                .trusts
                .iter()
                .map(|(name, trust)| TrustDump {
                    name: name.to_string(),
                    certificates: trust.len(),
                })
                .collect(),
            challenges: self
                .challenges
                .iter()
                .map(|(name, held)| ChallengeDump {
                    name: name.to_string(),
                    tenant: held.challenge.tenant.to_string(),
                    bind: held.selection_key.0.to_string(),
                    sha256: held.sha256.to_string(),
                })
                .collect(),
            hostname_owners: self.dump_owners(),
            tenants: self.dump_tenants(),
            gateway_settings: self
                .gateway_settings
                .iter()
                .map(|(name, settings)| GatewaySettingsDump {
                    name: name.to_string(),
                    escaped_slashes: settings.http.escaped_slashes.map(EscapedSlashes::as_str),
                    underscores: settings.http.underscores.map(Underscores::as_str),
                })
                .collect(),
        }
    }

    fn dump_tenants(&self) -> Vec<TenantDump> {
        let limits = self.accounts.limits().into_iter();
        limits
            .map(|(name, limits)| TenantDump {
                name: name.to_string(),
                connection_shares: limits.shares,
                max_connections: limits.most_connections.map(NonZeroU32::get),
            })
            .collect()
    }

    fn dump_owners(&self) -> Vec<OwnerDump> {
        let owners = self.snapshot.owners().iter();
        let owners = owners.map(|(gateway, names, tenant)| OwnerDump {
            gateway: gateway.to_string(),
            hostname: names.to_string(),
            tenant: tenant.tenant().to_string(),
        });
        let mut owners: Vec<_> = owners.collect();
        owners.sort();
        owners
    }

    fn dump_listeners(&self) -> Vec<ListenerDump> {
        self.listeners
            .iter()
            .map(|(name, held)| ListenerDump {
                name: name.to_string(),
                gateway: held.built.gateway.to_string(),
                tenant: held.built.tenant.to_string(),
                bind: held.bind.to_string(),
                hostname: held.pattern.to_string(),
                mode: held.built.mode.kind(),
                certificates: held
                    .terminate
                    .as_ref()
                    .map(|terminate| texts(&terminate.certificates)),
                client_validation: held
                    .terminate
                    .as_ref()
                    .and_then(|terminate| terminate.validation.as_deref())
                    .map(|(bundles, _)| texts(bundles)),
                limits: held.built.overrides().map(LimitsDump::of),
                proxy_protocol: self.dump_proxy_protocol(held),
                forwarded_headers: self.dump_forwarded_headers(held),
                serving: held.built.mode.is_serving() && !held.built.lacks_settings(),
                selective_backend_certificate: held
                    .built
                    .settings
                    .of_gateway()
                    .is_some_and(|settings| settings.selective),
            })
            .collect()
    }

    fn dump_proxy_protocol(&self, held: &HeldListener) -> Option<ProxyProtocolDump> {
        let how = self.snapshot.client_address(&held.bind)?;
        let protocol = how.proxy_protocol.as_ref()?;
        Some(ProxyProtocolDump {
            mode: protocol.mode.as_str(),
            trusted: protocol.trusted.iter().map(ToString::to_string).collect(),
        })
    }

    fn dump_forwarded_headers(&self, held: &HeldListener) -> Option<ForwardedHeadersDump> {
        let how = self.snapshot.client_address(&held.bind)?;
        let forwarded = how.forwarded.as_ref()?;
        let trusted = forwarded.trusted();
        Some(ForwardedHeadersDump {
            header: forwarded.header().as_str(),
            hops: forwarded.hops(),
            trusted: trusted.map(|blocks| blocks.iter().map(ToString::to_string).collect()),
        })
    }

    fn dump_routes(&self) -> Vec<RouteDump> {
        self.routes
            .iter()
            .map(|(name, held)| RouteDump {
                name: name.to_string(),
                tenant: held.route.tenant.to_string(),
                created: held.route.created,
                attachments: held.attachments.to.iter().map(AttachmentDump::of).collect(),
                backends: held
                    .route
                    .backends()
                    .iter()
                    .map(|b| self.dump_weight(b.backend, b.weight))
                    .collect(),
            })
            .collect()
    }

    fn dump_port_routes(&self, routes: &BTreeMap<Arc<str>, HeldRoute>) -> Vec<PortRouteDump> {
        let routes = routes.iter().map(|(name, held)| PortRouteDump {
            name: name.to_string(),
            tenant: held.route.tenant.to_string(),
            created: held.route.created,
            listeners: held
                .attachments
                .to
                .iter()
                .map(|(listener, _)| listener.to_string())
                .collect(),
            backends: held
                .route
                .backends()
                .iter()
                .map(|b| self.dump_weight(b.backend, b.weight))
                .collect(),
        });
        routes.collect()
    }

    fn dump_weight(&self, slot: Option<Slot<Backend>>, weight: u32) -> WeightDump {
        let backend = slot.and_then(|slot| self.snapshot.backend(slot));
        WeightDump {
            backend: backend.map(|backend| backend.key.to_string()),
            weight,
        }
    }

    fn dump_http_routes(&self, routes: &BTreeMap<Arc<str>, HeldHttpRoute>) -> Vec<HttpRouteDump> {
        let rule = |rule: &Rule| RuleDump {
            name: rule.name.to_string(),
            matches: rule.matches().iter().map(ToString::to_string).collect(),
            filters: rule.filters.len(),
            backends: rule
                .backends()
                .iter()
                .map(|b| self.dump_weight(b.backend, b.weight))
                .collect(),
            retries: rule.retry.as_ref().map(|retry| retry.attempts),
            mirrors: rule
                .mirrors()
                .filter_map(|slot| Some(self.snapshot.backend(slot)?.key.to_string()))
                .collect(),
            session: rule.session.as_ref().map(ToString::to_string),
        };
        routes
            .iter()
            .map(|(name, held)| HttpRouteDump {
                name: name.to_string(),
                tenant: held.route.tenant.to_string(),
                created: held.route.created,
                attachments: held.attachments.to.iter().map(AttachmentDump::of).collect(),
                rules: held.route.rules().iter().map(rule).collect(),
            })
            .collect()
    }
}

impl AttachmentDump {
    fn of((listener, names): &(Arc<str>, AttachedNames)) -> Self {
        Self {
            listener: listener.to_string(),
            pattern: names.pattern.to_string(),
            rank: names.rank().to_string(),
            shared: names.shared,
            paths: names.paths().iter().map(ToString::to_string).collect(),
        }
    }
}
