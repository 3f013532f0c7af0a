"""Training and validation of detectors: equal paths, mixed precision, processes, resuming, EMA."""

import os
import socket

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from detection_helpers import (
    CONFIGS,
    MASKED,
    PAIR,
    build,
    fake_batch,
    load,
    losses_of,
    small_config,
    small_run,
    write_coco,
)
from mmengine.hooks import Hook
from mmengine.optim import build_optim_wrapper
from mmengine.runner import Runner

MASK = 'mmext.MaskedDetDataPreprocessor'
TOME = 'mask-rcnn_deit-s-bias-0.9-0.1-tome8_sfp_lsj-100e_coco.py'
DMST = 'mask-rcnn_dmst-s_sfp_lsj-100e_coco.py'
WINDOWS = 'mask-rcnn_deit-s-win-bias-0.9-0.1_sfp_lsj-100e_coco.py'


@pytest.mark.parametrize('name', [PAIR, MASKED, WINDOWS, TOME])
def test_masked_training_equals_gathered_validation(name):
    """Same weights, same features: masks over all columns and gathered columns."""
    model = build(small_config(name, drop_path_rate=0.0)).double()
    torch.nn.init.normal_(model.backbone.pos_embed)  # so that columns differ
    images = model.data_preprocessor(fake_batch())['inputs'].double()
    with torch.no_grad():
        model.train()
        assert model.backbone.blocks[-1].attn.train_mode == 'mask'
        trained = model.extract_feat(images)
        model.eval()
        assert model.backbone.blocks[-1].attn.val_mode == 'gather'
        validated = model.extract_feat(images)
        model.backbone.set_keep_ratio(None)
        dense = model.extract_feat(images)
    for a, b, c in zip(trained, validated, dense, strict=True):
        torch.testing.assert_close(a, b)
        assert not torch.allclose(a, c, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize('name', [PAIR, DMST])
def test_mask_changes_what_padding_does(name):
    """With the mask an image's features do not depend on how far it is padded."""

    def features(preprocessor, size):
        cfg = small_config(name, drop_path_rate=0.0)
        cfg.model.data_preprocessor.update(type=preprocessor, pad_size_divisor=size)
        cfg.model.data_preprocessor.pop('val_pad_size_divisor', None)
        if name == PAIR:
            cfg.model.backbone.use_valid_mask = preprocessor == MASK
        model = build(cfg).double().eval()
        if name == PAIR:
            model.backbone.set_keep_ratio(None)
            # learned positions would be stretched over the canvas
            torch.nn.init.zeros_(model.backbone.pos_embed)
        images = model.data_preprocessor(fake_batch(((64, 64), ), (1, )))['inputs'].double()
        with torch.no_grad():
            return model.backbone(images)[0][:, :, :4, :4]

    torch.testing.assert_close(features(MASK, 64), features(MASK, 256))
    plain = [features('DetDataPreprocessor', size) for size in (64, 256)]
    assert not torch.allclose(*plain, rtol=1e-3)


def test_linear_attention_detectors_have_the_mask():
    """On by default where attention sums over tokens, off in the paper's own pair."""
    for name in CONFIGS:
        cfg = load(name)
        masked = cfg.model.data_preprocessor.type == MASK
        linear = cfg.model.backbone.type == 'mmext.DMST'
        assert masked == (linear or cfg.model.backbone.get('use_valid_mask', False)), name


@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
@pytest.mark.parametrize('name', [PAIR, TOME, DMST])
def test_mixed_precision_step_is_finite(name, dtype):
    model = build(small_config(name)).train()
    with torch.autocast('cpu', dtype=dtype):
        loss, _ = losses_of(model, fake_batch())
    plain, _ = losses_of(build(small_config(name)).train(), fake_batch())
    assert loss.isfinite() and loss.item() == pytest.approx(plain.item(), rel=0.2)
    (loss * 128).backward()  # a loss scale as a scaler would apply
    for param_name, param in model.named_parameters():
        assert param.grad is not None and param.grad.isfinite().all(), param_name
    with torch.autocast('cpu', dtype=dtype):
        results = model.eval().test_step(fake_batch(objects=(0, 0)))
    assert all(sample.pred_instances.bboxes.isfinite().all() for sample in results)


def distributed_batch(rank):
    """The second process has no ground truth at all."""
    return fake_batch(objects=(3, 2) if rank == 0 else (0, 0), seed=rank)


def distributed_config():
    cfg = small_config(PAIR, drop_path_rate=0.0, with_cp=True, frozen_stages=2)
    cfg.optim_wrapper.type = 'OptimWrapper'
    cfg.optim_wrapper.optimizer = dict(type='SGD', lr=0.01)
    return cfg


def train_in_process(rank, port, folder):
    os.environ.update(
        MASTER_ADDR='127.0.0.1', MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE='2',
        LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    dist.init_process_group('gloo', rank=rank, world_size=2)
    cfg = distributed_config()
    from mmengine.model import MMDistributedDataParallel
    model = build(cfg).train()
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    model = MMDistributedDataParallel(model, device_ids=None, broadcast_buffers=False)
    for step in range(2):
        torch.manual_seed(10 * step + rank)
        model.train_step(distributed_batch(rank), wrapper)
    torch.save(model.module.state_dict(), os.path.join(folder, f'{rank}.pth'))
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_one_without_ground_truth(tmp_path):
    """Checkpointing on, stages frozen, no search for unused parameters; equals one process that
    averages the two gradients."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port = free.getsockname()[1]
    mp.spawn(train_in_process, (port, str(tmp_path)), nprocs=2)
    first, second = (torch.load(tmp_path / f'{rank}.pth') for rank in range(2))

    cfg = distributed_config()
    model = build(cfg).train()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    for step in range(2):
        for rank in range(2):
            torch.manual_seed(10 * step + rank)
            (losses_of(model, distributed_batch(rank))[0] / 2).backward()
        wrapper.optimizer.step()
        wrapper.optimizer.zero_grad()
    for name, value in model.state_dict().items():
        assert torch.equal(first[name], second[name]), name
        torch.testing.assert_close(first[name], value, rtol=1e-4, atol=1e-6)
        frozen = name.startswith((
            'backbone.patch_embed', 'backbone.pos_embed', 'backbone.blocks.0.',
            'backbone.blocks.1.'))
        if frozen or name == 'backbone.blocks.2.attn.key_bias.weight':
            assert torch.equal(start[name], value) == frozen, name


class Interrupt(Hook):
    priority = 'LOWEST'

    def __init__(self, epoch):
        self.epoch = epoch

    def before_train_epoch(self, runner):
        if runner.epoch == self.epoch:
            raise KeyboardInterrupt


def run(cfg, epochs, stop_after=None, resume=False):
    cfg.train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=epochs, val_interval=epochs)
    cfg.resume = resume
    runner = Runner.from_cfg(cfg)
    if stop_after is not None:
        runner.register_hook(Interrupt(stop_after))
    runner.train()
    return runner


def test_resumed_run_equals_uninterrupted(tmp_path):
    """Warm-up, a rate step, EMA: stopped after half of the schedule and resumed."""
    data = tmp_path / 'data'
    data.mkdir()
    write_coco(data)

    def config(name):
        cfg = small_run(PAIR, data, tmp_path / name)
        cfg.experiment_name = name
        cfg.custom_hooks = [dict(type='EMAHook', momentum=0.1)]
        cfg.param_scheduler = [
            dict(type='LinearLR', start_factor=0.1, by_epoch=False, begin=0, end=5),
            dict(type='MultiStepLR', by_epoch=True, milestones=[3], gamma=0.1)]
        return cfg

    whole = run(config('whole'), 4)
    with pytest.raises(KeyboardInterrupt):
        run(config('half'), 4, stop_after=2)
    rest = config('half')
    rest.experiment_name = 'rest'
    resumed = run(rest, 4, resume=True)
    assert (whole.iter, resumed.iter) == (8, 8)
    paths = [tmp_path / name / 'epoch_4.pth' for name in ('whole', 'half')]
    first, second = (torch.load(path, weights_only=False) for path in paths)
    for part in ('state_dict', 'ema_state_dict'):
        for key, value in first[part].items():
            torch.testing.assert_close(second[part][key], value, msg=f'{part} {key}')
    groups = zip(first['optimizer']['param_groups'], second['optimizer']['param_groups'],
                 strict=True)
    assert all(a['lr'] == b['lr'] for a, b in groups)
    averaged, raw = first['state_dict'], first['ema_state_dict']  # mmengine swaps them in files
    assert any(not torch.equal(averaged[key], raw[f'module.{key}']) for key in averaged)


def test_jittered_run_with_everything_on(tmp_path):
    """The config's own pipeline, an evaluation that finds nothing, the best checkpoint."""
    data = tmp_path / 'data'
    data.mkdir()
    write_coco(data)
    cfg = small_run(MASKED, data, tmp_path / 'run', jitter=True)
    cfg.model.test_cfg.rcnn.score_thr = 0.9999
    cfg.experiment_name = 'jitter'
    cfg.default_hooks.artifacts = dict(type='mmext.RunArtifactsHook')
    runner = run(cfg, 2)
    assert (tmp_path / 'run' / 'epoch_2.pth').exists()
    assert not list((tmp_path / 'run').glob('best*'))
    runner.model.roi_head.test_cfg.score_thr = 0.0
    metrics = runner.val_loop.run()
    assert {'coco/bbox_mAP', 'coco/segm_mAP'} < set(metrics)
