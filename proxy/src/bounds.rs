//! Owns those limits of connections and requests of which a Gateway may replace the release-wide values.

use std::time::Duration;

use vestibule_backoff::between;
use vestibule_stream::proto;

/// The limits of a listener. `None` means that there is no such limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Longest time of an HTTP request without a byte of its body or its response.
    pub stream_idle: Option<Duration>,
    /// Longest time from the head of an HTTP request to the end of its response, unless the rule sets another one.
    pub request: Option<Duration>,
    /// Longest time of a tunnel without a byte in either direction.
    pub tunnel_idle: Option<Duration>,
    /// Age at which a connection is ended.
    pub connection_age: Option<Duration>,
    /// Most bytes of an HTTP request's body.
    pub request_body: Option<u64>,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            // These two are the defaults of Envoy.
            stream_idle: Some(Duration::from_mins(5)),
            tunnel_idle: Some(Duration::from_hours(1)),
            request: None,
            connection_age: None,
            request_body: None,
        }
    }
}

/// The limits that a Gateway sets. `None` keeps the value of the release, and zero means that there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Overrides {
    pub(crate) stream_idle: Option<Duration>,
    pub(crate) request: Option<Duration>,
    pub(crate) tunnel_idle: Option<Duration>,
    pub(crate) connection_age: Option<Duration>,
    pub(crate) request_body: Option<u64>,
}

impl From<&proto::ListenerLimits> for Overrides {
    fn from(wire: &proto::ListenerLimits) -> Self {
        Self {
            stream_idle: wire.stream_idle.map(Duration::from_millis),
            request: wire.request.map(Duration::from_millis),
            tunnel_idle: wire.tunnel_idle.map(Duration::from_millis),
            connection_age: wire.connection_age.map(Duration::from_millis),
            request_body: wire.request_body,
        }
    }
}

impl Bounds {
    /// These limits, with those replaced that a Gateway sets.
    pub(crate) fn with(self, overrides: &Overrides) -> Self {
        let time = |set: Option<Duration>, ours| match set {
            None => ours,
            Some(set) => (!set.is_zero()).then_some(set),
        };
        Self {
            stream_idle: time(overrides.stream_idle, self.stream_idle),
            request: time(overrides.request, self.request),
            tunnel_idle: time(overrides.tunnel_idle, self.tunnel_idle),
            connection_age: time(overrides.connection_age, self.connection_age),
            request_body: match overrides.request_body {
                None => self.request_body,
                Some(set) => (set > 0).then_some(set),
            },
        }
    }
}

/// An age, changed by up to a tenth in either direction by 64 random bits. So connections that begin together do not
/// all end, and are made again, at the same time.
pub(crate) fn spread(age: Duration, random: u64) -> Duration {
    let tenth = age / 10;
    between(age.saturating_sub(tenth), age.saturating_add(tenth), random)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_tightens_loosens_and_switches_off() {
        let release = Bounds {
            request_body: Some(7),
            ..Bounds::default()
        };
        assert_eq!(release.with(&Overrides::default()), release);
        let set = Overrides::from(&proto::ListenerLimits {
            stream_idle: Some(1500),
            request: Some(10_000),
            tunnel_idle: Some(0),
            connection_age: Some(60_000),
            request_body: Some(0),
        });
        let expected = Bounds {
            stream_idle: Some(Duration::from_millis(1500)),
            request: Some(Duration::from_secs(10)),
            tunnel_idle: None,
            connection_age: Some(Duration::from_mins(1)),
            request_body: None,
        };
        assert_eq!(release.with(&set), expected);
        // The largest number that can be sent does no harm.
        let most = Overrides::from(&proto::ListenerLimits {
            connection_age: Some(u64::MAX),
            request_body: Some(u64::MAX),
            ..Default::default()
        });
        let most = release.with(&most);
        assert_eq!(most.request_body, Some(u64::MAX));
        assert!(spread(most.connection_age.unwrap(), u64::MAX) > Duration::from_hours(1));
    }

    #[test]
    fn ages_are_spread_over_a_fifth() {
        let age = Duration::from_secs(1000);
        let ages: Vec<_> = (0..1024).map(|step| spread(age, step << 54)).collect();
        assert_eq!(ages[0], Duration::from_mins(15));
        assert!(ages.is_sorted_by(|a, b| a < b));
        let last = ages[1023];
        assert!(last > Duration::from_secs(1099) && last <= Duration::from_secs(1100));
    }
}
