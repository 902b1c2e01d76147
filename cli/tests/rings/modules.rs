//! The modules of a crate, what each names of the others, and the rings among them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::tokens::{Token, tokens, without_tests};

/// All modules that one root file (`lib.rs`, `main.rs`) leads to. The root is the first.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    modules: Vec<Module>,
}

/// A module: a file, or a block in one.
#[derive(Debug, Default)]
struct Module {
    /// The names from the crate's root to this module.
    path: Vec<String>,
    file: PathBuf,
    parent: usize,
    children: BTreeMap<String, usize>,
    /// What each name that a `use` brings in stands for.
    imports: BTreeMap<String, Vec<String>>,
    mentions: Vec<Mention>,
}

/// A path that a module names.
#[derive(Debug)]
struct Mention {
    line: usize,
    path: Vec<String>,
}

/// One path in one module that names something of a module beside it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Edge {
    pub(crate) file: PathBuf,
    pub(crate) line: usize,
    pub(crate) path: String,
}

/// Modules of one parent that lead to each other in a circle, with what ties each pair.
#[derive(Debug)]
pub(crate) struct Ring {
    /// The path of the parent; empty at the crate's root.
    pub(crate) parent: String,
    pub(crate) members: BTreeSet<String>,
    pub(crate) edges: BTreeMap<(String, String), BTreeSet<Edge>>,
}

impl Tree {
    /// Reads a crate from its root file.
    pub(crate) fn read(root: &Path) -> Self {
        let mut tree = Self::default();
        let folder = root.parent().expect("a root file is in a folder");
        tree.file(root, folder, Vec::new(), 0);
        tree
    }

    /// A crate of one file, whose modules are blocks.
    #[cfg(test)]
    pub(crate) fn of(source: &str) -> Self {
        let mut tree = Self::default();
        tree.add(source, Path::new("lib.rs"), Path::new(""), Vec::new(), 0);
        tree
    }

    fn file(&mut self, file: &Path, folder: &Path, path: Vec<String>, parent: usize) -> usize {
        let source =
            fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.add(&source, file, folder, path, parent)
    }

    /// Adds a module of a file, whose child modules have their files in the folder.
    fn add(
        &mut self,
        source: &str,
        file: &Path,
        folder: &Path,
        path: Vec<String>,
        parent: usize,
    ) -> usize {
        let tokens = without_tests(tokens(source));
        let index = self.module(file, path, parent);
        self.body(&tokens, folder, index);
        index
    }

    fn module(&mut self, file: &Path, path: Vec<String>, parent: usize) -> usize {
        self.modules.push(Module {
            path,
            file: file.to_owned(),
            parent,
            ..Module::default()
        });
        self.modules.len() - 1
    }

