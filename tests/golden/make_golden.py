#!/usr/bin/env python3
"""Computes with PyTorch the numbers that Weft's tests compare with: chunks, Partial algebra, op results, output placements.

    pip install torch && python3 tests/golden/make_golden.py        # writes chunks.json, ops.json, placements.json

The files are committed; tests read them and need no PyTorch. All numbers are f64 (integers where the op gives them), inputs
seeded, so a second run writes the same bytes with the same PyTorch (`version` in each file).
"""

import itertools
import json
import math
import pathlib

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, init_device_mesh
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.testing._internal.distributed.fake_pg import FakeStore

FOLDER = pathlib.Path(__file__).parent
RANDOM = numpy.random.default_rng(20261121)


def uniform(*shape, low=-2.0, high=2.0):
    return torch.from_numpy(numpy.round(RANDOM.uniform(low, high, shape or (1,)), 4)).reshape(shape)


def integers(*shape, low=0, high=5):
    return torch.from_numpy(RANDOM.integers(low, high, shape))


def number(x):
    """JSON has no nan and inf: they are written as text."""
    x = x.item() if isinstance(x, torch.Tensor) else x
    if isinstance(x, float) and not math.isfinite(x):
        return {math.inf: 'inf', -math.inf: '-inf'}.get(x, 'nan')
    return x


def tensor(t):
    t = t.detach()
    return {'dtype': {torch.float64: 'f64', torch.int64: 'i64', torch.bool: 'bool'}[t.dtype],
            'shape': list(t.shape), 'values': [number(x) for x in t.flatten().tolist()]}


def write(name, cases):
    lines = ',\n'.join(json.dumps(case) for case in cases)
    text = '{"made_by": "make_golden.py", "version": "%s", "cases": [\n%s\n]}\n' % (torch.__version__.split('+')[0], lines)
    (FOLDER / name).write_text(text)
    print(name, len(cases), 'cases', len(text), 'bytes')


# --- Op results and gradients.

class Ops:
    def __init__(self):
        self.cases = []

    def add(self, op, function, inputs, gradient=True, **attributes):
        """One call. `attributes` are what the C++ side needs to make the same call; the gradients are those of
        sum(output * weight) for a random weight, by every floating input."""
        leaves = [x.clone().requires_grad_() if x.is_floating_point() and gradient else x for x in inputs]
        outputs = function(*leaves)
        outputs = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
        case = {'op': op, 'attributes': attributes, 'inputs': [tensor(x) for x in inputs],
                'outputs': [tensor(y) for y in outputs]}
        if gradient:
            weights = [uniform(*y.shape) if y.requires_grad else None for y in outputs]
            total = sum((y * w).sum() for y, w in zip(outputs, weights) if w is not None)
            total.backward()
            case['weights'] = [None if w is None else tensor(w) for w in weights]
            case['gradients'] = [tensor(x.grad) if x.is_floating_point() and x.grad is not None else None for x in leaves]
        self.cases.append(case)


