#!/usr/bin/env python3
"""Draws a stretch of a trace as a picture: what each rank computes, and what its lanes move beside that.

    tools/draw_trace.py trace.json --from=1200 --to=1450 --out=step.svg

The trace is what `train_gpt --trace=FILE` writes, or `tools/merge_traces.py` of several processes. A row per rank and lane; spans
that lie closer together than a pixel are drawn as one. On stdout, for each rank: the milliseconds of the stretch in which it
computed, in which any of its lanes moved something, and in which both went on at once.
"""
import argparse
import sys
from xml.sax.saxutils import escape

import merge_traces

_COLOURS = {"step": "#dcdcdc", "op": "#9ecaf4", "comm": "#fdb462"}
_MEANING = {"step": "step", "op": "computes", "comm": "communicates"}
_MARGIN, _LABEL, _TOP, _ROW, _GAP = 14, 200, 44, 20, 4


def merged(intervals, gap=0.0):
    """The union of intervals (begin, end), in order; what is at most `gap` apart is one."""
    union = []
    for begin, end in sorted(intervals):
        if union and begin <= union[-1][1] + gap:
            union[-1][1] = max(union[-1][1], end)
        else:
            union.append([begin, end])
    return union


def total(intervals):
    return sum(end - begin for begin, end in intervals)


def common(left, right):
    """The intersection of two unions."""
    both, i, j = [], 0, 0
    while i < len(left) and j < len(right):
        begin, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if begin < end:
            both.append([begin, end])
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return both


class Stretch:
    """The spans of a trace that lie between two times, in milliseconds from its first span."""

    def __init__(self, events, begin, end):
        spans = [event for event in events if event.get("ph") == "X"]
        if not spans:
            sys.exit("error: the trace has no spans")
        zero = min(span["ts"] for span in spans)
        last = max(span["ts"] + span["dur"] for span in spans)
        self.begin = begin
        self.end = (last - zero) / 1000 if end is None else end
        if not self.begin < self.end:
            sys.exit(f"error: --from={self.begin:g} --to={self.end:g}: expected a time and a later one")
        self.lanes = {}  # (rank, lane) -> category -> intervals
        for span in spans:
            left = max((span["ts"] - zero) / 1000, self.begin)
            right = min((span["ts"] + span["dur"] - zero) / 1000, self.end)
            if left < right:
                of_lane = self.lanes.setdefault((span["pid"], span["tid"]), {})
                of_lane.setdefault(span["cat"], []).append((left, right))
        if not self.lanes:
            sys.exit(
                f"error: no span between {self.begin:g} and {self.end:g} ms; the trace ends at {(last - zero) / 1000:g} ms"
            )
        self.names = {
            (event["pid"], event["tid"]): event["args"]["name"] for event in events if event.get("name") == "thread_name"
        }

    def figures(self):
        """By rank: milliseconds in which it computed, in which it moved, and both at once."""
        result = {}
        for rank in sorted({rank for rank, _ in self.lanes}):
            of_rank = [spans for key, spans in sorted(self.lanes.items()) if key[0] == rank]
            computes = merged([span for spans in of_rank for span in spans.get("op", [])])
            moves = merged([span for spans in of_rank for span in spans.get("comm", [])])
            result[rank] = (total(computes), total(moves), total(common(computes, moves)))
        return result

    def svg(self, width):
        scale = width / (self.end - self.begin)
        height = _TOP + len(self.lanes) * (_ROW + _GAP) + 24
        all_width = _MARGIN + _LABEL + width + _MARGIN

        def x(time):
            return _MARGIN + _LABEL + (time - self.begin) * scale

        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{all_width}" height="{height}"'
            f' viewBox="0 0 {all_width} {height}" font-family="sans-serif" font-size="11" fill="#222222">',
            '<rect width="100%" height="100%" fill="#ffffff"/>',
        ]
        left = _MARGIN
        for category in sorted({category for spans in self.lanes.values() for category in spans}):
            meaning = _MEANING.get(category, category)
            lines.append(f'<rect x="{left}" y="14" width="12" height="12" fill="{_COLOURS.get(category, "#bbbbbb")}"/>')
            lines.append(f'<text x="{left + 17}" y="24">{escape(meaning)}</text>')
            left += 36 + 7 * len(meaning)
        for row, (key, spans) in enumerate(sorted(self.lanes.items())):
            y = _TOP + row * (_ROW + _GAP)
            name = f"rank {key[0]}: {self.names.get(key, f'lane {key[1]}')}"
            lines.append(f'<text x="{_MARGIN}" y="{y + 14}">{escape(name)}</text>')
            lines.append(f'<rect x="{x(self.begin):.1f}" y="{y}" width="{width}" height="{_ROW}" fill="#f3f3f3"/>')
            for category in sorted(spans, key=lambda c: list(_COLOURS).index(c) if c in _COLOURS else -1):
                for begin, end in merged(spans[category], 1 / scale):
                    lines.append(
                        f'<rect x="{x(begin):.1f}" y="{y}" width="{max(0.5, (end - begin) * scale):.1f}" height="{_ROW}"'
                        f' fill="{_COLOURS.get(category, "#bbbbbb")}"><title>{escape(category)} {begin:.2f} to {end:.2f} ms</title>'
                        "</rect>"
                    )
        bottom = _TOP + len(self.lanes) * (_ROW + _GAP) + 12
        lines.append(f'<text x="{x(self.begin):.1f}" y="{bottom}">0</text>')
        lines.append(
            f'<text x="{x(self.end):.1f}" y="{bottom}" text-anchor="end">{self.end - self.begin:.0f} ms</text></svg>'
        )
        return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("trace", help="what --trace or tools/merge_traces.py wrote")
    parser.add_argument("--out", required=True, help="the picture, an SVG")
    parser.add_argument("--from", dest="begin", type=float, default=0.0, help="milliseconds from the first span; default: 0")
    parser.add_argument("--to", dest="end", type=float, help="milliseconds from the first span; default: the trace's end")
    parser.add_argument("--width", type=int, default=1000, help="of the rows, in pixels; default: 1000")
    flags = parser.parse_args()
    if flags.width < 1:
        sys.exit(f"error: --width={flags.width}: expected at least 1")
    stretch = Stretch(merge_traces.read(flags.trace), flags.begin, flags.end)
    try:
        with open(flags.out, "w", encoding="utf-8") as file:
            file.write(stretch.svg(flags.width))
    except OSError as error:
        sys.exit(f"error: cannot write --out={flags.out}: {error}")
    for rank, (computes, moves, both) in stretch.figures().items():
        print(f"rank {rank}: computes {computes:.1f} ms, communicates {moves:.1f} ms, both at once {both:.1f} ms")


main()