    /// Reads what is in a module: its child modules, its imports, and the paths it names.
    fn body(&mut self, mut tokens: &[Token<'_>], folder: &Path, index: usize) {
        let mut before = "";
        while let Some(token) = tokens.first() {
            let used = match token.text {
                "mod" => self.child(tokens, folder, index),
                "use"
                    if before != "+"
                        && before != "->"
                        && tokens.get(1).is_some_and(|next| next.text != "<") =>
                {
                    let end = tokens
                        .iter()
                        .position(|token| token.text == ";")
                        .unwrap_or(tokens.len());
                    self.import(&tokens[1..end], &[], index);
                    end
                }
                _ if before != "::" && is_name(token.text) => self.mention(tokens, index),
                _ => 1,
            };
            before = tokens[used - 1].text;
            tokens = &tokens[used..];
        }
    }

    /// Reads `mod name;` with its file, or `mod name { … }`; answers with the number of tokens.
    fn child(&mut self, tokens: &[Token<'_>], folder: &Path, index: usize) -> usize {
        let [_, name, next, ..] = tokens else {
            return 1;
        };
        let mut path = self.modules[index].path.clone();
        path.push(name.text.to_owned());
        let inner = folder.join(name.text);
        let (child, used) = match next.text {
            ";" => {
                let candidates = [
                    folder.join(format!("{}.rs", name.text)),
                    inner.join("mod.rs"),
                ];
                let file = candidates
                    .iter()
                    .find(|file| file.exists())
                    .unwrap_or_else(|| panic!("{} has no file", path.join("::")));
                (self.file(file, &inner, path, index), 3)
            }
            "{" => {
                let length = crate::tokens::group(&tokens[2..]);
                let file = self.modules[index].file.clone();
                let child = self.module(&file, path, index);
                self.body(&tokens[3..2 + length - 1], &inner, child);
                (child, 2 + length)
            }
            _ => return 1,
        };
        self.modules[index]
            .children
            .insert(name.text.to_owned(), child);
        used
    }

    /// Reads one branch of the tree of a `use`.
    fn import(&mut self, tokens: &[Token<'_>], prefix: &[String], index: usize) {
        let mut path = prefix.to_vec();
        let mut at = 0;
        let line = tokens.first().map_or(0, |token| token.line);
        while let Some(token) = tokens.get(at) {
            match token.text {
                "::" => at += 1,
                "{" => {
                    let inside = &tokens[at + 1..at + crate::tokens::group(&tokens[at..]) - 1];
                    for branch in branches(inside) {
                        self.import(branch, &path, index);
                    }
                    return;
                }
                "*" | "as" => break,
                name => {
                    if !(name == "self" && !path.is_empty()) {
                        path.push(name.to_owned());
                    }
                    at += 1;
                }
            }
        }
        let named = match tokens.get(at).map(|token| token.text) {
            Some("as") => tokens.get(at + 1).map(|token| token.text.to_owned()),
            Some(_) => None,
            None => path.last().cloned(),
        };
        let module = &mut self.modules[index];
        if let Some(named) = named {
            module.imports.insert(named, path.clone());
        }
        module.mentions.push(Mention { line, path });
    }

    /// Reads a path in an expression or a type; answers with the number of tokens.
    fn mention(&mut self, tokens: &[Token<'_>], index: usize) -> usize {
        let mut path = vec![tokens[0].text.to_owned()];
        let mut used = 1;
        while let [colons, name, ..] = &tokens[used..]
            && colons.text == "::"
            && is_name(name.text)
        {
            path.push(name.text.to_owned());
            used += 2;
        }
        if path.len() > 1 {
            let line = tokens[0].line;
            self.modules[index].mentions.push(Mention { line, path });
        }
        used
    }

    /// The module that a path in a module leads to: the one that defines what it names. Re-exports are looked through.
    fn resolve(&self, from: usize, path: &[String]) -> Option<usize> {
        self.follow(from, path, 0)
    }

    fn follow(&self, from: usize, path: &[String], depth: usize) -> Option<usize> {
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => 0,
            "self" => from,
            "super" => self.modules[from].parent,
            name => self.step(from, name, depth)?,
        };
        let mut at = start;
        for name in rest {
            at = match name.as_str() {
                "super" => self.modules[at].parent,
                name => match self.step(at, name, depth) {
                    Some(next) => next,
                    // Something that this module defines.
                    None => break,
                },
            };
        }
        Some(at)
    }

    /// Where a name leads that a module has as a child or by a `use`, if that is a module of this crate.
    fn step(&self, from: usize, name: &str, depth: usize) -> Option<usize> {
        let module = &self.modules[from];
        if let Some(child) = module.children.get(name) {
            return Some(*child);
        }
        let path = module.imports.get(name)?;
        // An import may have the name of the crate it comes from.
        if depth > 20 || path.first().is_some_and(|first| first == name) {
            return None;
        }
        self.follow(from, path, depth + 1)
    }

    /// The rings among the modules of each parent.
    pub(crate) fn rings(&self) -> Vec<Ring> {
        // Of each parent: which child leads to which.
        let mut levels: BTreeMap<Vec<String>, BTreeMap<(String, String), BTreeSet<Edge>>> =
            BTreeMap::new();
        for (index, module) in self.modules.iter().enumerate() {
            for mention in &module.mentions {
                let Some(target) = self.resolve(index, &mention.path) else {
                    continue;
                };
                let (from, to) = (&module.path, &self.modules[target].path);
                let shared = from.iter().zip(to).take_while(|(a, b)| a == b).count();
                let (Some(child), Some(other)) = (from.get(shared), to.get(shared)) else {
                    // One of them is in the other: the same room.
                    continue;
                };
                // What a `use` brings in is counted where it is brought in.
                levels
                    .entry(from[..shared].to_vec())
                    .or_default()
                    .entry((child.clone(), other.clone()))
                    .or_default()
                    .insert(Edge {
                        file: module.file.clone(),
                        line: mention.line,
                        path: mention.path.join("::"),
                    });
            }
        }
        let mut rings = Vec::new();
        for (parent, edges) in levels {
            for members in circles(&edges) {
                let tied = edges
                    .iter()
                    .filter(|((from, to), _)| members.contains(from) && members.contains(to))
                    .map(|(pair, edges)| (pair.clone(), edges.clone()))
                    .collect();
                rings.push(Ring {
                    parent: parent.join("::"),
                    members,
                    edges: tied,
                });
            }
        }
        rings
    }
}

/// The branches of a `use` tree between two braces.
fn branches<'t, 'a>(tokens: &'t [Token<'a>]) -> Vec<&'t [Token<'a>]> {
    let mut depth = 0_usize;
    tokens
        .split(|token| {
            match token.text {
                "{" => depth += 1,
                "}" => depth -= 1,
                _ => {}
            }
            depth == 0 && token.text == ","
        })
        .filter(|branch| !branch.is_empty())
        .collect()
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// The groups of names that all lead to each other.
fn circles<T>(edges: &BTreeMap<(String, String), T>) -> Vec<BTreeSet<String>> {
    let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (from, to) in edges.keys() {
        next.entry(from).or_default().insert(to);
    }
    let reached = |from: &str| {
        let mut seen = BTreeSet::new();
        let mut open = vec![from];
        while let Some(at) = open.pop() {
            for to in next.get(at).into_iter().flatten() {
                if seen.insert(*to) {
                    open.push(to);
                }
            }
        }
        seen
    };
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        next.keys().map(|name| (*name, reached(name))).collect();
    let groups: BTreeSet<BTreeSet<String>> = reach
        .iter()
        .filter(|(name, seen)| seen.contains(*name))
        .map(|(name, seen)| {
            let back = |other: &&&str| reach.get(**other).is_some_and(|seen| seen.contains(name));
            seen.iter()
                .filter(back)
                .map(|name| (*name).to_owned())
                .collect()
        })
        .collect();
    groups.into_iter().collect()
}
