"""tools/merge_traces.py on traces that are made up. Argument: that program."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import unittest

_PROGRAM = sys.argv.pop(1)


def span(rank, ts, name):
    return {"ph": "X", "pid": rank, "tid": 0, "cat": "op", "name": name, "ts": ts, "dur": 1.5}


class MergeTracesTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def file(self, name, text):
        with open(f"{self.folder}/{name}", "w", encoding="utf-8") as opened:
            opened.write(text)
        return f"{self.folder}/{name}"

    def run_tool(self, *arguments):
        return subprocess.run([sys.executable, _PROGRAM, *arguments], capture_output=True, text=True, check=False)

    def test_offsets_are_added_and_the_first_span_begins_at_zero(self):
        first = self.file("t", json.dumps([span(0, 1000.25, "add")]))
        offset = {"ph": "M", "pid": 1, "name": "clock_offset", "args": {"us": -400.5}}
        second = self.file("t.1", json.dumps([offset, span(1, 1500.0, "mul"), span(1, 1300.0, "sub")]))
        out = f"{self.folder}/all"
        result = self.run_tool(first, second, f"--out={out}")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        with open(out, encoding="utf-8") as file:
            events = json.load(file)
        times = {(event["pid"], event["name"]): event["ts"] for event in events}
        self.assertEqual(times, {(1, "sub"): 0, (0, "add"): 100.75, (1, "mul"): 200})

    def test_what_stdout_is_holds_its_content(self):
        trace = self.file("t", json.dumps([span(0, 1, "add")]))
        log = self.file("log", "before\n")
        with open(log, "a", encoding="utf-8") as file:
            subprocess.run([sys.executable, _PROGRAM, trace], stdout=file, check=True)
        with open(log, encoding="utf-8") as file:
            first, *rest = file.read().splitlines()
        self.assertEqual(first, "before")
        self.assertEqual(len(json.loads("".join(rest))), 1)

    def test_stdout_may_be_a_socket(self):
        # As ssh has it for a command.
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                result = subprocess.run([sys.executable, _PROGRAM, self.file("t", json.dumps([span(0, 1, "add")]))],
                                        stdout=theirs, stderr=subprocess.PIPE, text=True, check=False)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertEqual(len(json.loads(ours.makefile().read())), 1)

    def test_what_cannot_be_written_is_one_line(self):
        trace = self.file("t", json.dumps([span(0, 1, "add")]))
        result = self.run_tool(trace, f"--out={self.folder}/none/all")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertIn(f"error: cannot write --out={self.folder}/none/all: ", result.stderr)
        with open("/dev/full", "w", encoding="utf-8") as full:
            result = subprocess.run([sys.executable, _PROGRAM, trace], stdout=full, stderr=subprocess.PIPE, text=True,
                                    check=False)
        self.assertEqual(result.returncode, 1)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertIn("error: cannot write stdout: ", result.stderr)

    def test_what_is_no_trace_is_one_line(self):
        good = self.file("good", json.dumps([span(0, 1, "add")]))
        for text, says in [("{", "cannot read the trace"), ("{}", "expected a list of trace events")]:
            result = self.run_tool(good, self.file("bad", text))
            self.assertEqual(result.returncode, 1)
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
            self.assertIn(says, result.stderr)
        result = self.run_tool(good, self.folder + "/missing")
        self.assertIn("No such file", result.stderr)
        result = self.run_tool(good, self.file("same", json.dumps([span(0, 1, "mul")])))
        self.assertIn("have spans of rank 0", result.stderr)


unittest.main()
