#!/usr/bin/env python3
"""Prints the line coverage of each layer, of what gcov counted, and holds it to the floors: the last part of coverage.sh.

A line is covered if any program ran it; a header's lines count once, however many sources include them.
"""

import argparse
import json
import math
import os
import re
import sys

LAYERS = ["runtime", "mesh", "ops", "dtensor", "parallel"]
MARGIN = 2.0  # points between what was measured and a floor that --write sets
ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def read_lines(path, root):
    """{layer: {file: {line: whether it ran}}} of gcov's JSON documents, one per line; files that are gone left out."""
    ran = {layer: {} for layer in LAYERS}
    with open(path, encoding="utf-8") as opened:
        for text in filter(str.strip, opened):
            for counted in json.loads(text)["files"]:
                name = counted["file"]
                layer = name.split("/")[0]
                if layer not in ran or not os.path.isfile(f"{root}/{name}"):
                    continue
                lines = ran[layer].setdefault(name, {})
                for line in counted["lines"]:
                    number = line["line_number"]
                    lines[number] = lines.get(number, False) or line["count"] > 0
    return ran


def read_floors(path):
    floors = {}
    with open(path, encoding="utf-8") as opened:
        for number, line in enumerate(opened, start=1):
            words = line.split("#")[0].split()
            if not words:
                continue
            if len(words) != 2 or words[0] not in LAYERS or not re.fullmatch(r"\d+(\.\d+)?", words[1]):
                raise ValueError(f"{path}:{number}: expected a layer ({', '.join(LAYERS)}) and its percent, got: {line.strip()}")
            floors[words[0]] = float(words[1])
    return floors


def write_floors(path, floors):
    """Writes the floors after the comment that the file begins with."""
    with open(path, encoding="utf-8") as opened:
        head = [line for line in opened if line.startswith("#")]
    with open(path, "w", encoding="utf-8") as opened:
        opened.writelines(head + [f"{layer} {floors[layer]:.1f}\n" for layer in LAYERS if layer in floors])


def judged_layers(targets):
    """The layers of which all tests are among the targets; all layers without targets."""
    given = targets.split()
    if not given or "//..." in given or "//tests/..." in given:
        return LAYERS
    return [layer for layer in LAYERS if f"//tests/{layer}/..." in given]


def percent(lines):
    return 100.0 * sum(lines) / len(lines)


def report(ran, floors, judged):
    """Prints the table; returns the layers below their floors, and what was measured of the judged ones."""
    below, measured = [], {}
    print(f"{'layer':<10} {'lines':>7} {'covered':>8} {'percent':>8}  floor")
    for layer in LAYERS:
        lines = [did for file in ran[layer].values() for did in file.values()]
        if not lines:
            print(f"{layer:<10} {0:>7} {'-':>8} {'-':>8}  nothing of it was built")
            if layer in judged and layer in floors:
                below.append(layer)
            continue
        verdict = "not judged: these are not all its tests"
        if layer in judged:
            measured[layer] = percent(lines)
            verdict = "no floor"
            if layer in floors:
                is_below = measured[layer] < floors[layer]
                below += [layer] * is_below
                verdict = f"{floors[layer]:.1f}{': BELOW' if is_below else ''}"
        print(f"{layer:<10} {len(lines):>7} {sum(lines):>8} {percent(lines):>8.1f}  {verdict}")
    return below, measured


def print_files(files):
    for name, lines in sorted(files.items(), key=lambda item: (percent(item[1].values()) if item[1] else 100, item[0])):
        if lines:
            missed = sorted(number for number, did in lines.items() if not did)
            print(f"{percent(lines.values()):>6.1f}  {name}  {len(missed)} of {len(lines)} lines never ran"
                  f"{': ' + ' '.join(map(str, missed[:12])) if missed else ''}{' ...' if len(missed) > 12 else ''}")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", help="what gcov --json-format --stdout has written")
    parser.add_argument("--floors", default=f"{ROOT}/tools/coverage_floors.txt")
    parser.add_argument("--root", default=ROOT, help="the tree")
    parser.add_argument("--targets", default="", help="the tests that ran; by default all")
    parser.add_argument("--files", default="", metavar="LAYER", help="print each file of this layer")
    parser.add_argument("--write", action="store_true", help="write the floors of the judged layers anew")
    given = parser.parse_args(arguments)
    try:
        if given.files not in ["", *LAYERS]:
            raise ValueError(f"--files={given.files}: expected one of {', '.join(LAYERS)}")
        floors = read_floors(given.floors)
        ran = read_lines(given.lines, given.root)
    except (OSError, ValueError, KeyError) as problem:
        return f"error: {problem}"
    if given.files:
        print_files(ran[given.files])
    below, measured = report(ran, floors, judged_layers(given.targets))
    if given.write:
        # Downwards to a tenth: a floor must hold for what it was measured from.
        floors.update({layer: math.floor((value - MARGIN) * 10) / 10 for layer, value in measured.items()})
        write_floors(given.floors, floors)
        print(f"wrote {given.floors}")
        return 0
    if below:
        return f"error: below the floor of {given.floors}: {', '.join(below)}"
    return 0


if __name__ == "__main__":
    sys.exit(main())
