"""Exported files run without mmext and give what the model gives; published files are safe."""

import hashlib
import importlib.util
import subprocess
import sys

import pytest
import torch
from mmengine.config import Config

from mmext.checkpoints.fit import DoesNotFit
from mmext.checkpoints.safe_reader import UnreadableCheckpoint
from mmext.cli import export as library
from mmext.cli.config_check import ConfigError

CLASSIFIER = """
default_scope = 'mmpretrain'
model = dict(
    type='ImageClassifier',
    backbone=dict(type='mmext.{name}', arch='tiny-test', {options}),
    head=dict(type='LinearClsHead', num_classes=10, in_channels=32))
"""
DETECTOR_PARTS = """
default_scope = 'mmdet'
model = dict(
    type='RetinaNet',
    backbone=dict(type='mmext.BiasPrunedViT', arch='tiny-test', img_size=64, keep_ratio=(.8, .3),
                  with_cls_token=False, out_type='featmap'),
    neck=dict(type='mmext.SimpleFeaturePyramid', in_channels=32, out_channels=16),
    bbox_head=dict(
        type='RetinaHead', num_classes=3, in_channels=16, feat_channels=16, stacked_convs=1,
        anchor_generator=dict(type='AnchorGenerator', octave_base_scale=4, scales_per_octave=1,
                              ratios=[1.], strides=[4, 8, 16, 32, 64])))
"""


def module(root_dir, name):
    spec = importlib.util.spec_from_file_location(
        name, root_dir / 'tools' / 'model_converters' / f'{name}.py')
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture(scope='module')
def export(root_dir):
    return module(root_dir, 'export')


@pytest.fixture
def pruned(tmp_path):
    path = tmp_path / 'pruned.py'
    path.write_text(CLASSIFIER.format(
        name='BiasPrunedViT', options='img_size=64, keep_ratio=(.8, .3)'))
    return path


def has_onnx():
    for name in ('onnx', 'onnxscript', 'onnxruntime'):
        pytest.importorskip(name)


@pytest.mark.parametrize('fmt', ['onnx', 'torch_export'])
@pytest.mark.parametrize('part', ['classifier', 'dense backbone', 'dmst', 'neck'])
def test_exported_file_equals_the_model(export, tmp_path, fmt, part, capsys):
    if fmt == 'onnx':
        has_onnx()
    elif part == 'dmst' and torch.__version__.startswith('2.6.'):
        pytest.skip('torch 2.6 cannot write this graph')
    config, out = tmp_path / 'config.py', tmp_path / ('out' + export.SUFFIX[fmt])
    name, options, flags = dict(
        classifier=('BiasPrunedViT', 'img_size=64, keep_ratio=(.8, .3)', []),
        dmst=('DMST', '', ['--shape', '48', '64']),
        neck=('', '', ['--neck', '--shape', '64', '48']),
    ).get(part, ('BiasPrunedViT', 'img_size=64, keep_ratio=.5',
                 ['--backbone-only', '--keep-ratio', 'none', '--shape', '40', '64']))
    config.write_text(DETECTOR_PARTS if part == 'neck' else CLASSIFIER.format(
        name=name, options=options))
    code = export.main([str(config), '--format', fmt, '--out', str(out), *flags])
    assert code == 0, capsys.readouterr().out
    assert 'within 0.0001' in capsys.readouterr().out


def test_onnx_file_by_itself(export, pruned, tmp_path):
    """Read by onnxruntime alone: names, one size, any batch, opset, pruning inside."""
    has_onnx()
    import onnx
    import onnxruntime
    out = tmp_path / 'model.onnx'
    args = export.parse_args([str(pruned), '--out', str(out)])
    torch.manual_seed(0)
    part, size = library.build_part(args)
    library.write(part, size, 'onnx', str(out))
    graph = onnx.load(out)
    onnx.checker.check_model(graph)
    assert max(opset.version for opset in graph.opset_import if not opset.domain) >= 17
    assert {'TopK'} <= {node.op_type for node in graph.graph.node}
    session = onnxruntime.InferenceSession(str(out), providers=['CPUExecutionProvider'])
    assert [i.name for i in session.get_inputs()] == ['image']
    assert [o.name for o in session.get_outputs()] == ['logits']
    assert session.get_inputs()[0].shape[1:] == [3, 64, 64]
    image = torch.randn(5, 3, 64, 64)
    got, = session.run(None, {'image': image.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), part(image)[0], atol=1e-4, rtol=1e-4)
    part.backbone.set_keep_ratio(None)
    assert (torch.from_numpy(got) - part(image)[0]).abs().max() > 1e-3


