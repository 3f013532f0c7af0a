"""ViT files of every layout load by value; what does not fit is loud."""

import os
import pickle
import tempfile

import pytest
import timm
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from mmext.checkpoints.files import read_state_dict
from mmext.checkpoints.vit import (
    detect_layout,
    find_grid,
    mmpretrain_to_timm,
    timm_to_mmext,
    timm_to_mmpretrain,
    to_timm,
)
from mmext.models import BiasPrunedViT
from mmext.registry import MODELS

ARCH = dict(embed_dim=192, depth=2, num_heads=3)


@pytest.fixture(scope='module')
def reference():
    torch.manual_seed(0)
    model = timm.create_model('deit_tiny_patch16_224', depth=2).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.05)
    return model


def write(path, state, layout):
    content = {'timm': state, 'official': {'model': state, 'epoch': 3},
               'mmpretrain': {'meta': {}, 'state_dict': timm_to_mmpretrain(state)},
               'mmpretrain bare': {k.removeprefix('backbone.'): v
                                   for k, v in timm_to_mmpretrain(state).items()},
               'mmext': {'meta': {}, 'state_dict': timm_to_mmext(state)},
               'ddp': {'model': {'module.' + k: v for k, v in state.items()}}}[layout]
    torch.save(content, path)
    return str(path)


def ours(**kwargs):
    return BiasPrunedViT(ARCH, bias_init='zeros', **kwargs).eval()


@pytest.mark.parametrize('layout', ['timm', 'official', 'mmpretrain', 'mmpretrain bare', 'mmext',
                                    'ddp'])
