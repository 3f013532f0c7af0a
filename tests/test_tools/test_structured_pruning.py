"""The structured-pruning baseline: smaller, still a working DeiT, written and read back."""

import json

import pytest
import timm
import torch
from mmengine.config import Config
from mmengine.registry import MODELS

import mmext.registry  # noqa: F401
from mmext.checkpoints import structured

TINY = 'deit_tiny_patch16_224'


@pytest.fixture(scope='module')
def tool(load_tool):
    return load_tool('analysis_tools/structured_pruning')


def test_clear_error_without_the_package(monkeypatch):
    monkeypatch.setitem(__import__('sys').modules, 'torch_pruning', None)
    with pytest.raises(ImportError, match='pip install torch-pruning'):
        structured.prune_vit(timm.create_model(TINY))


@pytest.mark.parametrize('options,message', [
    (dict(variant='heads'), 'heads-kept'), (dict(ratio=0.), 'ratio'), (dict(ratio=1.), 'ratio'),
    (dict(head_ratio=1.5), 'head_ratio')])
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        structured.prune_vit(timm.create_model(TINY), **options)


@pytest.mark.filterwarnings('ignore:no --checkpoint')
@pytest.mark.parametrize('variant', structured.VARIANTS)
def test_tool_writes_a_model_that_loads(tool, tmp_path, variant):
    pytest.importorskip('torch_pruning')
    out = tmp_path / 'new' / 'pruned.pth'
    tool.main([TINY, '--variant', variant, '--ratio', '0.3', '--out', str(out)])
    result = json.loads(out.with_suffix('.json').read_text())
    assert result['before']['gflops'] == pytest.approx(2.507, abs=6e-4)
    assert result['embed_dim'] == int(0.7 * 192)

    model = structured.load_pruned(out).eval()
    blocks = model.blocks
    assert [block.attn.num_heads for block in blocks] == result['num_heads']
    if variant == 'heads-kept':
        assert result['num_heads'] == [3] * 12
        assert sum(b.attn.attn_dim for b in blocks) == pytest.approx(.7 * 12 * 192, rel=.02)
    else:
        assert {block.attn.head_dim for block in blocks} == {64}
        assert sum(result['num_heads']) == int(.7 * 36)
        assert min(result['num_heads']) >= 1
    hidden = sum(result['mlp_hidden'])
    assert hidden == pytest.approx(.7 * 12 * 768, rel=.01)
    # by the closed formula of a ViT with these widths
    n, d = 197, result['embed_dim']
    macs = 196 * 768 * d + 1000 * d + 2 * n * d * hidden + sum(
        4 * n * d * b.attn.attn_dim + 2 * n * n * b.attn.attn_dim for b in blocks)
    assert result['after']['gflops'] == pytest.approx(2 * macs / 1e9, rel=1e-9)
    logits = model(torch.rand(2, 3, 224, 224))
    assert logits.shape == (2, 1000) and logits.isfinite().all()


def test_least_important_channels_go():
    """Channels that were made nearly zero everywhere are the ones that disappear."""
    pytest.importorskip('torch_pruning')
    torch.manual_seed(0)
    model = timm.create_model(TINY, num_classes=10).eval()
    x = torch.rand(1, 3, 224, 224)
    keep = torch.rand(12, 768).argsort(1) >= 230  # 538 of 768 hidden units of every MLP
    with torch.no_grad():
        for block, units in zip(model.blocks, keep, strict=True):
            block.mlp.fc1.weight[~units] = 0
            block.mlp.fc1.bias[~units] = 0
            block.mlp.fc2.weight[:, ~units] = 0
    structured.prune_vit(model, ratio=0.3)
    for block in model.blocks:
        # 30 % of 12 x 768 is five units more than were emptied: these come from the others
        assert block.mlp.fc1.weight.abs().sum(1).gt(0).sum() >= 535
    assert model(x).shape == (1, 10)


@pytest.fixture
def pruned_small(tmp_path):
    pytest.importorskip('torch_pruning')
    model = timm.create_model('deit_small_patch16_224')
    heads = structured.prune_vit(model, 'heads-pruned')
    structured.save_pruned(tmp_path / 'small.pth', model, 'deit_small_patch16_224', heads)
    return tmp_path / 'small.pth', model


@pytest.mark.usefixtures('mmpretrain_scope')
def test_finetuning_config(root_dir, pruned_small):
    path, model = pruned_small
    cfg = Config.fromfile(
        root_dir / 'configs/deit_bias/structured/deit-s-heads-pruned-0.3_8xb128-ft_in1k.py')
    cfg.model.backbone.checkpoint = str(path)
    classifier = MODELS.build({**cfg.model, 'data_preprocessor': cfg.data_preprocessor})
    classifier.init_weights()
    classifier.eval()
    x = torch.rand(2, 3, 224, 224)
    with torch.no_grad():
        classifier.head.fc.load_state_dict(model.head.state_dict())
        torch.testing.assert_close(classifier(x), model.eval()(x), atol=1e-4, rtol=1e-4)
    depth = classifier.backbone.get_layer_depth
    assert depth('backbone.vit.blocks.3.mlp.fc1.weight', 'backbone.') == (4, 14)
    assert depth('backbone.vit.pos_embed', 'backbone.') == (0, 14)
    assert depth('head.fc.weight', 'backbone.') == (13, 14)


def test_foreign_file_is_refused(tmp_path):
    torch.save({'model': {}}, tmp_path / 'a.pth')
    with pytest.raises(ValueError, match=r'structured_pruning\.py'):
        structured.load_pruned(tmp_path / 'a.pth')


def test_another_image_size(tmp_path):
    """Positions are resized without antialiasing; the backbone takes the size, else the file's."""
    from timm.layers import resample_abs_pos_embed
    torch.manual_seed(0)
    vit = timm.create_model(TINY, depth=1, img_size=64)
    torch.nn.init.normal_(vit.pos_embed)
    small = {'model': vit.state_dict(), 'arch': TINY, 'num_heads': [3]}
    torch.save(small, tmp_path / 'small.pth')
    options = dict(depth=1)
    large = structured.load_pruned(tmp_path / 'small.pth', img_size=(96, 128), **options).eval()
    assert large.pos_embed.shape == (1, 1 + 6 * 8, 192)
    expected = resample_abs_pos_embed(
        vit.pos_embed, new_size=[6, 8], num_prefix_tokens=1, antialias=False)
    torch.testing.assert_close(large.pos_embed, expected, rtol=1e-4, atol=1e-4)
    assert large(torch.rand(1, 3, 96, 128)).shape == (1, 1000)
    whole = timm.create_model(TINY)
    torch.save({'model': whole.state_dict(), 'arch': TINY, 'num_heads': [3] * 12},
               tmp_path / 'whole.pth')
    backbone = MODELS.build(dict(type='mmext.StructuredPrunedViT', img_size=256,
                                 checkpoint=str(tmp_path / 'whole.pth')))
    assert backbone(torch.rand(1, 3, 256, 256))[0].shape == (1, 192)
