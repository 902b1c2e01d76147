//! Owns the requests to a CA, which go through `instant-acme`.

mod account;
mod authorizations;
mod http;
mod ordered_chains;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use instant_acme::{
    Account, AuthorizationState, AuthorizationStatus, CertificateIdentifier, ChallengeStatus,
    Error, Identifier, NewOrder, Order, OrderStatus,
};
use parking_lot::Mutex;
use rustls_pki_types::{CertificateSigningRequestDer, Der};
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use vestibule_model::challenge::ChallengeType;
use vestibule_model::hostname::Hostname;

use self::authorizations::{BoundedAuthorizations, size_of_authorization, size_of_order};
use self::http::{Http, HttpError, heard};
use crate::leaf::Leaf;
use crate::problem::{self, AcmeFailure, AcmeOperation, FailureKind, Problem, Subproblem};
use crate::renewal::Window;
use crate::state::MAX_URL;

pub(crate) use self::account::{AccountInfo, OpenedAccount, Registering, open};
pub(crate) use self::http::host_of;

/// Largest number of orders that are kept between two requests. By default, an issuer has 160 under way.
const MAX_KEPT: usize = 256;
/// Largest size of an order that is kept between two requests, in bytes of memory. It is enough for about 30 hostnames.
/// The CA is asked for a larger one again.
const MAX_KEPT_SIZE: usize = 32 * 1024;
/// Longest token, in bytes. Let's Encrypt's have 43.
const MAX_TOKEN: usize = 256;

/// The state of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    /// Names are still to be checked.
    Pending,
    /// It can be finalized.
    Ready,
    /// The CA is making the certificate.
    Processing,
    /// The certificate is ready.
    Valid,
    /// The order has failed.
    Invalid,
}

/// An order as the CA shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct View {
    /// Its state.
    pub(crate) status: Status,
    /// The identifiers that the order is for, if the CA says so.
    pub(crate) identifiers: Option<BTreeSet<String>>,
    /// Its names. They are filled in only for a pending or failed order.
    pub(crate) names: Vec<Name>,
    /// Why it failed, if it did.
    pub(crate) problem: Option<AcmeFailure>,
    /// When the CA wants to be asked again, if it said so.
    pub(crate) retry_after: Option<Duration>,
}

impl View {
    /// An order of which nothing but its state is known.
    pub(crate) fn new(status: Status) -> Self {
        Self {
            status,
            identifiers: None,
            names: Vec::new(),
            problem: None,
            retry_after: None,
        }
    }
}

/// A name of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name {
    /// The name.
    pub(crate) hostname: Hostname,
    /// Whether the CA has checked it.
    pub(crate) valid: bool,
    /// Challenge types that the CA offers, with their tokens.
    pub(crate) offers: Vec<(ChallengeType, String)>,
}

/// A CA, with one of the accounts at it.
pub(crate) struct Ca {
    http: Http,
    account: Account,
    directory: Directory,
    /// Orders kept between two requests, with their authorizations and the next nonce.
    kept: Mutex<BTreeMap<String, KeptOrder>>,
    /// Scheme, host and port of every place where this CA has orders.
    origins: BTreeSet<String>,
}

struct KeptOrder {
    order: Order,
    /// The order was just made, so its state needs no request.
    fresh: bool,
    /// The names that it is for, if the CA says so.
    identifiers: Option<BTreeSet<String>>,
}

impl KeptOrder {
    fn stale(order: Order) -> Self {
        Self {
            order,
            fresh: false,
            identifiers: None,
        }
    }
}

/// Whether these are exactly the identifiers of an order for these names.
pub(crate) fn are_of(identifiers: &BTreeSet<String>, hostnames: &BTreeSet<Hostname>) -> bool {
    identifiers.len() == hostnames.len()
        && hostnames
            .iter()
            .all(|hostname| identifiers.contains(hostname.as_str()))
}

/// A CA's directory. It is written without the rest of the document, for the library.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct Directory {
    new_nonce: Option<String>,
    new_account: Option<String>,
    new_order: Option<String>,
    revoke_cert: Option<String>,
    renewal_info: Option<String>,
    #[serde(skip_serializing)]
    meta: Meta,
}

