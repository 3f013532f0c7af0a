"""The tool's printed and written numbers; no data set, no weights."""

import importlib.util
import json

import pytest

from mmext.analysis import flop_formulas as flops
from mmext.cli.flops import count_config

DEIT = 'configs/deit_bias/deit-{}-bias{}_8xb128-ft_in1k.py'
MASK_RCNN = 'configs/vitdet/mask-rcnn_deit-s{}_sfp_lsj-100e_coco.py'


@pytest.fixture(scope='module')
def tool(root_dir):
    path = root_dir / 'tools/analysis_tools/get_flops.py'
    spec = importlib.util.spec_from_file_location('get_flops_tool', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(tool, capsys, *args):
    tool.main([str(arg) for arg in args])
    return capsys.readouterr().out


@pytest.mark.parametrize('size,keep,expected', [
    (224, 'none', 2.510), (224, '0.9,0.1', 2.330), (1024, 'none', 199.456),
    (1024, '0.9,0.1', 122.090), (1024, '0.9,0.5', 153.033)])
def test_classifier(tool, capsys, root_dir, tmp_path, size, keep, expected):
    out = tmp_path / 'sub' / 'flops.json'
    text = run(tool, capsys, root_dir / DEIT.format('ti', ''), '--shape', size, '--keep-ratio',
               keep, '--shapes-only', '--json', out)
    assert f'{expected:.3f}' in text and '2 x MACs' in text
    result = json.loads(out.read_text())
    assert result['gflops'] == pytest.approx(expected, abs=6e-4)
    assert result['shape'] == [size, size]
    assert result['params'] == 5_717_416 + 6_912  # DeiT-Ti and its key bias


def test_ratio_of_the_config_and_default_shape(tool, capsys, root_dir):
    text = run(tool, capsys, root_dir / DEIT.format('ti', '-0.9-0.1'), '--shapes-only')
    assert '1 x 3 x 224 x 224' in text and '2.330' in text


def test_published_backbone_numbers(tool, capsys, root_dir):
    options = ['--shape', 1024, '--backbone-only', '--shapes-only', '--cfg-options',
               'model.backbone.with_cls_token=False', 'model.backbone.out_type=featmap']
    assert '331.170' in run(tool, capsys, root_dir / DEIT.format('s', '-0.9-0.1'), *options)
    assert '485.600' in run(tool, capsys, root_dir / DEIT.format('s', ''), *options,
                            'model.backbone.key_bias=False')


def test_modules_are_listed(tool, capsys, root_dir):
    text = run(tool, capsys, root_dir / DEIT.format('ti', ''), '--shapes-only', '--modules', 3)
    macs = flops.mlp_macs(197, 192)
    line = next(line for line in text.splitlines() if 'backbone.blocks.3 ' in line)
    assert float(line.split()[1]) == pytest.approx(
        flops.gflops(flops.bias_attention_macs(197, 192, 3) + macs), abs=6e-4)


@pytest.mark.parametrize('name,keep', [('', None), ('-bias-0.9-0.1', (.9, .1))])
def test_small_detector_equals_formula(root_dir, name, keep):
    result = count_config(str(root_dir / MASK_RCNN.format(name)), (192, 256), proposals=20, boxes=5)
    expected = flops.vitdet_macs((192, 256), *flops.vit_size('deit-small'), keep_ratio=keep,
                                 proposals=20, boxes=5)
    got = {part: values['gflops'] for part, values in result['parts'].items()}
    assert got == pytest.approx({part: flops.gflops(macs) for part, macs in expected.items()})
    assert result['boxes'] == 5 and result['proposals'] == 20


@pytest.mark.slow
@pytest.mark.parametrize('name,total', [('', 1171.68), ('-bias-0.9-0.1', 1017.25)])
def test_published_detector_numbers(root_dir, name, total):
    result = count_config(str(root_dir / MASK_RCNN.format(name)))
    assert result['shape'] == [1024, 1024]
    assert round(result['gflops'], 2) == total


@pytest.mark.parametrize('args,message', [
    (['--shape', '1', '2', '3'], 'one or two'), (['--shape', '0'], 'positive'),
    (['--proposals', '0'], 'at least 1'), (['--keep-ratio', '2'], 'keep ratio'),
    (['--keep-ratio', '0.9,0'], 'keep ratio'), (['--keep-ratio', 'x'], 'keep ratio'),
    (['--keep-ratio', '0.9', '0.1'], 'unrecognized')])
def test_bad_arguments(tool, capsys, args, message):
    with pytest.raises(SystemExit):
        tool.parse_args(['config.py', *args])
    assert message in capsys.readouterr().err


def test_keep_ratio_none_is_not_the_default(tool, root_dir):
    """The config prunes; `none` says dense, no option says what the config does."""
    config = str(root_dir / DEIT.format('ti', '-0.9-0.1'))
    parsed = tool.parse_args([config, '--keep-ratio', 'none'])
    assert parsed.keep_ratio is None and 'keep_ratio' not in tool.parse_args([config])
    pruned, dense = (count_config(config, shapes_only=True, **more)
                     for more in ({}, {'keep_ratio': None}))
    assert dense['gflops'] == pytest.approx(2.510, abs=6e-4) and dense['keep_ratio'] == 'none'
    assert pruned['gflops'] == pytest.approx(2.330, abs=6e-4)
