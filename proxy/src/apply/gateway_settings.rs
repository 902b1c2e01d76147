//! Owns the settings of Gateways, and the listeners that serve by them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vestibule_model::client_address::ClientAddress;
use vestibule_stream::proto;

use super::parse::ListenerSpec;
use super::reject::RejectReason;
use super::resource_names::two_segments;
use super::{State, parse_client_address};
use crate::bounds::Overrides;
use crate::limits::{EscapedSlashes, HttpOverrides, Underscores};
use crate::listener::{GatewaySettings, Listener, ListenerSettings};

/// The settings of a Gateway that can be put in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GatewaySettingsSpec {
    /// Name of the certificate that is shown to backends.
    backend_certificate: Option<String>,
    /// Whether it is shown only to backends that name the Gateway.
    selective: bool,
    /// Limits that the Gateway sets.
    overrides: Option<Overrides>,
    /// How the address of a client is found.
    client_address: Option<Arc<ClientAddress>>,
    /// The treatment of ambiguous requests.
    http: HttpOverrides,
}

/// Reads the settings of a Gateway.
pub(super) fn parse(
    name: &str,
    wire: &proto::GatewaySettings,
) -> Result<GatewaySettingsSpec, RejectReason> {
    two_segments(name, "<namespace>/<gateway>")?;
    let certificates = [
        &wire.selective_backend_certificate,
        &wire.backend_certificate,
    ];
    let client_address = wire.client_address.as_ref();
    let client_address = client_address
        .map(parse_client_address::parse)
        .transpose()?;
    Ok(GatewaySettingsSpec {
        backend_certificate: certificates
            .into_iter()
            .find(|name| !name.is_empty())
            .cloned(),
        selective: !wire.selective_backend_certificate.is_empty(),
        overrides: wire.limits.as_ref().map(Overrides::from),
        client_address: client_address.map(Arc::new),
        http: wire.http.map(http).transpose()?.unwrap_or_default(),
    })
}

/// Reads the treatment of ambiguous requests. Anything unknown is rejected, because it may be stricter than what this
/// release knows.
fn http(wire: proto::HttpSettings) -> Result<HttpOverrides, RejectReason> {
    let escaped_slashes = match proto::EscapedSlashes::try_from(wire.escaped_slashes) {
        Ok(proto::EscapedSlashes::Unspecified) => None,
        Ok(proto::EscapedSlashes::Refuse) => Some(EscapedSlashes::Refuse),
        Ok(proto::EscapedSlashes::Unescape) => Some(EscapedSlashes::Unescape),
        Ok(proto::EscapedSlashes::Keep) => Some(EscapedSlashes::Keep),
        Err(_) => return Err(RejectReason::UnknownResource("the setting of slashes")),
    };
    let underscores = match proto::Underscores::try_from(wire.underscores) {
        Ok(proto::Underscores::Unspecified) => None,
        Ok(proto::Underscores::Drop) => Some(Underscores::Drop),
        Ok(proto::Underscores::Refuse) => Some(Underscores::Refuse),
        Ok(proto::Underscores::Allow) => Some(Underscores::Allow),
        Err(_) => return Err(RejectReason::UnknownResource("the setting of underscores")),
    };
    Ok(HttpOverrides {
        underscores,
        escaped_slashes,
    })
}

