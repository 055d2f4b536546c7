#!/usr/bin/env python3
"""Draws what benchmarks:scale measured: small log-log panels, one a series, as one SVG on stdout.

  bazel run //benchmarks:scale -- --log_format=json | benchmarks/plot_scale.py > docs/scaling.svg

Reads JSON lines on stdin; lines of other benchmarks are left out. Standard library only. The colours follow the
reader's light or dark setting.
"""

import json
import math
import sys

# What a series is called, and what its sizes count. Others are drawn under their own names.
TITLES = {
    "training/layers": ("training step", "layers"),
    "training/parameters": ("training step", "parameters of 16 elements"),
    "training/axes": ("training step, 16 ranks", "mesh axes"),
    "training/ranks": ("training step, per rank", "ranks (threads of one process)"),
    "build/resolve_plan": ("resolve a plan that names all", "layers"),
    "build/table": ("print that plan as a table", "layers"),
    "build/parallelize": ("construct and parallelize", "layers"),
    "build/one_module": ("the same, one module", "parameters"),
    "mesh/create": ("create a mesh", "ranks of the mesh"),
    "mesh/bind": ("create and bind a mesh", "ranks of the mesh"),
    "mesh/subgroup": ("one rank's group of 4", "ranks of the mesh"),
    "mesh/pieces": ("one rank's pieces", "ranks of the mesh"),
    "mesh/resolve_plan": ("resolve a plan", "ranks of the mesh"),
    "mesh/propagate": ("choose a matmul's sharding", "ranks of the mesh"),
    "mesh/plan_redistribution": ("plan 7 redistributions", "ranks of the mesh"),
    "mesh/plan_uneven": ("the same, uneven pieces", "ranks of the mesh"),
    "mesh/bytes": ("count their bytes", "ranks of the mesh"),
    "mesh/bytes_uneven": ("the same, uneven pieces", "ranks of the mesh"),
    "group/lower": ("lower 8 redistributions", "ranks of the group"),
}

COLUMNS = 4
WIDTH, HEIGHT = 250, 190  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 50, 12, 34, 38  # around its axes

STYLE = """
  text { font: 11px system-ui, sans-serif; fill: #24292f; }
  .title { font-weight: 600; }
  .note { fill: #57606a; }
  .frame { fill: none; stroke: #8c959f; }
  .grid { stroke: #8c959f; stroke-opacity: 0.25; }
  .fit { fill: none; stroke: #bf5b04; stroke-width: 1.5; }
  .missed { stroke: #cf222e; stroke-dasharray: 4 3; }
  .point { fill: #0969da; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .note { fill: #9198a1; }
    .fit { stroke: #f0883e; }
    .missed { stroke: #ff7b72; }
    .point { fill: #58a6ff; }
  }
"""


def read_series(lines):
    """Returns {name: {"points": [(size, us)], "exponent": e, "target": "flat", "pass": bool}} in order."""
    series = {}
    for line in lines:
        if not line.startswith("{"):
            continue
        figure = json.loads(line)
        if not figure["name"].startswith("scale/"):
            continue
        name, _, size = figure["name"][len("scale/"):].rpartition("/")
        entry = series.setdefault(name, {"points": []})
        if size == "exponent":
            entry.update(exponent=figure["value"], target=figure["limit_is"], met=figure["pass"])
        else:
            entry["points"].append((float(size), figure["value"]))
    return {name: entry for name, entry in series.items() if len(entry["points"]) > 1 and "exponent" in entry}


def ticks(low, high, base):
    """Powers of `base` within [low, high] (logarithms of 10), not more than six."""
    first, last = math.ceil(low / base - 1e-9), math.floor(high / base + 1e-9)
    step = max(1, math.ceil((last - first + 1) / 6))
    return [base * i for i in range(first, last + 1, step)]