def test_onnx_file_says_how_to_use_it(export, root_dir, tmp_path):
    """The shipped classifier by onnxruntime, numpy and the file's own metadata alone."""
    has_onnx()
    import json

    import numpy as np
    import onnxruntime

    import mmext
    from mmext.cli.package_files import trained_model
    config, weights = trained_model('digits-cls')
    out = str(tmp_path / 'digits.onnx')
    assert export.main([config, weights, '--out', out]) == 0
    session = onnxruntime.InferenceSession(out, providers=['CPUExecutionProvider'])
    facts = {name: json.loads(text)
             for name, text in session.get_modelmeta().custom_metadata_map.items()}
    assert facts['classes'] == list('0123456789')
    assert (facts['height'], facts['width'], facts['channel_order']) == (48, 48, 'RGB')
    bgr = np.random.default_rng(0).integers(0, 256, (48, 48, 3), dtype=np.uint8)
    pixels = bgr[..., ::-1] if facts['channel_order'] == 'RGB' else bgr
    image = ((pixels - np.array(facts['mean'])) / facts['std']).transpose(2, 0, 1)[None]
    logits, = session.run(['logits'], {'image': image.astype('f4')})
    want = mmext.load('digits-cls', device='cpu').predict(bgr)[0].as_dict()['scores']
    np.testing.assert_allclose(np.exp(logits[0]) / np.exp(logits[0]).sum(), want, atol=1e-4)


def test_export_says_what_is_wrong(export, pruned, tmp_path, capsys):
    detector = tmp_path / 'detector.py'
    detector.write_text(DETECTOR_PARTS)
    out = str(tmp_path / 'a.pt2')
    fmt = ['--format', 'torch_export', '--out', out]
    for args, message in (
            ([detector, *fmt], 'RetinaNet: export --detector'),
            ([detector, *fmt, '--detector'], 'RetinaNet is not supported'),
            ([pruned, *fmt, '--detector'], 'ImageClassifier is not supported'),
            ([pruned, *fmt, '--neck'], 'no neck'),
            ([pruned, tmp_path / 'none.pth', *fmt], 'none.pth')):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            export.main(list(map(str, args)))
    for args, message in (
            (['--out', 'a.pt'], 'must end in .onnx'),
            (['--out', 'a.onnx', '--opset', '9'], 'opset'),
            (['--out', 'a.onnx', '--keep-ratio', 'half'], "'half' is no keep ratio"),
            (['--out', 'a.onnx', '--shape', '1', '2', '3'], '--shape')):
        with pytest.raises(SystemExit):
            export.main([str(pruned), *args])
        assert message in capsys.readouterr().err


@pytest.fixture
def training_checkpoint(pruned, tmp_path):
    """As a run of two iterations with a moving average leaves it."""
    from mmengine.runner import Runner
    cfg = Config.fromfile(pruned)
    images = [dict(inputs=torch.zeros(3, 64, 64, dtype=torch.uint8), data_samples=label)
              for label in range(4)]
    from mmpretrain.structures import DataSample
    for entry in images:
        entry['data_samples'] = DataSample().set_gt_label(entry['data_samples'])
    loader = torch.utils.data.DataLoader(
        images, batch_size=2,
        collate_fn=lambda batch: dict(inputs=[b['inputs'] for b in batch],
                                      data_samples=[b['data_samples'] for b in batch]))
    runner = Runner(
        cfg.model, str(tmp_path / 'run'), train_dataloader=loader,
        optim_wrapper=dict(optimizer=dict(type='AdamW', lr=0.01)),
        train_cfg=dict(by_epoch=True, max_epochs=1), default_scope='mmpretrain',
        custom_hooks=[dict(type='EMAHook', momentum=0.5)], experiment_name='publish',
        default_hooks=dict(checkpoint=dict(type='CheckpointHook', interval=1)))
    runner.train()
    return tmp_path / 'run' / 'epoch_1.pth', runner.model


