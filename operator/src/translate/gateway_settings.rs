//! The settings of Gateways, as resources for the proxies. What a Gateway sets for all of its listeners is one resource,
//! however many listeners it has.

use prost::Message as _;
use vestibule_model::key::ObjectName;
use vestibule_model::parameters::{EscapedSlashes, HttpParameters, Underscores};
use vestibule_stream::proto::{self, resource};
use vestibule_stream::{Encoded, Resource, ResourceKey, ResourceKind};

use super::{Dirty, Output, Translator};

impl Translator {
    /// Brings up to date what the proxies get about Gateways that changed. Every Gateway of ours has settings, even if they
    /// say nothing, because the proxies serve a listener only by the settings of its Gateway. Call it before listeners are
    /// judged, because the settings take part of the same total of bytes.
    pub(super) fn translate_gateway_settings(&mut self, dirty: &mut Dirty, output: &mut Output) {
        let mut gateways = std::mem::take(&mut dirty.settings);
        gateways.extend(dirty.gateways.iter().cloned());
        for name in gateways {
            let created = self.merge.gateway(&name).map(|of| of.meta.created);
            let settings = created.map(|_| self.gateway_settings(&name));
            let bytes = settings.as_ref().map_or(0, size);
            self.listener_budgets
                .put_settings(&name, created.unwrap_or_default(), bytes);
            let resource = settings.and_then(|settings| {
                let settings = resource::Resource::GatewaySettings(settings);
                // Only a name could make it too large, and the API bounds names.
                Encoded::new(&Resource::new(name.to_string(), settings)).ok()
            });
            self.settle_resource(settings_resource(&name), resource, output);
        }
    }

    fn gateway_settings(&self, gateway: &ObjectName) -> proto::GatewaySettings {
        let certificate = self.backend_certificate(gateway);
        let (selective_backend_certificate, backend_certificate) = if self.is_selective(gateway) {
            (certificate, String::new())
        } else {
            (String::new(), certificate)
        };
        proto::GatewaySettings {
            backend_certificate,
            selective_backend_certificate,
            client_address: self.encoded_client_address(gateway),
            limits: self.limits_of(gateway),
            http: self.http_settings(gateway),
        }
    }

    /// The treatment of requests that backends could read in another way, as a message for the proxies. Parameters that
    /// are not known might ask for protection, so no laxer setting of the class or of the release takes their place.
    fn http_settings(&self, gateway: &ObjectName) -> Option<proto::HttpSettings> {
        let gateway = self.merge.gateway(gateway)?;
        let settings = self.readable_parameters(gateway);
        let settings =
            settings.map(|known| known.map_or(HttpParameters::FOR_UNKNOWN, |of| of.http));
        let set = settings.fold(HttpParameters::default(), HttpParameters::or);
        (set != HttpParameters::default()).then(|| proto::HttpSettings {
            escaped_slashes: set
                .escaped_slashes
                .map_or(0, |of| escaped_slashes(of).into()),
            underscores: set.underscores.map_or(0, |of| underscores(of).into()),
        })
    }
}

fn escaped_slashes(of: EscapedSlashes) -> proto::EscapedSlashes {
    match of {
        EscapedSlashes::Refuse => proto::EscapedSlashes::Refuse,
        EscapedSlashes::Unescape => proto::EscapedSlashes::Unescape,
        EscapedSlashes::Keep => proto::EscapedSlashes::Keep,
    }
}

fn underscores(of: Underscores) -> proto::Underscores {
    match of {
        Underscores::Drop => proto::Underscores::Drop,
        Underscores::Refuse => proto::Underscores::Refuse,
        Underscores::Allow => proto::Underscores::Allow,
    }
}

/// How many bytes count of settings in the configuration: none if they say nothing, because then they are a few bytes for each
/// Gateway.
fn size(settings: &proto::GatewaySettings) -> u64 {
    u64::try_from(settings.encoded_len()).unwrap_or(u64::MAX)
}

/// The key of the settings of a Gateway.
pub(super) fn settings_resource(gateway: &ObjectName) -> ResourceKey {
    ResourceKey::new(ResourceKind::GatewaySettings, gateway.to_string())
}
