#!/usr/bin/env python3
"""PyTorch's training speed on the models that //benchmarks:train_step measures: tokens/s on stdout, all else on stderr.

    benchmarks/peers/pytorch_train.py --model=gpt2-124M --batch=4 --context=64
    benchmarks/peers/pytorch_train.py --model=small --batch=16 --context=256 --parallel=ddp
    benchmarks/peers/pytorch_train.py --set=all      every row of `train_step --set=all`, as its --peer takes them

A GPT-2 with scaled_dot_product_attention, fused where PyTorch fuses, AdamW (foreach), random tokens, f32 or bf16 autocast. Two
threads: --parallel=none gives them to one process, ddp and fsdp (FSDP2, a unit a block) start two of one thread each, over
Gloo. The median over the steps after a warm-up. Peak memory is ru_maxrss, which counts what train_step's VmHWM counts: the
largest resident set of a process, summed over the row's processes.
"""

import argparse
import os
import resource
import statistics
import sys
import tempfile
import time

# Some environments preset OpenBLAS to an older processor, which would handicap PyTorch.
for preset in ('OPENBLAS_CORETYPE', 'OPENBLAS_L2_SIZE'):
    os.environ.pop(preset, None)
try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as multiprocessing
    import torch.nn as nn
    import torch.nn.functional as F
except ImportError as error:
    sys.exit(f'PyTorch cannot be had: {error}; pip install torch')

MODELS = {'gpt2-124M': (12, 12, 768, 50257), 'small': (6, 6, 384, 256)}  # layers, heads, width, vocabulary


class Block(nn.Module):
    def __init__(self, heads, width):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(self.ln_1(x)).view(b, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, s, d))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate='tanh'))


class Gpt(nn.Module):
    def __init__(self, layers, heads, width, vocabulary, context):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(heads, width) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.ln_f(x)).flatten(0, 1), targets.flatten())


def train(rank, flags, address, results):
    ranks = 1 if flags.parallel == 'none' else 2
    torch.set_num_threads(2 // ranks)
    torch.manual_seed(1337)
    layers, heads, width, vocabulary = MODELS[flags.model]
    model = Gpt(layers, heads, width, vocabulary, flags.context)
    if ranks > 1:
        dist.init_process_group('gloo', init_method=address, rank=rank, world_size=ranks)
    if flags.parallel == 'ddp':
        model = nn.parallel.DistributedDataParallel(model)
    if flags.parallel == 'fsdp':
        from torch.distributed.fsdp import fully_shard
        mesh = torch.distributed.init_device_mesh('cpu', (ranks,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=True)
    tokens, targets = torch.randint(vocabulary, (2, flags.batch // ranks, flags.context))
    times = []
    for step in range(flags.warmup + flags.steps):
        begin = time.perf_counter()
        with torch.autocast('cpu', torch.bfloat16, enabled=flags.dtype == 'bf16'):
            loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step >= flags.warmup:
            times.append(time.perf_counter() - begin)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    results.put((flags.batch * flags.context / statistics.median(times), peak))
    if ranks > 1:
        dist.destroy_process_group()


def measure(flags):
    """Tokens/s and MiB of one row, trained by processes of its own, so that no row inherits another's memory."""
    ranks = 1 if flags.parallel == 'none' else 2
    results = multiprocessing.get_context('spawn').SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(train, (flags, f'file://{folder}/store', results), nprocs=ranks)
    measured = [results.get() for _ in range(ranks)]
    return min(rate for rate, _ in measured), sum(peak for _, peak in measured)


def rows_of_set(flags):
    """The rows of train_step's set that PyTorch has: it has no tensor parallelism that trains on Gloo."""
    for model, batch, context in (('gpt2-124M', 4, 64), ('gpt2-124M', 1, 1024), ('small', 16, 256)):
        kinds = [('f32', 'none'), ('bf16', 'none')] + [('f32', name) for name in ('ddp', 'fsdp') if batch > 1]
        for dtype, parallel in kinds:
            row = argparse.Namespace(**{**vars(flags), 'model': model, 'batch': batch, 'context': context,
                                        'dtype': dtype, 'parallel': parallel})
            if flags.only in row_name(row):
                yield row


def row_name(flags):
    return f'{flags.model}/{flags.batch}x{flags.context}/{flags.dtype}/{flags.parallel}'


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--model', choices=MODELS, default='gpt2-124M')
    parser.add_argument('--parallel', choices=('none', 'ddp', 'fsdp'), default='none')
    parser.add_argument('--dtype', choices=('f32', 'bf16'), default='f32')
    parser.add_argument('--batch', type=int, default=4, help='global, sequences')
    parser.add_argument('--context', type=int, default=64)
    parser.add_argument('--set', choices=('all',), help='every row of the set, whatever the flags above say')
    parser.add_argument('--only', default='', help='of --set, the rows with this in their name')
    parser.add_argument('--steps', type=int, default=5)
    parser.add_argument('--warmup', type=int, default=2)
    flags = parser.parse_args()
    if flags.set:
        figures = []
        for row in rows_of_set(flags):
            rate, peak = measure(row)
            print(f'PyTorch {torch.__version__} {row_name(row)}: {rate:.1f} tokens/s, peak {peak:.0f} MiB', file=sys.stderr)
            figures += [f'PyTorch@{row_name(row)}={rate:.1f}', f'PyTorch@{row_name(row)}/rss={peak:.0f}']
        print(','.join(figures))
        return
    rate, peak = measure(flags)
    print(f'PyTorch {torch.__version__}: peak {peak:.0f} MiB', file=sys.stderr)
    print(f'{rate:.1f}')


if __name__ == '__main__':
    main()
