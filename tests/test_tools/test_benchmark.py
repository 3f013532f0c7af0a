"""The benchmark tool's bookkeeping; never its times."""

import importlib.util
import json

import pytest
import torch

from mmext.cli import benchmark


@pytest.fixture(scope='module')
def tool(root_dir):
    path = root_dir / 'tools/analysis_tools/benchmark.py'
    spec = importlib.util.spec_from_file_location('benchmark_tool', path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SMALL = ['--dim', '32', '--heads', '2', '--repeat', '2', '--warmup', '0', '--device', 'cpu']


def run(tool, *args):
    return benchmark.run(tool.parse_args([str(arg) for arg in args]))


def test_layers_over_tokens(tool, tmp_path, capsys):
    out, image = tmp_path / 'a' / 'out.json', tmp_path / 'a' / 'out.png'
    run(tool, 'layer', '--tokens', 64, 257, '--backend', 'fused', 'math', '--keep-ratio', 0.5,
        '--json', out, '--plot', image, *SMALL)
    result = json.loads(out.read_text())
    assert [t['extent'] for t in result['tables']] == [64, 257]
    rows = result['tables'][1]['rows']
    assert set(rows) == {
        'plain', 'bias', 'pruned 0.5', 'tssa naive', 'tssa', 'dmsa', 'mssa'}
    for row in rows.values():
        for cell in row.values():
            assert cell['ms_p10'] <= cell['ms'] <= cell['ms_p90'] and cell['peak_mib'] > 0
    assert rows['plain']['fused']['speedup'] == 1.0 == rows['plain']['math']['speedup']
    # the naive softmax holds N x N numbers a head, the fused one and DMSA do not
    matrix = 2 * 257 * 257 * 4 / 2**20
    assert rows['plain']['math']['peak_mib'] > matrix > rows['dmsa']['fused']['peak_mib']
    assert image.read_bytes()[:4] == b'\x89PNG'
    text = capsys.readouterr().out
    assert 'threads' in text and torch.__version__ in text and 'pruned 0.5' in text


def test_training_reports_saved_bytes(tool):
    result = run(tool, 'layer', '--tokens', 64, '--train', '--keep-ratio', 0.5, *SMALL)
    rows = result['tables'][0]['rows']
    assert {'pruned 0.5 gather', 'pruned 0.5 mask'} <= set(rows)
    saved = {name: row['fused']['saved_mib'] for name, row in rows.items()}
    assert saved['pruned 0.5 gather'] < saved['pruned 0.5 mask']
    assert saved['dmsa'] < saved['tssa naive']


@pytest.mark.parametrize('train', [[], ['--train']])
@pytest.mark.parametrize('dtype', ['fp32', 'bf16'])
def test_operators(tool, train, dtype):
    result = run(tool, 'operator', '--tokens', 64, '--batch-size', 2, '--dtype', dtype,
                 '--keep-ratio', 0.25, '--no-memory', *train, *SMALL)
    table = result['tables'][0]
    assert table['batch'] == 2 and table['dtype'] == dtype
    assert set(table['rows']) == {'plain', 'bias', 'pruned 0.25', 'tssa', 'dmsa'}
    assert all('peak_mib' not in row['fused'] for row in table['rows'].values())


def test_only_names_what_is_compared(tool):
    result = run(tool, 'operator', '--tokens', 64, '--only', 'dmsa', '--no-memory', *SMALL)
    assert set(result['tables'][0]['rows']) == {'plain', 'dmsa'}


def test_backbones(tool):
    result = run(tool, 'backbone', '--arch', 'deit-tiny', '--shape', 64, 96, '--no-memory',
                 '--only', 'pruned 0.9,0.1', 'dmst', *SMALL)
    assert set(result['tables'][0]['rows']) == {'plain', 'pruned 0.9,0.1', 'dmst'}
    assert list(result['tables'][0]['extent']) == [64, 96]
    assert result['settings']['keep_ratio'] == ['0.9,0.1']


def test_detector(tool, root_dir):
    config = root_dir / 'configs/vitdet/mask-rcnn_deit-ti_sfp_lsj-100e_coco.py'
    args = tool.parse_args(['detector', '--config', str(config), '--shape', '64', *SMALL])
    args.models = benchmark.whole_models(args)
    assert set(args.models) == {'plain', 'bias', 'pruned 0.9,0.1'}
    model = args.models['pruned 0.9,0.1'].eval()
    assert model.backbone.blocks[11].attn.rule_val.ratio == pytest.approx(0.1)
    assert args.models['plain'].backbone.blocks[0].attn.key_bias is None
    with torch.no_grad():
        out = benchmark.detect(model, torch.rand(1, 3, 64, 64), proposals=7, boxes=3)
    assert out['mask_preds'].shape == (3, 80, 28, 28)
    with torch.no_grad():
        model.test_cfg.rcnn.score_thr = 0.
        [sample] = benchmark.detect_all(model, torch.rand(1, 3, 64, 64))
    found = sample.pred_instances
    assert len(found) and found.masks.shape == (len(found), 64, 64)  # pasted into the image


def test_classifier_as_the_paper_measures(tool, root_dir, tmp_path, capsys):
    """Image and checkpoint reach the model: its scores are those of the same model by hand."""
    import cv2

    from mmext.cli.launch import build_model, load_config
    config = str(root_dir / 'configs/deit_bias/deit-ti-bias-0.9-0.1_8xb128-ft_in1k.py')
    model = build_model(load_config(config, None, None, 'none'))
    torch.save({'state_dict': model.state_dict()}, tmp_path / 'a.pth')
    image = torch.randint(0, 255, (32, 48, 3), dtype=torch.uint8).numpy()
    cv2.imwrite(str(tmp_path / 'a.png'), image)
    options = ['classifier', '--paper', '--config', config, '--checkpoint', str(tmp_path / 'a.pth'),
               '--image', str(tmp_path / 'a.png'), '--shape', '224', '--device', 'cpu']
    args = tool.parse_args(options)
    assert (args.backend, args.warmup, args.repeat) == (['math', 'efficient'], 50, 200)
    args.models = benchmark.whole_models(args)
    functions, _ = benchmark.candidates(args, 1, (224, 224), torch.float32)
    pixels = cv2.resize(image, (224, 224), interpolation=cv2.INTER_CUBIC)
    pixels = torch.tensor(pixels[..., ::-1].copy()).permute(2, 0, 1)
    with torch.no_grad():
        data = model.data_preprocessor({'inputs': [pixels.flip(0)]})['inputs']
        expected = model(data, mode='tensor')
    assert functions['pruned 0.9,0.1']().shape == (1, 1000)
    torch.testing.assert_close(functions['pruned 0.9,0.1'](), expected, rtol=1e-4, atol=1e-4)
    result = run(tool, *options, '--warmup', 0, '--repeat', 2, '--no-memory')
    assert 'efficient backend left out, not available on cpu' in capsys.readouterr().err
    for row in result['tables'][0]['rows'].values():
        assert set(row) == {'math'} and row['math']['ms_std'] >= 0
        assert row['math']['ms_p10'] <= row['math']['ms_mean'] <= row['math']['ms_p90']


@pytest.mark.parametrize('dtype', ['fp32', 'bf16'])
@pytest.mark.parametrize('level, keep', [
    ('operator', '0.5'), ('layer', '0.5'), ('backbone', '0.9,0.1')])
def test_the_baseline_is_fused_attention_in_the_same_precision(tool, level, keep, dtype):
    """Kernels that really run, as the profiler sees them: one process, one dtype, one input."""
    args = tool.parse_args([level, '--arch', 'deit-tiny', '--keep-ratio', keep, *SMALL])
    extent = (64, 64) if level == 'backbone' else 64
    functions, tensors = benchmark.candidates(args, 1, extent, benchmark.DTYPES[dtype])
    assert tensors.keys() <= functions.keys() and len({id(t[0]) for t in tensors.values()}) <= 1
    for name in ('plain', 'bias', f'pruned {keep}'):
        assert {t.dtype for t in tensors.get(name, [])} <= {benchmark.DTYPES[dtype]}
        kernels = {}
        for backend in ('fused', 'math'):
            with benchmark.timing.attention_backend(backend), torch.profiler.profile() as profiler:
                out = functions[name]()
            out = out[0] if isinstance(out, tuple) else out
            assert out.dtype == benchmark.DTYPES[dtype]
            kernels[backend] = {event.name for event in profiler.events()}
        fused = 'aten::_scaled_dot_product_flash_attention_for_cpu'
        assert fused in kernels['fused'] and fused not in kernels['math']
        assert 'aten::_scaled_dot_product_attention_math' in kernels['math']
        assert 'aten::_scaled_dot_product_attention_math' not in kernels['fused']


def test_math_backend_is_left_out_where_it_does_not_fit(tool, capsys):
    result = run(tool, 'layer', '--tokens', 64, '--backend', 'fused', 'math', '--math-limit',
                 1e-6, '--no-memory', '--only', 'bias', *SMALL)
    assert set(result['tables'][0]['rows']['bias']) == {'fused'}
    assert '--math-limit' in capsys.readouterr().err


def test_naive_tssa_is_the_same_operator():
    from mmext.layers import TSSA
    torch.manual_seed(0)
    naive, layer = benchmark.NaiveTSSA(24, 3).double(), TSSA(24, 3).double()
    layer.load_state_dict(naive.state_dict())
    x = torch.randn(2, 17, 24, dtype=torch.float64)
    torch.testing.assert_close(naive(x), layer(x))


@pytest.mark.parametrize('tokens,grid', [(16, (4, 4)), (17, (4, 4)), (12, (1, 12))])
def test_grid(tokens, grid):
    assert benchmark.grid_of(tokens) == grid


@pytest.mark.parametrize('args,message', [
    (['layer', '--keep-ratio', '1.5'], '1.5'), (['layer', '--keep-ratio', 'x'], 'ratio'),
    (['layer', '--keep-ratio', '0.9,0.1'], 'schedule'), (['detector'], '--config'),
    (['layer', '--dim', '30', '--heads', '4'], 'multiple'), (['layer', '--repeat', '0'], 'repeat'),
    (['layer', '--heads', '0'], '--heads'), (['layer', '--tokens', '64', '0'], '--tokens'),
    (['layer', '--threads', '0'], '--threads'), (['layer', '--shape', '1', '2', '3'], 'one or two'),
    (['layer', '--keep-ratio', 'none'], 'dense'), (['backbone', '--plot', 'a.png'], '--plot'),
    (['layer', '--keep', '.5'], 'unrecognized'), (['layer', '--batch', '2'], 'unrecognized'),
    (['layer', '--json', '/'], 'is a folder'), (['images'], '--config'),
    (['training', '--config', 'a', 'b'], 'one --config'), (['layer', '--number', '3'], '--number'),
    (['images', '--config', 'a', '--dtype', 'bf16'], 'fp32'),
    (['layer', '--data-root', 'a'], '--data-root'), (['layer', '--checkpoint', 'a'], '--config'),
    (['images', '--config', 'a', '--train'], 'eager'),
])
def test_bad_arguments(tool, capsys, args, message):
    with pytest.raises(SystemExit):
        tool.parse_args(args)
    assert message in capsys.readouterr().err
