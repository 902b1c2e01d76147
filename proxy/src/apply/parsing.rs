//! Owns the first half of a change: all resources are read and checked before any of them is put in force.

use std::collections::BTreeMap;

use vestibule_stream::proto::{self, resource::Resource as Wire};
use vestibule_stream::{Resource, ResourceKey};

use super::backend_tls::TlsSpec;
use super::challenges::ChallengeSpec;
use super::parse::{ListenerSpec, OwnerSpec, RouteSpec};
use super::parse_http::{self, HttpRouteSpec};
use super::reject::RejectReason;
use super::tls::HeldCertificate;
use super::trust::HeldTrust;
use super::{Rejects, State, parse};
use crate::backend::Target;
use crate::expiry;

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
}

/// The part of a change that was read so far.
pub(super) struct Parsing {
    pub(super) parsed: Parsed,
    pub(super) rejects: Rejects,
    now: i64,
}

impl Default for Parsing {
    fn default() -> Self {
        Self {
            parsed: Parsed::default(),
            rejects: Rejects::default(),
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
            now,
        } = parsing;
        let name = key.name.as_str();
        let outcome = match &resource.resource {
            None => Err(RejectReason::UnknownResource("the resource")),
            Some(Wire::HttpRoute(wire)) => parse_http::route(name, false, wire).map(|spec| {
                parsed.http_routes.insert(name.to_owned(), spec);
            }),
            Some(Wire::GrpcRoute(wire)) => parse_http::route(name, true, wire).map(|spec| {
                parsed.grpc_routes.insert(name.to_owned(), spec);
            }),
            Some(Wire::TrustBundle(wire)) => HeldTrust::parse(name, wire).map(|trust| {
                parsed.trusts.insert(name.to_owned(), trust);
            }),
            Some(Wire::Challenge(wire)) => ChallengeSpec::parse(name, wire).map(|spec| {
                parsed.challenges.insert(name.to_owned(), spec);
            }),
            Some(Wire::HostnameOwner(wire)) => parse::owner(name, wire).map(|spec| {
                parsed.owners.push(spec);
            }),
            Some(Wire::Listener(wire)) => parse::listener(name, wire).map(|spec| {
                parsed.listeners.insert(name.to_owned(), spec);
            }),
            Some(Wire::TlsRoute(wire)) => parse::route(name, wire).map(|spec| {
                parsed.routes.insert(name.to_owned(), spec);
            }),
            Some(Wire::TcpRoute(wire)) => parse::port_route(name, wire).map(|spec| {
                parsed.tcp_routes.insert(name.to_owned(), spec);
            }),
            Some(Wire::UdpRoute(wire)) => parse::port_route(name, wire).map(|spec| {
                parsed.udp_routes.insert(name.to_owned(), spec);
            }),
            Some(Wire::Backend(wire)) => parse::backend(name, wire).map(|target| {
                let tls = wire.tls.as_ref().map(|tls| TlsSpec::parse(name, tls));
                parsed.backends.insert(name.to_owned(), (target, tls));
            }),
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
