"""tools/draw_trace.py on traces that are made up. Argument: that program."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.dom.minidom

_PROGRAM = sys.argv.pop(1)


def span(rank, lane, category, ts, dur):
    return {"ph": "X", "pid": rank, "tid": lane, "cat": category, "name": "add", "ts": ts, "dur": dur}


class DrawTraceTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.out = f"{folder.name}/out.svg"
        self.trace = f"{folder.name}/trace"

    def run_tool(self, text, *arguments):
        with open(self.trace, "w", encoding="utf-8") as opened:
            opened.write(text)
        command = [sys.executable, _PROGRAM, self.trace, f"--out={self.out}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def boxes(self):
        """The rectangles that stand for spans."""
        titles = xml.dom.minidom.parse(self.out).getElementsByTagName("title")
        return sorted(title.firstChild.data for title in titles)

    # Rank 0 computes from 0 to 4 ms and from 5 to 6, its lane moves from 3 to 5.5: both at once for 1.5 ms.
    _EVENTS = [
        {"ph": "M", "pid": 0, "tid": 1, "name": "thread_name", "args": {"name": "gradients <1>"}},
        span(0, 0, "op", 7000, 4000),
        span(0, 0, "op", 12000, 1000),
        span(0, 1, "comm", 10000, 2500),
        span(1, 0, "op", 8000, 1000),
    ]

    def test_times_are_those_of_the_unions(self):
        result = self.run_tool(json.dumps(self._EVENTS))
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(
            result.stdout.splitlines(),
            [
                "rank 0: computes 5.0 ms, communicates 2.5 ms, both at once 1.5 ms",
                "rank 1: computes 1.0 ms, communicates 0.0 ms, both at once 0.0 ms",
            ],
        )
        self.assertEqual(
            self.boxes(),
            ["comm 3.00 to 5.50 ms", "op 0.00 to 4.00 ms", "op 1.00 to 2.00 ms", "op 5.00 to 6.00 ms"],
        )

    def test_a_stretch_cuts_spans_and_leaves_others_out(self):
        result = self.run_tool(json.dumps(self._EVENTS), "--from=2", "--to=4.5")
        self.assertEqual(result.stdout, "rank 0: computes 2.0 ms, communicates 1.5 ms, both at once 1.0 ms\n")
        self.assertEqual(self.boxes(), ["comm 3.00 to 4.50 ms", "op 2.00 to 4.00 ms"])

    def test_what_lies_closer_than_a_pixel_is_one_box(self):
        spans = [span(0, 0, "op", 100 * i, 50) for i in range(100)]
        self.assertEqual(self.run_tool(json.dumps(spans), "--width=100").returncode, 0)
        self.assertEqual(len(self.boxes()), 1)
        self.assertEqual(self.run_tool(json.dumps(spans), "--width=1000").returncode, 0)
        self.assertEqual(len(self.boxes()), 100)

    def test_what_cannot_be_drawn_is_one_line(self):
        good = json.dumps(self._EVENTS)
        for text, arguments, says in [
            ("{", [], "cannot read the trace"),
            ("{}", [], "expected a list of trace events"),
            ("[]", [], "the trace has no spans"),
            (good, ["--from=5", "--to=4"], "--from=5 --to=4: expected a time and a later one"),
            (good, ["--from=50", "--to=60"], "the trace ends at 6 ms"),
            (good, ["--width=0"], "--width=0: expected at least 1"),
            (good, ["--out=/nowhere/x.svg"], "cannot write --out=/nowhere/x.svg"),
        ]:
            result = self.run_tool(text, *arguments)
            self.assertEqual(result.returncode, 1)
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
            self.assertIn(says, result.stderr)


unittest.main()