def elementwise(ops):
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, 0.5, -2.5, math.inf, -math.inf, math.nan, 30.0, -30.0], dtype=torch.float64)
    unary = {'neg': torch.neg, 'abs': torch.abs, 'exp': torch.exp, 'sin': torch.sin, 'cos': torch.cos, 'tanh': torch.tanh,
             'sigmoid': torch.sigmoid, 'relu': torch.relu, 'silu': F.silu, 'erf': torch.erf, 'square': torch.square,
             'gelu_tanh': lambda x: F.gelu(x, approximate='tanh'), 'gelu': F.gelu}
    for name, function in unary.items():
        ops.add(name, function, [uniform(3, 5)])
        ops.add(name, function, [special], gradient=False)
    for name, function in {'log': torch.log, 'sqrt': torch.sqrt, 'rsqrt': torch.rsqrt}.items():
        ops.add(name, function, [uniform(3, 5, low=0.1, high=4)])
        ops.add(name, function, [special], gradient=False)
    binary = {'add': torch.add, 'sub': torch.sub, 'mul': torch.mul, 'div': torch.div, 'maximum': torch.maximum,
              'minimum': torch.minimum}
    for name, function in binary.items():
        ops.add(name, function, [uniform(2, 3, 4), uniform(3, 1, low=0.5)])
        ops.add(name, function, [special.reshape(-1, 1), special], gradient=False)
        ops.add(name, function, [torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([1.0, 2.0], dtype=torch.float64)])
    ops.add('pow', torch.pow, [uniform(3, 4, low=0.2), uniform(4)])
    ops.add('pow', torch.pow, [special.reshape(-1, 1), special], gradient=False)
    for exponent in (2.0, 3.0, 0.5, -1.0, 0.0):
        ops.add('pow_scalar', lambda x: torch.pow(x, exponent), [uniform(7, low=0.2)], exponent=exponent)
        ops.add('pow_scalar', lambda x: torch.pow(x, exponent), [special], gradient=False, exponent=exponent)
    for low, high in ((-0.5, 1.0), (None, 0.3), (0.1, None)):
        ops.add('clamp', lambda x: torch.clamp(x, low, high), [uniform(4, 5)], low=low, high=high)
        ops.add('clamp', lambda x: torch.clamp(x, low, high), [special], gradient=False, low=low, high=high)
    ops.add('where', torch.where, [uniform(3, 1) > 0, uniform(3, 4), uniform(4)])
    for name in ('eq', 'ne', 'lt', 'le', 'gt', 'ge'):
        ops.add(name, getattr(torch, name), [special.reshape(-1, 1), special], gradient=False)
        ops.add(name, getattr(torch, name), [integers(4, 1), integers(3)], gradient=False)
    for name in ('logical_and', 'logical_or', 'logical_xor'):
        ops.add(name, getattr(torch, name), [uniform(4, 1) > 0, uniform(3) > 0], gradient=False)
    ops.add('logical_not', torch.logical_not, [uniform(5) > 0], gradient=False)


def reductions(ops):
    for dims in ([0], [1], [-1], [0, 2], [0, 1, 2]):
        for keep in (False, True):
            for name in ('sum', 'mean', 'logsumexp'):
                ops.add(name, lambda x: getattr(torch, name)(x, dims, keepdim=keep), [uniform(3, 4, 2)], dims=dims, keep=keep)
            for name in ('amax', 'amin'):
                ops.add(name, lambda x: getattr(torch, name)(x, dims, keepdim=keep), [uniform(3, 4, 2)], dims=dims, keep=keep)
            for name in ('var', 'std'):
                for correction in (0, 1):
                    ops.add(name, lambda x: getattr(torch, name)(x, dims, correction=correction, keepdim=keep),
                            [uniform(3, 4, 2)], dims=dims, keep=keep, correction=correction)
            for p in (1.0, 2.0, 3.0, math.inf):
                ops.add('norm', lambda x: torch.linalg.vector_norm(x, p, dims, keepdim=keep), [uniform(3, 4, 2)], dims=dims,
                        keep=keep, p=number(p))
    ops.add('amax', lambda x: torch.amax(x, [0]), [torch.tensor([[1.0, 3.0], [1.0, 2.0]], dtype=torch.float64)], dims=[0], keep=False)
    for dim in (0, 1, -1):
        ops.add('prod', lambda x: torch.prod(x, dim), [uniform(3, 4)], dim=dim)
        ops.add('cumsum', lambda x: torch.cumsum(x, dim), [uniform(3, 4)], dim=dim)
        ties = integers(4, 6, high=3).double()
        for name in ('argmax', 'argmin'):
            ops.add(name, lambda x: getattr(torch, name)(x, dim), [uniform(4, 6)], gradient=False, dim=dim)
            with_nan = uniform(4, 6)
            with_nan[1, 2] = math.nan
            ops.add(name, lambda x: getattr(torch, name)(x, dim), [with_nan], gradient=False, dim=dim)
        for descending in (False, True):
            ops.add('sort', lambda x: torch.sort(x, dim=dim, descending=descending, stable=True), [uniform(4, 6)], dim=dim,
                    descending=descending)
            ops.add('sort', lambda x: torch.sort(x, dim=dim, descending=descending, stable=True), [ties], dim=dim,
                    descending=descending)
        for largest in (False, True):
            ops.add('topk', lambda x: torch.topk(x, 3, dim, largest=largest, sorted=True), [uniform(4, 6)], dim=dim, k=3,
                    largest=largest)
    zeros = uniform(3, 4)
    zeros[0, 1] = zeros[1, 2] = zeros[2, 2] = 0
    ops.add('prod', lambda x: torch.prod(x, 0), [zeros], dim=0)
    nan_last = torch.tensor([3.0, math.nan, -math.inf, math.inf, 0.0], dtype=torch.float64)
    ops.add('sort', lambda x: torch.sort(x, dim=0, stable=True), [nan_last], gradient=False, dim=0, descending=False)
    ops.add('sort', lambda x: torch.sort(x, dim=0, stable=True, descending=True), [nan_last], gradient=False, dim=0, descending=True)
    rows = torch.tensor([[-math.inf, -math.inf], [math.inf, 1.0], [math.nan, 0.0]], dtype=torch.float64)
    for name in ('logsumexp', 'sum', 'amax', 'amin'):
        ops.add(name, lambda x: getattr(torch, name)(x, [1]), [rows], gradient=False, dims=[1], keep=False)


