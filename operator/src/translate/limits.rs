//! The limits that Gateways set for their listeners by GatewayParameters.

use std::time::Duration;

use vestibule_model::key::ObjectName;
use vestibule_model::parameters::LimitParameters;
use vestibule_stream::proto;

use super::{Dirty, Translator};

impl Translator {
    /// Reads the limits of the Gateways that changed, or whose parameters did.
    pub(super) fn translate_gateway_limits(&mut self, dirty: &Dirty) {
        for name in &dirty.gateways {
            let limits = self.judge_limits(name);
            if limits == LimitParameters::default() {
                self.gateway_limits.remove(name);
            } else {
                self.gateway_limits.insert(name.clone(), limits);
            }
        }
    }

    /// The limits of a Gateway. Each field comes from the Gateway's own parameters, or else from those of its
    /// class. If parameters cannot be used, the Gateway is refused and sets no limits, so the proxies' own
    /// limits hold.
    fn judge_limits(&self, name: &ObjectName) -> LimitParameters {
        let parameters = self.merge.gateway(name).map(|of| self.parameters(of));
        let layers = parameters.and_then(Result::ok).into_iter().flatten();
        layers.fold(LimitParameters::default(), |set, layer| {
            set.or(layer.limits)
        })
    }

    /// The limits of a Gateway as a message for the proxies.
    pub(super) fn limits_of(&self, gateway: &ObjectName) -> Option<proto::ListenerLimits> {
        let limits = self.gateway_limits.get(gateway)?;
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        Some(proto::ListenerLimits {
            stream_idle: limits.stream_idle.map(millis),
            request: limits.request.map(millis),
            tunnel_idle: limits.tunnel_idle.map(millis),
            connection_age: limits.connection_age.map(millis),
            request_body: limits.request_body,
        })
    }
}
