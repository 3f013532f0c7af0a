"""A checkpoint is held against the model, by names, shapes and buffers, before anything runs."""

import time

import pytest
import torch
from mmengine.config import Config
from mmengine.model import BaseModule
from torch import nn

import mmext.registry  # noqa: F401
from mmext.checkpoints.fit import DoesNotFit
from mmext.cli.checkpoint_check import (
    check_fits,
    check_resumes,
    check_start,
    last_checkpoint,
    resume_from_last,
)
from mmext.cli.config_check import ConfigError
from mmext.models import BiasPrunedViT


class Classifier(nn.Module):

    def __init__(self, classes=10, img_size=32, **options):
        super().__init__()
        self.backbone = BiasPrunedViT('tiny-test', img_size=img_size, **options)
        self.neck = nn.BatchNorm1d(32)
        self.head = nn.Linear(32, classes)


def save(model, path, change=lambda state: None, **content):
    state = model.state_dict()
    change(state)
    torch.save(dict(state_dict=state, **content), path)
    return str(path)


def changed(name, value):
    return lambda state: state.update({name: value}) if value is not None else state.pop(name)


def test_checkpoint_of_another_model_is_refused(tmp_path):
    model = nn.Linear(2, 2)
    path = save(nn.DataParallel(model), tmp_path / 'x.pth')  # names begin with module.
    assert check_fits(path, model).complete
    torch.save(dict(state_dict=dict(other=torch.ones(2))), path)
    with pytest.raises(DoesNotFit, match=r'0 of 2 entries of Linear match; 2 are missing '
                                         r'\(weight, bias\); 1 are left over .*convert_vit'):
        check_fits(path, model)


@pytest.mark.parametrize('change, message', [
    (changed('head.weight', torch.ones(5, 32)), r'1 have another shape \(head\.weight\)'),
    (changed('neck.running_mean', torch.ones(31)), r'another shape \(neck\.running_mean\)'),
    (changed('neck.running_var', None), r'1 are missing \(neck\.running_var\)'),
    (changed('head.bias', None), r'missing \(head\.bias\)'),
    (changed('mask_head.weight', torch.ones(2)), r'1 are left over \(mask_head\.weight\)'),
    (changed('backbone.blocks.0.mlp.fc1.weight', torch.ones(4, 32)), 'another shape')])
def test_names_shapes_and_buffers_must_fit(tmp_path, change, message):
    path = save(Classifier(), tmp_path / 'x.pth', change)
    with pytest.raises(DoesNotFit, match=message):
        check_fits(path, Classifier())


def test_the_whole_fits_at_any_size_of_images_and_old_files_without_counters(tmp_path):
    path = save(Classifier(), tmp_path / 'x.pth', changed('neck.num_batches_tracked', None))
    assert check_fits(path, Classifier(img_size=64)).complete
    with pytest.raises(DoesNotFit, match=r'cannot be resumed: its .*pos_embed.* another size'):
        check_resumes(path, Classifier(img_size=64), Config())


def test_a_training_may_start_without_heads_but_not_without_the_backbone(tmp_path, caplog):
    path = save(Classifier(5), tmp_path / 'x.pth', changed('neck.weight', None))
    fit = check_start(path, Classifier())
    assert (len(fit.missing), len(fit.reshaped)) == (1, 2)
    dense = save(Classifier(key_bias=False), tmp_path / 'dense.pth')
    check_start(dense, Classifier())  # a published backbone has no key bias
    for change, message in (
            (changed('backbone.norm.weight', None), r'missing \(backbone\.norm\.weight\)'),
            (changed('backbone.blocks.1.norm1.bias', torch.ones(3)), 'another shape')):
        path = save(Classifier(), tmp_path / 'x.pth', change)
        with pytest.raises(DoesNotFit, match=message):
            check_start(path, Classifier())
    torch.save(BiasPrunedViT('tiny-test').state_dict(), path)  # no `backbone.` before its names
    with pytest.raises(DoesNotFit, match='0 of'):
        check_start(str(path), Classifier())


