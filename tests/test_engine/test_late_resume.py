"""An iteration-based run that is resumed late starts at once, at its place in the data."""

import itertools

import pytest
import torch
from detection_helpers import small_run, write_coco
from mmengine.dataset import BaseDataset, InfiniteSampler
from mmengine.runner import Runner

from mmext.checkpoints.safe_reader import read_checkpoint

NAME = 'mask-rcnn_deit-s-bias-0.9-0.1_sfp_lsj-737k_coco.py'
LATE = 100_001
pytestmark = pytest.mark.skipif(
    not hasattr(InfiniteSampler, 'skip'), reason='this mmengine replays the data')


def config(tmp_path, name, iters):
    cfg = small_run(NAME, tmp_path / 'data', tmp_path / 'run')
    cfg.experiment_name = name
    cfg.train_cfg.update(max_iters=iters, val_interval=10**9)
    cfg.val_dataloader = cfg.val_cfg = cfg.val_evaluator = None
    cfg.default_hooks.checkpoint.update(interval=1, max_keep_ckpts=1, save_best=None)
    return cfg


def test_no_image_is_read_again(tmp_path, monkeypatch):
    (tmp_path / 'data').mkdir()
    write_coco(tmp_path / 'data', images=7)
    read = []
    prepare = BaseDataset.prepare_data

    def watched(dataset, index):
        read.append(index)
        return prepare(dataset, index)

    monkeypatch.setattr(BaseDataset, 'prepare_data', watched)
    first = Runner.from_cfg(config(tmp_path, 'first', 1))
    first.train()
    assert len(read) == 2  # images of one batch
    seed = first.seed

    # as if the run had gone on for a long time
    path = tmp_path / 'run' / 'iter_1.pth'
    content = read_checkpoint(str(path))
    content['meta']['iter'] = LATE
    late = tmp_path / 'run' / f'iter_{LATE}.pth'
    torch.save(content, late)
    (tmp_path / 'run' / 'last_checkpoint').write_text(str(late))
    read.clear()
    cfg = config(tmp_path, 'second', LATE + 2)
    cfg.resume = True
    second = Runner.from_cfg(cfg)
    second.train()
    assert second.iter == LATE + 2
    stream = InfiniteSampler(range(7), seed=seed)._infinite_indices()
    assert read == list(itertools.islice(stream, 2 * LATE, 2 * LATE + 4))
