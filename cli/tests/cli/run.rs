//! `vestibule run` as a process: what it serves while its directory changes under it.

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::common::{
    Directory, PLATFORM, Run, backend, exchange, free_port, get, route, service, set, wait_for,
};
use serde_json::Value;

const HOST: &str = "www.bakery.example";
const OTHER: &str = "shop.orchard.example";

/// Two tenants, each in a file of its own, with two backends.
fn start(arguments: &[&str]) -> Run {
    let run = start_on(free_port(), arguments);
    run.wait_for_log("directory");
    run
}

fn start_on(port: u16, arguments: &[&str]) -> Run {
    let home = Directory::new();
    let manifests = home.path().join("manifests");
    fs::create_dir(&manifests).unwrap();
    fs::write(manifests.join("platform.yaml"), PLATFORM).unwrap();
    for (namespace, host, one, two) in [
        ("bakery", HOST, "bread 1", "bread 2"),
        ("orchard", OTHER, "apple 1", "apple 2"),
    ] {
        let services = [
            service(namespace, "one", backend(one)),
            service(namespace, "two", backend(two)),
        ];
        let file = manifests.join(format!("{namespace}-services.yaml"));
        fs::write(file, services.concat()).unwrap();
        fs::write(
            manifests.join(format!("{namespace}.yaml")),
            tenant(namespace, host, "one"),
        )
        .unwrap();
    }
    Run::start_on(home, port, arguments)
}

fn tenant(namespace: &str, host: &str, service: &str) -> String {
    [set(namespace, host), route(namespace, host, service)].concat()
}

fn json() -> Run {
    start(&["--log-format", "json"])
}

#[test]
fn serves_follows_edits_and_ends_when_told() {
    let mut run = json();
    run.wait_for_answer(HOST, "bread 1");
    run.wait_for_answer(OTHER, "apple 1");
    run.write("bakery.yaml", &tenant("bakery", HOST, "two"));
    run.wait_for_answer(HOST, "bread 2");
    assert_eq!(run.get(OTHER).unwrap(), "apple 1");
    assert_eq!(run.admin("/readyz"), "ready\n");
    for line in run.admin("/").lines() {
        let path = line.split(' ').next().unwrap();
        assert!(!run.admin(path).is_empty(), "{path}");
    }
    run.signal("TERM");
    assert_eq!(run.wait().code(), Some(0));
    assert!(run.log().contains("\"drained\""), "{}", run.log());
}

#[test]
fn statuses_say_what_is_in_force() {
    let run = json();
    run.wait_for_answer(HOST, "bread 1");
    let programmed = || {
        let objects: Value = serde_json::from_str(&run.admin("/status")).unwrap();
        let set = objects
            .as_array()
            .unwrap()
            .iter()
            .find(|o| o["kind"] == "ListenerSet" && o["namespace"] == "bakery")?
            .clone();
        let conditions = set["status"]["listeners"][0]["conditions"].clone();
        conditions
            .as_array()?
            .iter()
            .find(|c| c["type"] == "Programmed")
            .map(|c| (c["status"].clone(), c["message"].clone()))
    };
    // The document follows the acks, and it may not have the set yet when the first answer comes.
    wait_for("Programmed", || {
        programmed() == Some(("True".into(), "In force in 1 of 1 proxies".into()))
    });
}

/// An object that comes before the holder's, in Gateway API's order, and asks for its name.
#[test]
fn admission_refuses_who_asks_for_a_name_and_not_its_holder() {
    let run = json();
    run.wait_for_answer(HOST, "bread 1");
    run.write("apiary.yaml", &tenant("apiary", HOST, "one"));
    let refusal = |namespace: &str| {
        let objects: Value = serde_json::from_str(&run.admin("/status")).unwrap();
        let objects = objects.as_array().unwrap().clone();
        let of = |o: &&Value| o["kind"] == "ListenerSet" && o["namespace"] == namespace;
        objects.iter().find(of).map(|o| o["admission"].clone())
    };
    wait_for("a refusal", || {
        refusal("apiary").is_some_and(|admission| admission.is_string())
    });
    assert_eq!(refusal("bakery"), Some(Value::Null));
    assert_eq!(run.get(HOST).unwrap(), "bread 1");
}

