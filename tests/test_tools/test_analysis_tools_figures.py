"""Every analysis tool in this process on a tiny model and two images; numbers held against the
functions and the model itself."""

import importlib
import json
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config

from mmext.analysis import attention
from mmext.cli import analysis as cli
from mmext.cli.arguments import analysis_parser
from mmext.cli.figures import bias_decomposition
from mmext.models import DMST, BiasPrunedViT

TOOLS = Path(__file__).resolve().parents[2] / 'tools' / 'analysis_tools'
MEAN, STD = [120., 110, 100], [60., 50, 40]
CLASSIFIER = """
default_scope = 'mmpretrain'
model = dict(
    type='ImageClassifier',
    data_preprocessor=dict(mean={mean}, std={std}, to_rgb=True, num_classes=3),
    backbone=dict({backbone}),
    head=dict(type='LinearClsHead', num_classes=3, in_channels=32))
"""
DETECTOR = """
default_scope = 'mmdet'
model = dict(
    type='RetinaNet',
    data_preprocessor=dict(
        type='mmext.MaskedDetDataPreprocessor', mean={mean}, std={std}, bgr_to_rgb=True,
        pad_size_divisor=64),
    backbone=dict(
        type='mmext.BiasPrunedViT', arch='tiny-test', img_size=64, with_cls_token=False,
        out_type='featmap', use_valid_mask=True),
    neck=dict(type='FPN', in_channels=[32], out_channels=16, num_outs=1),
    bbox_head=dict(
        type='RetinaHead', num_classes=3, in_channels=16,
        anchor_generator=dict(type='AnchorGenerator', scales=[4], ratios=[1.], strides=[16])))
test_dataloader = dict(dataset=dict(type='CocoDataset', pipeline=[
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(60, 40), keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs')]))
"""
VIT = "type='mmext.BiasPrunedViT', arch='tiny-test', img_size=64"
BODY = "type='mmext.DMST', arch=dict(embed_dim=32, depth=3, num_heads=4), out_type='cls_token'"


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    return lambda name: importlib.import_module(name)


@pytest.fixture
def photos(tmp_path):
    skimage = pytest.importorskip('skimage.data')
    folder = tmp_path / 'photos'
    folder.mkdir()
    for name in ('astronaut', 'chelsea'):
        image = getattr(skimage, name)()[..., ::-1]
        cv2.imwrite(str(folder / f'{name}.png'), cv2.resize(image, (90, 70)))
    return folder


def write(path, text, **parts):
    path.write_text(text.format(mean=MEAN, std=STD, **parts))
    return str(path)


@pytest.fixture
def vit(tmp_path):
    return write(tmp_path / 'vit.py', CLASSIFIER, backbone=VIT)


@pytest.fixture
def checkpoint(tmp_path):
    """A backbone with bias, in timm's names."""
    torch.manual_seed(3)
    model = BiasPrunedViT('tiny-test', img_size=64)
    for block in model.blocks:
        torch.nn.init.normal_(block.attn.qkv.weight, std=.4)
        torch.nn.init.normal_(block.attn.key_bias.weight, std=.3)
    path = tmp_path / 'vit.pth'
    torch.save(model.state_dict(), path)
    return str(path)


def loaded(checkpoint):
    model = BiasPrunedViT('tiny-test', img_size=64).eval()
    model.load_state_dict(torch.load(checkpoint))
    return model


@torch.no_grad()
def intermediates(checkpoint, images):
    return loaded(checkpoint).forward_intermediates(images)


def inputs_of(photos, side=64):
    """What the network should see: the center of the covering resize, normalized RGB."""
    out = []
    for path in sorted(photos.iterdir()):
        image = cv2.imread(str(path))
        scale = max(side / image.shape[0], side / image.shape[1])
        width = round(image.shape[1] * scale)
        image = cv2.resize(image, (width, side), interpolation=cv2.INTER_AREA)
        left = (width - side) // 2
        image = image[:, left:left + side, ::-1].astype(np.float32)
        out.append(torch.tensor((image - MEAN) / STD).permute(2, 0, 1).float())
    return torch.stack(out)