def test_published_checkpoint(root_dir, training_checkpoint, pruned, tmp_path, export):
    path, model = training_checkpoint
    publish = module(root_dir, 'publish_model').publish
    final = publish(str(path), str(tmp_path / 'out' / 'model.pth'))
    digest = hashlib.sha256(final.read_bytes()).hexdigest()
    assert final.name == f'model-{digest[:8]}.pth' and final.stat().st_size < path.stat().st_size
    assert [file.name for file in final.parent.iterdir()] == [final.name]
    # another process, nothing of ours or mmengine's imported
    code = ('import sys, torch; c = torch.load(sys.argv[1], weights_only=True); '
            'assert sorted(c) == ["meta", "state_dict"], c.keys(); '
            'assert not {"cfg", "experiment_name"} & set(c["meta"]), c["meta"]')
    subprocess.run([sys.executable, '-c', code, str(final)], check=True)
    weights = torch.load(final, weights_only=True)['state_dict']
    trained = torch.load(path, weights_only=False)
    assert {k: v.tolist() for k, v in weights.items()} == {
        k: v.tolist() for k, v in trained['state_dict'].items()}
    args = export.parse_args([str(pruned), str(final), '--format', 'torch_export',
                              '--out', str(tmp_path / 'a.pt2')])
    part, _ = library.build_part(args)
    torch.testing.assert_close(part.head.fc.weight, weights['head.fc.weight'])

    # the published weights are the moving average, --raw gives what the optimizer left
    raw = torch.load(publish(str(path), str(tmp_path / 'raw.pth'), raw=True),
                     weights_only=True)['state_dict']
    assert raw.keys() == weights.keys()
    torch.testing.assert_close(raw['head.fc.weight'], model.head.fc.weight.detach())
    assert (raw['head.fc.weight'] - weights['head.fc.weight']).abs().max() > 1e-5
    half = torch.load(publish(str(path), str(tmp_path / 'half.pth'), half=True),
                      weights_only=True)['state_dict']
    torch.testing.assert_close(half['head.fc.weight'], weights['head.fc.weight'].half())


def test_publishing_leaves_other_files_alone(root_dir, tmp_path):
    """Also its input, given as the name to write to; and spreads no NaN."""
    publish = module(root_dir, 'publish_model').publish
    path = tmp_path / 'x.pth'
    torch.save(dict(meta={}, state_dict=dict(weight=torch.full((3,), 7e4))), path)
    before = path.read_bytes()
    final = publish(str(path), str(path))
    assert path.read_bytes() == before and final.exists() and final != path
    assert publish(str(path), str(path)) == final
    with pytest.raises(SystemExit, match=r'not finite \(weight; --half overflows'):
        publish(str(path), str(path), half=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([final.name, path.name])


def test_export_refuses_another_model_and_replaces_nothing(pruned, tmp_path, export):
    cfg = Config.fromfile(pruned)
    from mmext.cli.launch import build_model
    state = build_model(cfg).state_dict()
    state['head.fc.weight'] = state['head.fc.weight'][:2]
    torch.save(dict(state_dict=state), tmp_path / 'x.pth')
    options = ['--format', 'torch_export', '--out', str(tmp_path / 'a.pt2')]
    with pytest.raises(DoesNotFit, match=r'another shape \(head\.fc\.weight\)'):
        export.main([str(pruned), str(tmp_path / 'x.pth'), *options])
    (tmp_path / 'a.pt2').write_text('mine')
    with pytest.raises(ConfigError, match='--overwrite replaces it'):
        export.main([str(pruned), *options])
    assert (tmp_path / 'a.pt2').read_text() == 'mine'


def test_publishing_refuses_what_is_no_checkpoint(root_dir, tmp_path):
    publish = module(root_dir, 'publish_model').publish
    broken, bare = tmp_path / 'broken.pth', tmp_path / 'bare.pth'
    broken.write_bytes(b'PK\x03\x04 nothing')
    torch.save({'weight': torch.ones(1)}, bare)
    with pytest.raises(UnreadableCheckpoint, match='damaged'):
        publish(str(broken), str(tmp_path / 'a.pth'))
    with pytest.raises(SystemExit, match='no state_dict'):
        publish(str(bare), str(tmp_path / 'a.pth'))
    with pytest.raises(SystemExit, match='moving average'):
        torch.save({'state_dict': {'weight': torch.ones(1)}}, bare)
        publish(str(bare), str(tmp_path / 'a.pth'), raw=True)
