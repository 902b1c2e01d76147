//! No ring of modules: what a module names stands below it, so that the code can be read from the bottom up, one room
//! after the other.
//!
//! A *room* is a module with everything in it: `x.rs` or `x/mod.rs` and the files of `x/`. Rooms are compared with the
//! rooms beside them, at each level: the modules of a crate with each other, then the modules of each folder. One room
//! leads to another if anything in it names anything in the other by a path (`use crate::…`, `super::…`), outside tests.
//! A ring is a group of rooms that all lead to each other. A parent calls its children and they use what it defines;
//! that is one room, and no ring.
//!
//! Re-exports are looked through: a path counts for the module that defines what it names, so moving a name to
//! another door does not hide a ring.
//!
//! The functions of a type may be spread over modules. Where an `impl` block calls one by `self.name` or `Self::name`,
//! its room leads to the module that defines the function. A call on any other value is not seen, because its type is
//! not written beside it.
//!
//! And no dead helper: the compiler does not say that nobody uses a public item of a crate. The crates that only tests
//! depend on have nothing but such items, so what they define has to be named somewhere else.
//!
//! And one name for each type of a crate: [`types`]. And names of tests that begin with their subject: [`test_names`].

mod helpers;
mod modules;
mod test_names;
mod tokens;
mod types;

use std::fs;
use std::path::{Path, PathBuf};

use helpers::{Named, public};
use modules::{Ring, Tree};

/// How many lines are shown of one room that name another.
const SHOWN: usize = 8;

fn workspace() -> PathBuf {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR"));
    crates.parent().expect("the workspace's folder").to_owned()
}

/// The folders of all crates of the workspace, relative to it.
fn members() -> Vec<String> {
    let manifest = fs::read_to_string(workspace().join("Cargo.toml")).expect("Cargo.toml");
    let members = manifest
        .split_once("members = [")
        .and_then(|(_, rest)| rest.split_once(']'))
        .expect("a list of members")
        .0;
    let members = members.split('"').skip(1).step_by(2);
    members.map(ToOwned::to_owned).collect()
}

/// The root files of all crates of the workspace, relative to it.
fn roots() -> Vec<String> {
    let roots: Vec<String> = members()
        .iter()
        .flat_map(|member| ["lib", "main"].map(|root| format!("{member}/src/{root}.rs")))
        .filter(|root| workspace().join(root).exists())
        .collect();
    assert!(roots.len() > 10, "only these crates are seen: {roots:?}");
    roots
}

/// A ring with what ties its rooms, as somebody reads it who has to dissolve it.
fn shown(root: &str, ring: &Ring) -> String {
    let members: Vec<&str> = ring.members.iter().map(String::as_str).collect();
    let mut lines = vec![format!(
        "{root}: ring of {} rooms in `crate::{}`: {}",
        members.len(),
        ring.parent,
        members.join(", ")
    )];
    for ((from, to), edges) in &ring.edges {
        lines.push(format!("  {from} -> {to}"));
        lines.extend(edges.iter().take(SHOWN).map(|edge| {
            let file = edge.file.strip_prefix(workspace()).unwrap_or(&edge.file);
            format!("    {}:{}: {}", file.display(), edge.line, edge.path)
        }));
        if let Some(more) = edges.len().checked_sub(SHOWN).filter(|more| *more > 0) {
            lines.push(format!("    and {more} more"));
        }
    }
    lines.join("\n")
}

#[test]
fn no_crate_has_a_ring_of_modules() {
    let mut found = Vec::new();
    for root in roots() {
        let rings = Tree::read(&workspace().join(&root)).rings();
        found.extend(rings.iter().map(|ring| shown(&root, ring)));
    }
    assert!(found.is_empty(), "rings of modules:\n{}", found.join("\n"));
}