impl State {
    /// Puts settings in force, and returns the held listeners that have to follow. Listeners in `renewed` are left out,
    /// because they are made anew in any case. Call it before that.
    pub(super) fn put_gateway_settings<'a>(
        &mut self,
        removed: impl Iterator<Item = &'a str>,
        settings: BTreeMap<String, GatewaySettingsSpec>,
        renewed: &BTreeMap<String, ListenerSpec>,
    ) -> Vec<Arc<str>> {
        let mut changed = BTreeSet::new();
        for name in removed {
            if let Some((gateway, _)) = self.gateway_settings.remove_entry(name) {
                changed.insert(gateway);
            }
        }
        for (name, spec) in settings {
            let gateway = self.names.intern(&name);
            let certificate = spec.backend_certificate;
            let settings = GatewaySettings {
                backend_certificate: certificate.map(|name| self.shown_slot(&name)),
                selective: spec.selective,
                overrides: spec.overrides,
                client_address: spec.client_address,
                http: spec.http,
            };
            self.gateway_settings
                .insert(Arc::clone(&gateway), Arc::new(settings));
            changed.insert(gateway);
        }
        if changed.is_empty() {
            return Vec::new();
        }
        // A Gateway's settings change rarely, so there is no index of its listeners.
        let held = self.listeners.iter();
        held.filter(|(name, held)| {
            let follows = changed.contains(&held.built.gateway);
            follows && held.built.settings.are_needed() && !renewed.contains_key(&***name)
        })
        .map(|(name, _)| Arc::clone(name))
        .collect()
    }

    /// The settings of a listener of `gateway`. `needed` says whether it serves by those of its Gateway.
    pub(super) fn listener_settings(&self, gateway: &str, needed: bool) -> ListenerSettings {
        if !needed {
            return ListenerSettings::OfRelease;
        }
        match self.gateway_settings.get(gateway) {
            Some(settings) => ListenerSettings::OfGateway(Arc::clone(settings)),
            None => ListenerSettings::Missing,
        }
    }

    /// Makes a listener anew with the present settings of its Gateway, and with everything else as it is.
    pub(super) fn renew_settings(&mut self, name: &str) {
        let Some(held) = self.listeners.get(name) else {
            return;
        };
        let mut next = Listener::clone(&held.built);
        next.settings = self.listener_settings(&next.gateway, next.settings.are_needed());
        if let Some(held) = self.listeners.get_mut(name) {
            held.built = Arc::new(next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire() -> proto::GatewaySettings {
        proto::GatewaySettings {
            selective_backend_certificate: "infra/client".into(),
            client_address: Some(proto::ClientAddress::default()),
            limits: Some(proto::ListenerLimits {
                tunnel_idle: Some(7),
                ..Default::default()
            }),
            http: Some(proto::HttpSettings {
                escaped_slashes: proto::EscapedSlashes::Keep.into(),
                underscores: proto::Underscores::Allow.into(),
            }),
            ..Default::default()
        }
    }

    #[test]
    fn everything_is_read() {
        let spec = parse("infra/edge", &wire()).unwrap();
        assert_eq!(spec.backend_certificate.as_deref(), Some("infra/client"));
        assert!(spec.selective);
        assert_eq!(spec.overrides, wire().limits.as_ref().map(Overrides::from));
        let nobody = Arc::new(ClientAddress::default());
        assert_eq!(spec.client_address, Some(nobody));
        let lax = HttpOverrides {
            underscores: Some(Underscores::Allow),
            escaped_slashes: Some(EscapedSlashes::Keep),
        };
        assert_eq!(spec.http, lax);
        let to_all = proto::GatewaySettings {
            backend_certificate: "infra/client".into(),
            ..Default::default()
        };
        let spec = parse("infra/edge", &to_all).unwrap();
        assert_eq!(spec.backend_certificate.as_deref(), Some("infra/client"));
        assert!(!spec.selective);
        let spec = parse("infra/edge", &proto::GatewaySettings::default()).unwrap();
        assert_eq!((spec.backend_certificate, spec.overrides), (None, None));
        assert_eq!(spec.client_address, None);
        assert_eq!(spec.http, HttpOverrides::default());
    }

    #[test]
    fn each_word_for_http_is_read_and_others_are_rejected() {
        let read = |escaped_slashes, underscores| {
            let settings = proto::HttpSettings {
                escaped_slashes,
                underscores,
            };
            http(settings).map(|read| (read.escaped_slashes, read.underscores))
        };
        for (slashes, underscores, expected) in [
            (0, 0, (None, None)),
            (
                1,
                1,
                (Some(EscapedSlashes::Refuse), Some(Underscores::Drop)),
            ),
            (
                2,
                2,
                (Some(EscapedSlashes::Unescape), Some(Underscores::Refuse)),
            ),
            (3, 3, (Some(EscapedSlashes::Keep), Some(Underscores::Allow))),
            (0, 3, (None, Some(Underscores::Allow))),
        ] {
            assert_eq!(read(slashes, underscores).unwrap(), expected);
        }
        for (slashes, underscores) in [(4, 0), (-1, 0), (0, 4), (0, -1)] {
            let error = read(slashes, underscores).unwrap_err();
            assert_eq!(error.reason(), "UnknownResource");
        }
    }

    #[test]
    fn bad_settings_say_why() {
        for name in ["", "edge", "infra/edge/x", "infra/"] {
            let error = parse(name, &wire()).unwrap_err();
            assert_eq!(error.reason(), "InvalidName", "{name:?}");
        }
        let mut wire = wire();
        let how = wire.client_address.as_mut().unwrap();
        how.proxy_protocol = Some(proto::ProxyProtocol {
            mode: proto::ProxyProtocolMode::Strict.into(),
            trusted_cidrs: vec!["192.0.2.1/24".into()],
        });
        let error = parse("infra/edge", &wire).unwrap_err();
        assert_eq!(error.reason(), "InvalidBlock");
    }
}