def shapes(ops):
    ops.add('reshape', lambda x: x.reshape(4, 6), [uniform(2, 3, 4)], shape=[4, 6])
    ops.add('permute', lambda x: x.permute(2, 0, 1), [uniform(2, 3, 4)], dims=[2, 0, 1])
    ops.add('transpose', lambda x: x.transpose(0, 2), [uniform(2, 3, 4)], dim_a=0, dim_b=2)
    ops.add('expand', lambda x: x.expand(2, 3, 4), [uniform(3, 1)], shape=[2, 3, 4])
    ops.add('squeeze', lambda x: x.squeeze(1), [uniform(3, 1, 2)], dim=1)
    ops.add('unsqueeze', lambda x: x.unsqueeze(-1), [uniform(3, 2)], dim=-1)
    ops.add('flatten', lambda x: x.flatten(1, 2), [uniform(2, 3, 4)], start=1, end=2)
    ops.add('slice', lambda x: x.narrow(1, 1, 3), [uniform(2, 5)], dim=1, start=1, length=3)
    ops.add('concat', lambda *x: torch.cat(x, 1), [uniform(2, 3), uniform(2, 1), uniform(2, 2)], dim=1)
    ops.add('stack', lambda *x: torch.stack(x, 1), [uniform(2, 3), uniform(2, 3)], dim=1)
    ops.add('split', lambda x: torch.split(x, [2, 1, 3], 1), [uniform(2, 6)], sizes=[2, 1, 3], dim=1)
    ops.add('pad', lambda x: F.pad(x, (1, 2, 0, 3), value=0.5), [uniform(2, 3)], before=[0, 1], after=[3, 2], value=0.5)
    for k in (-1, 0, 2):
        ops.add('tril', lambda x: torch.tril(x, k), [uniform(2, 4, 5)], diagonal=k)
        ops.add('triu', lambda x: torch.triu(x, k), [uniform(2, 4, 5)], diagonal=k)
    ops.add('flip', lambda x: torch.flip(x, [0, 2]), [uniform(2, 3, 4)], dims=[0, 2])
    for shift in (2, -1, 7):
        ops.add('roll', lambda x: torch.roll(x, shift, 1), [uniform(2, 5)], shift=shift, dim=1)
    ops.add('index_select', lambda x, i: torch.index_select(x, 1, i), [uniform(3, 5), torch.tensor([4, 0, 0, 2])], dim=1)
    for dim in (0, 1):
        ops.add('gather', lambda x, i: torch.gather(x, dim, i), [uniform(4, 5), integers(3, 5, high=4)], dim=dim)
        ops.add('scatter_add', lambda x, i, s: torch.scatter_add(x, dim, i, s), [uniform(4, 5), integers(3, 5, high=4), uniform(3, 5)],
                dim=dim)