impl Directory {
    /// The URLs that the directory names.
    fn urls(&self) -> impl Iterator<Item = &str> {
        [
            &self.new_nonce,
            &self.new_account,
            &self.new_order,
            &self.revoke_cert,
            &self.renewal_info,
        ]
        .into_iter()
        .filter_map(Option::as_deref)
    }
}

/// Scheme, host and port of a URL.
fn origin(url: &str) -> Option<String> {
    let uri: ::http::Uri = url.parse().ok()?;
    let (scheme, host) = (uri.scheme_str()?, uri.host()?.to_ascii_lowercase());
    Some(format!(
        "{scheme}://{host}:{}",
        uri.port_u16().unwrap_or(443)
    ))
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Meta {
    /// The names of the profiles. They are kept only until the issuer's profile has been looked for.
    #[expect(
        clippy::zero_sized_map_values,
        reason = "it is an object in JSON, and a set would be an array"
    )]
    profiles: BTreeMap<String, IgnoredAny>,
    external_account_required: bool,
}

impl Ca {
    fn new(http: Http, account: Account, directory: Directory, url: &str) -> Self {
        let urls = directory.urls().chain([url, account.id()]);
        Self {
            origins: urls.filter_map(origin).collect(),
            http,
            account,
            directory,
            kept: Mutex::default(),
        }
    }

    /// The facts about the account that planning needs.
    pub(crate) fn account_info(&self) -> AccountInfo {
        AccountInfo {
            url: self.account.id().to_owned(),
            thumbprint: self.account.key_thumbprint().to_owned(),
            renewal_info: self.directory.renewal_info.is_some(),
        }
    }

    /// Makes an order and returns its URL.
    pub(crate) async fn order(
        &self,
        hostnames: &BTreeSet<Hostname>,
        profile: Option<&str>,
        replaces: Option<&Leaf>,
    ) -> Result<String, AcmeFailure> {
        let replaces = replaces
            .filter(|_| self.directory.renewal_info.is_some())
            .and_then(identifier);
        match self.new_order(hostnames, profile, replaces.clone()).await {
            Err(failure)
                if replaces.is_some()
                    && !matches!(
                        failure.kind,
                        FailureKind::Unreachable | FailureKind::RateLimited
                    ) =>
            {
                // The certificate is replaced already, or the CA does not know it. Try once without naming it.
                self.new_order(hostnames, profile, None).await
            }
            result => result,
        }
    }

    async fn new_order(
        &self,
        hostnames: &BTreeSet<Hostname>,
        profile: Option<&str>,
        replaces: Option<CertificateIdentifier<'static>>,
    ) -> Result<String, AcmeFailure> {
        let names: Vec<Identifier> = hostnames
            .iter()
            .map(|name| Identifier::Dns(name.as_str().to_owned()))
            .collect();
        let mut new = NewOrder::new(&names);
        if let Some(profile) = profile {
            new = new.profile(profile);
        }
        if let Some(replaces) = replaces {
            new = new.replaces(replaces);
        }
        let (result, heard) = heard(self.account.new_order(&new)).await;
        let mut order = result.map_err(|error| failure(error, AcmeOperation::Order))?;
        let identifiers = heard.identifiers;
        if identifiers
            .as_ref()
            .is_some_and(|of| !are_of(of, hostnames))
        {
            return Err(AcmeFailure::new(
                FailureKind::Other,
                "the CA made an order for other names than it was asked for",
            ));
        }
        // An order that could never go on is not stored in the Secret.
        BoundedAuthorizations::new(&mut order, hostnames.len())?;
        let url = order.url().to_owned();
        if url.len() > MAX_URL || !url.starts_with("https://") {
            return Err(AcmeFailure::new(
                FailureKind::Other,
                "the CA gave the order a URL that cannot be used",
            ));
        }
        let kept = KeptOrder {
            order,
            fresh: true,
            identifiers,
        };
        self.keep(url.clone(), kept);
        Ok(url)
    }