/// Each source file in a folder, and in those in it.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Vec::new();
    };
    let entries = entries.map(|entry| entry.expect("an entry").path());
    entries
        .flat_map(|path| match path.is_dir() {
            true => sources(&path),
            false if path.extension().is_some_and(|end| end == "rs") => vec![path],
            false => Vec::new(),
        })
        .collect()
}

#[test]
fn every_helper_of_tests_is_used() {
    let mut named = Named::default();
    let mut defined = Vec::new();
    for member in members() {
        let folder = workspace().join(&member);
        let helpers = member == "test-support" || member.ends_with("/testing");
        let mut files = sources(&folder.join("tests"));
        // Unit tests use the helpers of several crates.
        files.extend(sources(&folder.join("src")));
        for file in files {
            let source = fs::read_to_string(&file).expect("a source file");
            let in_source = file.starts_with(folder.join("src"));
            if in_source && !helpers && !source.contains("vestibule_test_support") {
                continue;
            }
            named.read(&source);
            if helpers {
                let items = public(&source).into_iter();
                defined.extend(items.map(|(name, line)| (file.clone(), line, name)));
            }
        }
    }
    assert!(defined.len() > 100, "only these are seen: {defined:?}");
    let dead: Vec<String> = defined
        .iter()
        .filter(|(.., name)| named.only_defined(name))
        .map(|(file, line, name)| format!("{}:{line}: {name}", file.display()))
        .collect();
    assert!(dead.is_empty(), "nobody uses:\n{}", dead.join("\n"));
}

#[test]
fn a_helper_that_nobody_names_is_found() {
    let source = "
        pub use a::{LEFT, b}; pub(crate) fn inner() {}
        /// Names dead.
        pub struct Used { pub dead: u8, pub read: u8 }
        impl Used { pub async fn called(&self) -> u8 { self.read } }
        pub const LEFT: u8 = 1;";
    let mut named = Named::default();
    named.read(source);
    named.read("fn test() { Used::new().called(); }");
    let dead = public(source).into_iter();
    let dead: Vec<String> = dead
        .filter(|(name, _)| named.only_defined(name))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(dead, ["dead", "LEFT"]);
}

/// The members of each ring of a crate that is written as one file.
fn rings(source: &str) -> Vec<String> {
    let rings = Tree::of(source).rings();
    rings
        .iter()
        .map(|ring| {
            let members: Vec<&str> = ring.members.iter().map(String::as_str).collect();
            format!("{}: {}", ring.parent, members.join(" "))
        })
        .collect()
}

#[test]
fn a_ring_is_found_with_its_lines() {
    let tree = Tree::of(
        "mod a { use crate::b::B; pub struct A; }
         mod b { pub struct B; fn b(_: crate::c::C) {} }
         mod c {
             pub(crate) struct C; fn c() -> super::a::A { super::a::A }
         }
         mod d { use crate::{a::A, b}; }",
    );
    let [ring] = &tree.rings()[..] else {
        panic!("{:?}", tree.rings());
    };
    let text = shown("lib.rs", ring);
    assert!(
        text.contains("ring of 3 rooms in `crate::`: a, b, c"),
        "{text}"
    );
    assert!(text.contains("lib.rs:1: crate::b::B"), "{text}");
    assert!(text.contains("lib.rs:4: super::a::A"), "{text}");
    assert!(!text.contains(" d"), "{text}");
}

#[test]
fn a_room_is_a_module_with_what_is_in_it() {
    // The inner modules tie the outer ones.
    let outer = "mod a { mod x { use crate::b::B; } pub mod y { pub struct Y; } }
                 mod b { pub struct B; mod z { use crate::a::y::Y; } }";
    assert_eq!(rings(outer), [": a b"]);
    // A parent and its children are one room; two children are two.
    let inner = "mod a { mod x { use super::{A, y::Y}; pub struct X; } mod y { use super::x::X; pub struct Y; }
                 pub(crate) struct A(x::X); }";
    assert_eq!(rings(inner), ["a: x y"]);
    let parent = "mod a { mod x { use super::A; pub struct X; } pub struct A(x::X); }";
    assert!(rings(parent).is_empty());
}