def test_every_layout_loads_by_value(layout, reference, tmp_path):
    path = write(tmp_path / 'a.pth', reference.state_dict(), layout)
    model = ours()
    report = model.load_pretrained(path)
    assert len(report.loaded) == len(reference.state_dict()) - 2
    assert report.new == [f'blocks.{i}.attn.key_bias.weight' for i in range(2)]
    assert report.dropped == ['head.weight', 'head.bias'] and not report.resized
    for name in report.loaded:
        assert torch.equal(model.state_dict()[name], reference.state_dict()[name])
    x = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(
            reference.head(model(x)[0]), reference(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize('prefix', ['backbone.', 'backbone', ''])
def test_classifier_checkpoint_as_detector_initialization(prefix, tmp_path):
    classifier = BiasPrunedViT(ARCH)
    state = {'backbone.' + k: v for k, v in classifier.state_dict().items()}
    state['head.fc.weight'] = torch.randn(10, 192)
    torch.save({'state_dict': state, 'meta': {}}, tmp_path / 'c.pth')
    detector = MODELS.build(dict(
        type='mmext.BiasPrunedViT', arch=ARCH, img_size=(768, 1024), with_cls_token=False,
        out_type='featmap', final_norm=False,
        init_cfg=dict(type='Pretrained', checkpoint=str(tmp_path / 'c.pth'), prefix=prefix)))
    detector.init_weights()
    theirs = classifier.state_dict()
    for name, value in detector.state_dict().items():
        if name == 'pos_embed':
            grid = theirs[name][0, 1:].t().reshape(1, 192, 14, 14)
            grid = F.interpolate(grid, size=(48, 64), mode='bicubic').reshape(192, -1).t()
            torch.testing.assert_close(value[0], grid)
        elif name != 'pos_grid':
            assert torch.equal(value, theirs[name]), name


def test_one_line_says_what_happened(reference, tmp_path, monkeypatch):
    lines = []
    monkeypatch.setattr('mmext.checkpoints.report.print_log', lambda text, **_: lines.append(text))
    ours(img_size=(112, 448)).load_pretrained(
        write(tmp_path / 'a.pth', reference.state_dict(), 'timm'))
    assert len(lines) == 1 and '\n' not in lines[0]
    for part in ('31 entries loaded', '2 new (blocks.*.attn.key_bias.weight)',
                 '2 dropped (head.weight, head.bias)', 'pos_embed 14x14 to 7x28'):
        assert part in lines[0]


@pytest.mark.parametrize('dist', [False, True])
def test_14x14_to_7x28_and_back(dist, tmp_path):
    """196 patch positions on both sides: the count says nothing, the grid must be known."""
    torch.manual_seed(0)
    name = 'deit_tiny_distilled_patch16_224' if dist else 'deit_tiny_patch16_224'
    reference = timm.create_model(name, depth=2)
    torch.save({'model': reference.state_dict()}, tmp_path / 'square.pth')
    wide = ours(img_size=(112, 448))
    report = wide.load_pretrained(str(tmp_path / 'square.pth'))
    pos = reference.pos_embed.detach()[0]
    prefix = 2 if dist else 1
    grid = pos[prefix:].t().reshape(1, 192, 14, 14)
    want = F.interpolate(grid, size=(7, 28), mode='bicubic')
    torch.testing.assert_close(wide.pos_embed[0, 1:], want.reshape(192, -1).t())
    assert torch.equal(wide.pos_embed[0, 0], pos[0])
    assert report.resized == ['pos_embed 14x14 to 7x28']

    torch.save(wide.state_dict(), tmp_path / 'wide.pth')
    again = ours(img_size=(112, 448))
    again.load_pretrained(str(tmp_path / 'wide.pth'))
    assert torch.equal(again.pos_embed, wide.pos_embed)  # the same grid: untouched
    back = ours()
    back.load_pretrained(str(tmp_path / 'wide.pth'))
    want = F.interpolate(want, size=(14, 14), mode='bicubic')
    torch.testing.assert_close(back.pos_embed[0, 1:], want.reshape(192, -1).t())
    plain = ours()
    plain.load_state_dict(wide.state_dict())  # strict, as a resumed run does
    torch.testing.assert_close(plain.pos_embed, back.pos_embed)
    wide.load_state_dict(wide.state_dict())


@pytest.mark.parametrize('size, grid', [((1024, 768), (64, 48)), ((768, 1024), (48, 64))])
@pytest.mark.parametrize('name', ['deit_tiny_patch16_224', 'deit_tiny_distilled_patch16_224'])
def test_published_positions_in_a_wide_backbone_without_class_token(name, size, grid, tmp_path):
    """224² with one and with two prefix tokens: what is resampled is the 14 x 14 grid alone."""
    torch.manual_seed(0)
    reference = timm.create_model(name, depth=2)
    torch.nn.init.normal_(reference.pos_embed)
    torch.save({'model': reference.state_dict()}, tmp_path / 'a.pth')
    backbone = ours(img_size=size, with_cls_token=False, out_type='featmap')
    backbone.load_pretrained(str(tmp_path / 'a.pth'))
    patches = reference.pos_embed.detach()[0, reference.num_prefix_tokens:]
    assert patches.shape == (196, 192)
    want = F.interpolate(patches.t().reshape(1, 192, 14, 14), size=grid, mode='bicubic')
    torch.testing.assert_close(backbone.pos_embed[0], want.reshape(192, -1).t())
    torch.save(backbone.state_dict(), tmp_path / 'b.pth')
    again = ours(img_size=size, with_cls_token=False, out_type='featmap')
    again.load_pretrained(str(tmp_path / 'b.pth'))
    assert torch.equal(again.pos_embed, backbone.pos_embed)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9),
       st.booleans(), st.booleans())
