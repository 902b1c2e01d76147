//! Settings of the Services that Vestibule makes: type, traffic policy and IP families.

/// The word is not a value of the enumeration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{word:?} is not one of {expected}")]
pub struct UnknownWord {
    word: String,
    expected: String,
}

impl UnknownWord {
    pub(crate) fn new(word: &str, expected: &[&str]) -> Self {
        Self {
            word: word.into(),
            expected: expected.join(", "),
        }
    }
}

macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vmeta])* $variant),+ }

        impl $name {
            /// Every value.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The text the API uses.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::service::UnknownWord;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                Self::ALL.iter().copied().find(|value| value.as_str() == text).ok_or_else(|| {
                    $crate::service::UnknownWord::new(text, &[$($text),+])
                })
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

pub(crate) use words;

words! {
    /// `type` of a Service in front of the proxies.
    ServiceType {
        /// A load balancer of the cluster's provider.
        LoadBalancer = "LoadBalancer",
        /// An address inside the cluster.
        ClusterIp = "ClusterIP",
        /// A port on every node.
        NodePort = "NodePort",
    }
}

impl ServiceType {
    /// Whether the type has an `externalTrafficPolicy`.
    #[must_use]
    pub fn is_external(self) -> bool {
        self != Self::ClusterIp
    }
}

words! {
    /// `externalTrafficPolicy`.
    TrafficPolicy {
        /// Traffic goes only to proxies on the node where it arrives. The client's address is kept.
        Local = "Local",
        /// Traffic goes to any proxy. The client's address may be lost.
        Cluster = "Cluster",
    }
}

words! {
    /// `ipFamilyPolicy`.
    IpFamilyPolicy {
        /// One IP family.
        SingleStack = "SingleStack",
        /// Both IP families if the cluster has both.
        PreferDualStack = "PreferDualStack",
        /// Both IP families. If the cluster does not have both, the Service is refused.
        RequireDualStack = "RequireDualStack",
    }
}

words! {
    /// An IP family.
    IpFamily {
        /// IPv4
        V4 = "IPv4",
        /// IPv6
        V6 = "IPv6",
    }
}
