"""tools/compare_benchmarks.py on figures that are made up, and the units of the tree's. Argument: that program."""

import contextlib
import datetime
import glob
import importlib.util
import io
import json
import math
import os
import pathlib
import re
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
_PROGRAM = sys.argv.pop(1)
_spec = importlib.util.spec_from_file_location("compare_benchmarks", _PROGRAM)
compare_benchmarks = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(compare_benchmarks)


def line(name, value, unit):
    return json.dumps({"name": name, "value": value, "unit": unit, "limit": None, "limit_is": "", "ratio": None,
                       "target": None, "pass": None}) + "\n"


class CompareBenchmarksTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def file(self, name, text):
        with open(f"{self.folder}/{name}", "w", encoding="utf-8") as opened:
            opened.write(text)
        return f"{self.folder}/{name}"

    def run_tool(self, *arguments):
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            result = compare_benchmarks.main(list(arguments))
        return result, said.getvalue().splitlines()

    def compare_one(self, unit, before, now, name="x/y"):
        """What is said of one figure, and what the program returns."""
        result, lines = self.run_tool("--baseline=" + self.file("before", line(name, before, unit)),
                                      self.file("now", line(name, now, unit)))
        return result, lines[1].split("  ")[-1] if "  " in lines[1][-40:] else "", lines

    def test_table(self):
        before = self.file("before", line("dispatch/add/1d", 200, "ns") + line("gone", 1, "s") + line("kernels/gelu", 20, "GB/s"))
        now = self.file("now", "a line that is no JSON\n" + line("dispatch/add/1d", 250, "ns") + line("kernels/gelu", 19, "GB/s") +
                        line("new", 3, "ms") + '{"ops": 3}\n')
        result, lines = self.run_tool("--baseline=" + before, now)
        self.assertEqual(result, 1)
        self.assertEqual(lines, [
            "figure            baseline        now unit       ratio",
            "dispatch/add/1d        200        250 ns          1.25  WORSE, by 15% at most",
            "kernels/gelu            20         19 GB/s        0.95",
            "new                      -          3 ms             -  no baseline",
            "3 figures, 1 worse; 1 without a baseline; 1 of the baseline were not measured",
        ])

    def test_which_way_is_worse(self):
        for unit in ["ns", "us", "ms", "s", "MB", "nats"]:
            self.assertEqual(self.compare_one(unit, 100, 116)[0], 1, unit)
            self.assertEqual(self.compare_one(unit, 100, 100.9)[0], 0, unit)
            self.assertEqual(self.compare_one(unit, 100, 50)[0], 0, unit)
        for unit in ["ns", "us", "ms", "s"]:
            self.assertEqual(self.compare_one(unit, 100, 114)[0], 0, unit)
        for unit in ["tokens/s", "GFLOP/s", "TFLOP/s", "MB/s", "GB/s"]:
            self.assertEqual(self.compare_one(unit, 116, 100)[0], 1, unit)
            self.assertEqual(self.compare_one(unit, 114, 100)[0], 0, unit)
            self.assertEqual(self.compare_one(unit, 50, 100)[0], 0, unit)

    def test_every_unit_of_the_benchmarks_is_known(self):
        def units(names, pattern):
            texts = [pathlib.Path(name).read_text(encoding="utf-8") for name in names]
            return {unit for text in texts for found in re.findall(pattern, text) for unit in re.findall(r'"([^"]*)"', found)}
        sources = glob.glob("benchmarks/*.cc") + glob.glob("benchmarks/kernels/*.cc")
        in_sources = units(sources, r"\.unit = ([^,;}]*)")
        self.assertLessEqual({"% of step", "us", "GB/s", "MB/s", "tokens/s", "TFLOP/s"}, in_sources)
        in_reports = units(["benchmarks/overlap_report.py"], r'"unit": ("[^"]*")')
        in_reports |= units(["benchmarks/compression_report.py"], r' figure\(f"[^"]*", [^"]*("[^"]*")')
        self.assertEqual(in_reports, {"ratio", "MB", "ms", "nats"})
        known = compare_benchmarks.LESS_IS_BETTER + compare_benchmarks.MORE_IS_BETTER + compare_benchmarks.NO_DIRECTION
        self.assertLessEqual(in_sources | in_reports, set(known))

    def test_tolerances(self):
        self.assertEqual(self.compare_one("MiB", 100, 104)[0], 1)
        self.assertEqual(self.compare_one("MiB", 100, 102)[0], 0)
        self.assertEqual(self.compare_one("MB", 100, 104, "compression/int8/bytes")[0], 1)
        self.assertEqual(self.compare_one("MB", 100, 102, "compression/int8/bytes")[0], 0)
        self.assertEqual(self.compare_one("nats", 1, 1.02, "compression/int8/val_loss")[0], 1)
        self.assertEqual(self.compare_one("B", 100, 104, "memory/ddp/peak")[0], 1)
        self.assertEqual(self.compare_one("B", 100, 102, "memory/ddp/peak")[0], 0)
        self.assertEqual(self.compare_one("B", 100, 119, "memory/ddp/grad_peak")[0], 0)
        self.assertEqual(self.compare_one("B", 100, 121, "memory/ddp/grad_peak")[0], 1)
        self.assertEqual(self.compare_one("GB/s", 149, 100, "gloo/all_reduce")[0], 0)
        self.assertEqual(self.compare_one("GB/s", 151, 100, "gloo/all_reduce")[0], 1)
        self.assertEqual(self.compare_one("exponent", 0.01, 0.1)[0], 0)
        self.assertEqual(self.compare_one("exponent", 0.01, 0.12)[0], 1)
        self.assertEqual(self.compare_one("exponent", 0.5, -0.02)[0], 0)

    def test_verdicts(self):
        self.assertEqual(self.compare_one("ns", 100, 80)[1], "better")
        self.assertEqual(self.compare_one("parsecs", 100, 500)[:2], (0, "not judged: unknown unit"))
        result, word, lines = self.compare_one("ratio", 1, 5, "overlap/ddp/step")
        self.assertEqual((result, word), (0, "not judged: no direction"))
        self.assertEqual(lines[-1], "1 figures, 0 worse; 1 not judged")
        self.assertEqual(self.compare_one("ns", 0, 5)[:2], (0, "not judged: no ratio"))
        result, lines = self.run_tool("--baseline=" + self.file("before", line("x", 1, "us")), self.file("now", line("x", 900, "ns")))
        self.assertEqual(result, 0)
        self.assertTrue(lines[1].endswith("not judged: the baseline is in us"), lines[1])
        self.assertEqual(lines[2], "1 figures, 0 worse; 1 not judged")

    def test_what_fell_to_nothing(self):
        self.assertEqual(self.compare_one("tokens/s", 100, 0)[:2], (1, "WORSE, by 15% at most"))
        self.assertEqual(self.compare_one("ns", 100, 0)[:2], (0, "not judged: no ratio"))

    def test_what_is_no_number(self):
        self.assertEqual(self.compare_one("ns", 100, math.nan)[:2], (1, "WORSE, not a finite number"))
        self.assertEqual(self.compare_one("GB/s", 100, math.inf)[:2], (1, "WORSE, not a finite number"))
        result, _, lines = self.compare_one("ns", math.nan, 100)
        self.assertEqual(result, 0)
        self.assertTrue(lines[1].endswith("not judged: the baseline is no finite number"), lines[1])
        before = self.file("before", line("x", 100, "ns"))
        now = [self.file(f"now{i}", line("x", value, "ns")) for i, value in enumerate([90, math.nan, 100])]
        self.assertEqual(self.run_tool("--baseline=" + before, *now)[0], 1)
        null = self.file("null", line("x", None, "ns"))
        self.assertEqual(self.run_tool("--baseline=" + before, null)[0], f"error: {null}:1: x: expected a number, got None")

    def test_median_of_several_outputs(self):
        before = [self.file(f"before{i}", line("x", value, "ns")) for i, value in enumerate([100, 900, 90])]
        now = [self.file(f"now{i}", line("x", value, "ns")) for i, value in enumerate([300, 110, 10])]
        result, lines = self.run_tool(*("--baseline=" + path for path in before), *now)
        self.assertEqual((result, lines[1].split()), (0, ["x", "100", "110", "ns", "1.10"]))

    def test_labels_keep_apart(self):
        now = self.file("now", line("x", 100, "ns"))
        result, lines = self.run_tool("--baseline=gloo=" + self.file("before", line("x", 50, "ns")), "gloo=" + now, now)
        self.assertEqual(result, 1)
        self.assertEqual([one.split()[:3] for one in lines[1:3]], [["gloo/x", "50", "100"], ["x", "-", "100"]])

    def test_write_and_read(self):
        path = f"{self.folder}/baseline.json"
        outputs = [self.file(f"now{i}", line("b", value, "ns") + line("a", 7, "MiB")) for i, value in enumerate([1, 5, 3])]
        self.assertEqual(self.run_tool("--write", "--baseline=" + path, *outputs), (0, [f"wrote {path}: 2 figures"]))
        with open(path, encoding="utf-8") as opened:
            written = json.load(opened)
        self.assertEqual(written["figures"], [{"name": "a", "value": 7.0, "unit": "MiB", "runs": 3},
                                              {"name": "b", "value": 3.0, "unit": "ns", "runs": 3}])
        self.assertEqual(written["date"], str(datetime.date.today()))
        self.assertEqual(set(written["machine"]), {"processor", "cores", "memory", "system"})
        result, lines = self.run_tool("--baseline=" + path, outputs[2])
        self.assertEqual((result, lines[-1]), (0, "2 figures, 0 worse"))
        self.assertTrue(lines[0].startswith(f"baseline of {datetime.date.today()}: "), lines[0])
        self.assertTrue(lines[1].startswith("figure "), lines[1])

        written["machine"]["processor"] = "another"
        _, lines = self.run_tool("--baseline=" + self.file("other.json", json.dumps(written)), outputs[2])
        self.assertTrue(lines[1].startswith("this is another machine: "), lines[1])

    def test_misuse(self):
        empty = self.file("empty", "nothing\n")
        self.assertEqual(self.run_tool(empty)[0], f"error: {empty}: holds no figure; expected the output of a benchmark with "
                         "--log_format=json, or a baseline")
        broken = self.file("broken", '{"name": \n')
        self.assertTrue(self.run_tool(broken)[0].startswith(f"error: {broken}:1: no JSON: "))
        self.assertEqual(self.run_tool(f"{self.folder}/none")[0], f"error: {self.folder}/none: No such file or directory")
        with open(f"{self.folder}/bytes", "wb") as opened:
            opened.write(b"\xff\xfe")
        self.assertEqual(self.run_tool(f"{self.folder}/bytes")[0], f"error: {self.folder}/bytes: no text in UTF-8")
        mixed = self.file("mixed", line("x", 1, "ns") + line("x", 1, "us"))
        self.assertEqual(self.run_tool(mixed)[0], f"error: {mixed}: x is in us, and in ns elsewhere")
        fine = self.file("fine", line("x", 1, "ns"))
        self.assertEqual(self.run_tool("--write", "--baseline=a", "--baseline=b", fine)[0],
                         "error: --write makes one file: give one --baseline")
        self.assertEqual(self.run_tool("--write", f"--baseline={self.folder}/none/a", fine)[0],
                         f"error: {self.folder}/none/a: No such file or directory")


if __name__ == "__main__":
    unittest.main()
