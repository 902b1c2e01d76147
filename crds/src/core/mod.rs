//! Core kinds: the wire types of k8s-openapi, converted into the model. Unknown fields are ignored, because these
//! objects are not meant for Vestibule.

use vestibule_model::protocol::Transport;

mod config_map;
mod endpoint_slice;
mod namespace;
mod secret;
mod service;

pub(crate) use config_map::convert as convert_config_map;
pub(crate) use endpoint_slice::convert as convert_endpoint_slice;
pub(crate) use namespace::convert as convert_namespace;
pub(crate) use secret::convert as convert_secret;
pub(crate) use service::convert as convert_service;

/// The transport of a port. It is TCP if the object does not say, and `None` if Vestibule does not carry it.
fn transport(protocol: Option<&str>) -> Option<Transport> {
    Transport::from_text(protocol.unwrap_or("TCP"))
}
