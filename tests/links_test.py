"""Every Markdown file of the tree names only what is there:

  - a relative link leads to a file or a folder, and its anchor to a heading, spelt as GitHub spells it;
  - a path in backticks that begins with a folder of the tree, of the page's own folder or of one above exists: as it is, or as
    the name of a source without its ending (`mesh/layout`);
  - a source or a page in backticks that is named without a folder (`layout.h`) exists in some folder;
  - a Bazel label, in backticks or in a block of code, has a BUILD file in its folder;
  - a --gtest_filter='*NAME*' beside a label selects a test of that label's source.

Not paths: what has a blank, a `*` or a `<name>` in it; what a benchmark calls a figure of its own; in CHANGELOG.md what was
there once. Links into the network are not followed. Prints file:line of each break. First it shows on a planted tree that it can.
"""

import fnmatch
import os
import re
import sys
import tempfile

from planted_tree import plant, report

_FENCE = re.compile(r"\s*(```+|~~~+)")
_SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
_LINK = re.compile(r"\]\(\s*<?([^)\s>]*)>?(?:\s+[\"'(][^)]*)?\)")
_DEFINITION = re.compile(r"\s{0,3}\[[^\]]+\]:\s*<?([^\s>]+)>?")
_HEADING = re.compile(r" {0,3}#{1,6}\s+(.*?)(?:\s+#+)?\s*$")
_ANCHOR = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")
_PATH = re.compile(r"(?:\./)?[\w.-]+(?:/[\w.-]+)*/?")
_BARE = re.compile(r"[\w-]+\.(?:h|cc|cu|cuh|md|py|sh)")
_LABEL = re.compile(r"(?<![\w/:@.])//([\w-]+(?:/[\w-]+)*)(/\.\.\.|:|(?=\s)|$)")
_FILTER = re.compile(r"//([\w/-]+):(\w+).*--gtest_filter='?\*?(\w+)\*")
_FIGURE = re.compile(r"\"([\w]+/[\w]+)\"")


class Tree:
    """What of a folder belongs to the tree: all but .git, Bazel's links and what the root's .gitignore names."""

    def __init__(self, root):
        self.root = root
        ignored = [".git", "__pycache__", "bazel-*"]
        if os.path.isfile(f"{root}/.gitignore"):
            with open(f"{root}/.gitignore", encoding="utf-8") as opened:
                ignored += [line.strip() for line in opened if line.strip()]
        self.files = set()
        self.folders = {""}
        for folder, folders, files in os.walk(root):
            here = os.path.relpath(folder, root)
            here = "" if here == "." else here + "/"
            # A pattern with a "/" at its start is of the root alone.
            folders[:] = [name for name in folders if not any(
                fnmatch.fnmatch("/" + here + name if pattern.startswith("/") else name, pattern.rstrip("/"))
                for pattern in ignored)]
            self.folders.update(here + name for name in folders)
            self.files.update(here + name for name in files)
        self.names = {os.path.basename(path) for path in self.files}
        self.stems = {re.sub(r"\.\w+$", "", path) for path in self.files}
        self.figures = set()
        for path in self.files:
            if path.startswith("benchmarks/") and path.endswith(".cc"):
                self.figures.update(_FIGURE.findall(self.text(path)))

    def text(self, path):
        with open(f"{self.root}/{path}", encoding="utf-8") as opened:
            return opened.read()

    def has(self, path):
        return path in self.files or path in self.folders


class Page:
    """A Markdown file taken apart: `prose` without code, `spans` and `blocks` of code, each as (line, text)."""

    def __init__(self, text):
        self.prose, self.spans, self.blocks, self.anchors = [], [], [], set()
        fence = ""
        for number, line in enumerate(text.split("\n"), start=1):
            mark = _FENCE.match(line)
            if fence:
                if mark and mark[1].startswith(fence) and line.strip() == mark[1]:
                    fence = ""
                else:
                    self.blocks.append((number, line))
            elif mark:
                fence = mark[1]
            elif re.match(r"    \S", line) and not re.match(r"\s*([-*+]|\d+\.)\s", line):
                self.blocks.append((number, line))
            else:
                self.spans += [(number, found[2]) for found in _SPAN.finditer(line)]
                self.prose.append((number, _SPAN.sub("``", line)))
                heading = _HEADING.match(line)
                if heading:
                    self.add_heading(heading[1])
                self.anchors.update(_ANCHOR.findall(line))

    def add_heading(self, text):
        text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        repeats = 0
        while (f"{slug}-{repeats}" if repeats else slug) in self.anchors:
            repeats += 1
        self.anchors.add(f"{slug}-{repeats}" if repeats else slug)

    def links(self):
        for number, line in self.prose:
            for target in _LINK.findall(line) + _DEFINITION.findall(line):
                yield number, target


def broken_link(tree, pages, path, target):
    """What is wrong with a link, "" if nothing."""
    if re.match(r"[a-zA-Z][\w+.-]*:", target) or target.startswith("//"):
        return ""
    if target.startswith("/"):
        return f"the link {target} is not relative"
    name, _, anchor = target.partition("#")
    led = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
    led = "" if led == "." else led
    if not tree.has(led):
        return f"the link {target} leads to no file"
    if anchor and led in pages and anchor not in pages[led].anchors:
        return f"the link {target} leads to no heading of {led}"
    return ""


