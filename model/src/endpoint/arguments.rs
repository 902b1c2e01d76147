//! The argument with which the operator and the proxies are told the addresses that their release denies to backends.

use clap::Args;

use super::EndpointRules;
use crate::certificate::AddressBlock;

/// The addresses that a release denies to backends. The chart gives the operator and the proxies the same ones.
#[derive(Debug, Clone, Args)]
pub struct EndpointArguments {
    /// Ranges of addresses that no backend may have, separated by commas. They come on top of link-local and metadata
    /// addresses, which none may have anyway.
    #[arg(
        long,
        env = "VESTIBULE_DENY_ENDPOINT_CIDRS",
        value_name = "CIDRS",
        value_delimiter = ','
    )]
    deny_endpoint_cidrs: Vec<AddressBlock>,
}

impl EndpointArguments {
    /// The rules with these arguments. By them, no backend has a loopback address.
    #[must_use]
    pub fn rules(&self) -> EndpointRules {
        EndpointRules {
            denied: self.deny_endpoint_cidrs.clone(),
            ..EndpointRules::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::endpoint::Denied;

    #[derive(Debug, Parser)]
    struct Binary {
        #[command(flatten)]
        endpoints: EndpointArguments,
    }

    #[test]
    fn the_arguments_become_rules_which_are_the_default_ones_without_them() {
        Binary::command().debug_assert();
        let parse = |arguments: &[&str]| {
            let parsed = Binary::try_parse_from([&["binary"], arguments].concat());
            parsed.map(|binary| binary.endpoints.rules())
        };
        assert_eq!(parse(&[]).unwrap(), EndpointRules::default());
        let blocks = ["10.96.0.0/12", "fd00::/8", "192.0.2.1"];
        let blocks = blocks.map(|text| AddressBlock::parse(text).unwrap());
        for given in [
            &["--deny-endpoint-cidrs=10.96.0.0/12,fd00::/8, 192.0.2.1"][..],
            &[
                "--deny-endpoint-cidrs=10.96.0.0/12",
                "--deny-endpoint-cidrs=fd00::/8,192.0.2.1",
            ],
        ] {
            let rules = parse(given).unwrap();
            assert_eq!(rules.denied, blocks, "{given:?}");
            let why = |text: &str| rules.denies(text.parse().unwrap());
            assert_eq!(why("10.97.0.1"), Some(Denied::ByRelease(blocks[0])));
            assert_eq!(why("127.0.0.1"), Some(Denied::Loopback));
            assert_eq!(why("192.0.2.2"), None);
        }
        for wrong in ["10.96.0.1/12", "10.96.0.0/33", "nodes"] {
            let error = parse(&[&format!("--deny-endpoint-cidrs={wrong}")]).unwrap_err();
            let said = error.to_string();
            assert!(said.contains("it is not a range of addresses"), "{said}");
        }
    }
}
