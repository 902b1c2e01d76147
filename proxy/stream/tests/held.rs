//! The proxy's end of the stream, without a network: what it takes, refuses and rejects.

use std::collections::BTreeMap;

use proptest::prelude::*;
use prost::Message;
use vestibule_stream::{
    Apply, Batch, Change, ContentHash, Digest, Encoded, Generation, Held, Invalid,
    PROTOCOL_VERSION, ProxyIdentity, Reject, Resource, ResourceKey, ResourceKind, decode_and_hold,
    limits::{INVENTORY_CHUNK, MAX_NAME_BYTES},
    negotiate,
    proto::{
        Ack, Backend, Certificate, Challenge, Endpoint, Http01, TlsAlpn01, Upsert, challenge,
        resource,
    },
    recording::{Reader, RecordingError, write},
};
use vestibule_test_support::properties::keep_failures;

/// A table that rejects backends with port 0.
#[derive(Default)]
struct Table {
    resources: BTreeMap<ResourceKey, Resource>,
    changes: Vec<Change>,
}

impl Apply for Table {
    fn apply(&mut self, change: &Change) -> Vec<Reject> {
        self.changes.push(change.clone());
        for key in &change.removals {
            assert!(self.resources.remove(key).is_some(), "{key} is not there");
        }
        let mut rejects = Vec::new();
        for (key, resource) in &change.upserts {
            if *resource == backend(&key.name, 0) {
                rejects.push(Reject::new(key.clone(), "Invalid", "port 0"));
            } else {
                self.resources.insert(key.clone(), resource.clone());
            }
        }
        rejects
    }
}

fn backend(name: &str, port: u32) -> Resource {
    let endpoint = Endpoint {
        address: "192.0.2.1".to_owned(),
        port,
    };
    Resource::new(
        name,
        resource::Resource::Backend(Backend {
            endpoints: vec![endpoint],
            ..Default::default()
        }),
    )
}

fn key(name: &str) -> ResourceKey {
    ResourceKey::new(ResourceKind::Backend, name)
}

fn at(counter: u64) -> Generation {
    Generation::new(1, counter)
}

fn full(counter: u64, resources: &[Resource]) -> Batch {
    Batch::full(at(counter), resources).unwrap()
}

fn delta(counter: u64, base: u64, resources: &[Resource], removals: &[&str]) -> Batch {
    let removals = removals.iter().map(|name| key(name)).collect();
    Batch::delta(at(counter), at(base), resources, removals).unwrap()
}

fn reason(ack: &Ack) -> &str {
    ack.refusal
        .as_ref()
        .map_or("taken", |refusal| refusal.reason.as_str())
}

/// Holds a and b at generation 1.5.
fn holding() -> (Held, Table) {
    let (mut held, mut table) = (Held::new(), Table::default());
    let ack = held.offer(&full(5, &[backend("a", 1), backend("b", 1)]), &mut table);
    assert_eq!((reason(&ack), ack.rejects.len()), ("taken", 0));
    (held, table)
}

