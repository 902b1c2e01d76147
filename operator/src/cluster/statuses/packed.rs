//! JSON of statuses in little memory: what nearly every status contains takes one byte each time.

use serde_json::Value;

/// Frequent parts of statuses. A part stands before those with which it begins. JSON text has no bytes below 32 outside
/// its spaces, of which `serde_json` writes none, so such a byte is the place of a part in this list. The list is never
/// stored, so every release may have another one.
static PARTS: [&[u8]; 31] = [
    br#"},{"lastTransitionTime":""#,
    br#"{"lastTransitionTime":""#,
    br#"Z","message":""#,
    br#"","observedGeneration":"#,
    br#","reason":"Accepted","status":"True","type":"Accepted"}"#,
    br#","reason":"ResolvedRefs","status":"True","type":"ResolvedRefs"}"#,
    br#","reason":"NoConflicts","status":"False","type":"Conflicted"}"#,
    br#","reason":"Programmed","status":"True","type":"Programmed"}"#,
    br#","reason":""#,
    br#"","status":"True","type":""#,
    br#"","status":"False","type":""#,
    br"The listener is accepted",
    br"The route is accepted",
    br"All references are resolved",
    br"No listener conflicts with it",
    br"In force in ",
    br" proxies",
    br#"{"attachedRoutes":"#,
    br#","conditions":["#,
    br#"{"parents":[{"conditions":["#,
    br#"],"controllerName":"vestibule.dev/gateway-controller","parentRef":{"#,
    br#"],"name":""#,
    br#"","supportedKinds":[{"group":"gateway.networking.k8s.io","kind":""#,
    br#""},{"group":"gateway.networking.k8s.io","kind":""#,
    br#""group":"gateway.networking.k8s.io","#,
    br#""kind":"ListenerSet","#,
    br#""name":""#,
    br#"","namespace":""#,
    br#"","sectionName":""#,
    br"HTTPRoute",
    br"GRPCRoute",
];

/// The bytes with which parts begin. Most bytes of a status are not among them, so packing costs little.
static FIRSTS: [bool; 256] = {
    let mut firsts = [false; 256];
    let mut at = 0;
    while at < PARTS.len() {
        firsts[PARTS[at][0] as usize] = true;
        at += 1;
    }
    firsts
};

/// A JSON value. Equal values are equal here too.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PackedJson(Box<[u8]>);

impl PackedJson {
    pub(super) fn new(value: &Value) -> Self {
        let text = value.to_string();
        let mut packed = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let [first, behind @ ..] = rest {
            let part = FIRSTS[usize::from(*first)]
                .then(|| {
                    let mut parts = (0_u8..).zip(&PARTS);
                    parts.find_map(|(place, part)| Some((place, rest.strip_prefix(*part)?)))
                })
                .flatten();
            let (byte, behind) = part.unwrap_or((*first, behind));
            packed.push(byte);
            rest = behind;
        }
        Self(packed.into())
    }

    pub(super) fn value(&self) -> Value {
        let mut text = Vec::with_capacity(self.0.len() * 4);
        for byte in &self.0 {
            match PARTS.get(usize::from(*byte)) {
                Some(part) => text.extend_from_slice(part),
                None => text.push(*byte),
            }
        }
        serde_json::from_slice(&text).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_status_of_a_route_takes_little_and_comes_back_as_it_was() {
        let condition = |kind: &str, reason: &str, message: &str| {
            json!({
                "type": kind, "status": "True", "reason": reason, "message": message,
                "observedGeneration": 7, "lastTransitionTime": "2026-01-02T03:04:05Z",
            })
        };
        let status = json!({ "parents": [{
            "parentRef": {
                "group": "gateway.networking.k8s.io", "kind": "ListenerSet",
                "namespace": "team", "name": "web", "sectionName": "https",
            },
            "controllerName": "vestibule.dev/gateway-controller",
            "conditions": [
                condition("Accepted", "Accepted", "The route is accepted"),
                condition("ResolvedRefs", "ResolvedRefs", "All references are resolved"),
            ],
        }] });
        let packed = PackedJson::new(&status);
        assert_eq!(packed.value(), status);
        let (packed, text) = (packed.0.len(), status.to_string().len());
        assert!(packed * 4 < text, "{packed} of {text} bytes");
    }

    #[test]
    fn a_value_with_any_characters_comes_back_as_it_was() {
        let all: String = ('\0'..='\u{17f}').collect();
        let value = json!({ "text": all, "": [null, 1, -2.5, true, { "name": "ü\n\u{1}" }] });
        assert_eq!(PackedJson::new(&value).value(), value);
        assert_eq!(PackedJson::new(&Value::Null).value(), Value::Null);
    }

    #[test]
    fn no_part_hides_behind_another() {
        for (at, part) in PARTS.iter().enumerate() {
            let hides = PARTS
                .iter()
                .take(at)
                .find(|before| part.starts_with(before));
            assert_eq!(hides, None, "{}", String::from_utf8_lossy(part));
        }
        assert!(PARTS.len() <= 32);
    }
}