def test_any_grid_into_any_other(h, w, height, width, old_cls, new_cls):
    """Saved and loaded between any two sizes, with and without a class token on either side."""
    def backbone(rows, cols, with_cls):
        return BiasPrunedViT(dict(embed_dim=8, depth=1, num_heads=1), patch_size=2,
                             img_size=(2 * rows, 2 * cols), with_cls_token=with_cls,
                             out_type='featmap')

    old = backbone(h, w, old_cls)
    torch.nn.init.normal_(old.pos_embed)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, 'a.pth')
        torch.save(old.state_dict(), path)
        new = backbone(height, width, new_cls)
        if new_cls and not old_cls:
            with pytest.raises(ValueError, match='missing: cls_token'):
                new.load_pretrained(path)
            return
        new.load_pretrained(path)
    grid = old.pos_embed.detach()[0, int(old_cls):].t().reshape(1, 8, h, w)
    want = grid if (h, w) == (height, width) else F.interpolate(
        grid, size=(height, width), mode='bicubic')
    torch.testing.assert_close(new.pos_embed[0, int(new_cls):], want.reshape(8, -1).t())
    if new_cls:
        assert torch.equal(new.pos_embed[0, 0], old.pos_embed[0, 0])


def test_square_backbones_keep_the_published_names(reference):
    names = {k for k in reference.state_dict() if not k.startswith('head')}
    assert {k for k in ours().state_dict() if 'key_bias' not in k} == names


def test_grid_of_a_file():
    assert find_grid(196, None, (7, 28)) == (14, 14)
    assert find_grid(200, None, (10, 20)) == (10, 20)
    assert find_grid(200, (8, 25), (10, 20)) == (8, 25)
    with pytest.raises(ValueError, match='pos_grid'):
        find_grid(200, None, (14, 14))


def test_pos_grid_can_be_given(tmp_path):
    state = timm.create_model('deit_tiny_patch16_224', depth=2, img_size=(112, 448)).state_dict()
    path = write(tmp_path / 'a.pth', state, 'timm')
    model = ours(img_size=(112, 448))
    model.load_pretrained(path, pos_grid=(7, 28))
    assert torch.equal(model.pos_embed, state['pos_embed'])


def test_mae_files(tmp_path):
    torch.manual_seed(0)
    tuned = timm.create_model('deit_tiny_patch16_224', depth=2, global_pool='avg').eval()
    pooled = ours(out_type='avg_featmap', fc_norm=True)
    report = pooled.load_pretrained(write(tmp_path / 'ft.pth', tuned.state_dict(), 'official'))
    assert 'fc_norm.weight' in report.loaded
    x = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(tuned.head(pooled(x)[0]), tuned(x), rtol=0, atol=1e-5)
    state = timm.create_model('deit_tiny_patch16_224', depth=2, num_classes=0).state_dict()
    state.update({'mask_token': torch.zeros(1, 1, 9),
                  'decoder_blocks.0.norm1.weight': torch.ones(9),
                  'decoder_pos_embed': torch.zeros(1, 197, 9)})
    report = pooled.load_pretrained(write(tmp_path / 'pre.pth', state, 'official'))
    assert {'fc_norm.weight', 'fc_norm.bias'} <= set(report.new)
    assert {'norm.weight', 'mask_token', 'decoder_pos_embed'} <= set(report.dropped)


def test_query_key_free_backbone_takes_value_rows(reference, tmp_path):
    model = ours(num_qk_free=1)
    model.load_pretrained(write(tmp_path / 'a.pth', reference.state_dict(), 'timm'))
    assert torch.equal(model.blocks[1].attn.v.weight, reference.blocks[1].attn.qkv.weight[384:])


def test_half_precision_files_fill_fp32_parameters(reference, tmp_path):
    state = {k: v.half() for k, v in reference.state_dict().items()}
    save_file(state, str(tmp_path / 'a.safetensors'))
    model = ours()
    model.load_pretrained(str(tmp_path / 'a.safetensors'))
    assert model.norm.weight.dtype == torch.float32
    assert torch.equal(model.norm.weight, state['norm.weight'].float())


def test_relative_positions_are_resampled(tmp_path):
    options = dict(with_cls_token=False, out_type='featmap', rel_pos=True)
    small, large = ours(img_size=112, **options), ours(img_size=224, **options)
    torch.nn.init.normal_(small.blocks[0].attn.rel_pos_h)
    torch.save(small.state_dict(), tmp_path / 'a.pth')
    large.load_pretrained(str(tmp_path / 'a.pth'))
    want = F.interpolate(small.blocks[0].attn.rel_pos_h.t()[None], size=27, mode='linear')[0].t()
    torch.testing.assert_close(large.blocks[0].attn.rel_pos_h, want)