def run(tool, name, out, *args):
    tool(name).main([*map(str, args), '--out', str(out), '--device', 'cpu', '--json'])
    result = json.loads((out / f'{name}.json').read_text())
    for figure in result['figures']:
        assert cv2.imread(figure).std() > 5
    return result


def close(found, expected):
    np.testing.assert_allclose(np.array(found, float), np.asarray(expected, float), atol=2e-5)


def test_attention_maps(tool, vit, checkpoint, photos, tmp_path):
    result = run(tool, 'attention_maps', tmp_path / 'out', vit, checkpoint, '--images', photos,
                 '--heads', 1, '--layers', -1)
    attn = intermediates(checkpoint, inputs_of(photos))[1]['attn']
    for i, name in enumerate(('astronaut', 'chelsea')):
        [entry] = result['images'][name]
        assert (entry['layer'], entry['head'], entry['tokens']) == (1, 1, 17)
        close(entry['row_entropy_nats'], attention.row_entropy(attn)[i, 1])
        assert entry['most_attended_column'] == attn[i, 1].mean(0).argmax()
        top = attn[i, 1].mean(0).max()  # a tenth of 17 columns is one
        close(entry['mass_of_top_tenth_of_columns'], top)
    assert 'notes' not in result or not result['notes']


def test_models_side_by_side_and_notes_on_random_weights(
        tool, vit, checkpoint, photos, tmp_path, capsys):
    plain = write(tmp_path / 'plain.py', CLASSIFIER, backbone=VIT + ', key_bias=False')
    result = run(tool, 'oracle_gap', tmp_path / 'out', vit, checkpoint, '--compare', plain,
                 '--images', photos, '--keep-ratio', .5, .1, '--batch-size', 2)
    assert 'random weights: give a checkpoint' in capsys.readouterr().err
    assert result['notes'] == {'plain': ['random weights: give a checkpoint']}
    assert set(result['models']['plain']['mean']) == {'global', 'query', 'gap'}
    attn = intermediates(checkpoint, inputs_of(photos))
    for layer in (0, 1):
        expected = attention.oracle_gap(attn[layer]['attn'], [.5, .1])
        for name, values in expected.items():
            close(result['models']['vit']['mean'][name][layer], values.mean((0, 1)))
        per_image = expected['gap'].mean(1)
        close(result['models']['vit']['spread']['gap'][layer], per_image.std(0, correction=0))


def test_oracle_gap_of_a_real_vit(tool, shared_dir, tmp_path):
    """ViT-S on photographs: the gap peaks in an early block and is small in late ones, the more
    columns are dropped the larger. (Block 0 of these weights hardly looks at the query.)"""
    skimage = pytest.importorskip('skimage.data')
    for name in ('astronaut', 'chelsea', 'coffee'):
        cv2.imwrite(str(tmp_path / f'{name}.png'), getattr(skimage, name)()[..., ::-1])
    weights = shared_dir / 'weights' / 'vit_small_patch16_224_pretrained.safetensors'
    config = write(tmp_path / 'vit.py', CLASSIFIER.replace('32)', '384)'), backbone=(
        "type='mmext.BiasPrunedViT', arch='deit-small', key_bias=False"))
    result = run(tool, 'oracle_gap', tmp_path / 'out', config, weights, '--images', tmp_path)
    gap = np.array(result['models']['vit']['mean']['gap'])
    assert not result['notes'] and gap.shape == (12, 3) and (gap >= 0).all()
    mild, middle, strong = gap.T
    assert (mild < middle).all() and (middle < strong).all()
    for curve in (mild, middle, strong):
        assert curve.argmax() in (1, 2, 3, 4)
        assert curve[7:11].mean() < .6 * curve[1:5].mean()