#[test]
fn a_batch_is_refused_as_a_whole_with_its_reason() {
    let (mut held, mut table) = holding();
    let before = (held.digest(), table.resources.clone());
    let keep = |batch: Batch| Batch {
        keep_held: true,
        ..batch
    };
    let twice = Batch {
        removals: vec![key("a"), key("a")],
        ..delta(6, 5, &[], &[])
    };
    let undecodable = Batch {
        upserts: vec![Upsert {
            kind: ResourceKind::Backend.into(),
            resource: vec![0xff, 0xff].into(),
        }],
        ..delta(6, 5, &[], &[])
    };
    let wrong_kind = Batch {
        upserts: vec![Upsert {
            kind: ResourceKind::Listener.into(),
            resource: backend("a", 7).encode_to_vec().into(),
        }],
        ..delta(6, 5, &[], &[])
    };
    let other_digest = Batch {
        digest: vec![7; 32],
        ..delta(6, 5, &[backend("c", 1)], &[])
    };
    let cases = [
        ("StaleGeneration", full(5, &[])),
        ("StaleGeneration", full(4, &[])),
        ("StaleGeneration", delta(5, 5, &[backend("c", 1)], &[])),
        ("BaseMismatch", delta(7, 6, &[backend("c", 1)], &[])),
        ("BaseMismatch", delta(7, 4, &[], &["a"])),
        (
            "BaseMismatch",
            Batch {
                base: None,
                ..delta(6, 5, &[], &["a"])
            },
        ),
        ("BaseMismatch", other_digest),
        (
            "Malformed",
            Batch {
                generation: None,
                ..full(6, &[])
            },
        ),
        (
            "Malformed",
            Batch {
                base: Some(at(5)),
                ..full(6, &[])
            },
        ),
        ("Malformed", keep(delta(6, 5, &[], &[]))),
        ("Malformed", twice),
        ("Malformed", delta(6, 5, &[backend("a", 2)], &["a"])),
        (
            "Malformed",
            delta(6, 5, &[backend("a", 2), backend("a", 3)], &[]),
        ),
        ("Malformed", delta(6, 5, &[], &[""])),
        (
            "Malformed",
            delta(6, 5, &[], &[&"x".repeat(MAX_NAME_BYTES + 1)]),
        ),
        ("Malformed", undecodable),
        ("Malformed", wrong_kind),
    ];
    for (expected, batch) in cases {
        let ack = held.offer(&batch, &mut table);
        assert_eq!(reason(&ack), expected, "{batch:?}");
        assert_eq!(ack.generation, batch.generation);
        assert_eq!(
            (held.digest(), table.resources.clone()),
            before,
            "{batch:?}"
        );
        assert_eq!(held.generation(), Some(at(5)));
    }
    assert_eq!(table.changes.len(), 1);

    let mut nothing = Held::new();
    for batch in [delta(6, 5, &[], &[]), keep(full(6, &[]))] {
        assert_eq!(reason(&nothing.offer(&batch, &mut table)), "NotFull");
    }
}

#[test]
fn a_rejected_resource_keeps_its_last_good_version_and_is_not_held_as_sent() {
    let (mut held, mut table) = holding();
    let ack = held.offer(
        &delta(
            6,
            5,
            &[backend("a", 0), backend("c", 0), backend("d", 1)],
            &[],
        ),
        &mut table,
    );
    let rejected: Vec<_> = ack
        .rejects
        .iter()
        .map(|reject| reject.key.clone().unwrap())
        .collect();
    assert_eq!(
        (reason(&ack), rejected),
        ("taken", vec![key("a"), key("c")])
    );
    assert_eq!(held.generation(), Some(at(6)));
    let hashes: BTreeMap<_, _> = held
        .entries()
        .map(|(key, hash)| (key.clone(), hash))
        .collect();
    let hash = |resource| Encoded::new(&resource).unwrap().hash();
    assert_eq!(hashes[&key("a")], hash(backend("a", 1)));
    assert_eq!(hashes[&key("d")], hash(backend("d", 1)));
    assert!(!hashes.contains_key(&key("c")));
    assert_eq!(table.resources[&key("a")], backend("a", 1));

    // A full batch that carries it in a bad version does not remove the good one either.
    held.offer(&full(7, &[backend("a", 0)]), &mut table);
    assert_eq!(table.resources.keys().collect::<Vec<_>>(), [&key("a")]);
    assert_eq!(held.entries().count(), 1);
}

#[test]
fn a_resource_of_an_unknown_kind_is_rejected_and_the_others_are_taken() {
    let (mut held, mut table) = holding();
    let unknown = Resource {
        name: "x/y".to_owned(),
        resource: None,
    };
    let mut batch = delta(6, 5, &[backend("c", 1)], &[]);
    batch.upserts.push(Upsert {
        kind: 99,
        resource: unknown.encode_to_vec().into(),
    });
    let ack = held.offer(&batch, &mut table);
    let reject = &ack.rejects[0];
    assert_eq!(reject.reason, "UnknownResource");
    assert_eq!(reject.key.as_ref().unwrap().to_string(), "kind-99/x/y");
    assert_eq!(ack.rejects.len(), 1);
    assert_eq!(held.entries().count(), 3);
}

