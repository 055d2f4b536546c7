#!/usr/bin/env python3
"""Compares figures of benchmarks with a baseline, and says which are worse than they may be.

  tools/compare_benchmarks.py [--baseline=FILE]... OUTPUT...
  tools/compare_benchmarks.py --write [--baseline=FILE] OUTPUT...

An OUTPUT is what a benchmark prints with --log_format=json; - is stdin. LABEL=OUTPUT puts "LABEL/" before its names, for
benchmarks that give the same names to other things (`collectives` with several backends). Of a figure that stands in
several outputs the median counts: run each build three times, the builds in turn. The baseline is benchmarks/baseline.json,
or another file that --write has made, or outputs of another build.

Prints figure, baseline, now and their ratio. Exits 1 if a figure is worse than its tolerance. The unit says which way is
worse; TOLERANCES, by how much it may be. A figure of an unknown unit, or that only one side has, is shown and not judged;
the last line counts them.
"""

import argparse
import datetime
import fnmatch
import json
import math
import os
import statistics
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))

LESS_IS_BETTER = ["ns", "us", "ms", "s", "B", "MB", "MiB", "nats", "% of step", "exponent"]
MORE_IS_BETTER = ["tokens/s", "GFLOP/s", "TFLOP/s", "MB/s", "GB/s"]
NO_DIRECTION = ["ratio"]  # of some figures of `overlap` more is better, of others less

# How much worse a figure may be, as a fraction of the baseline; the first that fits its name and unit counts.
TOLERANCES = [
    # (name, unit, tolerance)
    ("*/grad_peak", "B", 0.2),  # how many gradients wait to be reduced at once depends on the hour
    ("*", "MiB", 0.03),  # other memory hardly does
    ("*", "B", 0.03),
    ("*", "MB", 0.03),  # nor what moves
    ("*", "nats", 0.01),  # what a run has learnt
    ("*gloo*", "*", 0.5),  # processes beside each other on few cores: windows differ by half
    ("*mpi*", "*", 0.5),
    ("*", "% of step", 0.5),  # a small part of a step
    ("*", "*", 0.15),
]
# Exponents may be about 0: they are compared by difference.
EXPONENT_TOLERANCE = 0.1


class Problem(Exception):
    pass


def tolerance_of(name, unit):
    return next(tolerance for of_name, of_unit, tolerance in TOLERANCES
                if fnmatch.fnmatchcase(name, of_name) and fnmatch.fnmatchcase(unit, of_unit))


def read_text(path):
    try:
        if path == "-":
            return sys.stdin.read()
        with open(path, encoding="utf-8") as opened:
            return opened.read()
    except OSError as problem:
        raise Problem(f"{path}: {problem.strerror}") from problem
    except UnicodeDecodeError as problem:
        raise Problem(f"{path}: no text in UTF-8") from problem


def figures_of(text, path):
    """The figures of an output or of a baseline, as (name, value, unit), and the baseline's own words of itself."""
    try:
        whole = json.loads(text)
        if "figures" in whole:
            return [(figure["name"], float(figure["value"]), figure["unit"]) for figure in whole["figures"]], whole
    except (ValueError, TypeError, KeyError):
        pass  # not one object: lines
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.startswith("{"):
            continue  # what a program or Bazel says beside
        try:
            figure = json.loads(line)
        except ValueError as problem:
            raise Problem(f"{path}:{number}: no JSON: {problem}") from problem
        if {"name", "value", "unit"} <= set(figure):
            try:
                found.append((figure["name"], float(figure["value"]), figure["unit"]))
            except (TypeError, ValueError) as problem:
                raise Problem(f"{path}:{number}: {figure['name']}: expected a number, got {figure['value']!r}") from problem
    if not found:
        raise Problem(f"{path}: holds no figure; expected the output of a benchmark with --log_format=json, or a baseline")
    return found, {}


def gather(paths):
    """{name: (median, unit, how many)} over the files, and what the first baseline among them says of itself."""
    values, units, told = {}, {}, {}
    for word in paths:
        label, _, path = word.rpartition("=")
        figures, whole = figures_of(read_text(path), path)
        told = told or whole
        for name, value, unit in figures:
            name = f"{label}/{name}" if label else name
            if units.setdefault(name, unit) != unit:
                raise Problem(f"{path}: {name} is in {unit}, and in {units[name]} elsewhere")
            values.setdefault(name, []).append(value)
    return {name: (median(value), units[name], len(value)) for name, value in values.items()}, told


def median(values):
    """Of numbers; not a number if one of them is none, which has no place in their order."""
    return math.nan if any(map(math.isnan, values)) else statistics.median(values)


