//! Asking the API server about a token.

use std::fmt;

use futures::future::BoxFuture;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use kube::Client;
use kube::api::{Api, PostParams};
use zeroize::Zeroize;

/// In what the API server says about a user: the pod that its token is bound to.
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";

/// What the API server says about a token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Review {
    /// Whether it takes it.
    pub authenticated: bool,
    /// Whose it is.
    pub user: String,
    /// The pod that it is bound to.
    pub pod: Option<String>,
    /// Which of the audiences asked for it is for.
    pub audiences: Vec<String>,
    /// Why it is not taken.
    pub error: Option<String>,
}

/// Why the API server could not be asked. Never contains the token.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// It refuses to say.
    #[error(
        "the API server refuses to review tokens (HTTP {0}); the operator needs `create` for tokenreviews"
    )]
    Refused(u16),
    /// It cannot be reached, or does not answer as it should.
    #[error("the API server cannot be reached: {0}")]
    Unreachable(String),
}

impl ReviewError {
    /// For whoever holds the token.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Refused(_) => "it refuses to review tokens",
            Self::Unreachable(_) => "it cannot be reached",
        }
    }
}

/// Whoever knows about tokens.
pub trait TokenReviewer: Send + Sync + 'static {
    /// Whether `token` is good for `audience`.
    fn review<'a>(
        &'a self,
        token: &'a str,
        audience: &'a str,
    ) -> BoxFuture<'a, Result<Review, ReviewError>>;
}

/// TokenReviews of the API server.
#[derive(Clone)]
pub struct KubeReviewer(Api<TokenReview>);

impl fmt::Debug for KubeReviewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KubeReviewer")
    }
}

impl KubeReviewer {
    /// Asks through `client`, which needs `create` for `tokenreviews`.
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
            // The API server sends it back.
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
