"""A run survives evaluations without the metric that picks the best checkpoint."""

import pytest
import torch
from mmengine.evaluator import BaseMetric
from mmengine.hooks import CheckpointHook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch.utils.data import DataLoader

from mmext.engine.hooks import SafeCheckpointHook


class Model(BaseModel):

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, inputs, mode='tensor'):
        return dict(loss=self.weight.sum()) if mode == 'loss' else [inputs]


class Metric(BaseMetric):
    """Returns the next entry of a list at every evaluation."""

    def __init__(self, values):
        super().__init__()
        self.values = iter(values)

    def process(self, data_batch, data_samples):
        self.results.append(0)

    def compute_metrics(self, results):
        return next(self.values)


def run(tmp_path, hook, values, save_best, name):
    loader = DataLoader([dict(inputs=torch.ones(1))])
    runner = Runner(
        Model(), str(tmp_path), train_dataloader=loader, val_dataloader=loader,
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
        train_cfg=dict(by_epoch=True, max_epochs=len(values), val_interval=1), val_cfg=dict(),
        val_evaluator=[Metric(values)], experiment_name=name, default_scope='mmengine',
        default_hooks=dict(checkpoint=dict(type=hook, interval=1, save_best=save_best,
                                           rule='greater')))
    runner.train()
    return sorted(path.name for path in tmp_path.glob('best*'))


def test_missing_and_empty_metrics(tmp_path):
    values = [{}, {'a': 0.1}, {'b': 0.5}, {'a': float('nan'), 'b': 0.1}, {'a': 0.2}, {'a': 0.1}]
    best = run(tmp_path, SafeCheckpointHook, values, ['a', 'b'], 'both')
    assert best == ['best_a_epoch_5.pth', 'best_b_epoch_3.pth']


def test_auto_starts_at_the_first_metric(tmp_path):
    best = run(tmp_path, SafeCheckpointHook, [{}, {'a': 0.1}, {}, {'a': 0.3}], 'auto', 'auto')
    assert best == ['best_a_epoch_4.pth']


def test_mmengine_still_breaks_here(tmp_path):
    with pytest.raises(KeyError):
        run(tmp_path, CheckpointHook, [{'b': 0.5}], ['a'], 'plain')


@pytest.mark.parametrize('scores, metrics', [((), []), ((0.9,), ['coco/bbox_mAP'])])
def test_what_coco_metric_returns(shared_dir, scores, metrics):
    """CocoMetric has no key at all when nothing was found: the case the hook is for."""
    from mmdet.evaluation import CocoMetric
    metric = CocoMetric(
        ann_file=str(shared_dir / 'data/coco_mini/annotations/instances_val2017.json'),
        metric='bbox')
    metric.dataset_meta = dict(classes=('person', 'bicycle'))
    boxes = torch.tensor([[0., 0., 20., 20.]] * len(scores)).reshape(-1, 4)
    found = dict(
        bboxes=boxes, scores=torch.tensor(scores), labels=torch.zeros(len(scores), dtype=int))
    metric.process({}, [dict(pred_instances=found, img_id=5001, ori_shape=(480, 640))])
    assert sorted(metric.evaluate(1))[:1] == metrics
