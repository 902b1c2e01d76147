//! How much of the configuration that every proxy gets all namespaces together may fill.

/// How many MiB of the configuration may be filled by what. Beyond a total, namespaces have [fair
/// shares](crate::fair_total) of it. The namespaces of Gateways count and have no limit, except for routes.
///
/// A new proxy gets everything in one batch, which can have 256 MiB. With all four totals filled, there has to be room for the
/// rest: the holders of hostnames, challenges, what Gateways set for each of their listeners, and the frame of each resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "arguments", derive(clap::Args))]
pub struct ConfigurationTotals {
    /// MiB that the certificates, keys and CA certificates in use of all namespaces together may have in the configuration of
    /// each proxy, also of those with a Gateway. Beyond it, each namespace without a Gateway has a fair share.
    #[cfg_attr(feature = "arguments", arg(
        long = "all-certificates-mib",
        env = "VESTIBULE_ALL_CERTIFICATES_MIB",
        default_value_t = Self::DEFAULT.certificates_mib,
        value_parser = mib_of_total()
    ))]
    pub certificates_mib: u16,
    /// MiB that the routes of all namespaces together may have in the configuration of each proxy. Beyond it, each namespace has a fair share.
    #[cfg_attr(feature = "arguments", arg(
        long = "all-routes-mib",
        env = "VESTIBULE_ALL_ROUTES_MIB",
        default_value_t = Self::DEFAULT.routes_mib,
        value_parser = mib_of_total()
    ))]
    pub routes_mib: u16,
    /// MiB that the backends of all namespaces together may have in the configuration of each proxy, also of those with a Gateway. Beyond it, each namespace
    /// without a Gateway has a fair share.
    #[cfg_attr(feature = "arguments", arg(
        long = "all-backends-mib",
        env = "VESTIBULE_ALL_BACKENDS_MIB",
        default_value_t = Self::DEFAULT.backends_mib,
        value_parser = mib_of_total()
    ))]
    pub backends_mib: u16,
    /// MiB that the listeners of all namespaces together may have in the configuration of each proxy, also of those with a Gateway. Beyond it, each namespace
    /// without a Gateway has a fair share.
    #[cfg_attr(feature = "arguments", arg(
        long = "all-listeners-mib",
        env = "VESTIBULE_ALL_LISTENERS_MIB",
        default_value_t = Self::DEFAULT.listeners_mib,
        value_parser = mib_of_total()
    ))]
    pub listeners_mib: u16,
}

impl ConfigurationTotals {
    /// The totals of a release that sets none.
    pub const DEFAULT: Self = Self {
        certificates_mib: 128,
        routes_mib: 48,
        backends_mib: 32,
        listeners_mib: 32,
    };

    /// The most that all four together may be, in MiB.
    pub const MOST_MIB: u16 = 240;

    /// Whether a batch has room for all four, and for the rest of a configuration.
    ///
    /// # Errors
    ///
    /// Says how much too large they are.
    pub fn check(self) -> Result<(), TotalsTooLarge> {
        let Self {
            certificates_mib,
            routes_mib,
            backends_mib,
            listeners_mib,
        } = self;
        let totals = [certificates_mib, routes_mib, backends_mib, listeners_mib];
        let sum = totals.into_iter().map(u32::from).sum();
        if sum > u32::from(Self::MOST_MIB) {
            return Err(TotalsTooLarge { sum });
        }
        Ok(())
    }
}

impl Default for ConfigurationTotals {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The [totals](ConfigurationTotals) in bytes. Who does not take them from the policy may set them as small as need be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TotalBytes {
    /// Bytes of certificates, keys and CA certificates.
    pub certificates: u64,
    /// Bytes of routes.
    pub routes: u64,
    /// Bytes of backends.
    pub backends: u64,
    /// Bytes of listeners.
    pub listeners: u64,
}

impl From<ConfigurationTotals> for TotalBytes {
    fn from(totals: ConfigurationTotals) -> Self {
        let ConfigurationTotals {
            certificates_mib,
            routes_mib,
            backends_mib,
            listeners_mib,
        } = totals;
        Self {
            certificates: mib(certificates_mib),
            routes: mib(routes_mib),
            backends: mib(backends_mib),
            listeners: mib(listeners_mib),
        }
    }
}

/// A new proxy could not get a configuration that fills all totals.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the totals of certificates, routes, backends and listeners are {sum} MiB together, and a configuration has room for {} MiB \
     of them: lower --all-certificates-mib, --all-routes-mib, --all-backends-mib or --all-listeners-mib (tenants.allCertificatesMib \
     and so on in the chart)",
    ConfigurationTotals::MOST_MIB
)]
pub struct TotalsTooLarge {
    sum: u32,
}

/// Reads one total in MiB. Each of them may be as large as [`ConfigurationTotals::check`] allows all four to be together.
#[cfg(feature = "arguments")]
fn mib_of_total() -> clap::builder::RangedI64ValueParser<u16> {
    clap::value_parser!(u16).range(1..=i64::from(ConfigurationTotals::MOST_MIB))
}

/// So many bytes as these MiB have.
#[must_use]
pub fn mib(mib: u16) -> u64 {
    u64::from(mib) << 20
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Helm refuses more before the operator does, and shows the defaults.
    #[test]
    fn the_chart_has_the_same_defaults_and_the_same_bound() {
        let values = include_str!("../../../charts/vestibule/values.yaml");
        let template = include_str!("../../../charts/vestibule/templates/operator/deployment.yaml");
        let ConfigurationTotals {
            certificates_mib,
            routes_mib,
            backends_mib,
            listeners_mib,
        } = ConfigurationTotals::DEFAULT;
        for (name, mib) in [
            ("allCertificatesMib", certificates_mib),
            ("allRoutesMib", routes_mib),
            ("allBackendsMib", backends_mib),
            ("allListenersMib", listeners_mib),
        ] {
            assert!(values.contains(&format!("\n  {name}: {mib}\n")), "{name}");
            let default = format!("$tenants.{name} | default {mib} |");
            assert!(template.contains(&default), "{default}");
        }
        let most = ConfigurationTotals::MOST_MIB;
        assert!(template.contains(&format!("gt $totals {most}")));
    }

    #[test]
    fn a_batch_has_room_for_all_totals() {
        assert_eq!(ConfigurationTotals::DEFAULT.check(), Ok(()));
        let more = ConfigurationTotals {
            routes_mib: 49,
            ..ConfigurationTotals::DEFAULT
        };
        let error = more.check().unwrap_err().to_string();
        assert!(error.contains("241 MiB"), "{error}");
        let most = u16::MAX;
        let largest = ConfigurationTotals {
            certificates_mib: most,
            routes_mib: most,
            backends_mib: most,
            listeners_mib: most,
        };
        assert!(largest.check().is_err());
    }
}
