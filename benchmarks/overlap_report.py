#!/usr/bin/env python3
"""What overlap.sh computes: the rate of a link, and figures of the steps of runs.

receive ADDRESS            takes what `send` sends
send ADDRESS               prints the bytes per second of 64 MiB over one connection
pump_there ADDRESS PLAN, pump_here ADDRESS PLAN
                           two ends that send each other what a rank sends in a step of PLAN.free.1, once in a step of
                           PLAN.own_pieces.1, until they are killed
figures PLAN PAIRS         reads PLAN.{free,shaped,inline,own_pieces,pumped_free,pumped_shaped}.N.json and .bytes of this folder,
                           and `rate`
peer PLAN PAIRS            reads PLAN.peer_{default,same}.{free,shaped}.N.json, and what figures reads
"""
import json
import socket
import statistics
import sys
import threading
import time

PORT = 29600
NUM_BYTES = 64 << 20
NUM_WARMUP = 3  # steps that learn the order of gradients, and of units


def receive(address):
    with socket.create_server((address, PORT)) as server:
        connection, _ = server.accept()
        with connection:
            left = NUM_BYTES
            while left > 0:
                left -= len(connection.recv(1 << 20))
            connection.sendall(b".")


def connect(address):
    for attempt in range(100):
        try:
            return socket.create_connection((address, PORT))
        except OSError:
            if attempt == 99:
                raise
            time.sleep(0.05)


def send(address):
    with connect(address) as connection:
        begun = time.monotonic()
        connection.sendall(bytes(NUM_BYTES))
        connection.recv(1)
        print(NUM_BYTES / (time.monotonic() - begun))


def pump(connection, plan):
    data = bytes(int(sent_by_rank([read(f"{plan}.free.1")])))
    seconds = median([read(f"{plan}.own_pieces.1")], "step_ms") / 1e3

    def drain():
        while connection.recv(1 << 20):
            pass

    threading.Thread(target=drain, daemon=True).start()
    begin = time.monotonic()
    while True:
        connection.sendall(data)
        begin = max(begin + seconds, time.monotonic())
        time.sleep(max(0.0, begin - time.monotonic()))


def pump_there(address, plan):
    with socket.create_server((address, PORT)) as server:
        connection, _ = server.accept()
        pump(connection, plan)


def read(name):
    """The steps of a run that count, and the bytes that one host has sent in all of it."""
    with open(name + ".json") as file:
        steps = [json.loads(line) for line in file if line.startswith('{"step"')]
    steps = [step for step in steps if "loss" in step]
    with open(name + ".bytes") as file:
        return steps, int(file.read())


def median(runs, field):
    return statistics.median(step[field] for steps, _ in runs for step in steps[NUM_WARMUP:])


def figure(name, value, target, limit_is, at_least=False):
    passes = None if target is None else value >= target if at_least else value <= target
    print(json.dumps({"name": name, "value": round(value, 4), "unit": "ratio", "limit": None, "limit_is": limit_is,
                      "ratio": None, "target": target, "pass": passes}))


def link_rate():
    with open("rate") as file:
        return float(file.read())


def sent_by_rank(runs):
    """Bytes per step by the ledger: of two ranks, each sends half of what they lack together."""
    return median(runs, "comm_bytes") / 2


def sent_by_peer(runs):
    """Bytes on the cable per step: between the steps that count, without what the job sends to begin and to end."""
    return statistics.median((steps[-1]["sent"] - steps[NUM_WARMUP - 1]["sent"]) / (len(steps) - NUM_WARMUP) for steps, _ in runs)


def exposed_of(step, sent, rate):
    return (step["shaped"] - step["free"]) / (sent / rate * 1e3)