def machine():
    """What the machine is, in words that tell it from others."""
    def first(path, key):
        try:
            with open(path, encoding="utf-8") as opened:
                return next((line.split(":", 1)[1].strip() for line in opened if line.startswith(key)), "unknown")
        except OSError:
            return "unknown"
    return {
        "processor": first("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory": first("/proc/meminfo", "MemTotal"),
        "system": os.uname().sysname + " " + os.uname().machine,
    }


def write(path, figures):
    listed = ",\n".join("  " + json.dumps({"name": name, "value": value, "unit": unit, "runs": runs})
                        for name, (value, unit, runs) in sorted(figures.items()))
    try:
        with open(path, "w", encoding="utf-8") as opened:
            opened.write(f'{{"date": "{datetime.date.today()}",\n "machine": {json.dumps(machine())},\n "figures": [\n')
            opened.write(listed + "\n ]}\n")
    except OSError as problem:
        raise Problem(f"{path}: {problem.strerror}") from problem
    print(f"wrote {path}: {len(figures)} figures")


def verdict(name, unit, before, now):
    """What became of a figure: "", "better", "WORSE, ..." or why it is not judged."""
    if unit in NO_DIRECTION:
        return "not judged: no direction"
    if unit not in LESS_IS_BETTER + MORE_IS_BETTER:
        return "not judged: unknown unit"
    if not math.isfinite(now):
        return "WORSE, not a finite number"
    if not math.isfinite(before):
        return "not judged: the baseline is no finite number"
    if unit == "exponent":
        change, tolerance = now - before, EXPONENT_TOLERANCE
        may_be = f"by {tolerance} at most"
    else:
        fell_to_nothing = before > 0 == now and unit in MORE_IS_BETTER
        if (before <= 0 or now <= 0) and not fell_to_nothing:
            return "" if before == now else "not judged: no ratio"
        tolerance = tolerance_of(name, unit)
        # Twice as slow is as bad in tokens/s as in seconds.
        change = math.inf if fell_to_nothing else (now / before if unit in LESS_IS_BETTER else before / now) - 1
        may_be = f"by {tolerance:.0%} at most"
    if change > tolerance:
        return f"WORSE, {may_be}"
    return "better" if change < -tolerance / (1 + tolerance) else ""


def compare(before, now):
    """Prints the table; returns the names of what is worse."""
    worse, unjudged = [], 0
    width = max(map(len, now), default=0)
    print(f"{'figure':<{width}} {'baseline':>10} {'now':>10} {'unit':<9} {'ratio':>6}")
    for name in sorted(now):
        value, unit, _ = now[name]
        if name not in before:
            print(f"{name:<{width}} {'-':>10} {value:>10.4g} {unit:<9} {'-':>6}  no baseline")
            continue
        old, old_unit, _ = before[name]
        if old_unit != unit:
            print(f"{name:<{width}} {old:>10.4g} {value:>10.4g} {unit:<9} {'-':>6}  not judged: the baseline is in {old_unit}")
            unjudged += 1
            continue
        word = verdict(name, unit, old, value)
        worse += [name] * word.startswith("WORSE")
        unjudged += word.startswith("not judged")
        ratio = f"{value / old:.2f}" if old else "-"
        print(f"{name:<{width}} {old:>10.4g} {value:>10.4g} {unit:<9} {ratio:>6}  {word}".rstrip())
    counts = [(unjudged, "not judged"), (len(set(now) - set(before)), "without a baseline"),
              (len(set(before) - set(now)), "of the baseline were not measured")]
    print("; ".join([f"{len(now)} figures, {len(worse)} worse"] + [f"{count} {what}" for count, what in counts if count]))
    return worse


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("outputs", nargs="+", metavar="OUTPUT", help="what a benchmark printed with --log_format=json")
    parser.add_argument("--baseline", action="append", metavar="FILE", help="by default benchmarks/baseline.json")
    parser.add_argument("--write", action="store_true", help="make the baseline of these outputs, with machine and date")
    given = parser.parse_args(arguments)
    baselines = given.baseline or [f"{ROOT}/benchmarks/baseline.json"]
    try:
        now, _ = gather(given.outputs)
        if given.write:
            if len(baselines) > 1:
                raise Problem("--write makes one file: give one --baseline")
            write(baselines[0], now)
            return 0
        if not given.baseline and not os.path.exists(baselines[0]):
            raise Problem(f"{baselines[0]}: there is no baseline yet; --write makes one, or give --baseline")
        before, told = gather(baselines)
    except Problem as problem:
        return f"error: {problem}"
    if told:
        print(f"baseline of {told.get('date', 'an unknown day')}: {json.dumps(told.get('machine', {}))}")
        if told.get("machine") != machine():
            print(f"this is another machine: {json.dumps(machine())}")
    return 1 if compare(before, now) else 0


if __name__ == "__main__":
    sys.exit(main())
