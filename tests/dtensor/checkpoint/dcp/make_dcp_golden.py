#!/usr/bin/env python3
"""Writes golden/: a distributed checkpoint of PyTorch's, of two processes.

    pip install torch==2.15.0 numpy
    python3 tests/dtensor/checkpoint/dcp/make_dcp_golden.py tests/dtensor/checkpoint/dcp/golden

dcp_reader_test knows its values by the same formula.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor


def values(seed, shape, dtype):
    """Element i is (7 i + 13 seed) mod 101 - 50, of floating dtypes half of that."""
    count = torch.Size(shape).numel()
    whole = (torch.arange(count, dtype=torch.int64) * 7 + seed * 13) % 101 - 50
    whole = whole.reshape(shape)
    return (whole.to(dtype) / 2).to(dtype) if dtype.is_floating_point else whole.to(dtype)


def save(rank, folder):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29555", RANK=str(rank), WORLD_SIZE="2")
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    state = {
        "model": {
            "split": distribute_tensor(values(1, (5, 3), torch.float32), mesh, [Shard(0)]),
            "columns": distribute_tensor(values(2, (4, 6), torch.bfloat16), mesh, [Shard(1)]),
            "one": distribute_tensor(values(3, (1, 2), torch.float16), mesh, [Shard(0)]),
            "whole": distribute_tensor(values(4, (2, 2), torch.float64), mesh, [Replicate()]),
            "plain": values(5, (7,), torch.int64),
            "transposed": values(6, (2, 3), torch.int32).t(),
            "scalar": values(7, (), torch.float32),
            "flag": torch.tensor([True, False]),
        },
        "step": 42,
        "rate": 0.25,
        "note": "a text",
        "object": complex(1, 2),
    }
    dcp.save(state, checkpoint_id=folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(save, (sys.argv[1],), nprocs=2)
