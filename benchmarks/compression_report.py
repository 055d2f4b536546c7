#!/usr/bin/env python3
"""What compression.sh prints.

figures METHOD NUMBER      reads NUMBER.link.json and NUMBER.run.*.json of this folder, and those of 0, which is "none"
table METHOD...            the same of all methods, by number, as a table in Markdown
"""
import glob
import json
import os
import statistics
import sys

NUM_WARMUP = 3  # steps that learn the order of gradients


def lines(name):
    with open(name) as file:
        return [json.loads(line) for line in file if line.startswith('{"step"')]


def on_link(number):
    """Bytes and milliseconds of a step; nothing without a link."""
    if not os.path.exists(f"{number}.link.json"):
        return None
    steps = [step for step in lines(f"{number}.link.json") if "loss" in step][NUM_WARMUP:]
    return (statistics.median(step["comm_bytes"] for step in steps), statistics.median(step["step_ms"] for step in steps))


def val_loss(number):
    """The mean of the last validation losses; nothing without runs, or if one diverged."""
    last = [[line["val_loss"] for line in lines(name) if "val_loss" in line][-1] for name in sorted(glob.glob(f"{number}.run.*.json"))]
    return None if not last or None in last else statistics.mean(last)


def figure(name, value, unit, limit, limit_is, target=None):
    ratio = None if limit is None else value / limit
    print(json.dumps({"name": name, "value": round(value, 4), "unit": unit, "limit": limit, "limit_is": limit_is,
                      "ratio": None if ratio is None else round(ratio, 4), "target": target,
                      "pass": None if target is None or ratio is None else ratio <= target}), flush=True)


def figures(method, number):
    is_none = number == 0
    link, exact = on_link(number), on_link(0)
    if link is not None:
        figure(f"compression/{method}/bytes", link[0] / 1e6, "MB", None if is_none else exact[0] / 1e6, "none")
        figure(f"compression/{method}/step", link[1], "ms", None if is_none else exact[1], "none")
    loss = val_loss(number)
    if loss is not None:
        figure(f"compression/{method}/val_loss", loss, "nats", None if is_none else val_loss(0), "none", None if is_none else 1.01)


def table(methods):
    print("| method | MB per step | of none's | ms per step | of none's | validation loss | above none's |")
    print("|---|---|---|---|---|---|---|")
    for number, method in enumerate(methods):
        cells = [f"`{method}`"]
        link, exact = on_link(number), on_link(0)
        if link is None:
            cells += ["-"] * 4
        else:
            cells += [f"{link[0] / 1e6:.2f}", f"{link[0] / exact[0]:.3f}", f"{link[1]:.0f}", f"{link[1] / exact[1]:.3f}"]
        loss = val_loss(number)
        cells += ["-", "-"] if loss is None else [f"{loss:.4f}", f"{(loss / val_loss(0) - 1) * 100:+.2f}%"]
        print("| " + " | ".join(cells) + " |")


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "figures":
        figures(sys.argv[2], int(sys.argv[3]))
    elif len(sys.argv) > 2 and sys.argv[1] == "table":
        table(sys.argv[2:])
    else:
        sys.exit(__doc__)


main()
