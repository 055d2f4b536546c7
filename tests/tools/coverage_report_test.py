"""tools/coverage_report.py on counts that are made up. Argument: that program."""

import contextlib
import importlib.util
import io
import json
import os
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
_PROGRAM = sys.argv.pop(1)
_spec = importlib.util.spec_from_file_location("coverage_report", _PROGRAM)
coverage_report = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(coverage_report)


def counted(name, counts):
    return {"file": name, "lines": [{"line_number": line, "count": count} for line, count in counts.items()]}


class CoverageReportTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir=os.environ.get("TEST_TMPDIR"))
        self.addCleanup(folder.cleanup)
        self.root = folder.name
        for name in ["mesh/layout.h", "mesh/layout.cc", "runtime/base/error.cc", "tests/mesh/layout_test.cc"]:
            os.makedirs(os.path.dirname(f"{self.root}/{name}"), exist_ok=True)
            open(f"{self.root}/{name}", "w", encoding="utf-8").close()
        # Of mesh: layout.h 2 of 2 in two sources together, layout.cc 2 of 6. So 4 of 8 lines.
        documents = [
            {"files": [counted("mesh/layout.cc", {1: 5, 2: 1, 3: 0, 7: 0, 8: 0, 9: 0}),
                       counted("mesh/layout.h", {4: 0, 5: 3}), counted("/usr/include/vector", {1: 0})]},
            {"files": [counted("tests/mesh/layout_test.cc", {1: 0}), counted("mesh/layout.h", {4: 1, 5: 0}),
                       counted("mesh/gone.cc", {1: 0}), counted("runtime/base/error.cc", {1: 0, 2: 1})]},
        ]
        with open(f"{self.root}/lines.json", "w", encoding="utf-8") as opened:
            opened.write("".join(json.dumps(document) + "\n" for document in documents))

    def run_report(self, floors, *arguments):
        """What the program returns and prints; `floors` afterwards in self.floors."""
        with open(f"{self.root}/floors.txt", "w", encoding="utf-8") as opened:
            opened.write(floors)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            result = coverage_report.main([f"--root={self.root}", f"--floors={self.root}/floors.txt", *arguments,
                                           f"{self.root}/lines.json"])
        with open(f"{self.root}/floors.txt", encoding="utf-8") as opened:
            self.floors = opened.read()
        return result, said.getvalue().splitlines()

    def test_table(self):
        result, lines = self.run_report("# why\nmesh 50  # exactly\n")
        self.assertEqual(result, 0)
        self.assertEqual(lines, [
            "layer        lines  covered  percent  floor",
            "runtime          2        1     50.0  no floor",
            "mesh             8        4     50.0  50.0",
            "ops              0        -        -  nothing of it was built",
            "dtensor          0        -        -  nothing of it was built",
            "parallel         0        -        -  nothing of it was built",
        ])

    def test_below(self):
        result, lines = self.run_report("mesh 50.1\nruntime 40\n")
        self.assertEqual(result, f"error: below the floor of {self.root}/floors.txt: mesh")
        self.assertEqual(lines[1:3], ["runtime          2        1     50.0  40.0",
                                      "mesh             8        4     50.0  50.1: BELOW"])

    def test_a_layer_with_a_floor_was_not_built(self):
        result, _ = self.run_report("ops 1\n")
        self.assertEqual(result, f"error: below the floor of {self.root}/floors.txt: ops")
        self.assertEqual(self.run_report("ops 1\n", "--targets=//tests/mesh:layout_test")[0], 0)

    def test_only_layers_whose_tests_ran_are_judged(self):
        result, lines = self.run_report("mesh 40\nruntime 90\n", "--targets=//tests/mesh/... //tests/runtime:x")
        self.assertEqual(result, 0)
        self.assertEqual(lines[1:3], ["runtime          2        1     50.0  not judged: these are not all its tests",
                                      "mesh             8        4     50.0  40.0"])
        self.assertIn("runtime", self.run_report("runtime 90\n", "--targets=//tests/...")[0])

    def test_files(self):
        _, lines = self.run_report("", "--files=mesh")
        self.assertEqual(lines[:2], ["  33.3  mesh/layout.cc  4 of 6 lines never ran: 3 7 8 9",
                                     " 100.0  mesh/layout.h  0 of 2 lines never ran"])

    def test_write(self):
        self.run_report("# why\nmesh 90\nruntime 90\nops 7\n", "--write", "--targets=//tests/mesh/...")
        self.assertEqual(self.floors, "# why\nruntime 90.0\nmesh 48.0\nops 7.0\n")
        self.assertEqual(self.run_report(self.floors, "--targets=//tests/mesh/...")[0], 0)

    def test_misuse(self):
        self.assertEqual(self.run_report("meshes 5\n")[0],
                         f"error: {self.root}/floors.txt:1: expected a layer (runtime, mesh, ops, dtensor, parallel) and its "
                         "percent, got: meshes 5")
        self.assertEqual(self.run_report("", "--files=tests")[0],
                         "error: --files=tests: expected one of runtime, mesh, ops, dtensor, parallel")


if __name__ == "__main__":
    unittest.main()