    /// Finds out whether the CA refuses the account as a whole. What it answers to a request about an order may be of
    /// the names of that order only, which its tenant chose, so the CA is asked for the account.
    pub(crate) async fn judged<T>(&self, result: Result<T, AcmeFailure>) -> Result<T, AcmeFailure> {
        let refused = match result {
            Err(failure) if failure.may_be_of_account() => failure,
            other => return other,
        };
        // The answer is the account and not an order, so the library's result only shows whether the CA refuses.
        let (answer, heard) = heard(self.account.order(self.account.id().to_owned())).await;
        let error = answer.err();
        let of_account = error.map(|error| failure(error, AcmeOperation::Account));
        Err(match (of_account, heard.status.as_deref()) {
            (Some(of_account), _) if of_account.may_be_of_account() => of_account,
            (_, Some(status @ ("deactivated" | "revoked"))) => AcmeFailure::new(
                FailureKind::Account,
                format!("the CA says that the account is {status}"),
            ),
            _ => refused,
        })
    }

    /// Asks for the state of an order, which has to be for these names. Of an order for other names, nothing but that
    /// is asked for and returned.
    pub(crate) async fn look(
        &self,
        url: &str,
        hostnames: &BTreeSet<Hostname>,
    ) -> Result<View, AcmeFailure> {
        let kept = self.kept.lock().remove(url);
        let (result, heard) = heard(async {
            let (mut order, identifiers) = match kept {
                Some(KeptOrder {
                    order,
                    fresh: true,
                    identifiers,
                }) => (order, identifiers),
                Some(KeptOrder { mut order, .. }) => {
                    order.refresh().await.map_err(progress)?;
                    (order, http::identifiers())
                }
                None => {
                    let order = self.order_at(url).await?;
                    (order, http::identifiers())
                }
            };
            if identifiers
                .as_ref()
                .is_some_and(|of| !are_of(of, hostnames))
            {
                let view = View {
                    identifiers,
                    ..View::new(Status::Pending)
                };
                return Ok((None, view));
            }
            let view = View {
                identifiers,
                ..view(&mut order, hostnames.len()).await?
            };
            Ok::<_, AcmeFailure>((Some(order), view))
        })
        .await;
        let (order, mut view) = result?;
        view.retry_after = heard.retry_after;
        if let Some(order) = order {
            let kept = KeptOrder {
                order,
                fresh: false,
                identifiers: view.identifiers.clone(),
            };
            self.keep(url.to_owned(), kept);
        }
        Ok(view)
    }

    /// Tells the CA that the challenges of these names are answered. They are names of an order for these hostnames.
    pub(crate) async fn declare(
        &self,
        url: &str,
        hostnames: &BTreeSet<Hostname>,
        names: &[(Hostname, ChallengeType)],
    ) -> Result<(), AcmeFailure> {
        let mut order = self.take(url).await?;
        if let Err(failure) = say_ready(&mut order, hostnames.len(), names).await {
            if failure.kind == FailureKind::Unreachable {
                return Err(failure);
            }
            // The kept order may be out of date. If the CA waits for none of the challenges any more, all is well.
            order = self.order_at(url).await?;
            if awaits(&mut order, hostnames.len(), names).await? {
                return Err(failure);
            }
        }
        self.keep(url.to_owned(), KeptOrder::stale(order));
        Ok(())
    }

    /// Sends the request for the certificate of an order for these hostnames.
    pub(crate) async fn finalize(
        &self,
        url: &str,
        hostnames: &BTreeSet<Hostname>,
        request: &CertificateSigningRequestDer<'_>,
    ) -> Result<View, AcmeFailure> {
        let mut order = self.take(url).await?;
        let (result, heard) = heard(order.finalize_csr(request)).await;
        result.map_err(progress)?;
        let mut view = view(&mut order, hostnames.len()).await?;
        view.identifiers = heard.identifiers;
        view.retry_after = heard.retry_after;
        self.keep(url.to_owned(), KeptOrder::stale(order));
        Ok(view)
    }

