#!/usr/bin/env python3
"""PyTorch reads what `checkpoint export` writes: every tensor, by safetensors.torch, against what the checkpoint says it is.

    python3 -m venv venv && venv/bin/pip install torch safetensors
    bazel build //tools:checkpoint
    venv/bin/python tests/tools/pytorch_reads_export.py bazel-bin/tools/checkpoint runs/a@100

Exports the step and compares each tensor that PyTorch has read: name, dtype and shape with what `checkpoint show` prints, and all
bits with the boxes in the files of the ranks, which PyTorch reads, too, and which are put together here. Texts are compared as well. Exits with 1 and a
line for each difference. For a folder of steps; no test runs it, since none may need PyTorch.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

try:
    import safetensors
    import safetensors.torch
    import torch
except ImportError as error:
    sys.exit(f'PyTorch cannot be had: {error}; pip install torch safetensors')

# As Weft's files name them, beside what `checkpoint show` prints and PyTorch has.
DTYPES = {
    'F64': ('f64', torch.float64),
    'F32': ('f32', torch.float32),
    'BF16': ('bf16', torch.bfloat16),
    'F16': ('f16', torch.float16),
    'I64': ('i64', torch.int64),
    'I32': ('i32', torch.int32),
    'U8': ('u8', torch.uint8),
    'BOOL': ('bool', torch.bool),
}


def shown(tool, path):
    """What `checkpoint show` prints of a step."""
    command = [tool, 'show', path, '--log_format=json']
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def folder_of(path):
    """Of FOLDER or FOLDER@STEP."""
    folder, _, number = path.rpartition('@')
    return folder if folder and number.isdigit() else path


def elements_at(step_path, place, dtype, shape):
    """A box whose elements lie in a file of another step."""
    path = os.path.join(os.path.dirname(step_path), f"step-{place['step']:09d}", place['file'])
    count = torch.Size(shape).numel()
    with open(path, 'rb') as file:
        file.seek(place['offset'])
        data = bytearray(file.read(count * dtype.itemsize))
    return torch.frombuffer(data, dtype=dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def assembled(step_path):
    """All tensors of a step, put together of the boxes in the files of its ranks, and of each whether all elements are there once."""
    tensors, covered = {}, {}
    for name in sorted(os.listdir(step_path)):
        if not name.startswith('rank-'):
            continue
        with safetensors.safe_open(os.path.join(step_path, name), framework='pt') as file:
            pieces = json.loads(file.metadata()['weft.pieces'])
            for tensor, piece in pieces.items():
                dtype = DTYPES[piece['dtype']][1]
                box = elements_at(step_path, piece['at'], dtype, piece['shape']) if 'at' in piece else file.get_tensor(tensor)
                whole = tensors.setdefault(tensor, torch.zeros(piece['of'], dtype=dtype))
                times = covered.setdefault(tensor, torch.zeros(piece['of'], dtype=torch.int32))
                place = tuple(slice(first, first + extent) for first, extent in zip(piece['offset'], piece['shape']))
                whole[place] = box
                times[place] += 1
    return tensors, {name: bool((times == 1).all()) for name, times in covered.items()}


def bits(tensor):
    """The bytes of a tensor's elements: nan is not equal to nan."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def differences(read, texts, shown_step, wanted, is_whole):
    """A line for each."""
    entries = {entry['name']: entry['type'] for entry in shown_step['tensors']}
    for name in sorted(set(entries) ^ set(read)):
        yield f"{name}: {'only in the export' if name in read else 'not in the export'}"
    names = {dtype: text for text, dtype in DTYPES.values()}
    for name in sorted(set(entries) & set(read)):
        tensor = read[name]
        printed = f"{names[tensor.dtype]}[{', '.join(str(extent) for extent in tensor.shape)}]"
        if printed.replace(' ', '') != entries[name].replace(' ', ''):
            yield f'{name}: PyTorch has {printed}, checkpoint show prints {entries[name]}'
        elif not is_whole.get(name, False):
            yield f'{name}: the files of the ranks do not have each element once'
        elif not torch.equal(bits(tensor), bits(wanted[name])):
            yield f'{name}: other bits than in the files of the ranks'
    for name in sorted(set(texts) | set(shown_step['texts'])):
        if texts.get(name) != shown_step['texts'].get(name):
            yield f'text {name}: not as checkpoint show prints it'


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('tool', help='bazel-bin/tools/checkpoint')
    parser.add_argument('path', help='FOLDER or FOLDER@STEP')
    args = parser.parse_args()
    step = shown(args.tool, args.path)
    if 'step' not in step:
        sys.exit(f'{args.path}: expected a folder of steps')
    folder = folder_of(args.path)
    wanted, is_whole = assembled(os.path.join(folder, f"step-{step['step']:09d}"))
    with tempfile.TemporaryDirectory() as scratch:
        export = os.path.join(scratch, 'export.safetensors')
        subprocess.run([args.tool, 'export', f"{folder}@{step['step']}", f'--to={export}'], check=True)
        read = safetensors.torch.load_file(export)
        with safetensors.safe_open(export, framework='pt') as file:
            texts = dict(file.metadata() or {})
    found = list(differences(read, texts, step, wanted, is_whole))
    for line in found:
        print(line)
    num_bytes = sum(tensor.numel() * tensor.dtype.itemsize for tensor in read.values())
    print(f"step {step['step']}: {len(read)} tensors, {num_bytes} bytes, {len(found)} differences; "
          f'torch {torch.__version__}, safetensors {safetensors.__version__}')
    return 1 if found else 0


if __name__ == '__main__':
    sys.exit(main())
