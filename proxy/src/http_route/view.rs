//! Owns the view of a request against which routes are matched.

use std::borrow::Cow;

use hyper::header::{HOST, HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request};
use vestibule_model::pattern::Steps;

use crate::grpc;
use crate::owners::HostnameGuard;

/// A request as matches see it.
pub(crate) struct View<'a> {
    pub(crate) method: &'a Method,
    pub(crate) path: &'a str,
    /// Whether GRPCRoutes can take it.
    pub(crate) is_grpc: bool,
    /// The authority as the client wrote it.
    authority: Option<&'a str>,
    /// Decides which namespaces' routes may serve it.
    pub(crate) guard: HostnameGuard<'a>,
    headers: &'a HeaderMap,
    raw_query: Option<&'a str>,
    /// The budget for finding a match.
    pub(crate) steps: Steps,
}

/// Steps of a look-up of a header field by its name.
const STEPS_OF_A_FIELD: u32 = 8;
/// Steps of a look at one query parameter, and the bytes of it that take one more.
const STEPS_OF_A_PARAMETER: u32 = 8;
const BYTES_OF_A_STEP: usize = 16;

impl<'a> View<'a> {
    pub(crate) fn new<B>(
        request: &'a Request<B>,
        authority: Option<&'a str>,
        guard: HostnameGuard<'a>,
        steps: Steps,
    ) -> Self {
        Self {
            method: request.method(),
            path: request.uri().path(),
            is_grpc: grpc::is_for_grpc_routes(request.method(), request.headers()),
            authority,
            guard,
            headers: request.headers(),
            raw_query: request.uri().query(),
            steps,
        }
    }

    /// The value of a header field. If the field occurs several times, the values are joined with commas (RFC 9110
    /// section 5.3), which takes more steps. A look-up takes steps whether it finds a field or not, because each match may
    /// ask for 16 fields.
    pub(crate) fn header(&self, name: &HeaderName) -> Option<Cow<'_, [u8]>> {
        self.steps.take(STEPS_OF_A_FIELD).then_some(())?;
        // In HTTP/2, the host is not a header field.
        if name == HOST {
            return Some(Cow::Borrowed(self.authority?.as_bytes()));
        }
        let mut values = self.headers.get_all(name).iter().map(HeaderValue::as_bytes);
        let first = values.next()?;
        let mut all = Cow::Borrowed(first);
        for value in values {
            let all = all.to_mut();
            all.push(b',');
            all.extend_from_slice(value);
        }
        if let Cow::Owned(all) = &all {
            let length = u32::try_from(all.len()).unwrap_or(u32::MAX);
            self.steps.take(length).then_some(())?;
        }
        Some(all)
    }

    /// The value of a query parameter; the first one, if there are several. Looking for it takes steps, because a client
    /// can send thousands of parameters.
    pub(crate) fn query(&self, name: &[u8]) -> Option<Cow<'a, [u8]>> {
        for pair in self.raw_query?.split('&') {
            let of_bytes = u32::try_from(pair.len() / BYTES_OF_A_STEP).unwrap_or(u32::MAX);
            let steps = STEPS_OF_A_PARAMETER.saturating_add(of_bytes);
            self.steps.take(steps).then_some(())?;
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let is_named = decoded(key).eq(name.iter().copied());
            if is_named && !pair.is_empty() {
                return Some(decode(value));
            }
        }
        None
    }
}

/// Decodes a name or value of a form. Everything that is not a valid encoding stays as it is.
fn decode(text: &str) -> Cow<'_, [u8]> {
    if text.contains(['%', '+']) {
        Cow::Owned(decoded(text).collect())
    } else {
        Cow::Borrowed(text.as_bytes())
    }
}

/// The bytes of [`decode`], one by one, so that two names that differ are compared only up to there.
fn decoded(text: &str) -> impl Iterator<Item = u8> + '_ {
    let mut rest = text.as_bytes();
    std::iter::from_fn(move || {
        let (first, after) = rest.split_first()?;
        let (byte, after) = match (first, after) {
            (b'+', _) => (b' ', after),
            (b'%', [high, low, next @ ..]) => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => (high << 4 | low, next),
                _ => (b'%', after),
            },
            (byte, _) => (*byte, after),
        };
        rest = after;
        Some(byte)
    })
}

