//! Owns the messages of Envoy's `envoy.service.auth.v3.Authorization` service, as far as they are read and written here.
//! The numbers are those of `external_auth.proto`, `attribute_context.proto` and `base.proto` of Envoy's API.

use std::collections::BTreeMap;

use prost::Message;

/// The path of the only method of the service.
pub(super) const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";

#[derive(Clone, PartialEq, Message)]
pub(super) struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) attributes: Option<AttributeContext>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AttributeContext {
    #[prost(message, optional, tag = "1")]
    pub(super) source: Option<Peer>,
    #[prost(message, optional, tag = "4")]
    pub(super) request: Option<AttributeRequest>,
    #[prost(message, optional, tag = "12")]
    pub(super) tls_session: Option<TlsSession>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Peer {
    #[prost(message, optional, tag = "1")]
    pub(super) address: Option<Address>,
}

/// An address. Envoy's message has other forms besides this one.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Address {
    #[prost(message, optional, tag = "1")]
    pub(super) socket_address: Option<SocketAddress>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SocketAddress {
    #[prost(string, tag = "2")]
    pub(super) address: String,
    #[prost(uint32, optional, tag = "3")]
    pub(super) port_value: Option<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AttributeRequest {
    #[prost(message, optional, tag = "1")]
    pub(super) time: Option<Timestamp>,
    #[prost(message, optional, tag = "2")]
    pub(super) http: Option<HttpRequest>,
}

/// `google.protobuf.Timestamp`
#[derive(Clone, PartialEq, Message)]
pub(super) struct Timestamp {
    #[prost(int64, tag = "1")]
    pub(super) seconds: i64,
    #[prost(int32, tag = "2")]
    pub(super) nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpRequest {
    #[prost(string, tag = "1")]
    pub(super) id: String,
    #[prost(string, tag = "2")]
    pub(super) method: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub(super) headers: BTreeMap<String, String>,
    /// Path and query.
    #[prost(string, tag = "4")]
    pub(super) path: String,
    #[prost(string, tag = "5")]
    pub(super) host: String,
    #[prost(string, tag = "6")]
    pub(super) scheme: String,
    /// Size of the body; -1 if it is not known.
    #[prost(int64, tag = "9")]
    pub(super) size: i64,
    #[prost(string, tag = "10")]
    pub(super) protocol: String,
    /// The body, if it is UTF-8.
    #[prost(string, tag = "11")]
    pub(super) body: String,
    /// The body, if it is not UTF-8.
    #[prost(bytes = "vec", tag = "12")]
    pub(super) raw_body: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TlsSession {
    #[prost(string, tag = "1")]
    pub(super) sni: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<RpcStatus>,
    #[prost(message, optional, tag = "2")]
    pub(super) denied: Option<DeniedResponse>,
    #[prost(message, optional, tag = "3")]
    pub(super) ok: Option<OkResponse>,
}

/// `google.rpc.Status`
#[derive(Clone, PartialEq, Message)]
pub(super) struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct DeniedResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) status: Option<HttpStatus>,
    #[prost(message, repeated, tag = "2")]
    pub(super) headers: Vec<HeaderOption>,
    #[prost(string, tag = "3")]
    pub(super) body: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HttpStatus {
    #[prost(int32, tag = "1")]
    pub(super) code: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct OkResponse {
    #[prost(message, repeated, tag = "2")]
    pub(super) headers: Vec<HeaderOption>,
    #[prost(string, repeated, tag = "5")]
    pub(super) headers_to_remove: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    pub(super) response_headers_to_add: Vec<HeaderOption>,
    #[prost(message, repeated, tag = "7")]
    pub(super) query_parameters_to_set: Vec<Ignored>,
    #[prost(string, repeated, tag = "8")]
    pub(super) query_parameters_to_remove: Vec<String>,
}

/// A message of which only the presence matters.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Ignored {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct HeaderOption {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(message, optional, tag = "2")]
    pub(super) append: Option<BoolValue>,
    /// 0: append; 1: only if the field is absent; 2: replace or add; 3: only replace.
    #[prost(int32, tag = "3")]
    pub(super) append_action: i32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) value: String,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) raw_value: Vec<u8>,
}

/// `google.protobuf.BoolValue`
#[derive(Clone, PartialEq, Message)]
pub(super) struct BoolValue {
    #[prost(bool, tag = "1")]
    pub(super) value: bool,
}
