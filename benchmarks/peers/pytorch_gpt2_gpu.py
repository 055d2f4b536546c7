#!/usr/bin/env python3
"""PyTorch's training speed of GPT-2 124M on one GPU, as //benchmarks:gpt2_gpu measures it: tokens/s on stdout, all else on stderr.

    benchmarks/peers/pytorch_gpt2_gpu.py
    benchmarks/peers/pytorch_gpt2_gpu.py --batch=32 --compile=max-autotune
    bazel run --config=cuda //benchmarks:gpt2_gpu -- --peer="PyTorch=$(benchmarks/peers/pytorch_gpt2_gpu.py)"

torch.compile, scaled_dot_product_attention by its flash kernel, bf16 autocast over f32 parameters, clipping of the gradient's
norm, fused AdamW with decay of matrices alone, vocabulary 50304, random tokens. The median over the steps after a warm-up; a
step ends when its loss is on the host.
"""

import argparse
import statistics
import sys
import time

try:
    import torch
    import torch.nn as nn
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as error:
    sys.exit(f'PyTorch cannot be had: {error}; pip install torch')

LAYERS, HEADS, WIDTH = 12, 12, 768


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = (t.view(b, s, HEADS, d // HEADS).transpose(1, 2) for t in self.qkv(self.ln_1(x)).split(d, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, s, d))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate='tanh'))


class Gpt(nn.Module):
    def __init__(self, vocabulary, context):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, WIDTH), nn.Embedding(context, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)
        self.head.weight = self.wte.weight
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe.weight[:tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.ln_f(x)).flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--batch', type=int, default=64, help='sequences of a step')
    parser.add_argument('--context', type=int, default=1024, help='tokens of a sequence')
    parser.add_argument('--vocabulary', type=int, default=50304)
    parser.add_argument('--steps', type=int, default=20, help='steps to measure')
    parser.add_argument('--warmup', type=int, default=5, help='steps before that')
    parser.add_argument('--compile', default='default', help='mode of torch.compile, or none')
    parser.add_argument('--device', default='cuda', help='cuda, or cpu to try the script')
    flags = parser.parse_args()
    if flags.device == 'cuda' and not torch.cuda.is_available():
        sys.exit('PyTorch sees no GPU')
    torch.manual_seed(1337)
    device = torch.device(flags.device)
    model = Gpt(flags.vocabulary, flags.context).to(device)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW([{'params': matrices, 'weight_decay': 0.1}, {'params': others, 'weight_decay': 0.0}],
                                  lr=1e-3, betas=(0.9, 0.95), fused=flags.device == 'cuda')
    loss_of = model if flags.compile == 'none' else torch.compile(model, mode=flags.compile)
    tokens, targets = torch.randint(flags.vocabulary, (2, flags.batch, flags.context), device=device)
    backends = [SDPBackend.FLASH_ATTENTION] if flags.device == 'cuda' else [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]
    times = []
    for step in range(flags.warmup + flags.steps):
        begin = time.perf_counter()
        with torch.autocast(flags.device, dtype=torch.bfloat16), sdpa_kernel(backends):
            loss = loss_of(tokens, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        value = loss.item()
        if flags.device == 'cuda':
            torch.cuda.synchronize()
        if step >= flags.warmup:
            times.append(time.perf_counter() - begin)
    seconds = statistics.median(times)
    name = torch.cuda.get_device_name() if flags.device == 'cuda' else 'cpu'
    print(f'PyTorch {torch.__version__} on {name}: {seconds * 1e3:.2f} ms a step, loss {value:.3f}', file=sys.stderr)
    print(f'{flags.batch * flags.context / seconds:.0f}')


if __name__ == '__main__':
    main()
