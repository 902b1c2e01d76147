//! The limits that Gateways set for their listeners by GatewayParameters.

use std::time::Duration;

use vestibule_model::key::{ObjectName, ParentKey};
use vestibule_model::parameters::LimitParameters;
use vestibule_stream::proto;

use super::{Dirty, Translator};

impl Translator {
    /// Reads the limits of the Gateways that changed, or whose parameters did; where something else comes out,
    /// their listeners are judged again.
    pub(super) fn translate_gateway_limits(&mut self, dirty: &mut Dirty) {
        for name in dirty.gateways.clone() {
            let limits = self.judge_limits(&name);
            let old = if limits == LimitParameters::default() {
                self.gateway_limits.remove(&name)
            } else {
                self.gateway_limits.insert(name.clone(), limits)
            };
            if old.unwrap_or_default() == limits {
                continue;
            }
            let sets = self.merge.sets_of(&name).cloned();
            let sets: Vec<ParentKey> = sets.map(ParentKey::ListenerSet).collect();
            for parent in sets.into_iter().chain([ParentKey::Gateway(name)]) {
                self.index.dirty_listeners(&parent, dirty);
            }
        }
    }

    /// Field by field those of the Gateway's own parameters, then of its class's. Parameters that cannot be used
    /// refuse the Gateway and set nothing here: the proxies' own limits count then.
    fn judge_limits(&self, name: &ObjectName) -> LimitParameters {
        let parameters = self.merge.gateway(name).map(|of| self.parameters(of));
        let layers = parameters.and_then(Result::ok).into_iter().flatten();
        layers.fold(LimitParameters::default(), |set, layer| {
            set.or(layer.limits)
        })
    }

    /// What the proxies are told of a Gateway's limits.
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