#[test]
fn a_change_holds_only_what_differs() {
    let (mut held, mut table) = holding();
    held.offer(
        &full(6, &[backend("a", 1), backend("b", 2), backend("c", 1)]),
        &mut table,
    );
    let change = table.changes.last().unwrap();
    let upserts: Vec<_> = change
        .upserts
        .iter()
        .map(|(key, _)| key.name.as_str())
        .collect();
    assert_eq!((change.full, upserts), (true, vec!["b", "c"]));
    assert!(change.removals.is_empty());

    held.offer(&full(7, &[backend("a", 1)]), &mut table);
    assert_eq!(table.changes.last().unwrap().removals, [key("b"), key("c")]);

    // With keep_held, what is not mentioned stays; a removal of what is not held is none.
    let batch = Batch {
        keep_held: true,
        removals: vec![key("nothing")],
        ..full(8, &[backend("z", 1)])
    };
    held.offer(&batch, &mut table);
    assert!(table.changes.last().unwrap().removals.is_empty());
    assert_eq!(held.entries().count(), 2);
}

#[test]
fn the_inventory_lists_everything_in_chunks() {
    let resources: Vec<_> = (0..=INVENTORY_CHUNK)
        .map(|i| backend(&format!("b{i}"), 1))
        .collect();
    let mut held = Held::new();
    assert!(
        held.inventory()
            .iter()
            .all(|chunk| chunk.last && chunk.entries.is_empty())
    );
    held.offer(&full(1, &resources), &mut Table::default());
    let chunks = held.inventory();
    let sizes: Vec<_> = chunks
        .iter()
        .map(|chunk| (chunk.entries.len(), chunk.last))
        .collect();
    assert_eq!(sizes, [(INVENTORY_CHUNK, false), (1, true)]);

    let hello = held.hello(&ProxyIdentity::new("p"));
    assert_eq!(
        (hello.held, hello.held_digest),
        (Some(at(1)), held.digest().to_vec())
    );
}

#[test]
fn versions_are_negotiated_down_to_the_common_one() {
    assert_eq!(negotiate(0), None);
    assert_eq!(negotiate(PROTOCOL_VERSION), Some(PROTOCOL_VERSION));
    assert_eq!(negotiate(PROTOCOL_VERSION + 1), Some(PROTOCOL_VERSION));
}

#[test]
fn resource_that_is_empty_unnamed_or_named_too_long_is_not_encoded() {
    assert_eq!(Encoded::new(&backend("", 1)), Err(Invalid::NoName));
    let long = "x".repeat(MAX_NAME_BYTES + 1);
    assert_eq!(
        Encoded::new(&backend(&long, 1)),
        Err(Invalid::LongName(long.len()))
    );
    let empty = Resource {
        name: "a".to_owned(),
        resource: None,
    };
    assert_eq!(Encoded::new(&empty), Err(Invalid::Empty("a".to_owned())));
}

#[test]
fn a_private_key_is_not_printed() {
    let certificate = resource::Resource::Certificate(Certificate {
        chain: Vec::new(),
        private_key: b"SECRET".to_vec(),
        secret_uid: String::new(),
    });
    let challenged = |answer| {
        resource::Resource::Challenge(Challenge {
            answer: Some(answer),
            ..Challenge::default()
        })
    };
    let tls = challenged(challenge::Answer::TlsAlpn01(TlsAlpn01 {
        certificate: Vec::new(),
        private_key: b"SECRET".to_vec(),
    }));
    let http = challenged(challenge::Answer::Http01(Http01 {
        token: "token".to_owned(),
        key_authorization: "token.SECRET".to_owned(),
    }));
    let secret = format!("{:?}", b"SECRET".to_vec());
    for resource in [certificate, tls, http] {
        let named = Resource::new("ns/name", resource.clone());
        let batch = full(1, std::slice::from_ref(&named));
        let encoded = Encoded::new(&named).unwrap();
        for text in [
            format!("{batch:?}"),
            format!("{resource:?}"),
            format!("{encoded:?}"),
        ] {
            assert!(
                !text.contains("SECRET") && !text.contains(secret.trim_matches(['[', ']'])),
                "{text}"
            );
        }
    }
}