def test_bias_decomposition(tool, vit, checkpoint, photos, tmp_path):
    result = run(tool, 'bias_decomposition', tmp_path / 'out', vit, checkpoint, '--images',
                 photos / 'chelsea.png', '--keep-ratio', .5, '--layers', 0)
    assert sorted(Path(f).name for f in result['figures']) == [
        'decomposition_chelsea.png', 'kept_chelsea.png']
    bias = intermediates(checkpoint, inputs_of(photos)[1:])[0]['bias']
    [entry] = result['images']['chelsea']
    bias[0, :, 0] = torch.inf  # the class token is always kept, within k
    assert entry['kept_columns'] == sorted(bias[0, 0].topk(8).indices.tolist())


def test_parts_of_the_logits():
    logits, bias = np.arange(9.).reshape(3, 3), np.array([1., 0, -1])
    first, second, third = bias_decomposition.parts(logits, bias)
    np.testing.assert_array_equal(second, [[1, 0, -1]] * 3)
    np.testing.assert_array_equal(third, first + second)


def test_bias_correlation(tool, vit, checkpoint, photos, tmp_path):
    result = run(tool, 'bias_correlation', tmp_path / 'out', vit, checkpoint, '--images', photos,
                 '--keep-ratio', .3)
    tensors = intermediates(checkpoint, inputs_of(photos))
    for layer in (0, 1):
        expected = attention.bias_correlation(tensors[layer])
        for name, r in expected.items():
            close(result['mean'][name][layer], r.mean())
            close(result['spread'][name][layer], r.mean(1).std(correction=0))
            close(result['scatter_r'][name][layer], r.mean())
        received = attention.column_mean(tensors[layer]['attn'])
        close(result['mean']['overlap at 0.3'][layer],
              attention.overlap(tensors[layer]['bias'], received, .3).mean())


@pytest.mark.parametrize('site', [None, 'input', 'attention', 'block'])
def test_coding_rate(tool, photos, tmp_path, site):
    """Against the network stepped through by hand; behind the attention is the default."""
    from mmext.ops.coding_rate import exact_coding_rate, rate_reduction, variational_coding_rate
    torch.manual_seed(5)
    model = DMST(dict(embed_dim=32, depth=3, num_heads=4), out_type='cls_token').eval()
    torch.save(model.state_dict(), tmp_path / 'dmst.pth')
    config = write(tmp_path / 'dmst.py', CLASSIFIER, backbone=BODY)
    other = write(tmp_path / 'tost.py', CLASSIFIER, backbone=BODY.replace('DMST', 'ToST'))
    result = run(tool, 'coding_rate', tmp_path / 'out', config, tmp_path / 'dmst.pth', '--compare',
                 other, '--images', photos, '--shape', 64, *(['--site', site] if site else []))
    found = result['models']['dmst']
    with torch.no_grad():
        x, hw, _ = model.embed(inputs_of(photos))
        for layer, block in enumerate(model.blocks):
            middle = x + block.gamma1 * block.attn(block.norm1(x), hw)
            after = middle + block.gamma2 * block.mlp(block.norm2(middle))
            z = block.norm1({'input': x, 'block': after}.get(site, middle))
            t = block.attn.forward_intermediates(z, hw)[1]
            rate = variational_coding_rate(t['v'], t['membership'], t['gate'])
            close(found['mean']['variational'][layer], rate.mean())
            close(found['spread']['variational'][layer], rate.std(correction=0))
            close(found['mean']['exact'][layer],
                  exact_coding_rate(t['v'], t['membership'], t['gate']).mean())
            mcr2 = rate_reduction(z.double(), t['membership'].double(), normalize=True)
            for name, value in mcr2._asdict().items():
                close(found['mean'][name][layer], value.mean())
            x = after
    close(found['ceiling'], .5 * 8 * np.log(101))
    assert set(result['models']) == {'dmst', 'tost'}