#[test]
fn a_broken_file_keeps_its_last_good_objects() {
    let run = json();
    run.wait_for_answer(HOST, "bread 1");
    run.write(
        "bakery.yaml",
        "apiVersion: gateway.networking.k8s.io/v1\nkind: \"Listener",
    );
    run.wait_for_log("so its last good objects stay");
    assert_eq!(run.get(HOST).unwrap(), "bread 1");
    // Others go on changing, and so does this file once it is whole.
    run.write("orchard.yaml", &tenant("orchard", OTHER, "two"));
    run.wait_for_answer(OTHER, "apple 2");
    assert_eq!(run.get(HOST).unwrap(), "bread 1");
    run.write("bakery.yaml", &tenant("bakery", HOST, "two"));
    run.wait_for_answer(HOST, "bread 2");
}

#[test]
fn a_slow_writer_takes_nobody_down() {
    let run = json();
    run.wait_for_answer(HOST, "bread 1");
    let two = tenant("bakery", HOST, "two");
    let serve = |what: &str| {
        // Longer than a file has to look the same for.
        let until = Instant::now() + Duration::from_millis(250);
        while Instant::now() < until {
            let seen = run.get(HOST);
            let served = seen.as_ref().is_ok_and(|seen| seen == "bread 1");
            assert!(served, "after {what:?}: {seen:?}; the log:\n{}", run.log());
        }
    };
    // One that holds the file open, and one that opens it for every part.
    for (text, reopens) in [(&two, false), (&tenant("bakery", HOST, "one"), true)] {
        let path = run.manifests().join("bakery.yaml");
        let mut file = fs::File::create(&path).unwrap();
        for line in text.split_inclusive('\n') {
            file.write_all(line.as_bytes()).unwrap();
            if reopens {
                drop(file);
                file = fs::File::options().append(true).open(&path).unwrap();
            }
            if line.contains("kind:") || line.contains("hostnames") {
                serve(line);
            }
        }
        drop(file);
        if !reopens {
            run.wait_for_answer(HOST, "bread 2");
            run.write("bakery.yaml", &tenant("bakery", HOST, "one"));
            run.wait_for_answer(HOST, "bread 1");
        }
    }
    // What was meant counts, a little later.
    run.write("bakery.yaml", &set("bakery", HOST));
    run.wait_for_log("bakery.yaml: taken as it is");
    wait_for("the route to go", || run.get(HOST).is_err());
}

#[test]
fn an_object_that_does_not_decode_goes_alone() {
    let run = json();
    run.wait_for_answer(HOST, "bread 1");
    let bad = tenant("bakery", HOST, "one").replace(&format!("[{HOST}]"), "7");
    run.write("bakery.yaml", &bad);
    run.wait_for_log("Unreadable");
    wait_for("the route to go", || run.get(HOST).is_err());
    assert_eq!(run.get(OTHER).unwrap(), "apple 1");
}

#[test]
fn a_directory_that_is_gone_for_a_moment_changes_nothing() {
    let run = json();
    run.wait_for_answer(HOST, "bread 1");
    let away = run.manifests().with_extension("away");
    fs::rename(run.manifests(), &away).unwrap();
    run.wait_for_log("\"directory-gone\"");
    assert_eq!(run.get(HOST).unwrap(), "bread 1");
    // An empty one in its place is not the user's deletion either.
    fs::create_dir(run.manifests()).unwrap();
    assert_eq!(run.get(HOST).unwrap(), "bread 1");
    fs::remove_dir(run.manifests()).unwrap();
    fs::rename(&away, run.manifests()).unwrap();
    run.wait_for_log("\"directory-back\"");
    assert_eq!(run.get(HOST).unwrap(), "bread 1");
    run.write("bakery.yaml", &tenant("bakery", HOST, "two"));
    run.wait_for_answer(HOST, "bread 2");
}