#[test]
fn a_recording_is_read_back_and_damage_is_told() {
    let batches = [full(1, &[backend("a", 1)]), delta(2, 1, &[], &["a"])];
    let mut file = Vec::new();
    for batch in &batches {
        write(&mut file, batch).unwrap();
    }
    let read: Vec<_> = Reader::new(file.as_slice()).map(Result::unwrap).collect();
    assert_eq!(read, batches);

    let boundary = batches[0].encode_length_delimited_to_vec().len();
    for length in 0..file.len() {
        let mut reader = Reader::new(&file[..length]);
        let whole = reader.by_ref().take_while(Result::is_ok).count();
        assert_eq!(whole, usize::from(length >= boundary));
        assert!(reader.next().is_none());
        if length != 0 && length != boundary {
            let last = Reader::new(&file[..length]).last().unwrap();
            assert!(matches!(last, Err(RecordingError::Truncated)), "{length}");
        }
    }
    let endless = [0xff_u8; 16];
    let lie = [0xff_u8, 0xff, 0xff, 0xff, 0x0f];
    for bytes in [endless.as_slice(), lie.as_slice()] {
        let first = Reader::new(bytes).next().unwrap();
        assert!(matches!(first, Err(RecordingError::TooLong)));
    }
}

proptest! {
    #![proptest_config(keep_failures())]

    #[test]
    fn the_digest_does_not_depend_on_the_order(
        entries in proptest::collection::btree_map("[a-c]{1,3}", any::<[u8; 4]>(), 0..12),
        seed in any::<proptest::sample::Index>(),
    ) {
        let entries: Vec<_> = entries.iter().map(|(name, bytes)| (key(name), ContentHash::of(bytes))).collect();
        let sum = |entries: &[(ResourceKey, ContentHash)]| {
            let mut digest = Digest::default();
            for (key, hash) in entries {
                digest.add(key, *hash);
            }
            digest
        };
        let mut turned = entries.clone();
        if !turned.is_empty() {
            let middle = seed.index(turned.len());
            turned.rotate_left(middle);
        }
        prop_assert_eq!(sum(&entries), sum(&turned));
        let Some(((first, hash), rest)) = turned.split_first() else { return Ok(()) };
        let mut less = sum(&entries);
        less.remove(first, *hash);
        prop_assert_eq!(less, sum(rest));
        prop_assert_ne!(less, sum(&entries));
    }

    /// Bytes from anywhere: never a panic, and what is held is what the table holds.
    #[test]
    fn any_bytes_are_taken_or_refused(
        damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..6),
        garbage in proptest::collection::vec(any::<u8>(), 0..64),
    ) {
        let (mut held, mut table) = holding();
        decode_and_hold(&garbage, &mut held, &mut table);
        let mut bytes = delta(6, 5, &[backend("a", 2), backend("c", 3)], &["b"]).encode_to_vec();
        for (index, byte) in damage {
            let length = bytes.len();
            bytes[index.index(length)] = byte;
        }
        let ack = decode_and_hold(&bytes, &mut held, &mut table);
        prop_assert!(ack.refusal.is_some() || held.generation() == ack.generation);
        let mut digest = Digest::default();
        for (key, hash) in held.entries() {
            digest.add(key, hash);
        }
        prop_assert_eq!(digest, held.digest());
        let held: Vec<_> = held.entries().map(|(key, _)| key.clone()).collect();
        prop_assert_eq!(held, table.resources.keys().cloned().collect::<Vec<_>>());
    }
}