def products(ops):
    ops.add('matmul', torch.matmul, [uniform(2, 3, 4), uniform(4, 5)])
    ops.add('matmul', torch.matmul, [uniform(3, 4), uniform(4, 5)])
    ops.add('bmm', torch.bmm, [uniform(2, 3, 4), uniform(2, 4, 5)])
    ops.add('linear', lambda x, w, b: F.linear(x, w.T, b), [uniform(2, 3, 4), uniform(4, 5), uniform(5)])
    for equation, extents in {'ij,jk->ik': ((3, 4), (4, 5)), 'bij,bjk->bik': ((2, 3, 4), (2, 4, 5)), 'ij,jk,kl->il': ((3, 4), (4, 5), (5, 2)),
                              'ij->ji': ((3, 4),), 'ij->i': ((3, 4),), 'i,j->ij': ((3,), (4,)), 'i,i->': ((4,), (4,)),
                              'bshe,bthe->bhst': ((2, 3, 2, 4), (2, 5, 2, 4)), 'ab,bc': ((2, 3), (3, 4)), 'ab,cb,db->acd': ((2, 3), (4, 3), (5, 3))}.items():
        ops.add('einsum', lambda *x: torch.einsum(equation, *x), [uniform(*e) for e in extents], equation=equation)


def neural(ops):
    for dim in (-1, 0):
        ops.add('softmax', lambda x: F.softmax(x, dim), [uniform(3, 5)], dim=dim)
        ops.add('log_softmax', lambda x: F.log_softmax(x, dim), [uniform(3, 5)], dim=dim)
    ops.add('layer_norm', lambda x, w, b: F.layer_norm(x, (6,), w, b, 1e-5), [uniform(3, 6), uniform(6), uniform(6)], epsilon=1e-5)
    ops.add('rms_norm', lambda x, w: F.rms_norm(x, (6,), w, 1e-5), [uniform(3, 6), uniform(6)], epsilon=1e-5)
    ops.add('embedding', lambda i, w: F.embedding(i, w), [integers(2, 3, high=7), uniform(7, 4)])
    targets = torch.tensor([0, 3, -100, 2, 3])
    for smoothing in (0.0, 0.1):
        ops.add('cross_entropy', lambda x, t: F.cross_entropy(x, t, ignore_index=-100, label_smoothing=smoothing), [uniform(5, 4), targets],
                ignore_index=-100, label_smoothing=smoothing)
    ops.add('mse', F.mse_loss, [uniform(3, 4), uniform(3, 4)])
    ops.add('batch_norm', lambda x, w, b: F.batch_norm(x, None, None, w, b, True, 0.1, 1e-5), [uniform(4, 3, 5), uniform(3), uniform(3)],
            epsilon=1e-5)
    ops.add('group_norm', lambda x, w, b: F.group_norm(x, 2, w, b, 1e-5), [uniform(2, 4, 3, 2), uniform(4), uniform(4)], groups=2, epsilon=1e-5)
    # q, k, v as [b, s, h, e]; PyTorch has heads before the sequence.
    heads = lambda f: lambda q, k, v, *rest: f(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), *rest).transpose(1, 2)
    attend = F.scaled_dot_product_attention
    ops.add('attention', heads(lambda q, k, v: attend(q, k, v, is_causal=True)), [uniform(2, 5, 2, 3) for _ in range(3)], causal=True)
    ops.add('attention', heads(lambda q, k, v: attend(q, k, v)), [uniform(2, 3, 2, 3), uniform(2, 5, 2, 3), uniform(2, 5, 2, 3)], causal=False)
    ops.add('attention', heads(lambda q, k, v: attend(q, k, v, is_causal=True, enable_gqa=True)),
            [uniform(2, 4, 4, 3), uniform(2, 4, 2, 3), uniform(2, 4, 2, 3)], causal=True)
    for mask in (uniform(2, 1, 3, 5), uniform(1, 1, 3, 5, low=-1, high=3) > 0):
        mask[..., 0] = 1  # no row is masked whole
        ops.add('attention_mask', lambda q, k, v, m: heads(attend)(q, k, v, m.detach()),
                [uniform(2, 3, 2, 3), uniform(2, 5, 2, 3), uniform(2, 5, 2, 3), mask], causal=False)
    for stride, padding, dilation, groups in ((1, 0, 1, 1), (2, 1, 1, 1), (1, 2, 2, 1), (1, 1, 1, 2)):
        attributes = dict(stride=stride, padding=padding, dilation=dilation, groups=groups)
        ops.add('conv1d', lambda x, w: F.conv1d(x, w, None, **attributes), [uniform(2, 4, 9), uniform(6, 4 // groups, 3)], **attributes)
        ops.add('conv2d', lambda x, w: F.conv2d(x, w, None, **attributes), [uniform(2, 4, 6, 5), uniform(2, 4 // groups, 3, 2)], **attributes)
    for kernel, stride, padding in ((2, 2, 0), (3, 1, 1), (3, 2, 1)):
        attributes = dict(kernel=kernel, stride=stride, padding=padding)
        for name, function in {'max_pool1d': F.max_pool1d, 'avg_pool1d': F.avg_pool1d}.items():
            ops.add(name, lambda x: function(x, kernel, stride, padding), [uniform(2, 3, 8)], **attributes)
        for name, function in {'max_pool2d': F.max_pool2d, 'avg_pool2d': F.avg_pool2d}.items():
            ops.add(name, lambda x: function(x, kernel, stride, padding), [uniform(2, 2, 6, 5)], **attributes)
    ops.add('avg_pool2d_exclude_pad', lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), [uniform(2, 2, 6, 5)], kernel=3,
            stride=2, padding=1)


def indexing(ops):
    for start, stop, step in ((1, 7, 2), (None, None, 3), (-5, -1, 1), (-100, 100, 4), (6, None, 2), (None, -2, 2), (5, 2, 1)):
        for dim in (0, 1):
            where = (slice(None),) * dim + (slice(start, stop, step),)
            attributes = dict(dim=dim, start=start, stop=stop, step=step)
            ops.add('slice_range', lambda x: x[where], [uniform(8, 9)], **attributes)
            source = uniform(*torch.empty(8, 9)[where].shape)
            ops.add('slice_scatter', lambda x, s: torch.slice_scatter(x, s, dim, start, stop, step), [uniform(8, 9), source], **attributes)
    for dim, index in ((0, 2), (1, -1)):
        ops.add('select', lambda x: torch.select(x, dim, index), [uniform(3, 4)], dim=dim, index=index)
        ops.add('select_scatter', lambda x, s: torch.select_scatter(x, s, dim, index), [uniform(4, 4), uniform(4)], dim=dim, index=index)

    def assign(x, source):
        y = x.clone()
        y[1:, ::2] = source
        return y

    ops.add('slice_assign', assign, [uniform(4, 5), uniform(3, 3)], ranges=[[1, None, 1], [None, None, 2]])
    for equation, extents in {'...ij,...jk->...ik': ((2, 3, 4), (4, 5)), '...i,...i': ((2, 3, 4), (3, 4)), 'i...,...->i...': ((3, 2), (2,)),
                              '...a,ab->b...': ((2, 3, 4), (4, 5)), '...ij->...ji': ((2, 3, 4),), '...i,ij,...j->...': ((2, 3), (3, 4), (2, 4)),
                              'b...d,...d->b...': ((2, 1, 4), (3, 4))}.items():
        ops.add('einsum', lambda *x: torch.einsum(equation, *x), [uniform(*e) for e in extents], equation=equation)
    zeros = uniform(3, 5)
    zeros[0, 1] = zeros[1, 0] = zeros[1, 3] = zeros[2, 4] = 0
    for dim in (0, 1, -1):
        ops.add('cumprod', lambda x: torch.cumprod(x, dim), [uniform(3, 5)], dim=dim)
        ops.add('cumprod', lambda x: torch.cumprod(x, dim), [zeros], dim=dim)
    ops.add('cumprod', lambda x: torch.cumprod(x, 0), [integers(4, 3, low=-3, high=4)], gradient=False, dim=0)
    for dim in (0, 1, -1):
        ops.add('topk', lambda x: torch.topk(x, 2, dim), [uniform(3, 4, 5)], dim=dim, k=2, largest=True)
        ops.add('sort', lambda x: torch.sort(x, dim=dim, stable=True), [uniform(3, 4, 5)], dim=dim, descending=False)
    for reduce, include_self in itertools.product(('sum', 'prod', 'mean', 'amax', 'amin'), (True, False)):
        for dim in (0, 1):
            call = lambda x, i, s: torch.scatter_reduce(x, dim, i, s, reduce, include_self=include_self)
            attributes = dict(dim=dim, reduce=reduce, include_self=include_self)
            ops.add('scatter_reduce', call, [uniform(4, 5), integers(3, 4, high=4), uniform(3, 4)], **attributes)
            if include_self:  # ties, and zeros
                ties = [integers(4, 5, low=-1, high=2).double(), integers(4, 5, high=2), integers(4, 5, low=1, high=3).double()]
                ops.add('scatter_reduce', call, ties, **attributes)
            if reduce != 'mean':
                ops.add('scatter_reduce', call, [integers(4, 5), integers(4, 5, high=4), integers(4, 5, low=-4)], gradient=False, **attributes)
    for mask in (uniform(3, 5) > 0, uniform(5) > 0, uniform(3, 5) > 3):
        ops.add('masked_select', torch.masked_select, [uniform(3, 5), mask])
    for x in (integers(3, 4, 2, high=2), integers(6, high=2), integers(3, 3, high=1)):
        ops.add('nonzero', torch.nonzero, [x], gradient=False)
    for x in (integers(4, 5), integers(7, high=3).double(), torch.tensor([math.nan, 1.0, math.nan, -math.inf, 1.0], dtype=torch.float64)):
        ops.add('unique', lambda x: torch.unique(x, return_inverse=True, return_counts=True), [x], gradient=False)
    images = {'linear': (2, 3, 7), 'bilinear': (2, 2, 4, 5), 'bicubic': (1, 2, 5, 4), 'trilinear': (1, 2, 3, 4, 3)}
    for mode, extents in images.items():
        for align in (False, True):
            spatial = len(extents) - 2
            for size in ([9, 7, 5][:spatial], [2, 3, 1][:spatial]):
                ops.add('interpolate', lambda x: F.interpolate(x, size=size, mode=mode, align_corners=align), [uniform(*extents)], mode=mode,
                        align_corners=align, size=size, scale=[])
            for scale in ([2.0, 1.5, 2.0][:spatial], [0.7, 0.5, 1.0][:spatial]):
                ops.add('interpolate', lambda x: F.interpolate(x, scale_factor=tuple(scale), mode=mode, align_corners=align), [uniform(*extents)],
                        mode=mode, align_corners=align, size=[], scale=scale)
    for mode in ('nearest', 'nearest-exact', 'area'):
        for extents, size in (((2, 3, 7), [4]), ((2, 2, 4, 5), [8, 3]), ((1, 2, 3, 4, 3), [5, 6, 2])):
            ops.add('interpolate', lambda x: F.interpolate(x, size=size, mode=mode), [uniform(*extents)], mode=mode, align_corners=False,
                    size=size, scale=[])
        ops.add('interpolate', lambda x: F.interpolate(x, scale_factor=(2.0, 0.5), mode=mode), [uniform(2, 2, 4, 6)], mode=mode,
                align_corners=False, size=[], scale=[2.0, 0.5])


# --- Chunks and placements, with a process group that moves nothing.

def chunks():
    cases = []
    for size, count in itertools.product(range(0, 18), range(1, 9)):
        pieces = Shard(0)._split_tensor(torch.arange(size), count, with_padding=False, contiguous=False)[0]
        cases.append({'size': size, 'mesh': [count], 'sizes': [len(p) for p in pieces]})
    for mesh_shape, size in itertools.product(((2, 2), (2, 3), (3, 2)), range(0, 18)):
        sizes = []
        for rank in range(math.prod(mesh_shape)):
            mesh = Mesh.at(rank, mesh_shape)
            shape, _ = compute_local_shape_and_global_offset(torch.Size([size]), mesh, [Shard(0), Shard(0)])
            sizes.append(shape[0])
        cases.append({'size': size, 'mesh': list(mesh_shape), 'sizes': sizes})
    return cases


class Mesh:
    """Meshes as one rank of them sees them: no other rank exists."""

    @staticmethod
    def at(rank, shape):
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group('fake', rank=rank, world_size=math.prod(shape), store=FakeStore())
        return init_device_mesh('cpu', shape, mesh_dim_names=tuple('ab'[:len(shape)]))


def placement_text(placements, ndim):
    """As Weft writes layouts: "[a.b, -] P{c}"."""
    dims = ['.'.join('ab'[axis] for axis, p in enumerate(placements) if p.is_shard() and p.dim == d) or '-' for d in range(ndim)]
    partial = {}
    for axis, p in enumerate(placements):
        if p.is_partial():
            partial.setdefault(p.reduce_op, []).append('ab'[axis])
    kinds = ' '.join('P{%s}' % ','.join(a if op == 'sum' else '%s:%s' % (a, op) for op, axes in partial.items() for a in axes) for _ in [0]) if partial else ''
    return ('[%s]' % ', '.join(dims) + (' ' + kinds if kinds else '')).strip()


def placements():
    calls = {
        'matmul': (lambda x, w: torch.matmul(x, w), ((8, 12), (12, 16))),
        'add': (torch.add, ((8, 12), (8, 12))),
        'mul': (torch.mul, ((8, 12), (8, 12))),
        'sum_0': (lambda x: x.sum(0), ((8, 12),)),
        'sum_1': (lambda x: x.sum(1), ((8, 12),)),
        'mean_0': (lambda x: x.mean(0), ((8, 12),)),
        'amax_0': (lambda x: x.amax(0), ((8, 12),)),
        'transpose': (lambda x: x.transpose(0, 1), ((8, 12),)),
        'exp': (torch.exp, ((8, 12),)),
        'neg': (torch.neg, ((8, 12),)),
        'relu': (torch.relu, ((8, 12),)),
        'softmax_1': (lambda x: F.softmax(x, 1), ((8, 12),)),
        'flatten': (lambda x: x.reshape(96), ((8, 12),)),
        'unflatten': (lambda x: x.reshape(4, 2, 12), ((8, 12),)),
    }
    cases = []
    for mesh_shape in ((4,), (2, 2)):
        mesh = Mesh.at(0, mesh_shape)
        kinds = [Replicate(), Shard(0), Shard(1), Partial('sum')]
        for name, (function, extents) in calls.items():
            per_operand = list(itertools.product(kinds, repeat=len(mesh_shape)))
            for operands in itertools.product(per_operand, repeat=len(extents)):
                tensors = [DTensor.from_local(torch.zeros(compute_local_shape_and_global_offset(torch.Size(e), mesh, p)[0]), mesh, p,
                                              shape=torch.Size(e), stride=torch.empty(e).stride(), run_check=False)
                           for e, p in zip(extents, operands)]
                case = {'op': name, 'mesh': list(mesh_shape), 'shapes': [list(e) for e in extents],
                        'operands': [placement_text(p, len(e)) for p, e in zip(operands, extents)]}
                try:
                    result = function(*tensors)
                    case['output'] = placement_text(result.placements, result.ndim)
                except Exception as error:  # what PyTorch refuses
                    case['error'] = type(error).__name__
                cases.append(case)
    return cases


def main():
    ops = Ops()
    for family in (elementwise, reductions, shapes, products, neural, indexing):
        family(ops)
    write('ops.json', ops.cases)
    write('chunks.json', chunks())
    write('placements.json', placements())


if __name__ == '__main__':
    main()