def change(state, what):
    state = dict(state)
    if what == 'missing':
        del state['blocks.1.mlp.fc1.weight']
    elif what == 'left over':
        state['blocks.2.norm1.weight'] = torch.ones(192)
    elif what == 'shape':
        state['norm.weight'] = torch.ones(5)
    elif what == 'no cls':
        del state['cls_token']
        state['pos_embed'] = state['pos_embed'][:, 1:]
    return state


@pytest.mark.parametrize('what, message', [
    ('missing', 'missing: blocks.*.mlp.fc1.weight'), ('left over', 'left over: blocks.*.norm1'),
    ('shape', r'norm.weight \(5,\) for \(192,\)'), ('no cls', 'missing: cls_token')])
def test_what_does_not_fit_is_an_error(what, message, reference, tmp_path):
    path = write(tmp_path / 'a.pth', change(reference.state_dict(), what), 'timm')
    model = ours()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(ValueError, match=message):
        model.load_pretrained(path)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())


def test_both_families_report_alike(monkeypatch, tmp_path):
    from mmext.models import DMST
    backbones = [BiasPrunedViT('tiny-test'), DMST('tiny-test')]
    lines, faults = [], []
    monkeypatch.setattr('mmext.checkpoints.report.print_log', lambda text, **_: lines.append(text))
    for backbone in backbones:
        state = {key: value for key, value in backbone.state_dict().items()
                 if 'key_bias' not in key and 'membership' not in key}
        state['head.weight'] = torch.ones(3)
        torch.save(state, tmp_path / 'a.pth')
        backbone.load_pretrained(str(tmp_path / 'a.pth'))
        state['extra'] = torch.ones(3)
        torch.save(state, tmp_path / 'a.pth')
        with pytest.raises(ValueError, match=r'1 names left over: extra$') as error:
            backbone.load_pretrained(str(tmp_path / 'a.pth'))
        faults.append(str(error.value))
    vit, dmst = (line.split(': ', 1)[1] for line in lines)
    assert '2 new (blocks.*.attn.key_bias.weight), 1 dropped (head.weight), resized: none' in vit
    assert '2 new (blocks.*.attn.membership.weight), 1 dropped (head.weight), resized' in dmst
    assert 'does not fit this BiasPrunedViT (' in faults[0]
    assert "does not fit this DMST with attn='mmext.DMSA' (" in faults[1]


def test_files_that_are_no_vit(tmp_path):
    torch.save({'conv1.weight': torch.zeros(3)}, tmp_path / 'resnet.pth')
    torch.save({'epoch': 3}, tmp_path / 'empty.pth')
    (tmp_path / 'text.pth').write_text('hello')
    state = {'backbone.' + k: v for k, v in ours().state_dict().items()}
    torch.save({'state_dict': state}, tmp_path / 'ours.pth')
    for name, prefix, message in (('resnet.pth', '', 'not a ViT checkpoint'),
                                  ('empty.pth', '', 'holds no tensors'),
                                  ('text.pth', '', 'without executing code'),
                                  ('ours.pth', 'neck.', "prefix 'neck.'")):
        with pytest.raises(ValueError, match=message):
            ours().load_pretrained(str(tmp_path / name), prefix)
    with pytest.raises(FileNotFoundError, match=r'gone\.pth'):
        ours().load_pretrained(str(tmp_path / 'gone.pth'))


