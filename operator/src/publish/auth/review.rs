//! Asks the API server to review a token.

use std::fmt;

use futures::future::BoxFuture;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};
use zeroize::Zeroize;

/// The extra field of a user that contains the name of the pod that the token is bound to.
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";

/// The result of a review.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Review {
    /// Whether the API server accepts the token.
    pub authenticated: bool,
    /// The user that the token belongs to.
    pub user: String,
    /// The pod that the token is bound to.
    pub pod: Option<String>,
    /// The requested audiences that the token is for.
    pub audiences: Vec<String>,
    /// Why the token is not accepted.
    pub error: Option<String>,
}

/// Why the API server could not be asked. It never contains the token.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// The API server refuses the review.
    #[error(
        "the API server refuses to review tokens (HTTP {0}); the operator needs `create` for tokenreviews"
    )]
    Refused(u16),
    /// The API server cannot be reached, or its response is not as expected.
    #[error("the API server cannot be reached: {0}")]
    Unreachable(String),
}

impl ReviewError {
    /// Returns a short reason for the caller that holds the token.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Refused(_) => "it refuses to review tokens",
            Self::Unreachable(_) => "it cannot be reached",
        }
    }
}

/// Reviews tokens.
pub trait TokenReviewer: Send + Sync + 'static {
    /// Reviews `token` for `audience`.
    fn review<'a>(
        &'a self,
        token: &'a str,
        audience: &'a str,
    ) -> BoxFuture<'a, Result<Review, ReviewError>>;
}

/// Reviews tokens with the `TokenReview` API.
#[derive(Clone)]
pub struct KubeReviewer(Api<TokenReview>);

impl fmt::Debug for KubeReviewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KubeReviewer")
    }
}

impl KubeReviewer {
    /// Returns a reviewer that uses `client`, which needs the right to `create` `tokenreviews`.
    #[must_use]
    pub fn new(client: Client) -> Self {
        Self(Api::all(client))
    }
}

impl TokenReviewer for KubeReviewer {
    fn review<'a>(
        &'a self,
        token: &'a str,
        audience: &'a str,
    ) -> BoxFuture<'a, Result<Review, ReviewError>> {
        Box::pin(async move {
            let mut question = TokenReview {
                spec: TokenReviewSpec {
                    audiences: Some(vec![audience.to_owned()]),
                    token: token.to_owned(),
                },
                ..TokenReview::default()
            };
            let answer = self.0.create(&PostParams::default(), &question).await;
            question.spec.token.zeroize();
            let mut answer = answer.map_err(|error| match error {
                kube::Error::Api(status) if matches!(status.code, 400..500) => {
                    ReviewError::Refused(status.code)
                }
                error => ReviewError::Unreachable(error.to_string()),
            })?;
            // The API server sends the token back, so it is erased here as well.
            answer.spec.token.zeroize();
            let status = answer.status.unwrap_or_default();
            let user = status.user.unwrap_or_default();
            let extra = user.extra.unwrap_or_default();
            Ok(Review {
                authenticated: status.authenticated.unwrap_or(false),
                user: user.username.unwrap_or_default(),
                pod: extra.get(POD_NAME).and_then(|names| names.first().cloned()),
                audiences: status.audiences.unwrap_or_default(),
                error: status.error.filter(|error| !error.is_empty()),
            })
        })
    }
}
