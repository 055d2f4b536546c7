#!/usr/bin/env python3
"""Writes what PyTorch's modules make of numbers: outputs, gradients, running statistics, evaluation.

    pip install torch && python3 tests/golden/make_module_golden.py    # writes modules.json

The file is committed; the test reads it and needs no PyTorch. Each case is a module, its parameters by name, and some
batches: for each the input, the weights of the sum that backward begins at, the output and the gradients, all in f64.
Parameters stay; running statistics go on from batch to batch. Then the output in evaluation, and the buffers.
"""

import json
import pathlib

import torch
from torch import nn

FOLDER = pathlib.Path(__file__).parent

# (module, arguments of Weft's, PyTorch's module, shapes of its batches). Batches of 5 and 7 are uneven over 2 and 4 ranks.
CASES = [
    ('Conv1d', {'in': 4, 'out': 6, 'kernel': 3, 'stride': 2, 'padding': 1},
     lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1), [(5, 4, 9)]),
    ('Conv1d', {'in': 4, 'out': 6, 'kernel': 2, 'groups': 2, 'dilation': 2, 'bias': False},
     lambda: nn.Conv1d(4, 6, 2, groups=2, dilation=2, bias=False), [(3, 4, 7)]),
    ('Conv2d', {'in': 3, 'out': 5, 'kernel': 3, 'stride': 1, 'padding': 1},
     lambda: nn.Conv2d(3, 5, 3, padding=1), [(5, 3, 6, 7)]),
    ('Conv2d', {'in': 4, 'out': 4, 'kernel': 3, 'stride': 2, 'padding': 1, 'groups': 4},
     lambda: nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=4), [(5, 4, 7, 6)]),
    ('BatchNorm1d', {'channels': 3}, lambda: nn.BatchNorm1d(3), [(5, 3), (7, 3), (2, 3)]),
    ('BatchNorm1d', {'channels': 4, 'momentum': 0.3, 'eps': 0.01}, lambda: nn.BatchNorm1d(4, momentum=0.3, eps=0.01),
     [(5, 4, 6), (3, 4, 2)]),
    ('BatchNorm2d', {'channels': 3}, lambda: nn.BatchNorm2d(3), [(5, 3, 4, 2), (2, 3, 3, 3)]),
    ('BatchNorm2d', {'channels': 3, 'momentum': None}, lambda: nn.BatchNorm2d(3, momentum=None),
     [(5, 3, 2, 2), (4, 3, 2, 3), (3, 3, 1, 2)]),
    ('BatchNorm2d', {'channels': 2, 'affine': False}, lambda: nn.BatchNorm2d(2, affine=False), [(5, 2, 2, 2)]),
    ('BatchNorm2d', {'channels': 2, 'track': False}, lambda: nn.BatchNorm2d(2, track_running_stats=False),
     [(5, 2, 2, 3)]),
    ('GroupNorm', {'groups': 2, 'channels': 6}, lambda: nn.GroupNorm(2, 6), [(5, 6, 3), (3, 6, 2, 2)]),
    ('GroupNorm', {'groups': 3, 'channels': 3, 'eps': 0.1}, lambda: nn.GroupNorm(3, 3, eps=0.1), [(5, 3, 4, 2)]),
    ('MaxPool1d', {'kernel': 3, 'stride': 2, 'padding': 1}, lambda: nn.MaxPool1d(3, 2, 1), [(5, 3, 8)]),
    ('MaxPool2d', {'kernel': 2}, lambda: nn.MaxPool2d(2), [(5, 3, 6, 7)]),
    ('AvgPool1d', {'kernel': 2}, lambda: nn.AvgPool1d(2), [(5, 3, 7)]),
    ('AvgPool2d', {'kernel': 3, 'stride': 2, 'padding': 1}, lambda: nn.AvgPool2d(3, 2, 1), [(5, 3, 6, 7)]),
    ('AdaptiveAvgPool1d', {'extents': [3]}, lambda: nn.AdaptiveAvgPool1d(3), [(5, 2, 7)]),
    ('AdaptiveAvgPool2d', {'extents': [1, 1]}, lambda: nn.AdaptiveAvgPool2d(1), [(5, 3, 4, 7)]),
    ('AdaptiveAvgPool2d', {'extents': [2, 3]}, lambda: nn.AdaptiveAvgPool2d((2, 3)), [(5, 3, 5, 7)]),
    ('AdaptiveAvgPool2d', {'extents': [4, 2]}, lambda: nn.AdaptiveAvgPool2d((4, 2)), [(3, 2, 4, 3)]),
    ('Flatten', {}, lambda: nn.Flatten(), [(5, 4, 2, 3)]),
    ('Relu', {}, lambda: nn.ReLU(), [(5, 7)]),
    ('Gelu', {}, lambda: nn.GELU(approximate='tanh'), [(5, 7)]),
]


def tensor(x):
    return {'shape': list(x.shape), 'values': x.detach().double().reshape(-1).tolist()}


def drawn(generator, shape):
    return torch.round(torch.randn(shape, generator=generator, dtype=torch.float64) * 1e4) / 1e4


def run(number, name, arguments, make, shapes):
    generator = torch.Generator().manual_seed(number)
    module = make().double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(drawn(generator, parameter.shape))
    case = {'module': name, 'arguments': arguments,
            'parameters': {name: tensor(p) for name, p in module.named_parameters()}, 'batches': []}
    for shape in shapes:
        x = drawn(generator, shape).requires_grad_()
        y = module(x)
        weight = drawn(generator, y.shape)
        module.zero_grad()
        (y * weight).sum().backward()
        case['batches'].append({
            'input': tensor(x), 'weight': tensor(weight), 'output': tensor(y), 'input_gradient': tensor(x.grad),
            'gradients': {name: tensor(p.grad) for name, p in module.named_parameters()}})
    case['buffers'] = {name: tensor(b) for name, b in module.named_buffers()}
    module.eval()
    case['evaluated'] = tensor(module(drawn(torch.Generator().manual_seed(1000 + number), shapes[0])))
    case['evaluated_input'] = tensor(drawn(torch.Generator().manual_seed(1000 + number), shapes[0]))
    return case


def main():
    cases = [run(i, *case) for i, case in enumerate(CASES)]
    lines = ',\n'.join(json.dumps(case) for case in cases)
    version = torch.__version__.split('+')[0]
    text = f'{{"made_by": "make_module_golden.py", "version": "{version}", "cases": [\n{lines}\n]}}\n'
    (FOLDER / 'modules.json').write_text(text)


if __name__ == '__main__':
    main()
