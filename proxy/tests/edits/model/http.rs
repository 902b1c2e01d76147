//! What a configuration says of a request.

use vestibule_stream::{ResourceKind as Kind, proto};

use super::{Ask, CLOSED, Failed, MISDIRECTED, Model, OverTls, TOKEN_PATH, attached};
use crate::edits::rules::{self, VARIANT};
use crate::edits::servers::{ASKED, Speaks};
use vestibule_proxy_testing::PATIENCE;
use vestibule_proxy_testing::acme::{THUMBPRINT, TOKEN};

use proto::http_filter::Filter;
use proto::listener::Protocol;
use proto::resource::Resource as Wire;

/// The rule that takes a request, its route, and the prefix that it took of the path.
pub(super) struct Found<'a> {
    pub(super) route: &'a str,
    rule: &'a proto::HttpRule,
    prefix: String,
}

impl<'a> Model<'a> {
    /// The answers that a request may get on a port, in plaintext or within TLS.
    pub(super) fn http(self, port: u16, tls: Option<OverTls<'_>>, ask: &Ask) -> Vec<String> {
        if self.layer(port) != Some(tls.is_none()) {
            return vec!["404".to_owned()];
        }
        if tls.is_none()
            && let Some(token) = self.token(port, ask)
        {
            return vec![token];
        }
        let Some((key, listener)) = self.listener(port, &ask.host) else {
            return vec!["404".to_owned()];
        };
        let http = match &listener.protocol {
            Some(Protocol::Http(http)) => http.terminate.as_ref(),
            _ => None,
        };
        if let Some(tls) = tls {
            // The connection is right if a new one for its name would get the listener.
            let anew = self.listener(port, tls.name).map(|(key, _)| key);
            let right = tls.listener == key || anew == Some(key);
            // The client has seen the certificate of the namespace that had the name before.
            let passed_on = listener.tenant != tls.served.by
                && self.served_for(key, listener, &ask.host) != tls.served.owner;
            if !right || passed_on || !http.is_some_and(|http| self.admits(http, tls.proven)) {
                return vec![MISDIRECTED.to_owned()];
            }
        }
        let Some(Found { rule, prefix, .. }) = self.rule(key, ask) else {
            return vec!["404".to_owned()];
        };
        let mut head = Head {
            path: ask.path.clone(),
            prefix,
            may_be_late: may_be_late(rule),
            ..Head::default()
        };
        if let Some(answer) = head.filter(&rule.filters) {
            return vec![answer];
        }
        let weighted: Vec<_> = rule.backends.iter().filter(|of| of.weight > 0).collect();
        if weighted.is_empty() {
            return vec![head.own(500)];
        }
        let mut answers = Vec::new();
        for of in weighted {
            let mut head = head.clone();
            if of.backend.is_empty() {
                answers.push(head.own(500));
            } else if let Some(answer) = head.filter(&of.filters) {
                answers.push(answer);
            } else {
                let found = self.backend(&of.backend);
                let found = found.filter(|backend| !backend.endpoints.is_empty());
                match found {
                    None => answers.push(head.own(503)),
                    Some(backend) => answers.extend(self.forward(backend, listener, &head, ask)),
                }
            }
        }
        answers
    }

    fn token(self, port: u16, ask: &Ask) -> Option<String> {
        // No CA asks with a query.
        let token = ask.path.strip_prefix(TOKEN_PATH)?;
        let token = ask.query.is_empty().then_some(token)?;
        let held = self.config.of(Kind::Challenge).any(|(_, resource)| {
            let Some(Wire::Challenge(of)) = &resource.resource else {
                return false;
            };
            let here = of
                .bind
                .as_ref()
                .is_some_and(|bind| bind.port == u32::from(port));
            let asked = matches!(&of.answer,
                Some(proto::challenge::Answer::Http01(of)) if of.token == token);
            here && asked && of.hostname == ask.host
        });
        held.then(|| match ask.method {
            "GET" => format!("200 {TOKEN}.{THUMBPRINT}"),
            _ => "405".to_owned(),
        })
    }