#[test]
fn modules_that_only_re_export_are_looked_through() {
    // By its paths `a` needs only `facade`, which needs `b`.
    let source = "mod a { use crate::facade::B; pub struct A; }
                  mod b { use crate::a::A; pub struct B; }
                  mod facade { pub use crate::b::B; }";
    assert_eq!(rings(source), [": a b"]);
    let module = "mod a { use crate::facade; fn a(_: facade::inner::B) {} pub struct A; }
                  mod b { use crate::a::A; pub struct B; }
                  mod facade { pub use crate::b as inner; }";
    assert_eq!(rings(module), [": a b facade"]);
    // A sibling that a parent's import names.
    let parent = "mod a { mod x { use super::Y; pub struct X; } mod y { use super::x::X; pub struct Y; } use y::Y; }";
    assert_eq!(rings(parent), ["a: x y"]);
}

#[test]
fn a_method_ties_whoever_calls_it_to_the_module_that_defines_it() {
    let source = "
        pub struct T { b: B }
        mod a { use super::T; impl T { pub(crate) fn a(&self) -> impl Fn() { self.b(); || () } } }
        mod b { impl crate::T { pub(crate) fn b(&self) { Self::c::<u8>(); } } }
        mod c {
            use crate::T;
            impl<F: Fn() -> u8> Default for T { fn default() -> Self { T.d() } }
            impl T { pub(crate) fn c<U>() {} }
        }
        mod d { use crate::T; impl T { pub(crate) fn d(&self) { self.a(); } } }
    ";
    assert!(rings(source).is_empty());
    let closed = source.replace("T.d()", "self.a()");
    assert_eq!(rings(&closed), [": a b c"]);
    let by_type = source.replace("c<U>() {}", "c<U>() { Self::a(&T) }");
    assert_eq!(rings(&by_type), [": a b c"]);
}

#[test]
fn only_a_method_of_the_own_type_ties() {
    // `b` calls functions that have the name of what `a` defines: of a field, of another type, and of a trait.
    let source = "
        pub struct T; pub struct U;
        mod a { use crate::T; impl T { pub(crate) fn a(&self) { self.b(); } } }
        mod b {
            use crate::{T, U};
            impl T {
                pub(crate) fn b(&self) {
                    self.field.a();
                    self.a;
                    impl U { fn c(&self) { self.a(); } }
                }
            }
            impl U { fn a(&self) { self.a(); } }
        }
        mod c { use crate::{T, d::Trait}; impl Trait for T { fn d(&self) { self.a(); } } }
        mod d { use crate::T; pub(crate) trait Trait { fn d(&self); } impl T { fn e(&self) { self.d(); } } }
    ";
    assert!(rings(source).is_empty());
}

#[test]
fn tests_comments_and_strings_tie_nothing() {
    let source = r##"
        mod a {
            //! `crate::b::B` /* crate::b */
            /* use crate::b::B; /* nested */ use crate::b::B; */
            const TEXT: &str = "use crate::b::B;\" use crate::b::B;";
            const RAW: &str = r#"crate::b::B " crate::b::B"#;
            const QUOTE: (char, char, u8) = ('"', '\'', b'"');
            fn lifetime<'a>(_: &'a str) {}
            #[cfg(test)]
            use crate::b::{B, C};
            #[cfg(test)]
            mod tests { use crate::b::B; fn test() { loop {} } }
            #[test]
            fn alone<T, U>() -> [u8; 3] { crate::b::B }
            struct Fields { #[cfg(test)] one: crate::b::B, two: u8 }
            pub(crate) struct A;
        }
        mod b { use crate::a::A; pub(in crate::b) struct B; }
    "##;
    assert!(rings(source).is_empty());
    let after = source.replace("pub(crate) struct A;", "pub struct A(crate::b::B);");
    assert_eq!(rings(&after), [": a b"]);
}
