//! The challenges of CAs that the proxies answer.

use std::collections::BTreeMap;

use vestibule_model::challenge::{ChallengeAnswer, ChallengeType};
use vestibule_operator::translate::{Change, challenge_resource};
use vestibule_operator_testing::objects::*;

use super::{challenge, ends, http, tenant, with, world};

#[test]
fn a_challenge_is_there_while_it_may_be_answered() {
    let ours = with(
        tenant(
            "a",
            vec![
                ends("l", 443, "x.example.com", "a", "cert"),
                http("h", "x.example.com"),
            ],
        ),
        acme(),
    );
    let mut world = world(vec![passthrough("own", "own.example.com")], [ours.clone()]);
    for kind in ChallengeType::ALL {
        let (key, answer) = challenge(kind, "x.example.com", "a");
        let resource = challenge_resource(&key);
        let output = world.challenges(BTreeMap::from([(key.clone(), Some(answer.clone()))]));
        assert!(
            matches!(output.resources.get(&resource), Some(Some(_))),
            "{kind}"
        );
        // Its name on the stream.
        assert_eq!(resource.name, key.to_string());
        // Its listener goes, and comes back.
        let gone = world.apply([Change::Remove(ours.key())]);
        if kind == ChallengeType::Http01 {
            assert!(
                matches!(gone.resources.get(&resource), Some(None)),
                "{kind}"
            );
        }
        // Then somebody else takes the name.
        let theirs = tenant("b", vec![passthrough("l", "x.example.com")]);
        world.apply([Change::Put(theirs.clone())]);
        assert!(!world.resources().contains_key(&resource), "{kind}");
        world.apply([Change::Remove(theirs.key())]);
        world.apply([Change::Put(ours.clone())]);
        assert!(world.resources().contains_key(&resource), "{kind}");
        // For another tenant it is not answered.
        let other = ChallengeAnswer {
            tenant: "b".into(),
            ..answer
        };
        world.challenges(BTreeMap::from([(key.clone(), Some(other))]));
        assert!(!world.resources().contains_key(&resource), "{kind}");
        world.challenges(BTreeMap::from([(key, None)]));
    }
}

#[test]
fn nothing_of_a_key_is_in_debug() {
    let (_, answer) = challenge(ChallengeType::TlsAlpn01, "x.example.com", "a");
    assert!(!format!("{answer:?}").contains("107"));
    let (_, answer) = challenge(ChallengeType::Http01, "x.example.com", "a");
    assert!(!format!("{answer:?}").contains("thumbprint"));
}