def test_membership_maps(tool, photos, tmp_path):
    config = write(tmp_path / 'dmst.py', CLASSIFIER, backbone=BODY)
    result = run(tool, 'membership_maps', tmp_path / 'out', config, '--images', photos,
                 '--shape', 64, 96, '--layers', -1)
    for entries in result['images'].values():
        [entry] = entries
        assert entry['layer'] == 2
        close(np.sum(entry['membership']['mean_of_head']), 1)  # a softmax over heads
        close(np.sum(entry['gate']['mean_of_head']), 1)
        sizes = entry['gate']['support_of_head_in_tokens']
        assert max(sizes) <= 24
        close(entry['gate']['mean_heads_open_to_a_token'], sum(sizes) / 24)


def test_wrong_family_is_a_clear_error(tool, vit, photos, tmp_path):
    from mmext.cli.config_check import ConfigError
    with pytest.raises(ConfigError, match=r'vit: block 0 has no membership.*softmax attention'):
        tool('membership_maps').main([vit, '--images', str(photos), '--out', str(tmp_path)])
    with pytest.raises(ConfigError, match='does not exist'):
        tool('attention_maps').main([vit, '--images', str(photos / 'none')])
    with pytest.raises(ConfigError, match='no test or validation data: give --images'):
        tool('attention_maps').main([vit])
    with pytest.raises(ConfigError, match='the model has 2 heads'):
        tool('attention_maps').main([vit, '--images', str(photos), '--heads', '2'])


def test_detector_with_padding_at_any_size(tool, photos, tmp_path):
    """90 x 70 becomes 51 x 40 in 64 x 64: the grid of the image is 3 x 4 patches of 16."""
    config = write(tmp_path / 'det.py', DETECTOR)
    result = run(tool, 'oracle_gap', tmp_path / 'out', config, '--images', photos,
                 '--keep-ratio', .5)
    assert result['models']['det']['images'] == 2
    result = run(tool, 'attention_maps', tmp_path / 'out', config, '--images', photos)
    assert {e['tokens'] for entries in result['images'].values() for e in entries} == {12}
    result = run(tool, 'attention_maps', tmp_path / 'out', config, '--images', photos, '--shape',
                 96, 64, '--overwrite')
    assert {e['tokens'] for entries in result['images'].values() for e in entries} == {24}


def test_sweep_and_search_without_labels(tool, vit, checkpoint, photos, tmp_path):
    out = tmp_path / 'out'
    result = run(tool, 'keep_ratio_sweep', out, vit, checkpoint, '--images', photos, '--keep-ratio',
                 '0.5', '0.9,0.1', '--tome', 2, '--repeat', 2)
    points = {p['label']: p for p in result['points']}
    searched = result['search']['schedules'][0]
    assert [p['family'] for p in result['points']] == [
        'dense', 'uniform ratio', 'linear over depth', 'searched', 'token merging',
        'token merging + pruning']
    # 8 of 17; 15 and 1 of 17
    close(points['0.5']['pruning_ratio'], 9 / 17)
    close(points['0.9→0.1']['pruning_ratio'], 18 / 34)
    close(points['dense']['metric'], 1)
    model, images = loaded(checkpoint), inputs_of(photos)
    with torch.no_grad():
        dense = model(images)[-1]
        model.set_keep_ratio(.5)
        expected = torch.cosine_similarity(model(images)[-1], dense)
    close(points['0.5']['metric'], expected.mean())
    assert points['0.5']['metric'] < 1
    # per layer of 17 tokens and 32 channels 4 * 17 * 32 FLOPs a column; half of 17 is 8
    close((points['dense']['gflops'] - points['0.5']['gflops']) * 1e9, 2 * 9 * 4 * 17 * 32)
    reached = next(p for p in result['points'] if p['family'] == 'searched')
    assert reached['gflops'] <= searched['budget_gflops'] + 1e-9
    cfg = Config.fromfile(out / 'searched_schedule_0.py')
    assert list(cfg.model.backbone.keep_ratio) == searched['keep_ratio']
    assert cfg.model.backbone.arch == 'tiny-test'


