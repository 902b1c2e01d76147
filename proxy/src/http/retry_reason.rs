//! Owns the decision whether a request is sent again because its route asks for that.
//!
//! `exchange` decides about attempts for which no route has to ask: after a connection could not be opened, or broke.

use hyper::Method;

use super::exchange::{Answered, Ended, ExchangeFailure};
use super::timeouts::Late;
use crate::close_reason::CloseReason;
use crate::http_route::retry_policy::RetryPolicy;

impl RetryPolicy {
    /// Why a request is sent again after an attempt with this outcome. It is `None` if the outcome is final.
    pub(super) fn reason(
        &self,
        method: &Method,
        outcome: &Result<Result<Answered, Ended>, Late>,
    ) -> Option<&'static str> {
        match outcome {
            Ok(Ok((response, _))) => {
                let listed = self.codes.contains(&response.status().as_u16());
                listed.then_some("Status")
            }
            Ok(Err(Ended::Failed(ExchangeFailure::Refused))) => Some("Refused"),
            Ok(Err(Ended::Failed(ExchangeFailure::Connect(reason)))) => {
                let certain = [CloseReason::BackendTlsInvalid, CloseReason::BackendLoop];
                (!certain.contains(reason)).then_some("Connect")
            }
            // The backend may already have done what the request asks for.
            Err(Late::Backend) => {
                let asked = self.codes.contains(&504) || method.is_idempotent();
                asked.then_some("Timeout")
            }
            Ok(Err(_)) | Err(Late::Idle | Late::Request) => None,
        }
    }
}
