//! How the proxies find the address of a client on a Gateway. The parameters of the Gateway and of its class say
//! it, for the Gateway's own listeners and those of its ListenerSets.

use vestibule_model::certificate::AddressBlock;
use vestibule_model::client_address::{
    ClientAddress, ForwardedHeader, ForwardedHeaders, ProxyProtocol, ProxyProtocolMode,
};
use vestibule_model::gateway::Gateway;
use vestibule_model::key::ObjectName;
use vestibule_stream::proto;

use super::{Dirty, Translator};

impl Translator {
    /// Reads what the parameters of changed Gateways say.
    pub(super) fn translate_client_addresses(&mut self, dirty: &Dirty) {
        for name in &dirty.gateways {
            let how = self.merge.gateway(name).map(|of| self.client_address(of));
            match how.filter(|how| *how != ClientAddress::default()) {
                Some(how) => self.client_addresses.insert(name.clone(), how),
                None => self.client_addresses.remove(name),
            };
        }
    }

    /// Merges the parameters of a Gateway and of its class. Parameters that cannot be read might say that nobody is
    /// believed. So they count as if they did: the class's settings do not take the place of a Gateway's own ones that
    /// are unknown. The Gateway's status says what cannot be read, and the Gateway goes on serving.
    fn client_address(&self, gateway: &Gateway) -> ClientAddress {
        let nobody = ClientAddress::believing_nobody();
        let parameters = self.readable_parameters(gateway);
        let settings = parameters.map(|known| match known {
            Some(parameters) => &parameters.client_address,
            None => &nobody,
        });
        ClientAddress::merge(settings).effective()
    }

    /// The same setting as a message for the proxies.
    pub(super) fn encoded_client_address(
        &self,
        gateway: &ObjectName,
    ) -> Option<proto::ClientAddress> {
        let how = self.client_addresses.get(gateway)?;
        Some(proto::ClientAddress {
            proxy_protocol: how.proxy_protocol.as_ref().and_then(proxy_protocol),
            forwarded_headers: how.forwarded.as_ref().map(forwarded_headers),
        })
    }
}

fn proxy_protocol(of: &ProxyProtocol) -> Option<proto::ProxyProtocol> {
    let mode = match of.mode {
        ProxyProtocolMode::Strict => proto::ProxyProtocolMode::Strict,
        ProxyProtocolMode::Optional => proto::ProxyProtocolMode::Optional,
        ProxyProtocolMode::Disabled => return None,
    };
    Some(proto::ProxyProtocol {
        mode: mode.into(),
        trusted_cidrs: texts(&of.trusted),
    })
}

fn forwarded_headers(of: &ForwardedHeaders) -> proto::ForwardedHeaders {
    let header = match of.header() {
        ForwardedHeader::XForwardedFor => proto::ForwardedHeader::XForwardedFor,
        ForwardedHeader::Forwarded => proto::ForwardedHeader::Forwarded,
    };
    proto::ForwardedHeaders {
        header: header.into(),
        trusted_hops: of.hops().map(u32::from),
        trusted: of.trusted().map(|blocks| proto::Cidrs {
            cidrs: texts(blocks),
        }),
    }
}

fn texts(blocks: &[AddressBlock]) -> Vec<String> {
    blocks.iter().map(ToString::to_string).collect()
}