@pytest.mark.parametrize('split', ['test', 'val'])
def test_sweep_evaluates_on_the_test_data(tool, checkpoint, photos, tmp_path, split):
    """Labels of a data set in folders; the accuracy is that of the model run by hand."""
    shots = [cv2.imread(str(path)) for path in sorted(photos.iterdir())]
    for i, shot in enumerate([*shots, shots[0][::-1]]):
        (tmp_path / 'set' / f'class{i}').mkdir(parents=True)
        for copy in range(3):
            image = np.roll(shot, 9 * copy, 1)
            cv2.imwrite(str(tmp_path / 'set' / f'class{i}' / f'{copy}.png'), image)
    config = tmp_path / 'cls.py'
    config.write_text(CLASSIFIER.format(mean=MEAN, std=STD, backbone=VIT) + f"""
{split}_dataloader = dict(
    batch_size=4, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type='CustomDataset', data_root={str(tmp_path / 'set')!r}, pipeline=[
        dict(type='LoadImageFromFile'), dict(type='Resize', scale=(64, 64)),
        dict(type='PackInputs')]))
{split}_evaluator = dict(type='Accuracy', topk=1)
{split}_cfg = dict()
""")
    whole = tmp_path / 'whole.pth'
    model = loaded(checkpoint)
    torch.manual_seed(0)
    head = {'head.fc.weight': torch.randn(3, 32), 'head.fc.bias': torch.zeros(3)}
    state = {f'backbone.{k}': v for k, v in model.state_dict().items()}
    torch.save({'state_dict': state | head}, whole)
    result = run(tool, 'keep_ratio_sweep', tmp_path / 'out', config, whole, '--keep-ratio', '0.2',
                 '--tome', 4, '--repeat', 1)
    assert result['metric'] == 'accuracy/top1' and not result['notes']
    images, labels = [], []
    for path in sorted((tmp_path / 'set').rglob('*.png')):
        image = cv2.resize(cv2.imread(str(path)), (64, 64))[..., ::-1].astype(np.float32)
        images.append(torch.tensor((image - MEAN) / STD).permute(2, 0, 1).float())
        labels.append(int(path.parent.name[-1]))
    for point in result['points'][:2]:
        model.set_keep_ratio(None if point['family'] == 'dense' else .2)
        with torch.no_grad():
            scores = model(torch.stack(images))[-1] @ head['head.fc.weight'].T
        expected = 100 * (scores.argmax(1) == torch.tensor(labels)).double().mean()
        close(point['metric'], expected)


def test_figure_7_in_one_run(tool, vit, checkpoint, photos, tmp_path):
    """Merging on the plain network, with pruning, pruning alone; GFLOPs at another resolution are
    those of the closed formula there."""
    from mmext.analysis.flop_formulas import vit_macs
    plain = write(tmp_path / 'plain.py', CLASSIFIER, backbone=VIT + ', key_bias=False')
    pruned = write(tmp_path / 'pruned.py', CLASSIFIER, backbone=VIT + ', keep_ratio=.3')
    result = run(tool, 'keep_ratio_sweep', tmp_path / 'out', vit, checkpoint, '--compare', plain,
                 f'{pruned}={checkpoint}', '--images', photos, '--keep-ratio', '0.5', '--tome', 8,
                 '--tau', .7, '--pruning-ratio', .4, '--flop-shape', 128, 96, '--no-search',
                 '--repeat', 1)
    points = {(p['model'], p['family']): p for p in result['points'] if p['label'] != 'τ=0.7'}
    assert {family for model, family in points if model == 'plain'} == {'dense', 'token merging'}
    assert {family for model, family in points if model == 'vit'} == {
        'dense', 'uniform ratio', 'threshold', 'token merging', 'token merging + pruning'}
    assert ('pruned', 'as configured') in points and not result['search']['schedules']
    size = dict(dim=32, depth=2, num_heads=2, num_classes=0)
    for key, options in {('plain', 'dense'): {}, ('vit', 'dense'): dict(key_bias=True),
                         ('vit', 'uniform ratio'): dict(keep_ratio=.5),
                         ('pruned', 'as configured'): dict(keep_ratio=.3)}.items():
        close(points[key]['gflops'] * 1e9, 2 * vit_macs((128, 96), **size, **options))
    merged, both = (points['vit', f'token merging{end}'] for end in ('', ' + pruning'))
    assert both['gflops'] < merged['gflops'] < points['vit', 'dense']['gflops']
    assert points['plain', 'token merging']['pruning_ratio'] is None  # no key bias, nothing to drop
    [wished] = result['thresholds']
    model, images = loaded(checkpoint), inputs_of(photos)
    model.set_tau(wished['tau'])
    with torch.no_grad():
        kept = [t['kept'].double().mean() for t in model.forward_intermediates(images).values()]
    close(wished['pruning_ratio'], 1 - np.mean(kept))
    close(points['vit', 'threshold']['pruning_ratio'], wished['pruning_ratio'])


