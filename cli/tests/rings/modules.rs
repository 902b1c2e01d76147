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
    impls: Vec<Impl>,
}

/// An `impl` block for a type that a path names.
#[derive(Debug)]
struct Impl {
    /// The path of the type.
    of: Vec<String>,
    /// The functions that the block gives the type. A block for a trait gives it none.
    functions: Vec<String>,
    /// The functions that the block calls by `self.name` or `Self::name`.
    calls: Vec<Call>,
}

/// A call of a function of the type that an `impl` block is for.
#[derive(Debug)]
struct Call {
    line: usize,
    name: String,
}

/// A path that a module names.
#[derive(Debug)]
struct Mention {
    line: usize,
    path: Vec<String>,
}

/// One path in one module that names something of a module beside it, or one call of a method that is defined there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Edge {
    pub(crate) file: PathBuf,
    pub(crate) line: usize,
    pub(crate) path: String,
}

/// Which room leads to which, and by what.
pub(crate) type Edges = BTreeMap<(String, String), BTreeSet<Edge>>;

/// Modules of one parent that lead to each other in a circle, with what ties each pair.
#[derive(Debug)]
pub(crate) struct Ring {
    /// The path of the parent; empty at the crate's root.
    pub(crate) parent: String,
    pub(crate) members: BTreeSet<String>,
    pub(crate) edges: Edges,
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

    /// The files of all modules.
    pub(crate) fn files(&self) -> BTreeSet<PathBuf> {
        let files = self.modules.iter().map(|module| module.file.clone());
        files.collect()
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
        let tokens = without_tests(&tokens(source));
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
                "impl" if begins_item(before) => {
                    self.modules[index].impls.extend(implementation(tokens));
                    1
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
                    if name != "self" || path.is_empty() {
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

    /// The module that defines the type which an `impl` block in a module is for, and the name of the type.
    fn type_of<'a>(&self, from: usize, of: &'a [String]) -> Option<(usize, &'a str)> {
        let name = of.last()?;
        Some((self.resolve(from, of).unwrap_or(from), name))
    }

    /// The module that defines each function of each type, if that is just one.
    fn functions(&self) -> BTreeMap<(usize, &str, &str), Option<usize>> {
        let mut functions: BTreeMap<_, Option<usize>> = BTreeMap::new();
        for (index, module) in self.modules.iter().enumerate() {
            for block in &module.impls {
                let Some((home, of)) = self.type_of(index, &block.of) else {
                    continue;
                };
                for function in &block.functions {
                    functions
                        .entry((home, of, function.as_str()))
                        .and_modify(|defines| *defines = defines.filter(|other| *other == index))
                        .or_insert(Some(index));
                }
            }
        }
        functions
    }

    /// What leads from each module to others: the module that leads, the one that it leads to, and by what.
    fn edges(&self) -> Vec<(usize, usize, Edge)> {
        let mut edges = Vec::new();
        let functions = self.functions();
        for (index, module) in self.modules.iter().enumerate() {
            let mut add = |target, line, path| {
                let file = module.file.clone();
                edges.push((index, target, Edge { file, line, path }));
            };
            for mention in &module.mentions {
                // What a `use` brings in is counted where it is brought in.
                if let Some(target) = self.resolve(index, &mention.path) {
                    add(target, mention.line, mention.path.join("::"));
                }
            }
            for block in &module.impls {
                let Some((home, of)) = self.type_of(index, &block.of) else {
                    continue;
                };
                for call in &block.calls {
                    let defines = functions.get(&(home, of, call.name.as_str()));
                    if let Some(target) = defines.copied().flatten() {
                        add(target, call.line, format!("{of}::{}", call.name));
                    }
                }
            }
        }
        edges
    }

    /// The rings among the modules of each parent.
    pub(crate) fn rings(&self) -> Vec<Ring> {
        // Of each parent: which child leads to which.
        let mut levels: BTreeMap<Vec<String>, Edges> = BTreeMap::new();
        for (index, target, edge) in self.edges() {
            let (from, to) = (&self.modules[index].path, &self.modules[target].path);
            let shared = from.iter().zip(to).take_while(|(a, b)| a == b).count();
            let (Some(child), Some(other)) = (from.get(shared), to.get(shared)) else {
                // One of them is in the other: the same room.
                continue;
            };
            levels
                .entry(from[..shared].to_vec())
                .or_default()
                .entry((child.clone(), other.clone()))
                .or_default()
                .insert(edge);
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

/// Whether `impl` after this token begins a block. In a type it follows another mark, as in `-> impl Trait`.
fn begins_item(before: &str) -> bool {
    matches!(before, "" | ";" | "{" | "}" | "]" | "unsafe")
}

/// Reads the `impl` block that the tokens begin with, if it is for a type that a path names.
fn implementation(tokens: &[Token<'_>]) -> Option<Impl> {
    let body = tokens.iter().position(|token| token.text == "{")?;
    let mut header = &tokens[1..body];
    header = &header[generics(header)..];
    let bounds = header.iter().position(|token| token.text == "where");
    header = &header[..bounds.unwrap_or(header.len())];
    let of_trait = header.iter().position(|token| token.text == "for");
    header = &header[of_trait.map_or(0, |at| at + 1)..];
    let of: Vec<String> = header
        .iter()
        .take_while(|token| token.text == "::" || is_name(token.text))
        .filter(|token| token.text != "::")
        .map(|token| token.text.to_owned())
        .collect();
    if of.is_empty() {
        return None;
    }
    let tokens = &tokens[body + 1..body + crate::tokens::group(&tokens[body..]) - 1];
    let (mut functions, mut calls) = (Vec::new(), Vec::new());
    let (mut at, mut depth, mut before) = (0, 0_usize, "{");
    while let Some(token) = tokens.get(at) {
        match (token.text, &tokens[at + 1..]) {
            // A block in a function has a `self` of its own.
            ("impl", rest) if begins_item(before) => {
                let inner = rest.iter().position(|token| token.text == "{");
                let inner = inner.unwrap_or(rest.len());
                at += 1 + inner + crate::tokens::group(&rest[inner..]) - 1;
            }
            ("fn", [name, ..]) if depth == 0 && of_trait.is_none() => {
                functions.push(name.text.to_owned());
            }
            ("self", [dot, name, next, ..])
                if before != "." && dot.text == "." && matches!(next.text, "(" | "::") =>
            {
                let (line, name) = (name.line, name.text.to_owned());
                calls.push(Call { line, name });
            }
            ("Self", [colons, name, ..]) if colons.text == "::" => {
                let (line, name) = (name.line, name.text.to_owned());
                calls.push(Call { line, name });
            }
            ("{", _) => depth += 1,
            ("}", _) => depth = depth.saturating_sub(1),
            _ => {}
        }
        before = tokens[at].text;
        at += 1;
    }
    Some(Impl {
        of,
        functions,
        calls,
    })
}

/// The number of tokens in the list of generic parameters that the tokens begin with, if they do.
fn generics(tokens: &[Token<'_>]) -> usize {
    let mut depth = 0_usize;
    let mut before = "";
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            "<" => depth += 1,
            // `Fn() -> T` in a bound.
            ">" if before != "-" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return if token.text == ">" { at + 1 } else { 0 };
        }
        before = token.text;
    }
    0
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
