//! Pages are true: the tests that the security page names exist, the pages about grants and `explain` show what
//! `vestibule` prints, the architecture page names modules that exist and leaves out no part of the operator, the
//! observability page has every metric with its labels, the guide has every reason of the access log, the index of
//! decisions has every record, and links lead to pages and headings that exist.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use vestibule_proxy::close_reason::CloseReason;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The links of a page that lead out of `docs/` to a file: text and target.
fn links(page: &str) -> Vec<(&str, &str)> {
    let ends = page.match_indices("](../").map(|(at, _)| at);
    ends.filter_map(|at| {
        let text = &page[page[..at].rfind('[')? + 1..at];
        let target = page[at + 2..].split_once(')')?.0;
        Some((
            text,
            target.split_once('#').map_or(target, |(file, _)| file),
        ))
    })
    .collect()
}

/// What is between backquotes in the text of a link.
fn code(text: &str) -> Option<&str> {
    text.split('`').nth(1)
}

/// Why a link does not name something that exists.
fn trouble(text: &str, target: &str) -> Option<String> {
    let path = root().join("docs").join(target);
    let Ok(content) = fs::read_to_string(&path) else {
        return (!path.is_dir()).then(|| format!("{target} does not exist"));
    };
    let name = code(text)?;
    let wanted = if text.starts_with("scenario ") {
        let scenarios = read(&root().join("e2e/scenarios/src/scenarios/mod.rs"));
        return (!scenarios.contains(&format!("\"{name}\",")))
            .then(|| format!("there is no scenario {name}"));
    } else if text.starts_with("fuzz ") {
        let file = format!("{name}.rs");
        return (!target.ends_with(&file)).then(|| format!("{target} is not fuzz target {name}"));
    } else if target.ends_with(name) {
        return None;
    } else if path.extension().is_some_and(|extension| extension == "rs") {
        format!("fn {name}(")
    } else {
        name.to_owned()
    };
    (!content.contains(&wanted)).then(|| format!("{target} has no {name}"))
}

