"""Detectors of the folder start from a classifier's weights, or say at once why they cannot."""

import pytest
import torch
import torch.nn.functional as F
from detection_helpers import PAIR, build, small_config
from mmengine.registry import MODELS

import mmext.registry  # noqa: F401  (before mmpretrain)

DMST = 'mask-rcnn_dmst-s_sfp_lsj-100e_coco.py'
FORMS = {  # what may be in a file: content, prefix of init_cfg
    'classifier, prefix': (lambda net, head: dict(
        meta={}, state_dict={**under('backbone.', net), **under('head.fc.', head)}), 'backbone.'),
    'classifier, no prefix': (lambda net, head: dict(
        meta={}, state_dict={**under('backbone.', net), **under('head.fc.', head)}), ''),
    'model': (lambda net, head: dict(model={**net, **under('head.', head)}, epoch=3), ''),
    'state_dict': (lambda net, head: dict(state_dict={**net, **under('head.', head)}), ''),
    'bare tensors': (lambda net, head: {**net, **under('head.', head)}, ''),
}


def under(prefix, state):
    return {prefix + name: value for name, value in state.items()}


pytestmark = pytest.mark.usefixtures('clean_scope')


@pytest.fixture
def lines(monkeypatch):
    """What loading logs."""
    found = []
    monkeypatch.setattr(
        'mmext.checkpoints.report.print_log', lambda text, **_: found.append(text))
    return found


def detector(name, **init_cfg):
    cfg = small_config(name)
    cfg.model.backbone.init_cfg = dict(type='Pretrained', **init_cfg)
    return cfg


def classifier(name):
    """Backbone with class token at another size, as it comes out of pre-training, and its head."""
    backbone = small_config(name).model.backbone
    options = dict(img_size=64) if name == PAIR else {}
    backbone = MODELS.build({
        'type': backbone.type, 'arch': backbone.arch, 'out_type': 'cls_token', **options})
    torch.manual_seed(1)
    for value in backbone.state_dict().values():
        if value.is_floating_point():
            value.normal_()
    return backbone.state_dict(), dict(weight=torch.randn(10, 32), bias=torch.randn(10))


@pytest.mark.parametrize('name', [PAIR, DMST])
@pytest.mark.parametrize('form', FORMS)
def test_every_form_of_file_loads_by_value(name, form, tmp_path, lines):
    backbone, head = classifier(name)
    write, prefix = FORMS[form]
    path = str(tmp_path / 'a.pth')
    torch.save(write(backbone, head), path)
    model = build(detector(name, checkpoint=path, prefix=prefix))
    loaded = 0
    for key, value in model.backbone.state_dict().items():
        if key == 'pos_embed':  # 4 x 4 and a class token to 8 x 8 without
            grid = backbone[key][0, 1:].t().reshape(1, 32, 4, 4)
            want = F.interpolate(grid, size=(8, 8), mode='bicubic').reshape(32, -1).t()
            torch.testing.assert_close(value[0], want)
        elif key in backbone:
            assert torch.equal(value, backbone[key]), key
        else:
            continue
        loaded += 1
    assert loaded == len(model.backbone.state_dict())
    assert len(lines) == 1 and '\n' not in lines[0]
    assert f'{loaded} ' in lines[0] and ' loaded, 0 new' in lines[0]


@pytest.mark.parametrize('name', [PAIR, DMST])
@pytest.mark.parametrize('what, prefix', [
    ('another network', ''), ('another network', 'backbone.'), ('right file', 'encoder.'),
    ('a backbone of another family', ''), ('a deeper backbone', ''), ('nothing', '')])
def test_files_that_do_not_fit_are_errors(name, what, prefix, tmp_path, lines):
    backbone, head = classifier(name)
    if what == 'another network':
        state = {'conv1.weight': torch.randn(8, 3, 7, 7), 'fc.weight': torch.randn(10, 8)}
        backbone = under('backbone.', state) if prefix else state
    elif what == 'a backbone of another family':
        backbone, head = classifier(DMST if name == PAIR else PAIR)
    elif what == 'a deeper backbone':
        backbone['blocks.12.norm1.weight'] = torch.ones(32)
    elif what == 'nothing':
        backbone, head = {}, {}
    path = str(tmp_path / 'a.pth')
    torch.save(dict(state_dict={**backbone, **under('head.', head)}), path)
    with pytest.raises(ValueError) as error:
        build(detector(name, checkpoint=path, prefix=prefix))
    assert path in str(error.value) and len(str(error.value)) > len(path) + 20
    assert not lines  # nothing that would read like success
