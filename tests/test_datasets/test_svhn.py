"""SVHN from .mat files of the original layout."""

import subprocess
import sys

import numpy as np
import pytest
from scipy.io import savemat
from torchvision.datasets import SVHN as TorchvisionSVHN

from mmext.registry import DATASETS


@pytest.fixture
def root(tmp_path):
    rng = np.random.default_rng(0)
    for part, n in (('train', 12), ('test', 5), ('extra', 7)):
        savemat(tmp_path / f'{part}_32x32.mat', {
            'X': rng.integers(0, 256, (32, 32, 3, n), dtype=np.uint8),
            'y': (rng.integers(0, 10, (n, 1)) + 1).astype(np.uint8)})
    return tmp_path


pytestmark = pytest.mark.usefixtures('mmpretrain_scope')


def test_equals_torchvision(root, monkeypatch):
    monkeypatch.setattr(TorchvisionSVHN, '_check_integrity', lambda self: True)
    for split in ('train', 'test'):
        ours = DATASETS.build(dict(type='mmext.SVHN', data_root=str(root), split=split))
        theirs = TorchvisionSVHN(str(root), split)
        assert len(ours) == len(theirs)
        for i, (img, label) in enumerate(theirs):
            sample = ours.get_data_info(i)
            assert np.array_equal(sample['img'], np.asarray(img)) and sample['gt_label'] == label
        assert ''.join(ours.CLASSES) == '0123456789'
        assert ours.test_mode == (split == 'test')


def test_joined_splits_and_pipeline(root):
    data = DATASETS.build(dict(
        type='mmext.SVHN', data_root=str(root), split='train+extra',
        pipeline=[dict(type='Resize', scale=(64, 64)), dict(type='PackInputs')]))
    assert len(data) == 19
    sample = data[18]
    assert sample['inputs'].shape == (3, 64, 64)
    assert 0 <= sample['data_samples'].gt_label.item() <= 9


def test_ten_is_zero(root):
    savemat(root / 'test_32x32.mat', {'X': np.zeros((32, 32, 3, 2), np.uint8),
                                      'y': np.array([[10], [1]], np.uint8)})
    data = DATASETS.build(dict(type='mmext.SVHN', data_root=str(root), split='test'))
    assert data.get_gt_labels().tolist() == [0, 1]


def test_errors_name_the_file_and_the_cure(root):
    (root / 'train_32x32.mat').unlink()
    with pytest.raises(FileNotFoundError, match=r'train_32x32\.mat; download http'):
        DATASETS.build(dict(type='mmext.SVHN', data_root=str(root)))
    (root / 'train_32x32.mat').write_bytes(b'<html>not found</html>')
    with pytest.raises(ValueError, match=r'train_32x32\.mat is damaged'):
        DATASETS.build(dict(type='mmext.SVHN', data_root=str(root)))
    savemat(root / 'train_32x32.mat', {'X': np.zeros((3, 32, 32, 4)), 'y': np.ones((4, 1))})
    with pytest.raises(ValueError, match=r'X \(32, 32, 3, n\)'):
        DATASETS.build(dict(type='mmext.SVHN', data_root=str(root)))
    with pytest.raises(ValueError, match="split='val'"):
        DATASETS.build(dict(type='mmext.SVHN', data_root=str(root), split='val'))


def test_the_room_does_not_import_mmpretrain():
    """Detection alone must not pay for it."""
    code = 'import sys, mmext.datasets; assert "mmpretrain" not in sys.modules'
    result = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