#[test]
fn security_page_names_only_what_exists() {
    let page = read(&root().join("docs/security.md"));
    let links = links(&page);
    assert!(links.len() > 50, "only {} links are seen", links.len());
    let wrong: Vec<String> = links
        .iter()
        .filter_map(|(text, target)| trouble(text, target))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn link_whose_target_is_missing_is_detected() {
    for (text, target) in [
        ("a page", "../docs/no-such-page.md"),
        ("`no_such_test`", "../cli/tests/documentation.rs"),
        (
            "scenario `no-such-scenario`",
            "../e2e/scenarios/src/main.rs",
        ),
        ("fuzz `no_such_target`", "../fuzz/targets/hello.rs"),
        ("`no such promise`", "../e2e/chart/checks.jq"),
    ] {
        assert!(trouble(text, target).is_some(), "{text}");
    }
    let there = "`link_whose_target_is_missing_is_detected`";
    assert_eq!(trouble(there, "../cli/tests/documentation.rs"), None);
}

/// The blocks of a page that follow a comment `<!-- MARK: NAME -->`: mark, name and text.
fn marked(page: &str) -> Vec<(&str, &str, &str)> {
    let comments = page.split("<!-- ").skip(1);
    let blocks = comments.filter_map(|rest| {
        let (comment, after) = rest.split_once(" -->\n```")?;
        let (mark, name) = comment.split_once(": ")?;
        let text = after.split_once('\n')?.1.split_once("```\n")?.0;
        Some((mark, name, text))
    });
    blocks.collect()
}

/// A directory that goes with its test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("documentation-{name}-{}", std::process::id()));
        fs::create_dir_all(path.join("manifests")).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Each example of the page about grants is checked with the Gateway in front of them, and says what is
/// shown below it.
#[test]
fn grants_do_what_their_page_says() {
    let path = root().join("docs/grants.md");
    let page = read(&path);
    let blocks = marked(&page);
    let mut scenes: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (_, name, text) in blocks.iter().filter(|(mark, ..)| *mark == "scene") {
        scenes.entry(name).or_default().push(text);
    }
    let base = scenes.remove("base").expect("a base");
    let (mut seen, mut wrong) = (BTreeSet::new(), Vec::new());
    let mut blessed = page.clone();
    for (_, name, shown) in blocks.iter().filter(|(mark, ..)| *mark == "output") {
        seen.insert(*name);
        let folder = Folder::new(name);
        for (file, parts) in [("gateway.yaml", &base), ("examples.yaml", &scenes[name])] {
            let text = parts.join("---\n");
            fs::write(folder.0.join("manifests").join(file), text).unwrap();
        }
        let (first, printed) = shown.split_once('\n').unwrap();
        let arguments = first.strip_prefix("$ vestibule ").expect("a command");
        let output = Command::new(env!("CARGO_BIN_EXE_vestibule"))
            .args(arguments.split(' '))
            .env("KUBECONFIG", "/dev/null")
            .current_dir(&folder.0)
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        let out = text(output.stdout) + &text(output.stderr);
        if out != *printed {
            let open = format!("<!-- output: {name} -->\n```console\n");
            let (old, new) = (format!("{open}{shown}"), format!("{open}{first}\n{out}"));
            blessed = blessed.replacen(&old, &new, 1);
            wrong.push(format!("{name}: {first}\n{out}"));
        }
    }
    if std::env::var_os("VESTIBULE_BLESS").is_some() {
        fs::write(path, blessed).unwrap();
        return;
    }
    assert_eq!(
        seen,
        scenes.keys().copied().collect(),
        "scenes and what they come to"
    );
    assert!(wrong.is_empty(), "comes out as\n{}", wrong.join("\n"));
}

/// What the page about `explain` shows of directories is what cases print.
#[test]
fn explain_prints_what_its_page_shows() {
    let page = read(&root().join("docs/explain.md"));
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/explain");
    let printed: Vec<String> = fs::read_dir(cases)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .map(|path| read(&path))
        .collect();
    let blocks = page.split("```console\n$ vestibule explain ").skip(1);
    let shown = blocks.map(|rest| rest.split_once("```").unwrap().0.split_once('\n').unwrap());
    let mut count = 0;
    for (command, text) in shown {
        count += 1;
        let is_printed = printed.iter().any(|case| {
            case.strip_prefix(text)
                .is_some_and(|rest| rest.starts_with("exit code"))
        });
        assert!(is_printed, "no case prints what {command:?} shows:\n{text}");
    }
    assert!(count > 4, "only {count} blocks are seen");
}

/// The pages that link to each other.
fn pages() -> Vec<PathBuf> {
    let outside = [
        "README.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "charts/vestibule/README.md",
        "policies/README.md",
    ];
    let mut pages: Vec<PathBuf> = outside.map(|page| root().join(page)).into();
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let text = line.trim_start_matches('#').trim().to_lowercase();
            text.chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
                .map(|c| if c == ' ' { '-' } else { c })
                .collect()
        })
        .collect()
}

