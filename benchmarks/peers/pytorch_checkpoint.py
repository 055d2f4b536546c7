#!/usr/bin/env python3
"""PyTorch's distributed checkpoint (DCP) of a state as large as GPT-2 124M's under AdamW, on two processes over Gloo.

    benchmarks/peers/pytorch_checkpoint.py                 lines to lay beside those of //benchmarks:checkpoint
    benchmarks/peers/pytorch_checkpoint.py --saves=5 --folder=/scratch

Tensors of f32, split over both: parameters and two moments. One JSON object per line, with name, value and unit:

    dcp/save          MB/s of dcp.save, whose files it flushes
    dcp/async_stall   ms that dcp.async_save keeps the caller
    dcp/load          MB/s of dcp.load, after the files have been dropped from memory
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time

try:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    import torch.multiprocessing as multiprocessing
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
except ImportError as error:
    sys.exit(f'PyTorch cannot be had: {error}; pip install torch numpy')


def shapes():
    """Those of GPT-2: a table of tokens and of places, and 12 blocks."""
    width = 768
    yield 'wte', (50257, width)
    yield 'wpe', (1024, width)
    for block in range(12):
        for name, shape in {'qkv': (width, 3 * width), 'proj': (width, width), 'up': (width, 4 * width),
                            'down': (4 * width, width)}.items():
            yield f'blocks.{block}.{name}.weight', shape
            yield f'blocks.{block}.{name}.bias', (shape[1],)
        for name in ('ln_1', 'ln_2'):
            yield f'blocks.{block}.{name}.weight', (width,)
            yield f'blocks.{block}.{name}.bias', (width,)


def drop(folder):
    for name in os.listdir(folder):
        file = os.open(os.path.join(folder, name), os.O_RDONLY)
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(file)


def run(rank, folder, saves, results):
    torch.set_num_threads(1)
    dist.init_process_group('cpu:gloo', init_method=f'file://{folder}/meet', rank=rank, world_size=2)
    mesh = init_device_mesh('cpu', (2,))

    def split(shape):
        local = torch.rand(((shape[0] + 1) // 2 if rank == 0 else shape[0] // 2,) + tuple(shape[1:]))
        stride = torch.empty(shape, device='meta').stride()
        return DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=torch.Size(shape), stride=stride)

    state = {f'{kind}.{name}': split(shape) for kind in ('model', 'm', 'v') for name, shape in shapes()}
    megabytes = sum(tensor.numel() * 4 for tensor in state.values()) * 1e-6
    seconds = {'save': [], 'stall': [], 'load': []}
    for i in range(saves + 1):
        target = f'{folder}/{i}'
        dist.barrier()
        begun = time.perf_counter()
        dcp.save(state, storage_writer=dcp.FileSystemWriter(target, sync_files=True))
        seconds['save'].append(time.perf_counter() - begun)
        if rank == 0:
            drop(target)
        dist.barrier()
        begun = time.perf_counter()
        dcp.load(state, checkpoint_id=target)
        seconds['load'].append(time.perf_counter() - begun)
        dist.barrier()
        begun = time.perf_counter()
        future = dcp.async_save(state, checkpoint_id=f'{folder}/async{i}')
        seconds['stall'].append(time.perf_counter() - begun)
        future.result()
        dist.barrier()
        if rank == 0:
            for name in (target, f'{folder}/async{i}'):
                for file in os.listdir(name):
                    os.remove(os.path.join(name, file))
    if rank == 0:
        middle = {name: statistics.median(values[1:]) for name, values in seconds.items()}
        results.update({'dcp/save': (megabytes / middle['save'], 'MB/s'), 'dcp/async_stall': (middle['stall'] * 1e3, 'ms'),
                        'dcp/load': (megabytes / middle['load'], 'MB/s')})
        for name, (value, unit) in results.items():
            print(json.dumps({'name': name, 'value': value, 'unit': unit}), flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--saves', type=int, default=5, help='after one that does not count')
    parser.add_argument('--folder', default=None, help='where files are written')
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        multiprocessing.spawn(run, (folder, arguments.saves, {}), nprocs=2)


if __name__ == '__main__':
    main()