def size_text(value):
    for power, suffix in ((30, "Gi"), (20, "Mi"), (10, "Ki")):
        if value >= 2**power:
            return f"{value / 2**power:.0f}{suffix}"
    return f"{value:.0f}"


def time_text(us):
    for scale, unit in ((1e6, "s"), (1e3, "ms"), (1, "us")):
        if us >= scale * 0.9999:
            return f"{us / scale:g} {unit}"
    return f"{us * 1e3:.0f} ns"


def panel(name, entry, left, top):
    """The SVG elements of one series."""
    title, sizes = TITLES.get(name, (name, "size"))
    xs = [math.log10(size) for size, _ in entry["points"]]
    ys = [math.log10(us) for _, us in entry["points"]]
    x_low, x_high = min(xs), max(xs)
    y_middle = (min(ys) + max(ys)) / 2
    y_half = max((max(ys) - min(ys)) / 2, 0.75) + 0.15  # a flat line must not look steep
    y_low, y_high = y_middle - y_half, y_middle + y_half
    x0, x1 = left + LEFT, left + WIDTH - RIGHT
    y0, y1 = top + HEIGHT - BOTTOM, top + TOP

    def at(x, y):
        return (x0 + (x - x_low) / (x_high - x_low) * (x1 - x0), y0 + (y - y_low) / (y_high - y_low) * (y1 - y0))

    out = [f'<text class="title" x="{x0}" y="{top + 14}">{title}</text>']
    verdict = entry["target"] if entry["met"] else entry["target"] + ": missed"
    out.append(f'<text class="note" x="{x0}" y="{top + 28}">exponent {entry["exponent"]:.2f} '
               f'({verdict})</text>')
    for x in ticks(x_low, x_high, math.log10(2)):
        px, _ = at(x, y_low)
        out.append(f'<line class="grid" x1="{px:.1f}" y1="{y0}" x2="{px:.1f}" y2="{y1}"/>')
        out.append(f'<text class="note" x="{px:.1f}" y="{y0 + 13}" text-anchor="middle">{size_text(10**x)}</text>')
    for y in ticks(y_low, y_high, 1):
        _, py = at(x_low, y)
        out.append(f'<line class="grid" x1="{x0}" y1="{py:.1f}" x2="{x1}" y2="{py:.1f}"/>')
        out.append(f'<text class="note" x="{x0 - 4}" y="{py + 4:.1f}" text-anchor="end">{time_text(10**y)}</text>')
    out.append(f'<rect class="frame" x="{x0}" y="{y1}" width="{x1 - x0}" height="{y0 - y1}"/>')
    out.append(f'<text class="note" x="{(x0 + x1) / 2}" y="{y0 + 28}" text-anchor="middle">{sizes}</text>')
    slope, middle_x, middle_y = entry["exponent"], sum(xs) / len(xs), sum(ys) / len(ys)
    (ax, ay), (bx, by) = (at(x, middle_y + slope * (x - middle_x)) for x in (x_low, x_high))
    out.append(f'<line class="fit{"" if entry["met"] else " missed"}" x1="{ax:.1f}" y1="{ay:.1f}" '
               f'x2="{bx:.1f}" y2="{by:.1f}"/>')
    for x, y in zip(xs, ys):
        px, py = at(x, y)
        out.append(f'<circle class="point" cx="{px:.1f}" cy="{py:.1f}" r="3"/>')
    return out


def main():
    series = read_series(sys.stdin)
    if not series:
        sys.exit("plot_scale: no series on stdin; expected the JSON lines of benchmarks:scale --log_format=json")
    rows = -(-len(series) // COLUMNS)
    width, height = COLUMNS * WIDTH, rows * HEIGHT
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
          f'height="{height}">')
    print(f"<style>{STYLE}</style>")
    for i, (name, entry) in enumerate(series.items()):
        print("\n".join(panel(name, entry, i % COLUMNS * WIDTH, i // COLUMNS * HEIGHT)))
    print("</svg>")


if __name__ == "__main__":
    main()