    /// The rule that takes a request.
    pub(super) fn rule(self, listener: &str, ask: &Ask) -> Option<Found<'a>> {
        use std::cmp::Reverse;
        let mut all = Vec::new();
        for (key, resource) in self.config.of(Kind::HttpRoute) {
            let Some(Wire::HttpRoute(route)) = &resource.resource else {
                continue;
            };
            let rank = attached(&route.attachments, listener, &ask.host);
            let Some(rank) = rank.filter(|_| self.gives(listener, &ask.host, &route.tenant)) else {
                continue;
            };
            for (index, rule) in route.rules.iter().enumerate() {
                let everything = [proto::HttpMatch::default()];
                let matches = if rule.matches.is_empty() {
                    &everything[..]
                } else {
                    &rule.matches
                };
                for (place, of) in matches.iter().enumerate() {
                    let Some((path, prefix)) = holds(of, ask) else {
                        continue;
                    };
                    let rest = (!of.method.is_empty(), of.headers.len(), of.query.len());
                    let order = (
                        Reverse(rank),
                        Reverse(path),
                        Reverse(rest),
                        route.created,
                        key,
                        index,
                        place,
                    );
                    all.push((order, rule, prefix));
                }
            }
        }
        let best = all.into_iter().min_by(|a, b| a.0.cmp(&b.0))?;
        let ((.., route, _, _), rule, prefix) = best;
        Some(Found {
            route,
            rule,
            prefix,
        })
    }

    fn forward(
        self,
        backend: &proto::Backend,
        listener: &proto::Listener,
        head: &Head,
        ask: &Ask,
    ) -> Vec<String> {
        let Ok(way) = self.way(backend, listener) else {
            return vec![head.own(500)];
        };
        let protocol = backend.protocol();
        let upgrade = ask.upgrade && protocol != proto::BackendProtocol::H2c;
        let broken = || Some(Said::Broken);
        let said = self.endpoints(backend, |speaks, name| {
            let (layer, two) = match (&way, speaks) {
                (Some(way), Speaks::Tls(authority)) if way.reaches(authority) => {
                    let two = match protocol {
                        proto::BackendProtocol::H2c => true,
                        proto::BackendProtocol::Websocket => false,
                        proto::BackendProtocol::Unspecified => !upgrade,
                    };
                    (way.layer(), two)
                }
                (Some(_), _) => return None,
                (None, Speaks::One) if protocol != proto::BackendProtocol::H2c => {
                    ("tls=- cert=-".to_owned(), false)
                }
                (None, Speaks::Two) if protocol == proto::BackendProtocol::H2c => {
                    ("tls=- cert=-".to_owned(), true)
                }
                (None, _) => return broken(),
            };
            let version = if two { 2 } else { 1 };
            let status = if upgrade { 101 } else { 200 };
            Some(Said::Answer(format!(
                "{status} srv={name} {layer} v={version} host={} path={} asked={} body={}",
                ask.host,
                ask.with_query(&head.path),
                head.asked.join(","),
                ask.body,
            )))
        });
        let answers = said.into_iter().flat_map(|said| match said {
            Said::Answer(text) => vec![head.answered(text)],
            Said::Failed => vec![head.own(503)],
            // Whether it had begun with the request by then is as it comes.
            Said::Broken => vec![head.own(502), head.own(503)],
        });
        // If no time is left, no backend is asked. What needs no backend to be found out comes before that.
        let late = head.may_be_late.then(|| head.own(504));
        // After its head an answer can only be cut.
        let cut = head.may_be_late.then(|| CLOSED.to_owned());
        answers.chain(late).chain(cut).collect()
    }
}

/// Whether a timeout of a rule may end a request, or an answer that has begun. Zero is no timeout, and a long one ends
/// nothing while a test lasts.
fn may_be_late(rule: &proto::HttpRule) -> bool {
    let timeouts = rule.timeouts.unwrap_or_default();
    let both = [timeouts.request, timeouts.backend_request];
    both.into_iter().flatten().any(ends_a_test)
}

fn ends_a_test(millis: u64) -> bool {
    millis > 0 && u128::from(millis) < PATIENCE.as_millis()
}

/// Whether an outcome says that a timeout ended the request.
pub(crate) fn is_late(said: &str) -> bool {
    said.starts_with("504")
}

