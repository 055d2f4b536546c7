#!/usr/bin/env python3
"""Runs PyTorch's optimizers, weight averages and schedules, and writes what Weft's must come to, in f64.

    pip install torch && python3 tests/golden/make_optimizer_golden.py    # writes optimizers.json and schedules.json

The files are committed; the tests read them and need no PyTorch. First values and gradients are integers mixed by SplitMix64,
which the test computes too. What PyTorch has not (Lion, LAMB) is the paper's algorithm, line by line. Muon's products run in
f64 here: PyTorch's own source, but for the one cast to bf16. The last parameter does not decay.
"""

import inspect
import json
import math
import pathlib

import torch
import torch.optim._muon as torch_muon
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from make_gpt_golden import uniform

FOLDER = pathlib.Path(__file__).parent
STEPS = 6
SCALE = 0.5  # of the gradients
SHAPES = {'plain': [[5, 3], [3, 4, 5], [7]], 'matrices': [[5, 3], [3, 5], [4, 4]]}
DECAY = 0.1


def learning_rate(step):
    return 0.05 / step


def first_values(shapes):
    return [torch.nn.Parameter((2 * uniform(i, math.prod(shape)) - 1).reshape(shape)) for i, shape in enumerate(shapes)]


def gradient(shape, index, step):
    return (SCALE * (2 * uniform(100 * step + index, math.prod(shape)) - 1)).reshape(shape)


def groups(parameters):
    return [{'params': parameters[:-1], 'weight_decay': DECAY}, {'params': parameters[-1:], 'weight_decay': 0.0}]


class Lion(torch.optim.Optimizer):
    """Chen et al., arXiv 2302.06675, algorithm 2."""

    def __init__(self, params, beta1=0.9, beta2=0.99):
        super().__init__(params, {'lr': 0, 'beta1': beta1, 'beta2': beta2})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group['params']:
                m = self.state[p].setdefault('m', torch.zeros_like(p))
                c = group['beta1'] * m + (1 - group['beta1']) * p.grad
                p -= group['lr'] * (torch.sign(c) + group['weight_decay'] * p)
                m.copy_(group['beta2'] * m + (1 - group['beta2']) * p.grad)


