//! Reads the settings by which the listeners of a Gateway find the addresses of their clients.

use vestibule_model::certificate::AddressBlock;
use vestibule_model::client_address::{
    ClientAddress, ForwardedHeader, ForwardedHeaders, MAX_HOPS, MAX_TRUSTED, ProxyProtocol,
    ProxyProtocolMode,
};
use vestibule_stream::proto;

use super::reject::RejectReason;

/// Reads these settings. Anything unknown is rejected, because one mode is stricter than another.
pub(super) fn parse(wire: &proto::ClientAddress) -> Result<ClientAddress, RejectReason> {
    Ok(ClientAddress {
        proxy_protocol: wire
            .proxy_protocol
            .as_ref()
            .map(proxy_protocol)
            .transpose()?,
        forwarded: wire
            .forwarded_headers
            .as_ref()
            .map(forwarded_headers)
            .transpose()?,
    })
}

fn proxy_protocol(wire: &proto::ProxyProtocol) -> Result<ProxyProtocol, RejectReason> {
    let mode = match proto::ProxyProtocolMode::try_from(wire.mode) {
        Ok(proto::ProxyProtocolMode::Strict) => ProxyProtocolMode::Strict,
        Ok(proto::ProxyProtocolMode::Optional) => ProxyProtocolMode::Optional,
        _ => return Err(RejectReason::UnknownResource("the PROXY protocol's mode")),
    };
    Ok(ProxyProtocol {
        mode,
        trusted: blocks(&wire.trusted_cidrs)?,
    })
}

fn forwarded_headers(wire: &proto::ForwardedHeaders) -> Result<ForwardedHeaders, RejectReason> {
    let header = match proto::ForwardedHeader::try_from(wire.header) {
        Ok(proto::ForwardedHeader::XForwardedFor) => ForwardedHeader::XForwardedFor,
        Ok(proto::ForwardedHeader::Forwarded) => ForwardedHeader::Forwarded,
        _ => return Err(RejectReason::UnknownResource("the header of trusted hops")),
    };
    let hops = wire.trusted_hops.map(|hops| {
        let hops = u8::try_from(hops).ok().filter(|hops| *hops <= MAX_HOPS);
        hops.ok_or(RejectReason::TooLarge("the number of trusted hops"))
    });
    let trusted = wire.trusted.as_ref().map(|trusted| blocks(&trusted.cidrs));
    let read = ForwardedHeaders::new(header, hops.transpose()?, trusted.transpose()?);
    read.ok_or(RejectReason::MissingField("whom to trust"))
}

fn blocks(wire: &[String]) -> Result<Vec<AddressBlock>, RejectReason> {
    if wire.len() > MAX_TRUSTED {
        return Err(RejectReason::TooLarge("the list of trusted addresses"));
    }
    let block = |text: &String| {
        let invalid = || RejectReason::InvalidBlock(text.clone());
        AddressBlock::parse(text).ok_or_else(invalid)
    };
    wire.iter().map(block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wire() -> proto::ClientAddress {
        proto::ClientAddress {
            proxy_protocol: Some(proto::ProxyProtocol {
                mode: proto::ProxyProtocolMode::Strict.into(),
                trusted_cidrs: vec!["192.0.2.0/24".into()],
            }),
            forwarded_headers: Some(proto::ForwardedHeaders {
                header: proto::ForwardedHeader::Forwarded.into(),
                trusted_hops: Some(2),
                trusted: Some(proto::Cidrs {
                    cidrs: vec!["2001:db8::/32".into()],
                }),
            }),
        }
    }

    #[test]
    fn client_address_settings_that_are_understood_are_read_whole() {
        let read = parse(&wire()).unwrap();
        let protocol = read.proxy_protocol.unwrap();
        assert_eq!(protocol.mode, ProxyProtocolMode::Strict);
        assert!(protocol.trusts("192.0.2.1".parse().unwrap()));
        let forwarded = read.forwarded.unwrap();
        assert_eq!(forwarded.header(), ForwardedHeader::Forwarded);
        assert_eq!(forwarded.hops(), Some(2));
        assert!(forwarded.trusts(1, "2001:db8::1".parse().unwrap()));
        assert_eq!(
            parse(&proto::ClientAddress::default()).unwrap(),
            ClientAddress::default()
        );
    }

    #[test]
    fn client_address_settings_that_are_not_understood_say_why() {
        type Edit = fn(&mut proto::ProxyProtocol, &mut proto::ForwardedHeaders);
        let cases: &[(&str, Edit)] = &[
            ("UnknownResource", |protocol, _| protocol.mode = 0),
            ("UnknownResource", |protocol, _| protocol.mode = 9),
            ("InvalidBlock", |protocol, _| {
                protocol.trusted_cidrs.push("192.0.2.1/24".into());
            }),
            ("TooLarge", |protocol, _| {
                protocol.trusted_cidrs = vec!["192.0.2.1".into(); MAX_TRUSTED + 1];
            }),
            ("UnknownResource", |_, forwarded| forwarded.header = 0),
            ("TooLarge", |_, forwarded| {
                forwarded.trusted_hops = Some(300);
            }),
            ("MissingField", |_, forwarded| {
                forwarded.trusted_hops = None;
                forwarded.trusted = None;
            }),
        ];
        for (reason, edit) in cases {
            let mut wire = wire();
            let protocol = wire.proxy_protocol.as_mut().unwrap();
            edit(protocol, wire.forwarded_headers.as_mut().unwrap());
            assert_eq!(parse(&wire).unwrap_err().reason(), *reason);
        }
    }
}
