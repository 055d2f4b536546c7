#!/usr/bin/env python3
"""Trains a small GPT with PyTorch and writes what Weft's must come to: losses, gradient norms, final parameters.

    pip install torch && python3 tests/golden/make_gpt_golden.py    # writes gpt_training.json

The file is committed; the test reads it and needs no PyTorch. The model is the one that Weft's speed is compared with
(benchmarks/peers/pytorch_train.py), in f64. AdamW has nanoGPT's groups: what has two dims or more in PyTorch (matrices and
embeddings) decays, biases and norms do not. First values and tokens are integers mixed by SplitMix64, which the test
computes too; a second run writes the same numbers up to the rounding of PyTorch's sums.
"""

import json
import pathlib
import sys

FOLDER = pathlib.Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent.parent / 'benchmarks' / 'peers'))
from pytorch_train import Gpt, torch  # noqa: E402

CONFIG = {'vocabulary': 19, 'context': 8, 'layers': 2, 'heads': 2, 'dim': 8}
TRAINING = {'batch': 4, 'batches': 4, 'steps': 40, 'beta1': 0.9, 'beta2': 0.95, 'epsilon': 1e-8, 'weight_decay': 0.1,
            'grad_clip': 0.7}


def mixed(stream, index):
    """SplitMix64's output number `index` of the stream that begins at `stream` * 2^32."""
    mask = 2**64 - 1
    z = ((stream << 32) + index + 1) * 0x9E3779B97F4A7C15 & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return z ^ z >> 31


def uniform(stream, count):
    return torch.tensor([(mixed(stream, i) >> 11) * 2.0**-53 for i in range(count)], dtype=torch.float64)


def tokens(step):
    """Of the batch that a step trains on, one more than the context: targets are the next ones."""
    batch, length = TRAINING['batch'], CONFIG['context'] + 1
    stream = 1000 + step % TRAINING['batches']
    ids = [mixed(stream, i) % CONFIG['vocabulary'] for i in range(batch * length)]
    return torch.tensor(ids).reshape(batch, length)


def weft_parameters(model):
    """(path, shape, parameter, is_matrix) by Weft's names and shapes. A matrix is transposed there: in, then out."""
    d, h = CONFIG['dim'], CONFIG['heads']
    e = d // h
    yield 'wte.weight', [CONFIG['vocabulary'], d], model.wte.weight, False
    yield 'wpe', [CONFIG['context'], d], model.wpe.weight, False
    for i, block in enumerate(model.blocks):
        for path, shape, layer in (('attn.qkv', [d, 3, h, e], block.qkv), ('attn.proj', [h, e, d], block.proj),
                                   ('mlp.up', [d, 4 * d], block.up), ('mlp.down', [4 * d, d], block.down)):
            yield f'blocks.{i}.{path}.weight', shape, layer.weight, True
            yield f'blocks.{i}.{path}.bias', shape[1:] if path == 'attn.qkv' else shape[-1:], layer.bias, False
        for path, norm in (('ln_1', block.ln_1), ('ln_2', block.ln_2)):
            yield f'blocks.{i}.{path}.weight', [d], norm.weight, False
            yield f'blocks.{i}.{path}.bias', [d], norm.bias, False
    yield 'ln_f.weight', [d], model.ln_f.weight, False
    yield 'ln_f.bias', [d], model.ln_f.bias, False


def nanogpt_groups(model):
    parameters = list(model.parameters())  # a tied head counts once
    return [{'params': [p for p in parameters if p.dim() >= 2], 'weight_decay': TRAINING['weight_decay']},
            {'params': [p for p in parameters if p.dim() < 2], 'weight_decay': 0.0}]


def main():
    torch.set_num_threads(1)
    model = Gpt(CONFIG['layers'], CONFIG['heads'], CONFIG['dim'], CONFIG['vocabulary'], CONFIG['context']).double()
    entries = []
    with torch.no_grad():
        for stream, (path, shape, parameter, is_matrix) in enumerate(weft_parameters(model)):
            is_scale = path.startswith(('blocks', 'ln')) and 'ln' in path and path.endswith('weight')
            entry = {'path': path, 'shape': shape, 'center': 1.0 if is_scale else 0.0, 'width': 0.5}
            values = entry['center'] + entry['width'] * (uniform(stream, parameter.numel()) - 0.5)
            parameter.copy_(values.reshape(parameter.T.shape).T if is_matrix else values.reshape(parameter.shape))
            entries.append(entry)
    optimizer = torch.optim.AdamW(nanogpt_groups(model), betas=(TRAINING['beta1'], TRAINING['beta2']), eps=TRAINING['epsilon'])
    learning_rates = [0.01 * min(1.0, step / 5) / (1 + step / 20) for step in range(1, TRAINING['steps'] + 1)]
    losses, norms = [], []
    for step, learning_rate in enumerate(learning_rates):
        ids = tokens(step)
        loss = model(ids[:, :-1], ids[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), TRAINING['grad_clip']).item())
        for group in optimizer.param_groups:
            group['lr'] = learning_rate
        optimizer.step()
        losses.append(loss.item())
    for entry, (_, _, parameter, is_matrix) in zip(entries, weft_parameters(model)):
        entry['final'] = (parameter.T if is_matrix else parameter).detach().flatten().tolist()
    head = {'made_by': 'make_gpt_golden.py', 'version': torch.__version__.split('+')[0], 'config': CONFIG, 'training': TRAINING,
            'learning_rates': learning_rates, 'losses': losses, 'grad_norms': norms}
    lines = ',\n'.join(json.dumps(entry) for entry in entries)
    text = json.dumps(head)[:-1] + ', "parameters": [\n' + lines + '\n]}\n'
    (FOLDER / 'gpt_training.json').write_text(text)
    print('gpt_training.json', sum(len(entry['final']) for entry in entries), 'parameters', len(text), 'bytes, losses', losses[0], losses[-1])


if __name__ == '__main__':
    main()