def test_resuming_wants_the_optimizer_and_the_same_averages(tmp_path):
    model, cfg = Classifier(), Config(dict(custom_hooks=[]))
    with pytest.raises(DoesNotFit, match='weights without the state of a training'):
        check_resumes(save(model, tmp_path / 'best.pth', meta=dict(iter=2)), model, cfg)
    whole = dict(meta=dict(iter=2), optimizer=dict())
    check_resumes(save(model, tmp_path / 'x.pth', **whole), model, cfg)
    average = {f'module.{key}': value for key, value in model.state_dict().items()}
    averaged = save(model, tmp_path / 'ema.pth', ema_state_dict=dict(average, steps=1), **whole)
    with pytest.raises(DoesNotFit, match='this config has no EMAHook'):
        check_resumes(averaged, model, cfg)
    cfg.custom_hooks = [dict(type='EMAHook')]
    check_resumes(averaged, model, cfg)
    del average['module.head.bias']
    averaged = save(model, tmp_path / 'ema2.pth', ema_state_dict=average, **whole)
    with pytest.raises(DoesNotFit, match=r'moving average in .*missing \(head\.bias\)'):
        check_resumes(averaged, model, cfg)


def test_init_cfg_counts_and_refuses_nothing(tmp_path):
    class Head(BaseModule):

        def __init__(self, path, prefix=None):
            super().__init__(dict(type='Pretrained', checkpoint=path, prefix=prefix))
            self.fc = nn.Linear(2, 2)

    path = str(tmp_path / 'x.pth')
    torch.save({'head.fc.weight': torch.full((2, 2), 7.)}, path)
    head = Head(path, 'head.')
    head.init_weights()
    assert (head.fc.weight == 7).all()
    with pytest.raises(DoesNotFit, match=r'0 of 2 entries of Head match.*prefix'):
        Head(path).init_weights()


# --------------------------------------------------------------------------------- resuming
def run_file(path, iteration):
    torch.save(dict(meta=dict(iter=iteration, epoch=1), state_dict=dict(a=torch.ones(1))), path)


def test_resume_in_an_empty_folder_starts_from_load_from(tmp_path, capsys):
    cfg = Config(dict(work_dir=str(tmp_path), load_from='start.pth'))
    resume_from_last(cfg)
    assert (cfg.resume, cfg.load_from) == (False, 'start.pth')
    assert 'starting anew from start.pth' in capsys.readouterr().err
    run_file(tmp_path / 'epoch_1.pth', 10)
    (tmp_path / 'last_checkpoint').write_text('/moved/epoch_1.pth')
    resume_from_last(cfg)
    assert (cfg.resume, cfg.load_from) == (True, str(tmp_path / 'epoch_1.pth'))


def test_resume_without_the_note_takes_the_newest_complete_checkpoint(tmp_path, capsys):
    for number in (2, 9, 10):
        run_file(tmp_path / f'iter_{number}.pth', number)
    time.sleep(.01)
    run_file(tmp_path / 'best_score_iter_2.pth', 2)  # the last written, but not to resume from
    assert last_checkpoint(str(tmp_path)) == str(tmp_path / 'iter_10.pth')
    cut = tmp_path / 'iter_10.pth'
    cut.write_bytes(cut.read_bytes()[:-100])
    assert last_checkpoint(str(tmp_path)) == str(tmp_path / 'iter_9.pth')
    assert 'passed over: iter_10.pth' in capsys.readouterr().err
    for number in (2, 9):
        (tmp_path / f'iter_{number}.pth').write_bytes(b'')
    with pytest.raises(ConfigError, match='none to resume from'):
        last_checkpoint(str(tmp_path))
    assert last_checkpoint(str(tmp_path / 'none')) is None