def is_missing_path(tree, page, text):
    """Whether a span of code looks like a path of the tree, and is none."""
    if _BARE.fullmatch(text):
        return text not in tree.names
    if "/" not in text.strip("/") or not _PATH.fullmatch(text) or text in tree.figures or text.startswith("../"):
        return False
    name = text[2:] if text.startswith("./") else text
    folder = os.path.dirname(page)
    above = [folder]
    while folder:
        folder = os.path.dirname(folder)
        above.append(folder)
    tried = [os.path.join(folder, name.rstrip("/")) for folder in above]
    if any(tree.has(path) or (path in tree.stems and not name.endswith("/")) for path in tried):
        return False
    return any(os.path.join(folder, name.split("/")[0]) in tree.folders for folder in above)


def breaks(root):
    tree = Tree(root)
    pages = {path: Page(tree.text(path)) for path in sorted(tree.files) if path.endswith(".md")}
    found = []
    for path, page in pages.items():
        for line, target in page.links():
            problem = broken_link(tree, pages, path, target)
            if problem:
                found.append((path, line, problem))
        for line, text in page.spans:
            if os.path.basename(path) != "CHANGELOG.md" and is_missing_path(tree, path, text):
                found.append((path, line, f"`{text}` is not there"))
        for line, text in page.spans + page.blocks:
            for package, end in _LABEL.findall(text):
                if package not in tree.folders if end == "/..." else f"{package}/BUILD" not in tree.files:
                    found.append((path, line, f"//{package} is no package"))
            for package, name, word in _FILTER.findall(text):
                source = f"{package}/{name}.cc"
                if source in tree.files and not re.search(rf"^TEST\w*\([^)]*{word}", tree.text(source), re.MULTILINE):
                    found.append((path, line, f"no test of {source} has '{word}' in its name"))
    return len(pages), [f"{path}:{line}: {problem}" for path, line, problem in sorted(found)]


PLANTED = {
    ".gitignore": "bazel-*\n/data/\n",
    "README.md": """# Tree

See [the page](docs/page.md "its title"), [its part](docs/page.md#what-is-a-layout-2), [here](#tree), ![a picture](docs/picture.svg),
[the network](https://nowhere.invalid/x.md) and [a folder](mesh). `mesh/layout.h`, `mesh/layout`, `mesh/layout_test`, `mesh/`,
`docs/<name>.md`, `mesh/*.cc`, `absl/strings/str_cat.h`, `mesh/bind`, `./setup.sh`, `mesh/data/x.h`, `[](World& world)`.

```cpp
run([](weft::World& world) {});  // mesh/none.h
```

    bazel test //mesh:any //mesh/... //...
    bazel test //mesh:layout_test --test_arg=--gtest_filter='*Text*'
""",
    "setup.sh": "",
    "CHANGELOG.md": "`mesh/old.h` is gone\n",
    "docs/page.md": "# Page\n\n## What is a `layout`?\n\n### What is a layout, 2\n\n## What is a layout?\n\n[up](../README.md#tree)\n"
                    "[again](#what-is-a-layout-1)\n\n[1]: picture.svg\n",
    "docs/picture.svg": "",
    "mesh/BUILD": "",
    "mesh/layout.h": "",
    "mesh/layout_test.cc": "TEST(LayoutTest, TextForm) {\n  Uneven();\n",
    "mesh/search/README.md": "`search/x.cc`, `x.cc`, `layout.h`, `mesh/search/x.cc`\n",
    "mesh/search/x.cc": "",
    "benchmarks/scale.cc": 'flat("mesh/bind", BindMicroseconds)\n',
    "data/README.md": "[nowhere](x.md)\n",
    "mesh/data/x.h": "",
}
BROKEN = {
    "docs/broken.md": """# Broken

[a](page.md#page-1) [b](nowhere.md)
![c](../picture.svg) [d](/docs/page.md) [e][2] [f](#Broken) [g](../data/README.md)
`mesh/none.h` and `mesh/search/y`, `docs/nowhere/`, run `bazel test //mesh/search:x`

[2]: ../mesh/layout.cc
```
bazel test //docs/nowhere:x
bazel test //mesh:layout_test --test_arg=--gtest_filter='*Uneven*'
```
""",
    "mesh/search/README.md": "`search/z.cc`, `gone.h`\n",
}
EXPECTED = """\
docs/broken.md:3: the link nowhere.md leads to no file
docs/broken.md:3: the link page.md#page-1 leads to no heading of docs/page.md
docs/broken.md:4: the link #Broken leads to no heading of docs/broken.md
docs/broken.md:4: the link ../data/README.md leads to no file
docs/broken.md:4: the link ../picture.svg leads to no file
docs/broken.md:4: the link /docs/page.md is not relative
docs/broken.md:5: //mesh/search is no package
docs/broken.md:5: `docs/nowhere/` is not there
docs/broken.md:5: `mesh/none.h` is not there
docs/broken.md:5: `mesh/search/y` is not there
docs/broken.md:7: the link ../mesh/layout.cc leads to no file
docs/broken.md:9: //docs/nowhere is no package
docs/broken.md:10: no test of mesh/layout_test.cc has 'Uneven' in its name
mesh/search/README.md:1: `gone.h` is not there
mesh/search/README.md:1: `search/z.cc` is not there""".split("\n")


def expect(what, expected, actual):
    if actual != expected:
        sys.exit("\n".join([f"FAILED: {what}", "expected:", *expected, "actual:", *actual]))


def self_test():
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as root:
        plant(root, PLANTED)
        expect("a tree in order", [], breaks(root)[1])
        plant(root, BROKEN)
        expect("breaks", EXPECTED, breaks(root)[1])


def main():
    self_test()
    return report(breaks, failed="these pages name what is not there (see the head of tests/links_test.py)",
                  passed="pages name only what is there")


if __name__ == "__main__":
    sys.exit(main())