def test_sweep_needs_something_to_compare(tool, photos, tmp_path):
    from mmext.cli.config_check import ConfigError
    config = write(tmp_path / 'dmst.py', CLASSIFIER, backbone=BODY)
    with pytest.raises(ConfigError, match='key bias'):
        tool('keep_ratio_sweep').main([config, '--images', str(photos)])


def test_every_tool_has_help(tool, capsys):
    for path in sorted(TOOLS.glob('*.py')):
        with pytest.raises(SystemExit) as end:
            tool(path.stem).main(['--help'])
        assert end.value.code == 0
        assert path.stem in sys.modules and 'usage:' in capsys.readouterr().out


def test_images_of_arrays_and_equal_names(vit, tmp_path):
    """A data set that holds RGB arrays, as CIFAR's, and files of one name in two folders."""
    import pickle
    data = np.random.default_rng(0).integers(0, 255, (4, 3072), dtype=np.uint8)
    folder = tmp_path / 'cifar-10-batches-py'
    folder.mkdir()
    for name in ('test_batch', 'batches.meta'):
        (folder / name).write_bytes(pickle.dumps(
            {'data': data, 'labels': [0, 1, 2, 0], 'label_names': list('abc')}))
    config = tmp_path / 'cifar.py'
    config.write_text(CLASSIFIER.format(mean=MEAN, std=STD, backbone=VIT).replace(
        'to_rgb=True', 'to_rgb=False') + f"""
test_dataloader = dict(dataset=dict(
    type='CIFAR10', data_root={str(tmp_path)!r}, split='test', pipeline=[
        dict(type='Resize', scale=64), dict(type='PackInputs')]))
""")
    args = analysis_parser('', num_images=4).parse_args([str(config), '--shape', '32'])
    args.device = 'cpu'
    from mmpretrain.datasets import CIFAR10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CIFAR10, '_check_integrity', lambda self: True)
        [subject] = cli.subjects(args)
        found = list(cli.batches(args, subject))
    expected = data.reshape(4, 3, 32, 32).transpose(0, 2, 3, 1)
    for i, batch in enumerate(found):
        np.testing.assert_array_equal(batch.images[0], expected[i])
        close(batch.inputs[0].permute(1, 2, 0), (expected[i] - MEAN) / STD)
    for folder in 'ab':
        (tmp_path / 'two' / folder).mkdir(parents=True)
        cv2.imwrite(str(tmp_path / 'two' / folder / 'x.png'), np.ascontiguousarray(expected[0]))
    args = analysis_parser('', num_images=4).parse_args([vit, '--images', str(tmp_path / 'two')])
    [subject] = cli.subjects(args)
    assert [n for b in cli.batches(args, subject) for n in b.names] == ['x', 'x_png']
