#!/usr/bin/env python3
"""PyTorch's host cost of the calls that //benchmarks:dispatch measures: NAME=NS,NAME=NS,... on stdout.

    pip install torch && bazel run //benchmarks:dispatch -- --peer="$(benchmarks/peers/pytorch_dispatch.py)"

0d is a plain tensor, 1d and 2d are DTensors split along dim 0 of a mesh of 2 and of 2 x 2 ranks, in a process group that
moves nothing (no call needs it to). Medians; torch runs with one thread.
"""

import os
import statistics
import sys
import time

os.environ.pop('OPENBLAS_CORETYPE', None)
try:
    import torch
    import torch.distributed as dist
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore
except ImportError as error:
    sys.exit(f'PyTorch cannot be had: {error}; pip install torch')


def nanoseconds(call, seconds=0.5):
    call()
    begin = time.perf_counter_ns()
    call()
    batch = max(1, int(2e6 / max(time.perf_counter_ns() - begin, 100)))
    times = []
    end = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < end:
        begin = time.perf_counter_ns()
        for _ in range(batch):
            call()
        times.append((time.perf_counter_ns() - begin) / batch)
    return statistics.median(times)


def measure(suffix, mesh):
    ranks = mesh.size() if mesh else 1

    def halves(*shape):
        full = torch.full(shape, 0.5)
        return distribute_tensor(full, mesh, [Shard(0)] * mesh.ndim, src_data_rank=None) if mesh else full

    a, b, x = halves(16 * ranks), halves(16 * ranks), halves(4 * ranks, 4)
    w = torch.full((4, 4), 0.5)
    if mesh:
        w = distribute_tensor(w, mesh, [Replicate()] * mesh.ndim, src_data_rank=None)
    leaf = a.detach().clone().requires_grad_()

    def chain():
        fresh = a.detach().requires_grad_()
        ((fresh * b + b) * b).backward(b)

    return {f'add/{suffix}': nanoseconds(lambda: a + b), f'matmul/{suffix}': nanoseconds(lambda: x @ w),
            f'add_recorded/{suffix}': nanoseconds(lambda: leaf + b), f'chain_forward_backward/{suffix}': nanoseconds(chain)}


def main():
    torch.set_num_threads(1)
    figures = measure('0d', None)
    for suffix, shape in (('1d', (2,)), ('2d', (2, 2))):
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group('fake', rank=0, world_size=2 ** len(shape), store=FakeStore())
        figures |= measure(suffix, init_device_mesh('cpu', shape))
    print(','.join(f'{name}={ns:.0f}' for name, ns in figures.items()))


if __name__ == '__main__':
    main()
