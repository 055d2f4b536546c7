#!/usr/bin/env python3
"""Writes PyTorch's seven pipeline schedules as CSV files, for Weft's tests to compare with.

    pip install torch && python3 tests/golden/make_pipeline_golden.py        # writes pipeline/*.csv and pipeline/index.json

The files are committed; tests read them and need no PyTorch. NAME-pP-mM-vV.csv is the compute-only order of P ranks, M
microbatches and V stages per rank, as `_dump_csv` writes it (for GPipe and 1F1B, which cannot be dumped, what their order
function returns, written by the same csv module). NAME-...-comms.csv is what PyTorch's lowering passes make of it, up to the
sends and receives; WAIT_REDUCE_GRAD is left out before those, since Weft's lists have none and each action of a list takes a
turn. NAME-...-waits.csv, one per schedule, is `_dump_csv`'s lowered file as it is. index.json lists them, with the counts of
microbatches up to 20 that PyTorch accepts. Nothing runs: stages are mocks, as in PyTorch's own visualizer.
"""

import csv
import json
import pathlib
from unittest import mock

import torch
from torch.distributed.pipelining.schedules import (
    WAIT_REDUCE_GRAD, PipelineScheduleSingle, _add_reduce_grad, _add_send_recv, _add_unshard_reshard, get_schedule_class)
from torch.distributed.pipelining.stage import PipelineStage

FOLDER = pathlib.Path(__file__).parent / 'pipeline'
SINGLE = [(1, 3), (2, 4), (4, 4), (4, 6), (4, 8), (8, 16)]
CASES = {
    'GPipe': [(p, m, 1) for p, m in SINGLE],
    '1F1B': [(p, m, 1) for p, m in SINGLE],
    'LoopedBFS': [(2, 2, 2), (2, 5, 2), (4, 8, 2), (3, 4, 4)],
    'Interleaved1F1B': [(2, 4, 2), (4, 8, 2), (4, 8, 4), (4, 2, 2), (3, 8, 3), (2, 3, 2), (8, 16, 2)],
    'InterleavedZeroBubble': [(2, 4, 2), (4, 8, 2), (4, 6, 2), (4, 2, 2), (3, 8, 3), (8, 16, 2)],
    'ZBVZeroBubble': [(1, 2, 2), (2, 4, 2), (4, 8, 2), (3, 2, 2), (8, 16, 2)],
    'DualPipeV': [(1, 2, 2), (2, 4, 2), (3, 7, 2), (4, 8, 2), (5, 10, 2), (8, 20, 2)],
}


def make(name, ranks, microbatches, chunks):
    schedule = get_schedule_class(name)
    stage = mock.create_autospec(PipelineStage, instance=True)
    stage.group_rank, stage.group_size, stage.submod, stage.num_stages = 0, ranks, None, ranks * chunks
    single = issubclass(schedule, PipelineScheduleSingle)
    return schedule(stage if single else [stage] * chunks, microbatches)


def lowered(schedule, microbatches):
    """The passes of `_prepare_schedule_with_comms` in their order, without waits."""
    lists = {}
    for rank, actions in schedule.pipeline_order.items():
        lists[rank] = [a for a in _add_reduce_grad(_add_unshard_reshard(actions), microbatches)
                       if a.computation_type != WAIT_REDUCE_GRAD]
    ranks = schedule.stage_index_to_group_rank
    return _add_send_recv(lists, lambda stage: ranks[stage], len(ranks))


def write(name, rows):
    with open(FOLDER / name, 'w', newline='') as file:
        csv.writer(file).writerows(rows)


def legal_counts(name, ranks, chunks):
    counts = []
    for microbatches in range(1, 21):
        try:
            make(name, ranks, microbatches, chunks)
        except (ValueError, AssertionError):
            continue
        counts.append(microbatches)
    return counts


def main():
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob('*.csv'):
        old.unlink()
    lines = []
    for name, cases in CASES.items():
        for ranks, microbatches, chunks in cases:
            stem = f'{name}-p{ranks}-m{microbatches}-v{chunks}'
            schedule = make(name, ranks, microbatches, chunks)
            single = isinstance(schedule, PipelineScheduleSingle)
            if single:
                write(f'{stem}.csv', schedule._get_pipeline_order().values())
            else:
                schedule._dump_csv(FOLDER / f'{stem}.csv', format='compute_only')
                write(f'{stem}-comms.csv', lowered(schedule, microbatches).values())
            waits = not single and ranks == 4 and microbatches == 8 and chunks == 2
            if waits:
                schedule._dump_csv(FOLDER / f'{stem}-waits.csv', format='compute_comms')
            lines.append(json.dumps({'name': name, 'file': stem, 'ranks': ranks, 'microbatches': microbatches,
                                     'chunks': chunks, 'lowered': not single, 'waits': waits,
                                     'legal': legal_counts(name, ranks, chunks)}))
    text = '{"made_by": "make_pipeline_golden.py", "version": "%s", "cases": [\n%s\n]}\n' % (
        torch.__version__.split('+')[0], ',\n'.join(lines))
    (FOLDER / 'index.json').write_text(text)
    print(len(lines), 'schedules')


if __name__ == '__main__':
    main()