#[test]
fn files_come_and_go_and_what_editors_leave_does_not_count() {
    let run = json();
    run.wait_for_answer(HOST, "bread 1");
    let two = tenant("bakery", HOST, "two");
    for name in [".bakery.yaml.swp", "bakery.yaml~", ".bakery.yaml", "4913"] {
        run.write(name, &two);
    }
    fs::remove_file(run.manifests().join("orchard.yaml")).unwrap();
    wait_for("orchard to go", || run.get(OTHER).is_err());
    assert_eq!(run.get(HOST).unwrap(), "bread 1");
    // As editors and `kubectl`-like tools save: written beside, and moved over.
    let beside = run.manifests().join(".bakery.new");
    fs::write(&beside, &two).unwrap();
    fs::rename(&beside, run.manifests().join("bakery.yaml")).unwrap();
    run.wait_for_answer(HOST, "bread 2");
    fs::create_dir(run.manifests().join("below")).unwrap();
    run.write("below/orchard.yml", &tenant("orchard", OTHER, "two"));
    run.wait_for_answer(OTHER, "apple 2");
}

#[test]
fn a_name_that_is_not_granted_any_more_is_closed() {
    let run = json();
    run.wait_for_answer(OTHER, "apple 1");
    let grant = |namespaces: &str| {
        format!(
            "apiVersion: vestibule.dev/v1alpha1\nkind: HostnameGrant\n\
             metadata: {{namespace: platform, name: all}}\n\
             spec: {{namespaces: {{names: [{namespaces}]}}, hostnames: [\"*\"]}}\n"
        )
    };
    run.write("grants.yaml", &grant("bakery"));
    wait_for("orchard to be closed", || run.get(OTHER).is_err());
    assert_eq!(run.get(HOST).unwrap(), "bread 1");
    wait_for("a status that says so", || {
        run.admin("/status").contains("HostnameNotOwned")
    });
    run.write("grants.yaml", &grant("bakery, orchard"));
    run.wait_for_answer(OTHER, "apple 1");
    // What is no grant gives nothing, to anybody.
    run.write(
        "grants.yaml",
        &grant("bakery").replace("hostnames", "hostname"),
    );
    wait_for("bakery to be closed", || run.get(HOST).is_err());
    fs::remove_file(run.manifests().join("grants.yaml")).unwrap();
    run.wait_for_answer(HOST, "bread 1");
    run.wait_for_answer(OTHER, "apple 1");
}

/// Secret bakery/cert, for JSON.
fn secret(certificate: &str, key: &str) -> String {
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"namespace": "bakery", "name": "cert"},
        "type": "kubernetes.io/tls",
        "stringData": {"tls.crt": certificate, "tls.key": key},
    })
    .to_string()
}