#[test]
fn links_lead_somewhere() {
    let mut wrong = Vec::new();
    for path in pages() {
        let page = read(&path);
        for (at, _) in page.match_indices("](") {
            let Some((target, _)) = page[at + 2..].split_once(')') else {
                continue;
            };
            // What is no link of ours: other sites, and code.
            if target.contains("://") || target.contains([' ', '\n', '`', '"']) {
                continue;
            }
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let to = match file {
                "" => path.clone(),
                file => path.parent().unwrap().join(file),
            };
            let leads = match fs::read_to_string(&to) {
                Ok(page) => anchor.is_empty() || anchors(&page).contains(anchor),
                Err(_) => anchor.is_empty() && to.is_dir(),
            };
            if !leads {
                wrong.push(format!("{}: {target}", path.display()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The heading, date and status of a decision record: a status is one word, and what may follow it says which records
/// change it.
fn head_of_record(record: &str) -> Option<(&str, &str, &str)> {
    let title = record.strip_prefix("# ")?.lines().next()?;
    let field = |name: &str| record.lines().find_map(|line| line.strip_prefix(name));
    let date = field("- **Date:** ")?;
    let status = field("- **Status:** ")?.split(';').next()?;
    Some((title, date, status))
}

/// The index has a row for each record and no other one, with its title, date and status.
#[test]
fn the_index_of_decisions_has_every_record() {
    let folder = root().join("docs/adr");
    let index = read(&folder.join("README.md"));
    // The start of each row. A remark may follow the status.
    let mut rows: BTreeSet<&str> = index
        .lines()
        .filter(|line| line.starts_with("| ["))
        .collect();
    let (mut count, mut missing) = (0, Vec::new());
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_str().unwrap();
        if file == "README.md" {
            continue;
        }
        count += 1;
        let record = read(&path);
        let head = head_of_record(&record);
        let (title, date, status) = head.unwrap_or_else(|| panic!("{file} has no head"));
        let (number, title) = title.split_once(". ").expect("a number");
        assert!(
            file.starts_with(&format!("{number:0>4}-")),
            "{file}: {number}"
        );
        let row = format!("| [{number}]({file}) | {title} | {date} | {status}");
        let found = rows.iter().find(|line| {
            let rest = line.strip_prefix(&*row);
            rest.is_some_and(|rest| rest.starts_with([',', ' ']))
        });
        if let Some(line) = found.copied() {
            rows.remove(line);
        } else {
            missing.push(row);
        }
    }
    assert!(count > 20, "only {count} records are seen");
    assert!(missing.is_empty(), "no row begins with {missing:#?}");
    assert!(rows.is_empty(), "no record has {rows:#?}");
}

/// The source folder of a crate that the architecture page names.
fn sources(krate: &str) -> Option<PathBuf> {
    let folder = match krate {
        "cli" | "crds" | "model" | "operator" | "proxy" | "serve" | "webhook" => krate,
        "acme" => "operator/acme",
        "internal_ca" => "operator/internal-ca",
        _ => return None,
    };
    Some(root().join(folder).join("src"))
}

/// The modules that a page names as `crate::module`, in text and in pictures.
fn modules(page: &str) -> BTreeSet<&str> {
    let words = page.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | ':')));
    let words = words.map(|word| word.trim_end_matches(':'));
    words
        .filter(|word| {
            word.split_once("::")
                .is_some_and(|(krate, _)| sources(krate).is_some())
        })
        .collect()
}

/// Whether a module has a file or a folder.
fn is_module(name: &str) -> bool {
    let (krate, path) = name.split_once("::").unwrap();
    let path = sources(krate).unwrap().join(path.replace("::", "/"));
    path.is_dir() || path.with_extension("rs").is_file()
}

#[test]
fn architecture_names_modules_that_exist() {
    let page = read(&root().join("docs/architecture.md"));
    let named = modules(&page);
    assert!(named.len() > 40, "only {} modules are seen", named.len());
    let wrong: Vec<&str> = named.into_iter().filter(|name| !is_module(name)).collect();
    assert!(wrong.is_empty(), "no such modules: {wrong:?}");
    assert!(!is_module("operator::no_such_module"));
}

#[test]
fn architecture_leaves_out_no_part_of_the_operator() {
    let page = read(&root().join("docs/architecture.md"));
    let named = modules(&page);
    let mut missing = Vec::new();
    for parent in ["operator", "operator::cluster"] {
        let (krate, path) = parent.split_once("::").unwrap_or((parent, ""));
        for entry in fs::read_dir(sources(krate).unwrap().join(path)).unwrap() {
            let entry = entry.unwrap();
            let name = format!("{parent}::{}", entry.file_name().to_str().unwrap());
            let is_part = entry.path().is_dir() && name != "operator::cluster";
            if is_part && !named.contains(name.as_str()) {
                missing.push(name);
            }
        }
    }
    assert!(missing.is_empty(), "the page does not name {missing:?}");
}

/// Modules of the proxy that are tools of several parts, and no part themselves.
const TOOLS_OF_THE_PROXY: [&str; 12] = [
    "acknowledgement",
    "attached_names",
    "client_socket",
    "deadline",
    "in_memory",
    "keepalive",
    "pack",
    "replayed",
    "side",
    "slot_map",
    "slots",
    "weight",
];

/// The modules of a folder of sources, by file or folder, without the roots of the crate.
fn modules_in(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).unwrap();
    let stems = entries.map(|entry| {
        let path = entry.unwrap().path();
        path.file_stem().unwrap().to_str().unwrap().to_owned()
    });
    let is_root = |stem: &str| matches!(stem, "lib" | "main");
    stems.filter(|stem| !is_root(stem)).collect()
}

/// Every module of the proxy is named, and in `http` every module that has a folder.
#[test]
fn architecture_leaves_out_no_part_of_the_proxy() {
    let page = read(&root().join("docs/architecture.md"));
    let named = modules(&page);
    let folder = sources("proxy").unwrap();
    let in_http = modules_in(&folder.join("http"));
    let rooms = in_http
        .iter()
        .filter(|name| folder.join("http").join(name).is_dir());
    let rooms = rooms.map(|name| format!("http::{name}"));
    let (mut missing, mut tools) = (Vec::new(), Vec::new());
    for module in modules_in(&folder).into_iter().chain(rooms) {
        let is_tool = TOOLS_OF_THE_PROXY.contains(&module.as_str());
        let name = format!("proxy::{module}");
        match (is_tool, named.contains(name.as_str())) {
            (false, false) => missing.push(name),
            (true, true) => tools.push(name),
            _ => {}
        }
    }
    assert!(missing.is_empty(), "the page does not name {missing:?}");
    assert!(tools.is_empty(), "the page names the tools {tools:?}");
}

/// The components whose metrics the page about observability lists.
const COMPONENTS: [&str; 3] = ["operator", "webhook", "proxy"];

/// The Rust sources of a component, by file.
fn source_texts(component: &str) -> Vec<String> {
    let crates: &[&str] = match component {
        "operator" => &["operator", "internal_ca"],
        _ => &[component],
    };
    texts_in(crates.iter().map(|krate| sources(krate).unwrap()).collect())
}

/// The Rust sources in these folders and below them.
fn texts_in(mut folders: Vec<PathBuf>) -> Vec<String> {
    let mut texts = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                texts.push(read(&path));
            }
        }
    }
    texts
}

