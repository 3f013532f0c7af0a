"""The converter as a user calls it: every layout into every other, by value."""

import subprocess
import sys

import pytest
import timm
import torch

from mmext.checkpoints.files import read_state_dict
from mmext.models import DMST, BiasPrunedViT


@pytest.fixture(scope='module')
def tool(load_tool):
    return load_tool('model_converters/convert_vit')


@pytest.fixture(scope='module')
def state():
    torch.manual_seed(0)
    return timm.create_model('deit_tiny_patch16_224', depth=1).state_dict()


def test_help_runs_as_a_program(root_dir):
    path = root_dir / 'tools' / 'model_converters' / 'convert_vit.py'
    out = subprocess.run([sys.executable, str(path), '--help'], capture_output=True, text=True)
    assert out.returncode == 0 and '--drop-key-bias' in out.stdout


@pytest.mark.parametrize('layout', ['timm', 'official', 'mmpretrain', 'mmext'])
@pytest.mark.parametrize('other', ['timm', 'official', 'mmpretrain', 'mmext'])
def test_round_trip(layout, other, tool, state, tmp_path, capsys):
    files = [str(tmp_path / f'{i}.pth') for i in range(4)]
    torch.save(state, files[0])
    for source, target, to in zip(files, files[1:], (layout, other, 'timm'), strict=False):
        assert tool.main([source, target, '--to', to]) == 0
    assert '154 of 154' not in capsys.readouterr().err
    back = torch.load(files[3], weights_only=True)
    assert list(back) == list(state) or set(back) == set(state)
    assert all(torch.equal(back[key], state[key]) for key in state)
    content = torch.load(files[2], weights_only=True)
    wrapper = {'official': 'model', 'mmpretrain': 'state_dict', 'mmext': 'state_dict'}.get(other)
    names = content[wrapper] if wrapper else content
    assert {'timm': 'head.weight', 'official': 'head.weight', 'mmext': 'head.fc.weight',
            'mmpretrain': 'head.layers.head.weight'}[other] in names


def test_safetensors_and_linear_head(tool, state, tmp_path):
    torch.save({'model': state}, tmp_path / 'a.pth')
    target = str(tmp_path / 'b.safetensors')
    assert tool.main([str(tmp_path / 'a.pth'), target, '--to', 'timm']) == 0
    assert torch.equal(read_state_dict(str(tmp_path / 'b.safetensors'))['norm.weight'],
                       state['norm.weight'])
    assert tool.main([str(tmp_path / 'b.safetensors'), str(tmp_path / 'c.pth'),
                      '--to', 'mmpretrain', '--head', 'linear']) == 0
    assert 'head.fc.weight' in read_state_dict(str(tmp_path / 'c.pth'))


def distilled():
    return timm.create_model('deit_tiny_distilled_patch16_224', depth=1).state_dict()


def test_distilled_deit_without_its_distillation_is_a_deit(tool, tmp_path):
    """Its position goes, too: the file computes what timm's DeiT with these weights does."""
    state = distilled()
    torch.save({'model': state}, tmp_path / 'distilled.pth')
    for layout in ('mmext', 'timm'):
        assert tool.main([str(tmp_path / 'distilled.pth'), str(tmp_path / f'{layout}.pth'), '--to',
                          layout, '--drop-distillation']) == 0
    plain = timm.create_model('deit_tiny_patch16_224', depth=1).eval()
    plain.load_state_dict(torch.load(tmp_path / 'timm.pth', weights_only=True))
    assert torch.equal(plain.pos_embed[:, 1:], state['pos_embed'][:, 2:])
    ours = BiasPrunedViT(dict(embed_dim=192, depth=1, num_heads=3), key_bias=False,
                         out_type='cls_token').eval()
    ours.load_pretrained(str(tmp_path / 'mmext.pth'), prefix='backbone.')
    image = torch.randn(1, 3, 224, 224)
    torch.testing.assert_close(ours(image)[-1], plain.forward_features(image)[:, 0],
                               atol=1e-5, rtol=1e-5)
    assert tool.main([str(tmp_path / 'distilled.pth'), str(tmp_path / 'p.pth'), '--to',
                      'mmpretrain']) == 0  # which has a model for it
    assert 'backbone.dist_token' in read_state_dict(str(tmp_path / 'p.pth'))


def test_errors(tool, state, tmp_path, capsys):
    ours = BiasPrunedViT('tiny-test').state_dict()
    ours = {'backbone.' + key: value for key, value in ours.items()}
    torch.save({'state_dict': ours}, tmp_path / 'bias.pth')
    torch.save({'state_dict': {**ours, 'neck.conv.weight': torch.ones(1)}}, tmp_path / 'det.pth')
    torch.save({'conv1.weight': torch.ones(1)}, tmp_path / 'resnet.pth')
    target = str(tmp_path / 'out.pth')
    for arguments, message in (
            (['gone.pth', target, '--to', 'timm'], 'gone.pth does not exist'),
            (['resnet.pth', target, '--to', 'timm'], 'not a ViT checkpoint'),
            (['bias.pth', target, '--to', 'timm'], '--drop-key-bias'),
            (['det.pth', target, '--to', 'mmext'], '--backbone-only'),
            (['bias.pth', str(tmp_path / 'det.pth'), '--to', 'mmext'], '--overwrite'),
            (['bias.pth', str(tmp_path / 'o.safetensors'), '--to', 'mmext'], 'suffix .pth')):
        assert tool.main([str(tmp_path / arguments[0]), *arguments[1:]]) == 1
        assert message in capsys.readouterr().err
        assert not (tmp_path / 'out.pth').exists()
    torch.save(DMST('tiny-test', attn='tssa').state_dict(), tmp_path / 'tost.pth')
    torch.save({'model': distilled()}, tmp_path / 'distilled.pth')
    for arguments, message in (
            (['tost.pth', target, '--to', 'mmpretrain'], 'one of the ToST family'),
            (['tost.pth', target, '--to', 'mmext'], 'mmext.DMST reads it'),
            (['distilled.pth', target, '--to', 'mmext'], '--drop-distillation'),
            (['bias.pth', str(tmp_path / 'bias.pth'), '--to', 'mmext', '--overwrite'], 'an input')):
        assert tool.main([str(tmp_path / arguments[0]), *arguments[1:]]) == 1
        assert message in capsys.readouterr().err
        assert not (tmp_path / 'out.pth').exists()
    assert tool.main([str(tmp_path / 'bias.pth'), target, '--to', 'timm', '--drop-key-bias']) == 0
    assert not any('key_bias' in key for key in torch.load(target, weights_only=True))
    assert tool.main([str(tmp_path / 'det.pth'), target, '--to', 'mmext', '--backbone-only',
                      '--overwrite']) == 0
    assert set(torch.load(target, weights_only=True)['state_dict']) == set(ours)
