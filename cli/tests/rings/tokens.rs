//! The tokens of a source file that matter for its imports: without comments, strings and items that only tests have.

/// A name, `::`, or a punctuation mark, with the line it stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) text: &'a str,
    pub(crate) line: usize,
}

/// Splits a source file into tokens. Literals count as the token `""`.
pub(crate) fn tokens(source: &str) -> Vec<Token<'_>> {
    let mut scanner = Scanner {
        source,
        at: 0,
        line: 1,
    };
    std::iter::from_fn(|| scanner.next()).collect()
}

struct Scanner<'a> {
    source: &'a str,
    at: usize,
    line: usize,
}

impl<'a> Scanner<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    /// Moves on by so many bytes, and counts the lines in them.
    fn skip(&mut self, bytes: usize) {
        let end = (self.at + bytes).min(self.source.len());
        self.line += self.source[self.at..end].matches('\n').count();
        self.at = end;
    }

    fn next(&mut self) -> Option<Token<'a>> {
        loop {
            let rest = self.rest();
            let first = rest.chars().next()?;
            if first.is_whitespace() {
                self.skip(first.len_utf8());
            } else if rest.starts_with("//") {
                self.skip(rest.find('\n').unwrap_or(rest.len()));
            } else if rest.starts_with("/*") {
                self.skip(block_comment(rest));
            } else {
                break;
            }
        }
        let (rest, line) = (self.rest(), self.line);
        let (text, length) = if let Some(length) = literal(rest) {
            ("", length)
        } else if rest.starts_with("::") {
            ("::", 2)
        } else {
            let length = match name(rest) {
                0 => rest.chars().next()?.len_utf8(),
                length => length,
            };
            (&rest[..length], length)
        };
        self.skip(length);
        Some(Token { text, line })
    }
}

/// The length of the name that the text begins with.
fn name(text: &str) -> usize {
    text.find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(text.len())
}

fn block_comment(text: &str) -> usize {
    let (mut at, mut depth) = (0, 0);
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    at
}

/// The length of the string or character that the text begins with, if it does. A lifetime is no character.
fn literal(text: &str) -> Option<usize> {
    let prefix = ["br", "cr", "b", "c", "r"]
        .into_iter()
        .find(|prefix| text.starts_with(prefix))
        .unwrap_or_default();
    let after = &text[prefix.len()..];
    let hashes = after.len() - after.trim_start_matches('#').len();
    if prefix.ends_with('r') && after[hashes..].starts_with('"') {
        let end = format!("\"{}", "#".repeat(hashes));
        let start = prefix.len() + hashes + 1;
        return Some(
            text[start..]
                .find(&end)
                .map_or(text.len(), |at| start + at + end.len()),
        );
    }
    let start = prefix.len() + 1;
    if !prefix.ends_with('r') && after.starts_with('"') {
        return Some(start + quoted(&text[start..], '"'));
    }
    if matches!(prefix, "" | "b") && after.starts_with('\'') {
        let mut inside = after[1..].chars();
        let first = inside.next()?;
        if first == '\\' || inside.next() == Some('\'') {
            return Some(start + quoted(&text[start..], '\''));
        }
    }
    None
}

/// The length of what is in quotation marks, with the closing one.
fn quoted(text: &str, mark: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        if escaped {
            escaped = false;
        } else if c == '\\' {
            escaped = true;
        } else if c == mark {
            return at + c.len_utf8();
        }
    }
    text.len()
}

/// Leaves out every item behind `#[cfg(test)]` or `#[test]`.
pub(crate) fn without_tests(tokens: Vec<Token<'_>>) -> Vec<Token<'_>> {
    let mut kept = Vec::with_capacity(tokens.len());
    let mut at = 0;
    while at < tokens.len() {
        let Some(end) = attribute(&tokens[at..]) else {
            kept.push(tokens[at]);
            at += 1;
            continue;
        };
        let texts: Vec<&str> = tokens[at..at + end]
            .iter()
            .map(|token| token.text)
            .collect();
        let test = matches!(
            texts.as_slice(),
            ["#", "[", "test", "]"] | ["#", "[", "cfg", "(", "test", ")", "]"]
        );
        if !test {
            kept.extend(&tokens[at..at + end]);
        }
        at += end;
        if test {
            at += item(&tokens[at..]);
        }
    }
    kept
}

/// The number of tokens in the outer attribute that the tokens begin with.
fn attribute(tokens: &[Token<'_>]) -> Option<usize> {
    let begins = tokens.first()?.text == "#" && tokens.get(1)?.text == "[";
    begins.then(|| 1 + group(&tokens[1..]))
}

/// The number of tokens in the brackets that the tokens begin with.
pub(crate) fn group(tokens: &[Token<'_>]) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// The number of tokens in the item, field or statement that the tokens begin with.
fn item(tokens: &[Token<'_>]) -> usize {
    let mut at = 0;
    while let Some(length) = attribute(&tokens[at..]) {
        at += length;
    }
    let import = tokens[at..]
        .iter()
        .take_while(|token| token.text != ";" && token.text != "{")
        .any(|token| token.text == "use");
    let mut keyword = false;
    while let Some(token) = tokens.get(at) {
        match token.text {
            ";" => return at + 1,
            "," if !keyword => return at + 1,
            "}" => return at,
            "{" if !import => return at + group(&tokens[at..]),
            "(" | "[" | "{" => at += group(&tokens[at..]),
            "fn" | "impl" | "struct" | "enum" | "mod" | "trait" | "type" | "const" | "static"
            | "let" => {
                keyword = true;
                at += 1;
            }
            _ => at += 1,
        }
    }
    at
}
