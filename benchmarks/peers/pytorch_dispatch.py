#!/usr/bin/env python3
"""PyTorch's host cost of the calls that //benchmarks:dispatch measures: NAME=NS,NAME=NS,... on stdout.

    pip install torch && bazel run //benchmarks:dispatch -- --peer="$(benchmarks/peers/pytorch_dispatch.py)"

0d is a plain tensor, 1d, 2d and 3d are DTensors split along dim 0 over every axis of a mesh of 2, 2 x 2 and 2 x 2 x 2
ranks, in a process group that moves nothing: no call needs it to, and of an all-gather it leaves the host's part.
Medians; torch runs with one thread.
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


def lay(mesh, placement, *shape):
    full = torch.full(shape, 0.5)
    return distribute_tensor(full, mesh, [placement] * mesh.ndim, src_data_rank=None) if mesh else full


def first_call_nanoseconds(mesh, calls=40):
    """Of a product whose shapes were never seen: what a miss of the propagation's cache costs, with the call."""
    times = []
    for i in range(calls):
        x, w = lay(mesh, Shard(0), mesh.size() * (i + 5), 4), lay(mesh, Replicate(), 4, 4)
        begin = time.perf_counter_ns()
        x @ w
        times.append(time.perf_counter_ns() - begin)
    return statistics.median(times)


def measure(suffix, mesh):
    ranks = mesh.size() if mesh else 1
    a, b, x = (lay(mesh, Shard(0), *shape) for shape in ((16 * ranks,), (16 * ranks,), (4 * ranks, 4)))
    w = lay(mesh, Replicate(), 4, 4)
    leaf, parameter = (tensor.detach().clone().requires_grad_() for tensor in (a, w))

    def chain():
        fresh = a.detach().requires_grad_()
        ((fresh * b + b) * b).backward(b)

    calls = {'add': lambda: a + b, 'add_recorded': lambda: leaf + b, 'matmul': lambda: x @ w,
             'matmul_recorded': lambda: x @ parameter, 'chain_forward_backward': chain}
    if mesh:
        whole = lay(mesh, Replicate(), 16 * ranks)
        calls['redistribute_slice'] = lambda: whole.redistribute(placements=[Shard(0)] * mesh.ndim)
    if mesh and mesh.ndim == 1:
        calls['redistribute_all_gather'] = lambda: a.redistribute(placements=[Replicate()]).to_local()
    return {f'{name}/{suffix}': nanoseconds(call) for name, call in calls.items()}


def main():
    torch.set_num_threads(1)
    figures = measure('0d', None)
    for suffix, shape in (('1d', (2,)), ('2d', (2, 2)), ('3d', (2, 2, 2))):
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group('fake', rank=0, world_size=2 ** len(shape), store=FakeStore())
        mesh = init_device_mesh('cpu', shape)
        if mesh.ndim < 3:
            figures |= measure(suffix, mesh)
        figures[f'propagation_miss/matmul/{suffix}'] = first_call_nanoseconds(mesh)
    print(','.join(f'{name}={ns:.0f}' for name, ns in figures.items()))


if __name__ == '__main__':
    main()
