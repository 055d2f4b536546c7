"""overlap_report.py: its figures of runs whose times and bytes are given."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

REPORT = str(pathlib.Path(sys.argv.pop(1)).resolve())
STEPS = 6
RATE = 1e8  # bytes per second: 100 kB per ms


def write_run(folder, name, step_ms, exposed=0.0, cable=10**9, sent_per_step=None, start_up=0):
    """Steps of `step_ms`, each of which moves 20 MB over the two ranks: 10 MB per rank, 100 ms. The first three take longer."""
    lines = []
    for step in range(1, STEPS + 1):
        line = {"step": step, "loss": 5.0, "grad_norm": 1.0, "comm_bytes": 20_000_000, "exposed_fraction": exposed,
                "step_ms": step_ms + (500 if step <= 3 else 0)}
        if sent_per_step is not None:
            line["sent"] = start_up + step * sent_per_step
        lines.append(json.dumps(line))
    (folder / f"{name}.json").write_text("\n".join(lines) + "\n")
    (folder / f"{name}.bytes").write_text(str(cable))


class OverlapReportTest(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = pathlib.Path(self.temporary.name)
        (self.folder / "rate").write_text(str(RATE))
        for pair in (1, 2):
            write_run(self.folder, f"ddp.free.{pair}", 1000, exposed=0.01)
            write_run(self.folder, f"ddp.shaped.{pair}", 1020, exposed=0.02)
            write_run(self.folder, f"ddp.inline.{pair}", 1200)
            write_run(self.folder, f"ddp.own_pieces.{pair}", 850)
            write_run(self.folder, f"ddp.pumped_free.{pair}", 860)
            write_run(self.folder, f"ddp.pumped_shaped.{pair}", 875)

    def tearDown(self):
        self.temporary.cleanup()

    def report(self, *arguments):
        run = subprocess.run([sys.executable, REPORT, *arguments], cwd=self.folder, capture_output=True, text=True, check=False)
        self.error = run.stderr
        return {figure["name"]: figure for figure in map(json.loads, run.stdout.splitlines())}

    def assert_figure(self, figures, name, value, passes):
        self.assertAlmostEqual(figures[name]["value"], value, places=3, msg=name)
        self.assertEqual(figures[name]["pass"], passes, name)

    def test_figures(self):
        figures = self.report("figures", "ddp", "2")
        self.assert_figure(figures, "overlap/ddp/exposed", 0.2, False)
        self.assert_figure(figures, "overlap/ddp/own", (0.02 * 1020 - 0.01 * 1000) / 100, None)
        self.assert_figure(figures, "overlap/ddp/own_apart", 0.096, False)
        self.assert_figure(figures, "overlap/ddp/step", 1.02, True)
        self.assert_figure(figures, "overlap/ddp/own_pieces", 1.2, False)
        self.assert_figure(figures, "overlap/ddp/link", 0.15, None)
        self.assert_figure(figures, "overlap/ddp/inline", 1.2, None)

    def test_the_cable_carries_what_the_ledger_counts(self):
        write_run(self.folder, "ddp.shaped.2", 1020, cable=59_999_999)
        self.assertEqual(self.report("figures", "ddp", "2"), {})
        self.assertIn("the cable carried 59999999 bytes, the ledger counts 60000000", self.error)

    def test_losses_are_the_same(self):
        path = self.folder / "ddp.inline.1.json"
        path.write_text(path.read_text().replace("5.0", "5.1"))
        self.assertEqual(self.report("figures", "ddp", "2"), {})
        self.assertIn("losses differ", self.error)

    def test_a_peers_bytes_are_those_of_its_steps(self):
        for pair in (1, 2):
            for sizes, shaped in (("default", 1100), ("same", 1150)):
                write_run(self.folder, f"ddp.peer_{sizes}.free.{pair}", 1000, sent_per_step=0)
                # 20 MB per step, 200 ms, and 400 MB before the first.
                write_run(self.folder, f"ddp.peer_{sizes}.shaped.{pair}", shaped, cable=520_000_000, sent_per_step=20_000_000,
                          start_up=400_000_000)
        figures = self.report("peer", "ddp", "2")
        self.assert_figure(figures, "overlap/ddp/peer_exposed", 0.5, None)
        self.assert_figure(figures, "overlap/ddp/peer_step", 1.1, None)
        self.assert_figure(figures, "overlap/ddp/ahead", 1100 / 1020, True)
        self.assert_figure(figures, "overlap/ddp/ahead_exposed", 0.5 - 0.2, True)


unittest.main()
