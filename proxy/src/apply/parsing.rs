//! Owns the first half of a change: all resources are read and checked before any of them is put in force.

use std::collections::{BTreeMap, HashSet};

use vestibule_model::hostname::{HostPattern, Hostname};
use vestibule_stream::proto::{self, resource::Resource as Wire};
use vestibule_stream::{Resource, ResourceKey};

use super::backend_tls::TlsSpec;
use super::challenges::ChallengeSpec;
use super::gateway_settings::{self, GatewaySettingsSpec};
use super::parse::{LeftOut, ListenerSpec, OwnerSpec, RouteSpec};
use super::parse_http::{self, HttpRouteSpec};
use super::reject::RejectReason;
use super::tls::HeldCertificate;
use super::trust::HeldTrust;
use super::{Rejects, State, parse};
use crate::attached_names::AttachedNames;
use crate::backend::Target;
use crate::expiry;
use crate::quota::TenantLimits;

/// The upserts of a change that passed their checks, by kind.
#[derive(Default)]
pub(super) struct Parsed {
    pub(super) listeners: BTreeMap<String, ListenerSpec>,
    pub(super) routes: BTreeMap<String, RouteSpec>,
    pub(super) http_routes: BTreeMap<String, HttpRouteSpec>,
    pub(super) grpc_routes: BTreeMap<String, HttpRouteSpec>,
    pub(super) tcp_routes: BTreeMap<String, RouteSpec>,
    pub(super) udp_routes: BTreeMap<String, RouteSpec>,
    pub(super) backends: BTreeMap<String, (Target, Option<TlsSpec>)>,
    pub(super) certificates: BTreeMap<String, HeldCertificate>,
    /// The certificates whose Secret is another one than before. If the new version is rejected, the old one is no
    /// substitute for it.
    pub(super) lost_certificates: Vec<String>,
    pub(super) trusts: BTreeMap<String, HeldTrust>,
    pub(super) challenges: BTreeMap<String, ChallengeSpec>,
    pub(super) owners: Vec<OwnerSpec>,
    pub(super) tenants: Vec<(String, TenantLimits)>,
    pub(super) gateway_settings: BTreeMap<String, GatewaySettingsSpec>,
}

impl Parsed {
    /// The number of all resources.
    pub(super) fn len(&self) -> usize {
        let routes = self.routes.len() + self.http_routes.len() + self.grpc_routes.len();
        let of_ports = self.tcp_routes.len() + self.udp_routes.len();
        let rest = self.listeners.len() + self.backends.len() + self.certificates.len();
        let few = self.trusts.len() + self.challenges.len() + self.owners.len();
        routes + of_ports + rest + few + self.tenants.len() + self.gateway_settings.len()
    }
}

/// The part of a change that was read so far.
pub(super) struct Parsing {
    pub(super) parsed: Parsed,
    pub(super) rejects: Rejects,
    pub(super) left_out: LeftOutEndpoints,
    hostnames: Hostnames,
    now: i64,
}

/// Most backends of one change whose endpoints that are left out are logged.
const MOST_LOGGED: u32 = 10;

/// The endpoints that are left out of backends, which are put in force with their other endpoints.
#[derive(Default)]
pub(super) struct LeftOutEndpoints {
    /// How many endpoints they are.
    pub(super) endpoints: u64,
    logged: u32,
}

impl LeftOutEndpoints {
    /// Counts endpoints of `backend`, and logs the first ones of a change. The metric counts all of them.
    fn add(&mut self, backend: &str, left_out: &LeftOut) {
        self.endpoints += left_out.count;
        if self.logged < MOST_LOGGED {
            self.logged += 1;
            tracing::warn!(
                backend,
                endpoints = left_out.count,
                "endpoints of a backend are left out: {}",
                left_out.first
            );
        }
    }
}

/// The hostnames that were read so far. A hostname has a listener, an owner and a route, which share its text if they come
/// in one change.
#[derive(Default)]
struct Hostnames(HashSet<Hostname>);

impl Hostnames {
    fn share(&mut self, pattern: &mut HostPattern) {
        let (HostPattern::Wildcard(name) | HostPattern::Exact(name)) = pattern else {
            return;
        };
        match self.0.get(name) {
            Some(known) => *name = known.clone(),
            None => _ = self.0.insert(name.clone()),
        }
    }

    fn share_all(&mut self, attachments: &mut [(String, AttachedNames)]) {
        for (_, names) in attachments {
            self.share(&mut names.pattern);
        }
    }
}

