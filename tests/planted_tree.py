"""What tests of the source tree by rules in Python have in common: they show on a planted tree that they can fail, then read ours."""

import os
import sys
import tempfile


def read(path):
    with open(path, encoding="utf-8") as opened:
        return opened.read()


def plant(root, texts):
    for path, text in texts.items():
        os.makedirs(os.path.dirname(f"{root}/{path}"), exist_ok=True)
        with open(f"{root}/{path}", "w", encoding="utf-8") as opened:
            opened.write(text)


def expect_breaks(breaks, texts, expected):
    """Ends the program unless `breaks` says `expected` of a tree that has these texts."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR")) as root:
        plant(root, texts)
        if breaks(root) != expected:
            sys.exit(f"FAILED: on the planted tree expected {expected}, got {breaks(root)}")


def source_tree():
    root = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    if not os.path.isfile(f"{root}/WORKSPACE"):
        sys.exit(f"FAILED: {root} is not the source tree")
    return root


def report(breaks, failed, passed):
    """Prints the breaks of the source tree; what the program is to exit with."""
    count, lines = breaks(source_tree())
    for line in lines:
        print(line)
    if lines:
        return f"FAILED: {failed}"
    print(f"{count} {passed}")
    return 0
