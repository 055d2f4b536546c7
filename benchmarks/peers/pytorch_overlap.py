#!/usr/bin/env python3
"""PyTorch's DDP and FSDP2 on the model that //benchmarks:overlap trains: a JSON line per step, {"step": 3, "loss": 5.1, "step_ms": 812.0,
"sent": 91750400}, where `sent` is what the device of GLOO_SOCKET_IFNAME has sent so far.

    RANK=0 benchmarks/peers/pytorch_overlap.py --parallel=ddp      beside the same with RANK=1

Two processes of one thread over Gloo, which meet at 10.77.0.1, as benchmarks/shaped_link.sh makes it. A GPT of 6 layers, 384
wide, on 16 x 256 random tokens, AdamW (foreach), f32. --sizes=default: buckets of 25 MiB, an FSDP unit a block; same: buckets
of a tenth of the gradients and the units attn and mlp, as Weft has them, the last of which stays gathered into backward.
"""

import argparse
import json
import os
import sys
import time

os.environ.setdefault('MASTER_ADDR', '10.77.0.1')
os.environ.setdefault('MASTER_PORT', '29501')
os.environ.setdefault('WORLD_SIZE', '2')
try:
    import torch
    import torch.distributed as dist
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError as error:
    sys.exit(f'PyTorch cannot be had: {error}; pip install torch')

LAYERS, HEADS, WIDTH, VOCABULARY, CONTEXT, BATCH = 6, 6, 384, 256, 256, 16


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, s, d))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(F.gelu(self.up(x), approximate='tanh'))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.attn = nn.LayerNorm(WIDTH), Attention()
        self.ln_2, self.mlp = nn.LayerNorm(WIDTH), Mlp()

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.ln_f(x)).flatten(0, 1), targets.flatten())


def distributed(model, flags):
    same = flags.sizes == 'same'
    if flags.parallel == 'ddp':
        num_bytes = sum(p.numel() * p.element_size() for p in model.parameters())
        return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=num_bytes / 10 / 2**20 if same else 25)
    from torch.distributed.fsdp import fully_shard
    mesh = dist.init_device_mesh('cpu', (2,))
    units = [unit for block in model.blocks for unit in ((block.attn, block.mlp) if same else (block,))]
    for unit in units:
        fully_shard(unit, mesh=mesh, reshard_after_forward=unit is not units[-1])
    return fully_shard(model, mesh=mesh)


def sent_bytes():
    """Of the network namespace that this process is in; 0 where no device is named."""
    device = os.environ.get('GLOO_SOCKET_IFNAME', '') + ':'
    with open('/proc/net/dev') as file:
        for line in file:
            if line.strip().startswith(device):
                return int(line.split(':')[1].split()[8])
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--parallel', choices=('ddp', 'fsdp'), default='ddp')
    parser.add_argument('--sizes', choices=('default', 'same'), default='default')
    parser.add_argument('--steps', type=int, default=8)
    flags = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1337)
    dist.init_process_group('gloo')
    model = distributed(Gpt(), flags)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    torch.manual_seed(1 + dist.get_rank())
    tokens, targets = torch.randint(VOCABULARY, (2, BATCH // 2, CONTEXT))
    for step in range(1, flags.steps + 1):
        begin = time.perf_counter()
        loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(json.dumps({'step': step, 'loss': loss.item(), 'step_ms': (time.perf_counter() - begin) * 1e3, 'sent': sent_bytes()}), flush=True)
    dist.destroy_process_group()


if __name__ == '__main__':
    main()