/// A metric that a file registers.
struct Registration<'a> {
    /// The file without its tests.
    code: &'a str,
    /// Prefix and name.
    metric: String,
    /// The code before the name.
    before: &'a str,
    /// The code from the first letter of the help text on.
    help: &'a str,
}

/// The metrics that a file of a component registers.
///
/// A registration is a name followed by its help text, whichever function it is for: collectors have no `register`.
fn registrations<'a>(component: &str, text: &'a str) -> Vec<Registration<'a>> {
    if !text.contains("prometheus_client") {
        return Vec::new();
    }
    let is_name = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    // A module of tests in a file of its own is declared above the code.
    let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    let given = code.split_once("with_prefix(\"");
    let given = given.and_then(|(_, rest)| rest.split_once('"'));
    let prefix = given.map_or(format!("vestibule_{component}"), |(prefix, _)| {
        prefix.into()
    });
    let found = code.match_indices("\",").filter_map(|(end, _)| {
        let (before, name) = code[..end].rsplit_once('"')?;
        let help = code[end + 2..].trim_start().strip_prefix('"')?;
        let is_text = help.starts_with(|c: char| c.is_ascii_uppercase() || c.is_ascii_digit());
        (!name.is_empty() && is_name(name) && is_text).then(|| Registration {
            code,
            metric: format!("{prefix}_{name}"),
            before,
            help,
        })
    });
    found.collect()
}

/// The metrics that a component registers, by prefix and name.
fn registered(component: &str) -> BTreeSet<String> {
    let texts = source_texts(component);
    let all = texts.iter().flat_map(|text| registrations(component, text));
    all.map(|registration| registration.metric).collect()
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl<'a> Registration<'a> {
    /// The field or variable with the metric: `field: add(r, "name", "Help")`, or
    /// `register("name", "Help", self.field.clone())`.
    fn field(&self) -> Option<&'a str> {
        if let Some(call) = self.before.trim_end().strip_suffix("r,") {
            let call = call.trim_end().strip_suffix('(')?;
            let (before, function) = call.rsplit_once(": ")?;
            let field = before.rsplit(char::is_whitespace).next()?;
            return (function.starts_with("add") && is_word(field)).then_some(field);
        }
        let mut quotes = self.help.match_indices('"');
        let (end, _) = quotes.find(|(at, _)| !self.help[..*at].ends_with('\\'))?;
        let rest = self.help[end + 1..].trim_start_matches([',', ' ', '\n']);
        let rest = match rest.strip_prefix("Unit::") {
            Some(unit) => unit.split_once(',')?.1.trim_start(),
            None => rest,
        };
        let (value, _) = rest.split_once(".clone()")?;
        let field = value.strip_prefix("self.").unwrap_or(value);
        is_word(field).then_some(field)
    }

    /// The labels of the metric, from its type in the same file. `None` for collectors, which write their labels
    /// themselves.
    fn labels(&self) -> Option<BTreeSet<&'a str>> {
        let field = self.field()?;
        let mut types = self.code.lines().filter_map(|line| {
            let line = line.trim_start().trim_start_matches("pub(super) ");
            let line = line.trim_start_matches("pub ").trim_start_matches("let ");
            let rest = line.strip_prefix(field)?;
            rest.strip_prefix(": ").or_else(|| rest.strip_prefix(" = "))
        });
        types.find_map(|of| {
            let family = of.strip_prefix("Family<");
            let family = family.or_else(|| of.strip_prefix("Family::<"));
            match family {
                Some(family) => labels_of(self.code, family.split(',').next()?),
                None => ["Counter", "Gauge", "Histogram"]
                    .iter()
                    .any(|plain| of.starts_with(plain))
                    .then(BTreeSet::new),
            }
        })
    }
}

