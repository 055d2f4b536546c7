#!/usr/bin/env python3
"""What a build spent its time on: .ci/build_profile.py PROFILE.gz, of `bazel build --profile=PROFILE.gz`.

Prints the costliest actions, and the sums by kind and folder. Bazel merges actions that are over at once.
"""

import collections
import gzip
import json
import re
import sys

NUM_ACTIONS = 20
NUM_SUMS = 20


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with gzip.open(sys.argv[1]) as file:
        events = json.load(file)["traceEvents"]
    actions = [(e["dur"] / 1e6, e["name"]) for e in events if e.get("cat") == "action processing"]
    sums = collections.defaultdict(lambda: [0, 0.0])
    for seconds, name in actions:
        words = re.search(r"^(.*?)(\S*/)?\S+$", name)  # "Compiling mesh/layout.cc": its kind and its folder
        entry = sums[words[1].replace("action '", "") + "/".join((words[2] or "").split("/")[:2])]
        entry[0] += 1
        entry[1] += seconds
    print(f"{len(actions)} actions, {sum(seconds for seconds, _ in actions):.0f} s over all cores; the costliest:")
    for seconds, name in sorted(actions, reverse=True)[:NUM_ACTIONS]:
        print(f"{seconds:8.1f} s  {name}")
    print("by kind and folder:")
    for what, (count, seconds) in sorted(sums.items(), key=lambda item: -item[1][1])[:NUM_SUMS]:
        print(f"{seconds:8.1f} s  {count:4d} {what}")


main()