fn digit(byte: u8) -> Option<u8> {
    let value = char::from(byte).to_digit(16)?;
    u8::try_from(value).ok()
}

/// The rest of `path` after the elements of `prefix`. It is empty or begins with a slash.
pub(crate) fn rest_after<'a>(path: &'a str, prefix: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(prefix)?;
    // The empty prefix also takes `*`, which is not a path.
    (rest.is_empty() || rest.starts_with('/') || prefix.is_empty()).then_some(rest)
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn fields_and_parameters() {
        let request = Request::get("/a?b=1&b=2&c&&=x&d%20e=f+g%2b%zz%")
            .header("x-two", "1")
            .header("x-two", "2")
            .header("host", "ignored")
            .body(())
            .unwrap();
        let authority = Some("a.example.com:80");
        let view = View::new(&request, authority, HostnameGuard::OPEN, Steps::default());
        let header = |name: &'static str| {
            let value = view.header(&HeaderName::from_static(name))?;
            Some(String::from_utf8(value.into_owned()).unwrap())
        };
        assert_eq!(header("x-two").as_deref(), Some("1,2"));
        assert_eq!(header("x-none"), None);
        assert_eq!(header("host").as_deref(), Some("a.example.com:80"));
        let query = |name: &str| view.query(name.as_bytes());
        assert_eq!(query("b").as_deref(), Some(&b"1"[..]));
        assert_eq!(query("c").as_deref(), Some(&b""[..]));
        assert_eq!(query("").as_deref(), Some(&b"x"[..]));
        assert_eq!(query("d e").as_deref(), Some(&b"f g+%zz%"[..]));
        assert_eq!(query("B"), None);
    }

    #[test]
    fn looking_for_a_header_field_takes_steps() {
        let request = Request::get("/")
            .header("x-one", "1")
            .header("x-two", "1")
            .header("x-two", "23")
            .body(())
            .unwrap();
        let taken = |steps: u32, name: &'static str| {
            let view = View::new(&request, None, HostnameGuard::OPEN, Steps::new(steps));
            let found = view.header(&HeaderName::from_static(name)).is_some();
            (found, view.steps.have_run_out(), steps - view.steps.left())
        };
        assert_eq!(taken(100, "x-one"), (true, false, 8));
        assert_eq!(taken(100, "x-none"), (false, false, 8));
        assert_eq!(taken(100, "host"), (false, false, 8));
        // The joined value has four bytes.
        assert_eq!(taken(100, "x-two"), (true, false, 12));
        assert_eq!(taken(11, "x-two"), (false, true, 11));
        assert_eq!(taken(7, "x-one"), (false, true, 7));
    }

    #[test]
    fn looking_for_a_parameter_takes_steps() {
        let many = "a=b&".repeat(10_000);
        let request = Request::get(format!("/?first=1&{many}last=2"));
        let request = request.body(()).unwrap();
        let taken = |steps: u32, name: &str| {
            let view = View::new(&request, None, HostnameGuard::OPEN, Steps::new(steps));
            let found = view.query(name.as_bytes()).is_some();
            (found, view.steps.have_run_out(), steps - view.steps.left())
        };
        assert_eq!(taken(1 << 20, "first"), (true, false, 8));
        assert_eq!(taken(1 << 20, "last"), (true, false, 8 * 10_002));
        assert_eq!(taken(1 << 20, "none"), (false, false, 8 * 10_002));
        // A search that may take no more steps looks at no more parameters.
        assert_eq!(taken(80, "none"), (false, true, 80));
        assert_eq!(taken(80, "last"), (false, true, 80));
    }

    proptest! {
        #[test]
        fn any_query_is_read(query in "\\PC{0,64}") {
            let request = Request::get("/").body(()).unwrap();
            let mut view = View::new(&request, None, HostnameGuard::OPEN, Steps::default());
            view.raw_query = Some(&query);
            let _ = view.query(b"a");
        }

        #[test]
        fn encoding_is_undone(value in proptest::collection::vec(any::<u8>(), 0..32)) {
            let mut encoded = String::new();
            for byte in &value {
                write!(encoded, "%{byte:02X}").unwrap();
            }
            prop_assert_eq!(&*decode(&encoded), &*value);
        }
    }
}