/// Whether a client has to wait for as long as a backend likes, if these are the possible outcomes.
pub(crate) fn waits(said: &[String]) -> bool {
    let served = said.iter().any(|said| said.contains("srv="));
    served && !said.iter().any(|said| is_late(said))
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Said {
    Answer(String),
    Failed,
    Broken,
}

impl From<Failed> for Said {
    fn from(_: Failed) -> Self {
        Self::Failed
    }
}

/// A request's and an answer's head as filters make them.
#[derive(Clone, Default)]
struct Head {
    path: String,
    prefix: String,
    asked: Vec<String>,
    answered: Vec<String>,
    /// Whether a timeout of the rule may end the request, or its answer.
    may_be_late: bool,
}

impl Head {
    /// `Some`: the filters answer by themselves.
    fn filter(&mut self, filters: &[proto::HttpFilter]) -> Option<String> {
        for filter in filters {
            if let Some(Filter::ResponseHeaders(of)) = &filter.filter {
                self.answered
                    .extend(of.add.iter().map(|field| field.value.clone()));
            }
        }
        for filter in filters {
            match filter.filter.as_ref().unwrap() {
                Filter::ResponseHeaders(_) => {}
                Filter::RequestHeaders(of) => {
                    assert!(of.add.iter().all(|field| field.name == ASKED));
                    self.asked
                        .extend(of.add.iter().map(|field| field.value.clone()));
                }
                Filter::Rewrite(of) => {
                    let path = of.path.as_ref().unwrap().path.as_ref().unwrap();
                    let proto::path_modifier::Path::Prefix(with) = path else {
                        panic!("the model has prefixes only");
                    };
                    let rest = &self.path[self.prefix.len()..];
                    self.path = format!("{with}{rest}");
                }
                Filter::Redirect(of) => {
                    return Some(self.answered(format!("{} to={}", of.status, of.hostname)));
                }
                Filter::Mirror(_) | Filter::Cors(_) | Filter::ExternalAuth(_) => {
                    panic!("the model has none")
                }
                Filter::Fail(status) => return Some(self.answered(status.to_string())),
            }
        }
        None
    }

    fn own(&self, status: u16) -> String {
        self.answered(status.to_string())
    }

    fn answered(&self, mut text: String) -> String {
        if !self.answered.is_empty() {
            text.push_str(" answered=");
            text.push_str(&self.answered.join(","));
        }
        text
    }
}

/// How well a match takes a request: the rank of its path, and the prefix.
fn holds(of: &proto::HttpMatch, ask: &Ask) -> Option<((u8, usize), String)> {
    use proto::http_match::Path;
    let path = &*ask.path;
    let found = match &of.path {
        None => ((1, 0), String::new()),
        Some(Path::Exact(exact)) => (exact == path).then(|| ((3, exact.len()), String::new()))?,
        Some(Path::Prefix(prefix)) => {
            let prefix = prefix.trim_end_matches('/');
            let rest = path.strip_prefix(prefix)?;
            let whole = rest.is_empty() || rest.starts_with('/');
            whole.then(|| ((1, prefix.len()), prefix.to_owned()))?
        }
        Some(Path::Regex(regex)) => {
            is_whole(regex, path).then(|| ((2, regex.len()), String::new()))?
        }
        // No GRPCRoutes are edited here.
        Some(Path::GrpcMethod(_)) => return None,
    };
    let method = of.method.is_empty() || of.method == ask.method;
    let headers = of.headers.iter().all(|of| {
        assert_eq!(of.name, VARIANT);
        ask.variant.is_some_and(|variant| is_value(of, variant))
    });
    let query = of.query.iter().all(|of| {
        let value = first_value(ask.query, &of.name);
        value.is_some_and(|value| is_value(of, &value))
    });
    (method && headers && query).then_some(found)
}

fn is_value(of: &proto::HttpValueMatch, value: &str) -> bool {
    use proto::http_value_match::Value;
    match of.value.as_ref().unwrap() {
        Value::Exact(exact) => exact == value,
        Value::Regex(regex) => is_whole(regex, value),
    }
}

/// Whether a regular expression takes the whole of a text. This says in other words what each of the
/// expressions means that rules have.
fn is_whole(regex: &str, text: &str) -> bool {
    let is_word =
        |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase());
    match regex {
        rules::ONE_BELOW => text.strip_prefix("/x/").is_some_and(is_word),
        rules::TWO_BELOW => match text.strip_prefix("/x/y") {
            Some("") => true,
            Some(rest) => rest.strip_prefix('/').is_some_and(is_word),
            None => false,
        },
        rules::ANY_Y => text.starts_with('/') && text.contains('y'),
        rules::NUMBER => !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()),
        rules::WORDS => ["blue", "green"].contains(&text),
        _ => panic!("the model does not know {regex}"),
    }
}

/// The first value of a query parameter, as it was before a form encoded it. None: the query does not have it.
fn first_value(query: &str, name: &str) -> Option<String> {
    let parameters = query.split('&').filter(|text| !text.is_empty());
    let mut pairs = parameters.map(|text| text.split_once('=').unwrap_or((text, "")));
    let (_, value) = pairs.find(|(of, _)| decoded(of) == name)?;
    Some(decoded(value))
}

fn decoded(text: &str) -> String {
    let text = text.replace('+', " ");
    let mut parts = text.split('%');
    let mut decoded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (digits, rest) = part.split_at(2);
        decoded.push(char::from(u8::from_str_radix(digits, 16).unwrap()));
        decoded.push_str(rest);
    }
    decoded
}
