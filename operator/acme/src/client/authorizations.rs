//! Owns the bounds of an order and its authorizations. A tenant may choose the CA, and the library keeps in memory whatever
//! the CA says of an order.

use instant_acme::{
    Authorization, AuthorizationHandle, AuthorizationState, Authorizations, Challenge,
    ChallengeType, Order, OrderState, Problem, Subproblem,
};

use super::progress;
use crate::problem::{AcmeFailure, FailureKind};

/// Largest number of challenges of an authorization. Public CAs offer three or four.
pub(super) const MAX_CHALLENGES: usize = 32;
/// Largest size of the authorizations of an order together, in bytes of memory. Nothing else bounds the hostnames of a
/// certificate. An authorization of Let's Encrypt takes about 1 KiB.
const MAX_SIZE: usize = 1024 * 1024;

/// The authorizations of an order, one after the other. Every loop over authorizations goes through this type, so none
/// can read more than the bounds allow.
pub(super) struct BoundedAuthorizations<'a> {
    all: Authorizations<'a>,
    /// Size of those that were read so far.
    size: usize,
}

impl<'a> BoundedAuthorizations<'a> {
    /// The authorizations of an order for this number of hostnames. It refuses an order with more authorizations before
    /// it asks the CA for any of them.
    pub(super) fn new(order: &'a mut Order, hostnames: usize) -> Result<Self, AcmeFailure> {
        let count = order.state().authorizations.len();
        if count > hostnames {
            return Err(refused(format!(
                "the CA's order has {count} authorizations, and Vestibule allows one for each of its hostnames, of \
                 which there are {hostnames}"
            )));
        }
        Ok(Self {
            all: order.authorizations(),
            size: 0,
        })
    }

    /// The next authorization. It asks the CA for one that is not known yet.
    pub(super) async fn next(&mut self) -> Result<Option<AuthorizationHandle<'_>>, AcmeFailure> {
        let Some(authorization) = self.all.next().await else {
            return Ok(None);
        };
        let authorization = authorization.map_err(progress)?;
        let challenges = authorization.challenges.len();
        if challenges > MAX_CHALLENGES {
            return Err(refused(format!(
                "the CA offers {challenges} challenges for one hostname, and Vestibule allows {MAX_CHALLENGES}"
            )));
        }
        self.size = within(
            self.size
                .saturating_add(size_of_authorization(&authorization)),
        )?;
        Ok(Some(authorization))
    }

    /// Counts what the CA said of an authorization since it was read.
    pub(super) fn count(&mut self, size: usize) -> Result<(), AcmeFailure> {
        self.size = within(self.size.saturating_add(size))?;
        Ok(())
    }
}

fn within(size: usize) -> Result<usize, AcmeFailure> {
    if size > MAX_SIZE {
        return Err(refused(
            "the authorizations of the CA's order take more than 1 MiB of memory, which is what Vestibule allows",
        ));
    }
    Ok(size)
}

/// Waiting and asking again would not help, so the order fails.
fn refused(message: impl AsRef<str>) -> AcmeFailure {
    AcmeFailure::new(FailureKind::Rejected, message)
}

/// About how much memory an order takes with its authorizations, in bytes.
pub(super) fn size_of_order(state: &OrderState) -> usize {
    let authorizations = state.authorizations.iter().map(|authorization| {
        let known = authorization.state.as_ref();
        size_of::<Authorization>()
            + authorization.url.len()
            + known.map_or(0, size_of_authorization)
    });
    state.finalize.len()
        + length(state.certificate.as_deref())
        + length(state.profile.as_deref())
        + state.error.as_ref().map_or(0, size_of_problem)
        + authorizations.sum::<usize>()
}

/// The same for an authorization.
pub(super) fn size_of_authorization(state: &AuthorizationState) -> usize {
    let challenges = state.challenges.iter().map(|challenge| {
        let kind = if let ChallengeType::Unknown(kind) = &challenge.r#type {
            kind.len()
        } else {
            0
        };
        size_of::<Challenge>()
            + kind
            + challenge.url.len()
            + challenge.token.len()
            + challenge.error.as_ref().map_or(0, size_of_problem)
    });
    state.identifier().to_string().len() + challenges.sum::<usize>()
}

/// The same for a problem document. A subproblem may take 3 bytes of an answer, and takes much more in memory.
fn size_of_problem(problem: &Problem) -> usize {
    let parts = problem.subproblems.iter().map(|part| {
        let name = part.identifier.as_ref();
        size_of::<Subproblem>()
            + name.map_or(0, |name| name.authorized(false).to_string().len())
            + length(part.r#type.as_deref())
            + length(part.detail.as_deref())
    });
    length(problem.r#type.as_deref()) + length(problem.detail.as_deref()) + parts.sum::<usize>()
}

fn length(text: Option<&str>) -> usize {
    text.map_or(0, str::len)
}