/// The fields of a type of labels. They are the labels.
fn labels_of<'a>(code: &'a str, name: &str) -> Option<BTreeSet<&'a str>> {
    let (_, rest) = code.split_once(&format!("struct {name} {{"))?;
    let body = rest.split("\n}").next()?;
    let fields = body.lines().filter_map(|line| {
        let (field, _) = line.split_once(": ")?;
        let field = field.trim_start().trim_start_matches("pub(super) ");
        let field = field.trim_start_matches("pub ").trim_start_matches("r#");
        is_word(field).then_some(field)
    });
    Some(fields.collect())
}

/// The names that the series of a metric can have: `OpenMetrics` and units add endings to it.
fn series(metric: &str) -> Vec<String> {
    let units = ["", "_seconds", "_bytes"];
    let names = units.map(|unit| ["", "_total", "_info"].map(|end| format!("{metric}{unit}{end}")));
    names.into_iter().flatten().collect()
}

/// The rows of the table of a component on the observability page: for each metric its type and the cell with its labels.
fn metric_rows<'a>(page: &'a str, component: &str) -> BTreeMap<&'a str, (&'a str, &'a str)> {
    let sections = page.split("\n## ");
    let mut own = sections.filter(|section| {
        let heading = section.lines().next().unwrap();
        heading.eq_ignore_ascii_case(component)
    });
    let section = own.next().expect("a section of the component");
    let rows = section.lines().filter_map(|line| {
        let (name, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
        let mut cells = rest.split(" |");
        Some((name, (cells.next()?, cells.next()?)))
    });
    rows.collect()
}

/// The metrics of a component that a page names.
fn metrics<'a>(page: &'a str, component: &str) -> BTreeSet<&'a str> {
    let prefix = format!("vestibule_{component}_");
    let words = page.split(|c: char| !(c.is_ascii_lowercase() || c == '_'));
    words.filter(|word| word.starts_with(&prefix)).collect()
}

