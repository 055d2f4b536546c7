#!/usr/bin/env python3
"""Lays the traces of several processes side by side, in one file for chrome://tracing or Perfetto.

    tools/merge_traces.py trace.json trace.json.1 trace.json.2 --out=all.json

Each file is what `train_gpt --trace=trace.json` writes on one rank. A process counts time from when it began, on its own host's
clock; how far that is from rank 0's stands in the file ("clock_offset", measured at the start), and is added here.
"""
import argparse
import json
import sys


def read(path):
    try:
        with open(path, encoding="utf-8") as file:
            events = json.load(file)
    except (OSError, ValueError) as error:
        sys.exit(f"error: cannot read the trace '{path}': {error}")
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        sys.exit(f"error: '{path}': expected a list of trace events, as --trace writes")
    return events


def shifted(events):
    """Without the offset's own event, and with it added to every time."""
    offset = sum(event["args"]["us"] for event in events if event.get("name") == "clock_offset")
    for event in events:
        if event.get("name") == "clock_offset":
            continue
        if "ts" in event:
            event = {**event, "ts": round(event["ts"] + offset, 3)}
        yield event


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("traces", nargs="+", help="a file for each process")
    parser.add_argument("--out", help="where the merged trace goes; default: stdout")
    flags = parser.parse_args()
    merged = []
    owner = {}
    for path in flags.traces:
        events = list(shifted(read(path)))
        for rank in {event["pid"] for event in events if "pid" in event}:
            if rank in owner:
                sys.exit(f"error: both '{owner[rank]}' and '{path}' have spans of rank {rank}")
            owner[rank] = path
        merged += events
    begin = min((event["ts"] for event in merged if "ts" in event), default=0)
    for event in merged:
        if "ts" in event:
            event["ts"] = round(event["ts"] - begin, 3)
    try:
        # Not by /dev/stdout: that would empty the file that stdout is appended to, and a socket cannot be opened.
        with open(1 if flags.out is None else flags.out, "w", encoding="utf-8") as file:
            file.write("[\n" + ",\n".join(json.dumps(event) for event in merged) + "\n]\n")
    except OSError as error:
        sys.exit(f"error: cannot write {'stdout' if flags.out is None else f'--out={flags.out}'}: {error}")


if __name__ == "__main__":
    main()
