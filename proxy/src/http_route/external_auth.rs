//! Owns the authorization filters of rules: which server is asked whether a request may pass, and how (GEP-1494).

use hyper::header::HeaderName;

use crate::backend::Backend;
use crate::slot_map::Slot;

/// A filter that asks an authorization server.
#[derive(Debug)]
pub(crate) struct ExternalAuth {
    pub(crate) backend: Slot<Backend>,
    pub(crate) protocol: AuthProtocol,
    /// Most bytes of a body that the server gets; 0 if it gets none.
    pub(crate) max_body: u16,
}

/// How an authorization server is asked.
#[derive(Debug)]
pub(crate) enum AuthProtocol {
    /// By a request of the same method. The status 200 lets the request pass.
    Http {
        /// The prefix in front of the path. It is empty, or begins with a slash and does not end with one.
        path_prefix: Box<str>,
        /// Fields of the request that the server gets, in addition to those that every server gets.
        request_headers: Box<[HeaderName]>,
        /// Fields of the response that the backend gets. If it is empty, the backend gets all.
        response_headers: Box<[HeaderName]>,
    },
    /// By a call of `envoy.service.auth.v3.Authorization/Check`.
    Grpc {
        /// Fields of the request that the server gets. If it is empty, the server gets all.
        request_headers: Box<[HeaderName]>,
    },
}