#[test]
fn metrics_on_pages_are_registered() {
    let mut wrong = Vec::new();
    for component in COMPONENTS {
        let registered = registered(component);
        let is_registered = |metric: &str| {
            let mut name = metric;
            // OpenMetrics, units and histograms add these endings.
            let endings = [
                "_total", "_info", "_bucket", "_sum", "_count", "_seconds", "_bytes",
            ];
            while !registered.contains(name) {
                match endings.iter().find_map(|ending| name.strip_suffix(ending)) {
                    Some(shorter) => name = shorter,
                    None => return false,
                }
            }
            true
        };
        for path in pages() {
            let page = read(&path);
            let unknown = metrics(&page, component)
                .into_iter()
                .filter(|metric| !is_registered(metric));
            wrong.extend(unknown.map(|metric| format!("{}: {metric}", path.display())));
        }
        assert!(!is_registered(&format!(
            "vestibule_{component}_no_such_metric"
        )));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn registered_metrics_are_on_the_observability_page() {
    let page = read(&root().join("docs/observability.md"));
    let mut wrong = Vec::new();
    for component in COMPONENTS {
        let rows = metric_rows(&page, component);
        let registered = registered(component);
        assert!(
            registered.len() > 8,
            "only {} metrics of {component} are seen",
            registered.len()
        );
        for metric in registered {
            let names = series(&metric);
            if !names.iter().any(|name| rows.contains_key(&**name)) {
                wrong.push(format!("{metric} has no row in the table of {component}"));
            }
        }
        let untrue = rows
            .iter()
            .filter(|(name, (kind, _))| (*kind == "counter") != name.ends_with("_total"));
        wrong.extend(untrue.map(|(name, (kind, _))| format!("{name} is no {kind}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Metrics of collectors are left out.
#[test]
fn labels_on_the_observability_page_are_those_of_the_code() {
    let page = read(&root().join("docs/observability.md"));
    let (mut count, mut wrong) = (0, Vec::new());
    for component in COMPONENTS {
        let rows = metric_rows(&page, component);
        let texts = source_texts(component);
        for registration in texts.iter().flat_map(|text| registrations(component, text)) {
            let names = series(&registration.metric);
            let row = names.iter().find_map(|name| rows.get(&**name));
            let (Some(labels), Some((_, cell))) = (registration.labels(), row) else {
                continue;
            };
            count += 1;
            let on_page: BTreeSet<&str> = cell.split('`').skip(1).step_by(2).collect();
            if on_page != labels {
                let metric = &registration.metric;
                wrong.push(format!(
                    "{metric} has {labels:?}, and its row says {on_page:?}"
                ));
            }
        }
    }
    assert!(count > 90, "the labels of only {count} metrics are seen");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The reasons of conditions have tests of their own: in `cases.rs`, and in the crate of the webhook.
#[test]
fn every_reason_of_a_connection_has_its_row_in_the_guide() {
    let page = read(&root().join("docs/troubleshooting.md"));
    let mut sections = page.split("\n## ");
    let section = sections
        .find(|section| section.starts_with("Everything says True, and it does not work\n"))
        .expect("the section about traffic");
    let cells = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('|').next());
    // Every second piece is what stands between two reasons.
    let rows: BTreeSet<&str> = cells.flat_map(|cell| cell.split('`').step_by(2)).collect();
    let reasons = CloseReason::ALL.iter().copied().map(CloseReason::reason);
    let reasons: BTreeSet<&str> = reasons.collect();
    let missing: Vec<&&str> = reasons.difference(&rows).collect();
    let unknown: Vec<&&str> = rows.difference(&reasons).collect();
    assert!(missing.is_empty(), "no row has {missing:?}");
    assert!(unknown.is_empty(), "no connection ends with {unknown:?}");
}

/// The reasons of requests in the sources of the proxy: those of its own answers, what a function `reason` returns, and
/// what is written into a record.
fn request_reasons() -> BTreeSet<String> {
    let is_reason = |text: &str| {
        let is_capital = text.starts_with(|c: char| c.is_ascii_uppercase());
        is_capital && text.chars().all(|c| c.is_ascii_alphanumeric())
    };
    let literal = |text: &str| text.split('"').nth(1).unwrap_or_default().to_owned();
    let mut reasons = BTreeSet::new();
    for text in texts_in(vec![sources("proxy").unwrap().join("http")]) {
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        for start in ["reason = \"", "::internal(\"", "::unclear(\""] {
            let all = code.match_indices(start);
            reasons.extend(all.map(|(at, _)| literal(&code[at..])));
        }
        for start in ["LocalReply::new(", "Self::new("] {
            let all = code.match_indices(start);
            // The reason is a literal in the call, or it comes from a constant or a function.
            let calls = all.filter_map(|(at, _)| code[at..].split([';', '}']).next());
            reasons.extend(calls.map(literal));
        }
        for function in code.split("fn reason(").skip(1) {
            let body = function.split("\n    }").next().unwrap();
            let arms = body.split(" => \"").skip(1);
            reasons.extend(arms.filter_map(|arm| Some(arm.split_once('"')?.0.to_owned())));
        }
    }
    reasons.retain(|reason| is_reason(reason));
    reasons
}

#[test]
fn every_reason_of_a_request_has_its_row() {
    let reasons = request_reasons();
    for known in [
        "Served",
        "RedirectFailed",
        "UnclearPath",
        "Redirected",
        "BackendFlood",
        "RequestTimeout",
    ] {
        assert!(reasons.contains(known), "only these are found: {reasons:?}");
    }
    let mut rows = BTreeSet::new();
    let pages = ["docs/http.md", "docs/observability.md"].map(|page| read(&root().join(page)));
    for line in pages.iter().flat_map(|page| page.lines()) {
        if line.starts_with("| ") {
            rows.extend(line.split('`').skip(1).step_by(2).map(str::to_owned));
        }
    }
    let missing: Vec<&String> = reasons.difference(&rows).collect();
    assert!(missing.is_empty(), "no row has {missing:?}");
}
