#!/usr/bin/env python3
"""Doxygen's input filter: prints a header with its contracts as Doxygen takes them.

  filter.py HEADER

Comments stay plain in the tree. Here a comment above a declaration becomes its documentation, a clause of the contract
("Cost:", "Errors:") a paragraph with that title, a comment behind a member that member's; what stands in `backticks` is set
as code, what is indented stays as it is laid. Comments in bodies of functions stay comments. Every line keeps its number.
"""

import html
import re
import sys

CLAUSES = ("Shape", "Layout", "Units", "Cost", "Threads", "Lifetime", "Errors", "Source")

_CLAUSE = re.compile(r"(%s): +(.*)" % "|".join(CLAUSES))
_BULLET = re.compile(r"( *)- (.*)")
_TOKEN = re.compile(r"//.*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])+'|.")


def escaped(text):
    """Text in which nothing is a command of Doxygen's, nor HTML. Between plain quotes it would take no escapes."""
    text = html.escape(text, quote=False).replace('"', "&quot;")
    return re.sub(r"([\\@#%]|--|(?<![\w])::)", r"\\\1", text)


def set_text(text):
    """A line of prose, with its code spans."""
    parts = re.split(r"`([^`]+)`", text)
    return "".join(f"<code>{escaped(part)}</code>" if i % 2 else escaped(part) for i, part in enumerate(parts))


def documentation(lines):
    """The lines of a comment, without their slashes, as Doxygen's: as many as there were."""
    made = []
    inside = ""  # "", "clause", "bullet" or "laid"
    for line in lines:
        text = line[1:] if line.startswith(" ") else line
        clause, bullet = _CLAUSE.match(text), _BULLET.match(text)
        opened = ""
        if not text.strip():
            now, opened = ("laid" if inside == "laid" else ""), ""
        elif clause:
            now, opened = "clause", f"<dl class=\"section\"><dt>{clause[1]}</dt><dd>{set_text(clause[2])}"
        elif bullet:
            now, opened = "bullet", f"<ul><li>{set_text(bullet[2])}"
        elif text.startswith("  ") and inside in ("clause", "bullet"):
            now, opened = inside, set_text(text.strip())
        elif text.startswith("  "):
            now, opened = "laid", ("<pre>" if inside != "laid" else "") + escaped(text)
        else:
            now, opened = "", set_text(text)
        # What was open ends on the line before, so that no line is added.
        starts = clause or bullet or now != inside
        if made and inside and starts:
            made[-1] += {"clause": "</dd></dl>", "bullet": "</li></ul>", "laid": "</pre>"}[inside]
        made.append(opened)
        inside = now
    if inside:
        made[-1] += {"clause": "</dd></dl>", "bullet": "</li></ul>", "laid": "</pre>"}[inside]
    return made


class Scopes:
    """Where in a header a line stands: among declarations or in a body."""

    def __init__(self):
        self.open = []  # "declarations" or "body", outermost first
        self.parentheses = 0
        self.head = ""  # of the declaration under way

    def among_declarations(self):
        return "body" not in self.open and self.parentheses == 0

    def between_declarations(self):
        return self.among_declarations() and not self.head.strip()

    def read(self, line):
        """Takes a line of code; returns where its comment begins, -1 if it has none."""
        for found in _TOKEN.finditer(line):
            token = found[0]
            if token.startswith("//"):
                return found.start()
            if token == "{":
                head = re.sub(r"alignas\([^)]*\)|template\s*<[^{]*?>\s*(?=class|struct|union)", "", self.head)
                holds = re.search(r"\b(class|struct|union|enum|namespace)\b", head) and not re.search(r"[(=]", head)
                self.open.append("declarations" if holds or 'extern "C"' in head else "body")
                self.head = ""
            elif token == "}":
                self.open.pop()
                self.head = ""
            elif token in "()":
                self.parentheses += 1 if token == "(" else -1
                self.head += token
            elif token == ";" and self.parentheses == 0 or (token == "," and "enum" in self.open[-1:]):
                self.head = ""
            else:
                self.head += token
        if re.fullmatch(r"\s*(public|private|protected):\s*", self.head):
            self.head = ""
        self.head += " "
        return -1


def is_declaration(line):
    return bool(line) and not re.match(r"\s*($|#|[})]|(public|private|protected):|namespace\b)", line)


def filtered(path, text):
    lines = text.split("\n")
    made = []
    scopes = Scopes()
    seen_code = False
    behind = -1  # the column of the comment behind the last line of code, if Doxygen takes it
    at = 0
    while at < len(lines):
        line = lines[at]
        if not line.lstrip().startswith("//"):
            behind = -1
            if line.startswith("#"):
                made.append(line)
            else:
                seen_code = seen_code or bool(line.strip())
                was_inside = scopes.among_declarations()
                start = scopes.read(line)
                code = line[:max(start, 0)].rstrip()
                if start >= 0 and was_inside and scopes.among_declarations() and code.endswith((";", ",")):
                    made.append(f"{code}  ///< {set_text(line[start + 2:].strip())}")
                    behind = start
                else:
                    made.append(line)
            at += 1
            continue
        column = len(line) - len(line.lstrip())
        end = at
        while end < len(lines) and lines[end].startswith(" " * column + "//"):
            end += 1
        block = [one[column + 2:] for one in lines[at:end]]
        following = next((one for one in lines[end:] if one.strip() and not one.lstrip().startswith("//")), "")
        pad = " " * column
        if column == behind:
            made += [f"{pad}///< {set_text(one.strip())}" for one in block]
        elif not seen_code and following.startswith(("#", "namespace")):
            made += [f"/// {f'@file {path} ' if i == 0 else ''}{one}" for i, one in enumerate(documentation(block))]
        elif scopes.between_declarations() and is_declaration(following):
            made += [f"{pad}/// {one}".rstrip() for one in documentation(block)]
        else:
            made += lines[at:end]
        behind = -1
        at = end
    return "\n".join(made)


def main():
    if len(sys.argv) != 2:
        return "usage: filter.py HEADER"
    with open(sys.argv[1], encoding="utf-8") as opened:
        sys.stdout.write(filtered(sys.argv[1], opened.read()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
