//! Vestibule's own kinds (`vestibule.dev/v1alpha1`) on the wire, and their conversion into the model.
//! Their CRDs are generated from these types (`crds/generated/`).

mod acme_issuer;
mod gateway_parameters;
mod hostname_claim;
mod hostname_grant;
mod selector;

use kube::CustomResourceExt as _;
use serde_json::Value;

pub use acme_issuer::{
    ACMEIssuer, ACMEIssuerSpec, ClusterACMEIssuer, ClusterACMEIssuerSpec, ExternalAccountBinding,
    IssuerCondition, IssuerError, IssuerStatus, SecretEntry, SecretName,
};
pub use gateway_parameters::{
    ClientAddressSpec, ForwardedHeadersSpec, GatewayParameters, GatewayParametersSpec, LimitsSpec,
    ProxyProtocolSpec, ServiceSpec,
};
pub use hostname_claim::{ClaimGateway, HostnameClaim, HostnameClaimSpec};
pub use hostname_grant::{HostnameGrant, HostnameGrantSpec, HostnameGrantStatus};

pub(crate) use acme_issuer::{convert_acme_issuer, convert_cluster_acme_issuer};
pub(crate) use gateway_parameters::convert as convert_gateway_parameters;
pub(crate) use hostname_claim::convert as convert_hostname_claim;
pub(crate) use hostname_grant::convert as convert_hostname_grant;

/// The CRD of every kind of our own, in order of names, each with the name of its file.
///
/// # Errors
/// There are none in practice, because the schemas consist of types that can be serialized.
pub fn crds() -> Result<Vec<(String, Value)>, serde_json::Error> {
    let crds = [
        ACMEIssuer::crd(),
        ClusterACMEIssuer::crd(),
        GatewayParameters::crd(),
        HostnameClaim::crd(),
        HostnameGrant::crd(),
    ];
    crds.into_iter()
        .map(|crd| {
            let name = crd.metadata.name.clone().unwrap_or_default();
            Ok((format!("{name}.yaml"), serde_json::to_value(crd)?))
        })
        .collect()
}