class Lamb(torch.optim.Optimizer):
    """You et al., arXiv 1904.00962, algorithm 2, phi the identity; a layer of norm 0 takes the plain step."""

    def __init__(self, params, beta1=0.9, beta2=0.999, eps=1e-6):
        super().__init__(params, {'lr': 0, 'beta1': beta1, 'beta2': beta2, 'eps': eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group['params']:
                state = self.state[p]
                t = state['t'] = state.get('t', 0) + 1
                m = state['m'] = group['beta1'] * state.get('m', 0) + (1 - group['beta1']) * p.grad
                v = state['v'] = group['beta2'] * state.get('v', 0) + (1 - group['beta2']) * p.grad**2
                r = (m / (1 - group['beta1']**t)) / ((v / (1 - group['beta2']**t)).sqrt() + group['eps'])
                u = r + group['weight_decay'] * p
                ratio = p.norm() / u.norm() if p.norm() > 0 and u.norm() > 0 else 1.0
                p -= group['lr'] * ratio * u


def train(shapes, make, average=None):
    parameters = first_values(shapes)
    model = torch.nn.Module()
    model.all = torch.nn.ParameterList(parameters)
    optimizer = make(groups(parameters))
    averaged = average(model) if average else None
    for step in range(1, STEPS + 1):
        for i, p in enumerate(parameters):
            p.grad = gradient(shapes[i], i, step)
        for group in optimizer.param_groups:
            group['lr'] = learning_rate(step)
        optimizer.step()
        if averaged:
            averaged.update_parameters(model)
    return [p.detach().flatten().tolist() for p in (averaged.parameters() if averaged else parameters)]


def optimizer_cases():
    optim = torch.optim
    source = inspect.getsource(torch_muon._zeropower_via_newtonschulz)
    assert 'dtype=torch.bfloat16, ' in source
    exec(source.replace('dtype=torch.bfloat16, ', ''), torch_muon.__dict__)  # copies in its own dtype
    yield 'nesterov', 'plain', lambda g: optim.SGD(g, momentum=0.9, nesterov=True), None
    yield 'lion', 'plain', lambda g: Lion(g), None
    yield 'lamb', 'plain', lambda g: Lamb(g), None
    yield 'adafactor', 'plain', lambda g: optim.Adafactor(g, lr=1), None
    yield 'adafactor_d2', 'plain', lambda g: optim.Adafactor(g, lr=1, beta2_decay=-0.5, eps=(1e-4, 0.2), d=2), None
    yield 'muon', 'matrices', lambda g: optim.Muon(g), None
    yield 'muon_rms', 'matrices', lambda g: optim.Muon(g, momentum=0.8, nesterov=False, adjust_lr_fn='match_rms_adamw'), None
    yield 'ema', 'plain', lambda g: optim.SGD(g), lambda m: AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    yield 'swa', 'plain', lambda g: optim.SGD(g), lambda m: AveragedModel(m)


def schedule_of(make, epochs, metrics=None):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.8, momentum=0.9)
    schedule = make(optimizer)
    rates = []
    for epoch in range(epochs):
        rates.append(optimizer.param_groups[0]['lr'])
        optimizer.step()
        schedule.step(metrics[epoch]) if metrics else schedule.step()
    return rates


def schedules():
    s = lr_scheduler
    # Falls, stays, jumps and falls again; some are not numbers.
    metrics = [2 / (1 + i) if i < 8 else 0.3 + 0.05 * math.sin(i) - (0.2 if i > 25 else 0) for i in range(40)]
    metrics[11] = float('nan')
    rates = {
        'linear_decay': schedule_of(lambda o: s.LinearLR(o, 1.0, 0.25, 11), 15),
        'linear_warmup': schedule_of(lambda o: s.LinearLR(o, 1 / 5, 1.0, 4), 5),
        'cosine': schedule_of(lambda o: s.CosineAnnealingLR(o, 11, 0.1), 12),
        'one_cycle': schedule_of(lambda o: s.OneCycleLR(o, 0.8, 20, cycle_momentum=False), 20),
        'one_cycle_linear': schedule_of(
            lambda o: s.OneCycleLR(o, 0.8, 13, pct_start=0.4, anneal_strategy='linear', div_factor=10, final_div_factor=100), 13),
        'one_cycle_three': schedule_of(lambda o: s.OneCycleLR(o, 0.8, 23, three_phase=True), 23),
        'warm_restarts': schedule_of(lambda o: s.CosineAnnealingWarmRestarts(o, 4, 1, 0.1), 14),
        'warm_restarts_grow': schedule_of(lambda o: s.CosineAnnealingWarmRestarts(o, 3, 2, 0.1), 40),
        'plateau': schedule_of(lambda o: s.ReduceLROnPlateau(o, factor=0.5, patience=2), 40, metrics),
        'plateau_cooldown': schedule_of(
            lambda o: s.ReduceLROnPlateau(o, 'max', factor=0.3, patience=1, threshold=0.01, threshold_mode='abs', cooldown=3,
                                          min_lr=0.05), 40, metrics),
    }
    return {'metrics': [None if math.isnan(m) else m for m in metrics], 'rates': rates}


def main():
    torch.set_num_threads(1)
    head = {'made_by': 'make_optimizer_golden.py', 'version': torch.__version__.split('+')[0]}
    cases = [{'name': name, 'shapes': SHAPES[shapes], 'final': train(SHAPES[shapes], make, average)}
             for name, shapes, make, average in optimizer_cases()]
    lines = ',\n'.join(json.dumps(case) for case in cases)
    text = json.dumps(head | {'steps': STEPS, 'scale': SCALE, 'weight_decay': DECAY})[:-1] + ', "cases": [\n' + lines + '\n]}\n'
    (FOLDER / 'optimizers.json').write_text(text)
    made = schedules()
    lines = ',\n'.join(f'{json.dumps(name)}: {json.dumps(rates)}' for name, rates in made['rates'].items())
    text = json.dumps(head | {'metrics': made['metrics']})[:-1] + ', "rates": {\n' + lines + '\n}}\n'
    (FOLDER / 'schedules.json').write_text(text)
    print('optimizers.json', len(cases), 'cases; schedules.json', len(made['rates']), 'schedules')


if __name__ == '__main__':
    main()