    /// Gets the certificate of a valid order.
    pub(crate) async fn download(&self, url: &str) -> Result<Vec<u8>, AcmeFailure> {
        let mut order = self.take(url).await?;
        let chain = order.certificate().await.map_err(progress)?;
        let chain = chain.map(String::into_bytes).unwrap_or_default();
        if chain.is_empty() {
            return Err(AcmeFailure::new(
                FailureKind::Other,
                "the CA gave no certificate",
            ));
        }
        Ok(chain)
    }

    /// When the CA wants a certificate to be renewed (RFC 9773), and when it wants to be asked again.
    pub(crate) async fn window(
        &self,
        leaf: &Leaf,
    ) -> Result<(Window, Option<Duration>), AcmeFailure> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Info {
            suggested_window: Suggested,
        }
        #[derive(Deserialize)]
        struct Suggested {
            start: jiff::Timestamp,
            end: jiff::Timestamp,
        }
        let none = || AcmeFailure::new(FailureKind::Other, "no renewal information");
        let base = self.directory.renewal_info.as_deref().ok_or_else(none)?;
        let identifier = identifier(leaf).ok_or_else(none)?;
        let url = format!("{}/{identifier}", base.trim_end_matches('/'));
        let (body, retry_after) = self.http.get(&url).await.map_err(|error| plain(&error))?;
        let info: Info = serde_json::from_slice(&body).map_err(|_| none())?;
        let window = Window {
            start: info.suggested_window.start.as_second(),
            end: info.suggested_window.end.as_second(),
        };
        Ok((window, retry_after))
    }

    /// Gives up an order for these names. It deactivates their authorizations that are still pending, because they would
    /// count for the account until they expire. Authorizations that are valid stay so. An authorization of another name
    /// may be another team's, since the account may be everybody's, so it is left alone.
    pub(crate) async fn close(
        &self,
        url: &str,
        hostnames: &BTreeSet<Hostname>,
    ) -> Result<(), AcmeFailure> {
        self.forget(url);
        let (order, heard) = heard(self.order_at(url)).await;
        let mut order = order?;
        let identifiers = heard.identifiers.as_ref();
        let open = [OrderStatus::Pending, OrderStatus::Invalid];
        if !open.contains(&order.state().status)
            || identifiers.is_some_and(|of| !are_of(of, hostnames))
        {
            return Ok(());
        }
        let mut authorizations = BoundedAuthorizations::new(&mut order, hostnames.len())?;
        while let Some(mut authorization) = authorizations.next().await? {
            let name = authorization.identifier().to_string();
            let asked = hostnames.iter().any(|hostname| hostname.as_str() == name);
            if asked && authorization.status == AuthorizationStatus::Pending {
                let closed = authorization.deactivate().await.map_err(progress)?;
                let size = size_of_authorization(closed);
                authorizations.count(size)?;
            }
        }
        Ok(())
    }

    /// Forgets an order.
    pub(crate) fn forget(&self, url: &str) {
        self.kept.lock().remove(url);
    }

    async fn take(&self, url: &str) -> Result<Order, AcmeFailure> {
        let kept = self.kept.lock().remove(url);
        match kept {
            Some(kept) => Ok(kept.order),
            None => self.order_at(url).await,
        }
    }

    async fn order_at(&self, url: &str) -> Result<Order, AcmeFailure> {
        let url = self.of_ours(url).map_err(progress)?;
        self.account.order(url).await.map_err(progress)
    }

    /// The URL of an order, if it is where this CA has orders. A tenant could have written another URL into the Secret,
    /// and the account may be the admin's, which may connect to every address.
    fn of_ours(&self, url: &str) -> Result<String, Error> {
        if origin(url).is_some_and(|origin| self.origins.contains(&origin)) {
            return Ok(url.to_owned());
        }
        Err(Error::Other(Box::new(HttpError::OtherOrigin)))
    }

    fn keep(&self, url: String, mut kept: KeptOrder) {
        if size_of_order(kept.order.state()) > MAX_KEPT_SIZE {
            return;
        }
        let mut all = self.kept.lock();
        if all.len() >= MAX_KEPT {
            all.pop_first();
        }
        all.insert(url, kept);
    }
}