impl Default for Parsing {
    fn default() -> Self {
        Self {
            parsed: Parsed::default(),
            rejects: Rejects::default(),
            left_out: LeftOutEndpoints::default(),
            hostnames: Hostnames::default(),
            now: expiry::now(),
        }
    }
}

impl State {
    /// Reads one resource. It is added to those that will be put in force, or rejected.
    pub(super) fn parse(&self, key: &ResourceKey, resource: &Resource, parsing: &mut Parsing) {
        let Parsing {
            parsed,
            rejects,
            left_out,
            hostnames,
            now,
        } = parsing;
        let name = key.name.as_str();
        let outcome = match &resource.resource {
            None => Err(RejectReason::UnknownResource("the resource")),
            Some(Wire::HttpRoute(wire)) => parse_http::route(name, false, wire).map(|mut spec| {
                hostnames.share_all(&mut spec.attachments);
                parsed.http_routes.insert(name.to_owned(), spec);
            }),
            Some(Wire::GrpcRoute(wire)) => parse_http::route(name, true, wire).map(|mut spec| {
                hostnames.share_all(&mut spec.attachments);
                parsed.grpc_routes.insert(name.to_owned(), spec);
            }),
            Some(Wire::TrustBundle(wire)) => HeldTrust::parse(name, wire).map(|trust| {
                parsed.trusts.insert(name.to_owned(), trust);
            }),
            Some(Wire::Challenge(wire)) => ChallengeSpec::parse(name, wire).map(|spec| {
                parsed.challenges.insert(name.to_owned(), spec);
            }),
            Some(Wire::HostnameOwner(wire)) => parse::owner(name, wire).map(|mut spec| {
                hostnames.share(&mut spec.names);
                parsed.owners.push(spec);
            }),
            Some(Wire::Tenant(wire)) => parse::tenant(name, *wire).map(|limits| {
                parsed.tenants.push((name.to_owned(), limits));
            }),
            Some(Wire::GatewaySettings(wire)) => gateway_settings::parse(name, wire).map(|spec| {
                parsed.gateway_settings.insert(name.to_owned(), spec);
            }),
            Some(Wire::Listener(wire)) => parse::listener(name, wire).map(|mut spec| {
                hostnames.share(&mut spec.pattern);
                parsed.listeners.insert(name.to_owned(), spec);
            }),
            Some(Wire::TlsRoute(wire)) => parse::route(name, wire).map(|mut spec| {
                hostnames.share_all(&mut spec.attachments);
                parsed.routes.insert(name.to_owned(), spec);
            }),
            Some(Wire::TcpRoute(wire)) => parse::port_route(name, wire).map(|spec| {
                parsed.tcp_routes.insert(name.to_owned(), spec);
            }),
            Some(Wire::UdpRoute(wire)) => parse::port_route(name, wire).map(|spec| {
                parsed.udp_routes.insert(name.to_owned(), spec);
            }),
            Some(Wire::Backend(wire)) => {
                parse::backend(name, wire, &self.endpoint_rules).map(|spec| {
                    if let Some(endpoints) = &spec.left_out {
                        left_out.add(name, endpoints);
                    }
                    let tls = wire.tls.as_ref().map(|tls| TlsSpec::parse(name, tls));
                    parsed.backends.insert(name.to_owned(), (spec.target, tls));
                })
            }
            Some(Wire::Certificate(wire)) => {
                let held = self.certificates.get(name);
                let last_good = held.filter(|held| held.is_of_secret_of(wire));
                if held.is_some() && last_good.is_none() {
                    parsed.lost_certificates.push(name.to_owned());
                }
                certificate(name, wire, last_good, *now).map(|certificate| {
                    parsed.certificates.insert(name.to_owned(), certificate);
                })
            }
        };
        if let Err(reason) = outcome {
            rejects.add(key.clone(), &reason);
        }
    }
}

/// Reads a certificate. It is rejected if it is of less use than the last good version.
fn certificate(
    name: &str,
    wire: &proto::Certificate,
    last_good: Option<&HeldCertificate>,
    now: i64,
) -> Result<HeldCertificate, RejectReason> {
    let certificate = HeldCertificate::parse(name, wire)?;
    match last_good.and_then(|held| certificate.is_worse_than(held, now)) {
        Some(reason) => Err(reason),
        None => Ok(certificate),
    }
}