def test_code_in_a_file_is_not_executed(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / 'proof'), 'w'))

    with open(tmp_path / 'evil.pth', 'wb') as file:
        pickle.dump({'state_dict': Evil()}, file, protocol=2)
    torch.save({'state_dict': Evil()}, tmp_path / 'evil_zip.pth')
    torch.save({'state_dict': Evil()}, tmp_path / 'evil_old.pth',
               _use_new_zipfile_serialization=False)
    for name in ('evil.pth', 'evil_zip.pth', 'evil_old.pth'):
        with pytest.raises(ValueError, match='without executing code') as refusal:
            read_state_dict(str(tmp_path / name))
        if name != 'evil.pth':  # that one is no file of torch's: no permission would help
            assert 'set TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1' in str(refusal.value)
    assert not (tmp_path / 'proof').exists()


def test_the_user_may_trust_a_file(tmp_path, monkeypatch):
    class Own:
        pass

    monkeypatch.setattr(f'{__name__}.Own', Own, raising=False)
    Own.__qualname__, Own.__module__ = 'Own', __name__
    torch.save({'state_dict': {'a': torch.ones(2)}, 'note': Own()}, tmp_path / 'own.pth')
    with pytest.raises(ValueError, match=r'Own\)\. If it is your own and you trust it'):
        read_state_dict(str(tmp_path / 'own.pth'))
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    monkeypatch.delenv('TORCH_FORCE_WEIGHTS_ONLY_LOAD', raising=False)
    assert read_state_dict(str(tmp_path / 'own.pth'))['a'].tolist() == [1, 1]


def test_files_of_a_run_hold_more_than_tensors(reference, tmp_path):
    from mmengine.logging import MessageHub
    hub = MessageHub('vit-checkpoint-test')
    hub.update_scalar('train/loss', 0.5)
    torch.save({'meta': {'epoch': 1}, 'state_dict': timm_to_mmext(reference.state_dict()),
                'message_hub': hub.state_dict()}, tmp_path / 'epoch_1.pth')
    assert len(ours().load_pretrained(str(tmp_path / 'epoch_1.pth')).loaded) == 30


def test_names_match_mmpretrain_and_the_same_numbers_come_out(reference):
    from mmpretrain.registry import MODELS as MMPRETRAIN
    theirs = MMPRETRAIN.build(dict(
        type='mmpretrain.ImageClassifier',
        backbone=dict(type='mmpretrain.VisionTransformer', img_size=224, arch=dict(
            embed_dims=192, num_layers=2, num_heads=3, feedforward_channels=768)),
        head=dict(type='mmpretrain.VisionTransformerClsHead', num_classes=1000, in_channels=192)))
    converted = timm_to_mmpretrain(reference.state_dict())
    theirs.load_state_dict(converted)
    theirs.eval()
    x = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(theirs(x), reference(x), rtol=0, atol=1e-5)
    for state in (converted, theirs.backbone.state_dict()):
        back = mmpretrain_to_timm(state)
        assert all(torch.equal(value, reference.state_dict()[key]) for key, value in back.items())


def test_round_trips_keep_every_name(reference):
    state = dict(reference.state_dict())
    state['blocks.0.attn.key_bias.weight'] = torch.randn(3, 192)
    state['head_dist.weight'] = torch.randn(4, 192)
    for convert in (timm_to_mmpretrain, timm_to_mmext):
        back = to_timm(convert(state))
        if convert is timm_to_mmpretrain:
            assert set(back) == set(state)
        assert all(torch.equal(back[key], state[key]) for key in back)
    assert detect_layout(state) == 'timm'


def test_real_weights(shared_dir):
    path = shared_dir / 'weights' / 'vit_small_patch16_224_pretrained.safetensors'
    model = BiasPrunedViT('deit-small', bias_init='zeros').eval()
    report = model.load_pretrained(str(path))
    assert len(report.loaded) == 150 and len(report.new) == 12 and not report.dropped
    reference = timm.create_model('deit_small_patch16_224', num_classes=0).eval()
    reference.load_state_dict({k: v.float() for k, v in read_state_dict(str(path)).items()})
    x = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        torch.testing.assert_close(model(x)[0], reference(x), rtol=0, atol=1e-5)