def figures(plan, pairs):
    runs = {kind: [read(f"{plan}.{kind}.{i + 1}") for i in range(pairs)] for kind in ("free", "shaped", "inline")}
    alone, pumped_free, pumped_shaped = (median([read(f"{plan}.{kind}.{i + 1}") for i in range(pairs)], "step_ms")
                                         for kind in ("own_pieces", "pumped_free", "pumped_shaped"))
    rate = link_rate()
    losses = [[(step["loss"], step["grad_norm"]) for step in steps] for all_of in runs.values() for steps, _ in all_of]
    if any(other != losses[0] for other in losses):
        sys.exit(f"error: {plan}: losses differ between runs that differ only in the link and the schedule")
    sent = sent_by_rank(runs["shaped"])
    for steps, num_bytes in runs["shaped"]:
        if num_bytes < sent * len(steps):
            sys.exit(f"error: {plan}: the cable carried {num_bytes} bytes, the ledger counts {sent * len(steps):.0f}")
    moving = sent / rate * 1e3
    step = {kind: median(all_of, "step_ms") for kind, all_of in runs.items()}
    own = {kind: median(all_of, "exposed_fraction") * step[kind] for kind, all_of in runs.items()}
    what = f"{sent / 1e6:.1f} MB a rank and step at {rate * 8 / 1e6:.0f} Mbit/s: {moving:.0f} ms of {step['shaped']:.0f} ms"
    exposed = exposed_of(step, sent, rate)
    own_exposed = exposed_of(own, sent, rate)
    figure(f"overlap/{plan}/exposed", exposed, 0.10, what)
    figure(f"overlap/{plan}/own", own_exposed, None, "the trainer's exposed seconds, likewise")
    figure(f"overlap/{plan}/own_apart", abs(own_exposed - exposed), 0.02, "how far the two lie apart")
    figure(f"overlap/{plan}/step", step["shaped"] / step["free"], 1.05, f"of {step['free']:.0f} ms unshaped")
    figure(f"overlap/{plan}/own_pieces", step["shaped"] / alone, 1.10, f"of {alone:.0f} ms that wait for nobody")
    figure(f"overlap/{plan}/link", (pumped_shaped - pumped_free) / moving, None,
           f"likewise, of steps that wait for nobody while others move as much: {pumped_shaped:.0f} ms, {pumped_free:.0f} ms unshaped")
    figure(f"overlap/{plan}/inline", step["inline"] / step["free"], None, "without overlap")


def peer(plan, pairs):
    rate = link_rate()
    best = None
    least_exposed = None
    for sizes in ("default", "same"):
        runs = {kind: [read(f"{plan}.peer_{sizes}.{kind}.{i + 1}") for i in range(pairs)] for kind in ("free", "shaped")}
        step = {kind: median(all_of, "step_ms") for kind, all_of in runs.items()}
        exposed = exposed_of(step, sent_by_peer(runs["shaped"]), rate)
        least_exposed = exposed if least_exposed is None else min(least_exposed, exposed)
        if best is None or step["shaped"] < best[0]["shaped"]:
            best = step, exposed, sizes
    step, exposed, sizes = best
    own = {kind: [read(f"{plan}.{kind}.{i + 1}") for i in range(pairs)] for kind in ("free", "shaped")}
    own_step = {kind: median(all_of, "step_ms") for kind, all_of in own.items()}
    ours = own_step["shaped"]
    own_exposed = exposed_of(own_step, sent_by_rank(own["shaped"]), rate)
    figure(f"overlap/{plan}/peer_exposed", exposed, None, f"PyTorch, {sizes} sizes, of the bytes on the cable")
    figure(f"overlap/{plan}/peer_step", step["shaped"] / step["free"], None, f"of {step['free']:.0f} ms unshaped")
    figure(f"overlap/{plan}/ahead", step["shaped"] / ours, 1, f"PyTorch's {step['shaped']:.0f} ms over our {ours:.0f} ms",
           at_least=True)
    figure(f"overlap/{plan}/ahead_exposed", least_exposed - own_exposed, 0, f"PyTorch's {least_exposed:.2f} less our {own_exposed:.2f}",
           at_least=True)


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "receive":
        receive(sys.argv[2])
    elif len(sys.argv) == 3 and sys.argv[1] == "send":
        send(sys.argv[2])
    elif len(sys.argv) == 4 and sys.argv[1] == "pump_there":
        pump_there(sys.argv[2], sys.argv[3])
    elif len(sys.argv) == 4 and sys.argv[1] == "pump_here":
        pump(connect(sys.argv[2]), sys.argv[3])
    elif len(sys.argv) == 4 and sys.argv[1] == "figures":
        figures(sys.argv[2], int(sys.argv[3]))
    elif len(sys.argv) == 4 and sys.argv[1] == "peer":
        peer(sys.argv[2], int(sys.argv[3]))
    else:
        sys.exit(__doc__)


main()