#[test]
fn a_key_that_does_not_fit_leaves_the_last_good_certificate_and_says_so() {
    let run = json();
    run.wait_for_answer(HOST, "bread 1");
    let made = rcgen::generate_simple_self_signed(vec![HOST.to_owned()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let other = rcgen::KeyPair::generate().unwrap().serialize_pem();
    run.write("secret.json", &secret(&certificate, &key));
    let served = || get(run.address(), HOST, certificate.as_bytes());
    wait_for("the own certificate", || served().is_ok());
    run.write("secret.json", &secret(&certificate, &other));
    run.wait_for_log("goes on with its last good certificate: ");
    assert_eq!(served().unwrap(), "bread 1");
    assert!(!run.log().contains("no longer serving"), "{}", run.log());
    assert!(
        !run.log().contains("the proxy rejects a resource"),
        "{}",
        run.log()
    );
    // And when it fits again, it says that too.
    let before = run.log().matches("\"serving\"").count();
    run.write("secret.json", &secret(&certificate, &key));
    wait_for("serving", || {
        run.log().matches("\"serving\"").count() > before
    });
}

#[test]
fn a_port_that_is_taken_is_asked_for_until_it_is_free() {
    let port = free_port();
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    let run = start_on(port, &["--log-format", "json"]);
    let what_to_do = format!("if another process has port {port}, stop it");
    run.wait_for_log(&what_to_do);
    run.wait_for_log("--port-map 443=OTHER");
    run.wait_for_log("the proxy rejected it");
    drop(taken);
    run.wait_for_answer(HOST, "bread 1");
    run.wait_for_answer(OTHER, "apple 1");
    // Told once per listener (of three), however often it was tried.
    assert_eq!(run.log().matches(&what_to_do).count(), 3, "{}", run.log());
}

#[test]
fn a_secret_of_the_directory_wins_over_the_local_ca() {
    let run = json();
    run.wait_for_answer(HOST, "bread 1");
    let made = rcgen::generate_simple_self_signed(vec![HOST.to_owned()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    run.write("secret.json", &secret(&certificate, &key));
    wait_for("the own certificate", || {
        get(run.address(), HOST, certificate.as_bytes()).is_ok()
    });
    assert!(!run.log().contains("PRIVATE KEY"));
    fs::remove_file(run.manifests().join("secret.json")).unwrap();
    run.wait_for_answer(HOST, "bread 1");
}

#[test]
fn the_second_signal_ends_it_at_once() {
    let mut run = start(&["--log-format", "json", "--drain-seconds", "100000"]);
    run.wait_for_answer(HOST, "bread 1");
    // Never says anything, so it is not done by itself within any test's patience.
    let held = TcpStream::connect(run.address()).unwrap();
    wait_for("the connection", || {
        let text = run.admin("/metrics");
        text.lines()
            .any(|l| l.contains("connections_active") && l.ends_with(" 1"))
    });
    run.signal("INT");
    run.wait_for_log("\"draining\"");
    run.signal("INT");
    assert_eq!(run.wait().code(), Some(0));
    drop(held);
}

#[test]
fn says_why_it_cannot_start() {
    let mut run = Run::start(Directory::new(), &[]);
    assert_eq!(run.wait().code(), Some(2));
    assert!(run.log().contains("cannot read"), "{}", run.log());
}

#[test]
fn arguments_that_contradict_or_cannot_be_are_refused() {
    for (pair, said) in [
        ("443=1443", "--port-map serves port 443 twice, on "),
        (
            "80=70000",
            "\"70000\" is not a port; ports are numbers from 1 to 65535",
        ),
        ("80", "write it as PORT=BOUND, such as 443=8443"),
    ] {
        let home = Directory::new();
        fs::create_dir(home.path().join("manifests")).unwrap();
        let mut run = Run::start(home, &["--port-map", pair]);
        assert_eq!(run.wait().code(), Some(2), "{pair}: {}", run.log());
        assert!(run.log().contains(said), "{pair}: {}", run.log());
    }
}

#[test]
fn a_state_directory_that_cannot_be_written_names_its_option() {
    let home = Directory::new();
    fs::create_dir(home.path().join("manifests")).unwrap();
    // A file is where the directory should be.
    fs::write(home.path().join("state"), "").unwrap();
    let mut run = Run::start(home, &[]);
    assert_eq!(run.wait().code(), Some(1), "{}", run.log());
    assert!(run.log().contains("--state-dir"), "{}", run.log());
}

#[test]
fn a_log_level_that_is_none_is_refused() {
    let home = Directory::new();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_vestibule"))
        .arg("run")
        .arg(home.path())
        .env("RUST_LOG", "warning")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stderr).unwrap();
    let start = "vestibule run: RUST_LOG: \"warning\" is no level; write off, error,";
    assert!(text.starts_with(start), "{text}");
}

#[test]
fn says_in_one_line_why_it_does_not_start() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let admin = taken.local_addr().unwrap().to_string();
    let home = Directory::new();
    fs::create_dir(home.path().join("manifests")).unwrap();
    let mut run = Run::start_at(home, free_port(), &admin, &[]);
    assert_eq!(run.wait().code(), Some(1));
    let log = run.log();
    let line = log.lines().last().unwrap();
    assert!(line.starts_with("vestibule run: cannot listen on"), "{log}");
    assert_eq!(line.matches("Address already in use").count(), 1, "{log}");
}

#[test]
fn tells_findings_in_the_order_of_check() {
    let home = Directory::new();
    let manifests = home.path().join("manifests");
    fs::create_dir(&manifests).unwrap();
    // By name of kind and object it would be the other way round.
    let objects = [
        route("z", "z.example", "z"),
        set("z", "z.example"),
        route("a", "a.example", "a"),
    ];
    fs::write(manifests.join("f.yaml"), objects.concat()).unwrap();
    let run = Run::start(home, &[]);
    run.wait_for_log("3 objects");
    let log = run.log();
    let at = |text: &str| log.find(text).unwrap_or_else(|| panic!("no {text}: {log}"));
    assert!(at("TLSRoute z/web: ") < at("ListenerSet z/set: "), "{log}");
    assert!(at("ListenerSet z/set: ") < at("TLSRoute a/web: "), "{log}");
}

/// What the HTTP listener on `port` answers for `host`.
fn http(port: u16, host: &str) -> String {
    let mut answer = String::new();
    if let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        if stream.write_all(request.as_bytes()).is_ok() {
            // What came before an error is the answer, too.
            let _ = stream.read_to_string(&mut answer);
        }
    }
    answer
}

#[test]
fn http_and_https_listeners_serve_beside_tls_on_one_port_and_it_says_what_they_answer() {
    let host = "www.dairy.example";
    let plain = free_port();
    let run = start(&["--log-format", "json", "--port-map", &format!("80={plain}")]);
    run.write(
        "web.yaml",
        "
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {namespace: dairy, name: set}
spec:
  parentRef: {namespace: platform, name: edge}
  listeners:
    - {name: plain, protocol: HTTP, port: 80, hostname: www.dairy.example}
    - name: web
      protocol: HTTPS
      port: 443
      hostname: www.dairy.example
      tls: {certificateRefs: [{name: cert}]}
",
    );
    let over_tls = || {
        let ca = fs::read(run.ca()).unwrap();
        exchange(run.address(), host, &ca).unwrap_or_default()
    };
    wait_for("404 over TLS", || over_tls().contains(" 404 "));
    wait_for("404 in the clear", || {
        http(plain, host).starts_with("HTTP/1.1 404 ")
    });
    let listener = |name: &str| format!("(ListenerSet/dairy/set/{name} of Gateway platform/edge, ");
    let says = |name: &str, how: &str| format!("{}{how})", listener(name));
    let nothing = "answers 404, since it has no accepted route";
    let https = "HTTPS with a certificate of the local CA";
    run.wait_for_log(&says("plain", &format!("HTTP: {nothing}")));
    run.wait_for_log(&says("web", &format!("{https}: {nothing}")));
    // The TLS listeners beside it go on.
    run.wait_for_answer(HOST, "bread 1");

    run.write(
        "route.yaml",
        &[
            "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {namespace: dairy, name: web}
spec:
  parentRefs: [{kind: ListenerSet, name: set}]
  rules: [{backendRefs: [{name: milk, port: 80}]}]
",
            &service("dairy", "milk", backend("milk")),
        ]
        .concat(),
    );
    wait_for("the route over TLS", || over_tls().ends_with("milk"));
    wait_for("the route in the clear", || {
        http(plain, host).contains("milk")
    });
    run.wait_for_log(&says("plain", "HTTP"));
    run.wait_for_log(&says("web", https));
}
