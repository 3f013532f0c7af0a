"""GPU configs on a CPU."""


import pytest
import torch
from mmengine.config import Config

from mmext.checkpoints import safe_reader
from mmext.compat import cpu, torch_load

no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason='there is a GPU')


@no_gpu
def test_amp_becomes_plain_with_one_warning():
    cfg = Config(dict(optim_wrapper=dict(
        type='AmpOptimWrapper', loss_scale='dynamic', optimizer=dict(type='AdamW', lr=1e-3))))
    with pytest.warns(UserWarning, match='mixed precision') as caught:
        cpu.adapt_config(cfg)
    assert len(caught) == 1
    assert cfg.optim_wrapper == dict(type='OptimWrapper', optimizer=dict(type='AdamW', lr=1e-3))


@no_gpu
def test_data_parallel_has_no_device_ids():
    cfg = Config(dict(launcher='pytorch'))
    cpu.adapt_config(cfg)
    assert cfg.model_wrapper_cfg.type == 'MMDistributedDataParallel'
    assert cfg.model_wrapper_cfg.device_ids is None
    assert cfg.model_wrapper_cfg.find_unused_parameters is False


@no_gpu
def test_mpi_launcher_is_refused_without_gpus():
    with pytest.raises(ValueError, match='--launcher mpi needs GPUs'):
        cpu.init_process_group('mpi')


def test_nothing_changes_where_there_is_a_gpu(monkeypatch):
    monkeypatch.setattr(cpu, 'has_accelerator', lambda: True)
    cfg = Config(dict(launcher='pytorch', optim_wrapper=dict(type='AmpOptimWrapper')))
    cpu.adapt_config(cfg)
    assert cfg.optim_wrapper.type == 'AmpOptimWrapper' and 'model_wrapper_cfg' not in cfg


def test_own_checkpoints_load_under_protection(tmp_path):
    """What mmengine writes (log history in numpy arrays) passes weights_only."""
    import numpy as np
    from mmengine.logging import HistoryBuffer
    torch_load.allow_own_checkpoints()
    history = HistoryBuffer([1., 2.], [1, 1])
    path = tmp_path / 'run.pth'
    torch.save(dict(message_hub=dict(loss=history), seed=np.int64(3), w=torch.ones(2)), path)
    loaded = torch.load(path, weights_only=True)
    assert loaded['message_hub']['loss'].mean() == 1.5 and loaded['seed'] == 3


@pytest.mark.parametrize('other', ['numpy.core', 'numpy._core'])
def test_checkpoints_of_numpy_1_and_2(tmp_path, other):
    """The two write different names of one function; either is read."""
    import zipfile

    from mmengine.logging import HistoryBuffer
    torch.save(dict(loss=HistoryBuffer([1., 2.], [1, 1])), tmp_path / 'a.pth')
    path = tmp_path / 'b.pth'
    with zipfile.ZipFile(tmp_path / 'a.pth') as old, zipfile.ZipFile(path, 'w') as new:
        for name in old.namelist():
            data = old.read(name)
            if name.endswith('data.pkl'):
                assert b'core.multiarray\n' in data
                data = data.replace(b'numpy._core.multi', b'numpy.core.multi').replace(
                    b'numpy.core.multi', other.encode() + b'.multi')
            new.writestr(name, data)
    assert safe_reader.read_checkpoint(str(path))['loss'].mean() == 1.5


class Exploit:

    def __reduce__(self):
        return print, ('code was run', )


def test_foreign_code_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv('TORCH_FORCE_WEIGHTS_ONLY_LOAD', '0')
    monkeypatch.delenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', raising=False)
    safe_reader.forbid_code_in_checkpoints()
    path = tmp_path / 'evil.pth'
    torch.save(dict(state_dict=Exploit()), path)
    from mmengine.runner.checkpoint import _load_checkpoint
    with pytest.raises(ValueError, match='without executing code'):
        _load_checkpoint(str(path), map_location='cpu')
    assert 'code was run' not in capsys.readouterr().out