/// Tells the CA that these challenges are answered. It skips those that an earlier leader already reported, because a
/// CA may refuse to be told twice.
async fn say_ready(
    order: &mut Order,
    hostnames: usize,
    names: &[(Hostname, ChallengeType)],
) -> Result<(), AcmeFailure> {
    let mut authorizations = BoundedAuthorizations::new(order, hostnames)?;
    while let Some(mut authorization) = authorizations.next().await? {
        if let Some(kind) = pending(&authorization, names)
            && let Some(mut challenge) = authorization.challenge(kind)
        {
            challenge.set_ready().await.map_err(progress)?;
        }
    }
    Ok(())
}

/// Whether the CA still waits to be told that one of these challenges is answered.
async fn awaits(
    order: &mut Order,
    hostnames: usize,
    names: &[(Hostname, ChallengeType)],
) -> Result<bool, AcmeFailure> {
    let mut authorizations = BoundedAuthorizations::new(order, hostnames)?;
    while let Some(authorization) = authorizations.next().await? {
        if pending(&authorization, names).is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Which of these challenges the CA still waits for in this authorization.
fn pending(
    authorization: &AuthorizationState,
    names: &[(Hostname, ChallengeType)],
) -> Option<instant_acme::ChallengeType> {
    if authorization.status != AuthorizationStatus::Pending {
        return None;
    }
    let name = authorization.identifier().to_string();
    let (_, kind) = names.iter().find(|(host, _)| host.as_str() == name)?;
    let kind = kind_of(*kind);
    let mut challenges = authorization.challenges.iter();
    challenges
        .any(|one| one.r#type == kind && one.status == ChallengeStatus::Pending)
        .then_some(kind)
}

/// Reads the state of an order for this number of hostnames. If it is pending or has failed, its authorizations are
/// fetched, of which the library knows none after an answer about the order.
async fn view(order: &mut Order, hostnames: usize) -> Result<View, AcmeFailure> {
    let status = match order.state().status {
        OrderStatus::Pending => Status::Pending,
        OrderStatus::Ready => Status::Ready,
        OrderStatus::Processing => Status::Processing,
        OrderStatus::Valid => Status::Valid,
        OrderStatus::Invalid => Status::Invalid,
    };
    let mut view = View {
        problem: order.state().error.as_ref().map(embedded),
        ..View::new(status)
    };
    if !matches!(status, Status::Pending | Status::Invalid) {
        return Ok(view);
    }
    let mut failed: Option<Problem> = None;
    let mut authorizations = BoundedAuthorizations::new(order, hostnames)?;
    while let Some(authorization) = authorizations.next().await? {
        let Ok(hostname) = Hostname::parse(&authorization.identifier().to_string()) else {
            continue;
        };
        for error in authorization
            .challenges
            .iter()
            .filter_map(|c| c.error.as_ref())
        {
            let of_name = known(error);
            let all = failed.get_or_insert_with(|| Problem {
                subproblems: Vec::new(),
                ..of_name.clone()
            });
            all.subproblems.push(Subproblem {
                kind: of_name.kind,
                detail: of_name.detail,
                identifier: Some(problem::Identifier {
                    value: hostname.as_str().to_owned(),
                }),
            });
        }
        view.names.push(Name {
            hostname,
            valid: authorization.status == AuthorizationStatus::Valid,
            offers: authorization
                .challenges
                .iter()
                .filter(|challenge| sound(&challenge.token))
                .filter_map(|challenge| {
                    let kind = match challenge.r#type {
                        instant_acme::ChallengeType::TlsAlpn01 => ChallengeType::TlsAlpn01,
                        instant_acme::ChallengeType::Http01 => ChallengeType::Http01,
                        _ => return None,
                    };
                    Some((kind, challenge.token.clone()))
                })
                .collect(),
        });
    }
    if let Some(mut failed) = failed {
        if let [only] = &failed.subproblems[..] {
            // If one name failed, its reason is the reason of the order.
            failed.detail.clone_from(&only.detail);
            failed.subproblems.clear();
        }
        view.problem = Some(failed.failure(AcmeOperation::Progress, 403, None));
    }
    Ok(view)
}

/// Whether a token is base64url (RFC 8555, 8.1). Tokens become part of a path and of names of resources.
fn sound(token: &str) -> bool {
    (1..=MAX_TOKEN).contains(&token.len())
        && token
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

fn kind_of(kind: ChallengeType) -> instant_acme::ChallengeType {
    match kind {
        ChallengeType::TlsAlpn01 => instant_acme::ChallengeType::TlsAlpn01,
        ChallengeType::Http01 => instant_acme::ChallengeType::Http01,
    }
}

/// The identifier of a certificate by RFC 9773.
fn identifier(leaf: &Leaf) -> Option<CertificateIdentifier<'static>> {
    let authority = leaf.authority_key.as_ref()?;
    let identifier =
        CertificateIdentifier::new(Der::from_slice(authority), Der::from_slice(&leaf.serial));
    Some(identifier.into_owned())
}

fn known(problem: &instant_acme::Problem) -> Problem {
    Problem {
        kind: problem.r#type.clone(),
        detail: problem.detail.clone(),
        subproblems: problem
            .subproblems
            .iter()
            .map(|part| Subproblem {
                kind: part.r#type.clone(),
                detail: part.detail.clone(),
                identifier: part.identifier.as_ref().map(|name| problem::Identifier {
                    value: name.authorized(false).to_string(),
                }),
            })
            .collect(),
    }
}

fn embedded(problem: &instant_acme::Problem) -> AcmeFailure {
    known(problem).failure(AcmeOperation::Progress, 403, None)
}

fn progress(error: Error) -> AcmeFailure {
    failure(error, AcmeOperation::Progress)
}

fn plain(error: &HttpError) -> AcmeFailure {
    refused(error, AcmeOperation::Progress)
}

fn refused(error: &HttpError, asked: AcmeOperation) -> AcmeFailure {
    match error {
        HttpError::Unreachable(words) => {
            AcmeFailure::unreachable(format!("the CA cannot be reached: {words}"))
        }
        HttpError::NotAllowed(host) => AcmeFailure::new(
            FailureKind::NotAllowed,
            format!(
                "{host} has no public address, and Vestibule connects to no other for an ACMEIssuer: use another CA, \
                 or ask the platform admin (acme.tenantIssuers.allowCidrs of the chart)"
            ),
        ),
        HttpError::OtherOrigin => AcmeFailure::new(
            FailureKind::OrderGone,
            "the order that the Secret names is not one of this CA",
        ),
        HttpError::Refused {
            status,
            problem: Some(problem),
            retry_after,
        } => problem.failure(asked, *status, *retry_after),
        HttpError::Refused {
            status,
            problem: None,
            retry_after,
        } => AcmeFailure {
            kind: match *status {
                429 => FailureKind::RateLimited,
                404 | 410 if asked == AcmeOperation::Progress => FailureKind::OrderGone,
                _ => FailureKind::Unreachable,
            },
            message: format!("the CA answers with status {status} and says no more"),
            problem: None,
            retry_after: *retry_after,
        },
    }
}

fn failure(error: Error, asked: AcmeOperation) -> AcmeFailure {
    match error {
        Error::Other(other) => match other.downcast_ref::<HttpError>() {
            Some(error) => refused(error, asked),
            None => AcmeFailure::new(
                FailureKind::Other,
                "the CA's answer is not what was asked for",
            ),
        },
        Error::Api(problem) => known(&problem).failure(asked, 403, None),
        Error::Crypto | Error::KeyRejected => AcmeFailure::new(
            FailureKind::Account,
            "the account's key cannot be used: it must be an ECDSA key on P-256 in PKCS#8",
        ),
        // The text does not say what is wrong with the answer, because the answer might be any document.
        _ => AcmeFailure::unreachable("the CA's answer is not one of an ACME server"),
    }
}

#[cfg(test)]
mod tests;
