import subprocess
import sys
from pathlib import Path

import pytest
from mmengine.config import Config

import mmext.registry  # noqa: F401  (before mmpretrain)

TOOL = 'tools/dataset_converters/imagenet100.py'


def run(root_dir, *args):
    return subprocess.run([sys.executable, str(root_dir / TOOL), *map(str, args)],
                          capture_output=True, text=True)


@pytest.fixture
def class_list(root_dir):
    return (root_dir / 'configs/_base_/datasets/imagenet100_classes.txt').read_text().split()


def test_class_list(class_list):
    assert len(set(class_list)) == 100 and class_list == sorted(class_list)
    assert {'n02869837', 'n02090622'} <= set(class_list)  # first and last of the CMC file


@pytest.fixture
def imagenet(tmp_path, class_list):
    """1,000 class folders with one training image each, a flat validation folder."""
    others = [f'n{i:08d}' for i in range(10000, 10900)]
    wnids = sorted(set(class_list) | set(others))
    (tmp_path / 'val').mkdir()
    (tmp_path / 'meta').mkdir()
    lines = []
    for number, wnid in enumerate(wnids):
        (tmp_path / 'train' / wnid).mkdir(parents=True)
        (tmp_path / 'train' / wnid / f'{wnid}_1.JPEG').touch()
        (tmp_path / 'val' / f'val_{number}.JPEG').write_text(wnid)
        lines.append(f'val_{number}.JPEG {number}')
    (tmp_path / 'meta' / 'val.txt').write_text('\n'.join(lines) + '\n')
    return tmp_path


def test_links_and_dataset(root_dir, imagenet, class_list):
    target = imagenet / 'in100'
    for _ in range(2):  # running it again does no harm
        result = run(root_dir, imagenet, target)
        assert result.returncode == 0, result.stderr
    assert sorted(p.name for p in (target / 'train').iterdir()) == class_list

    cfg = Config.fromfile(root_dir / 'configs/_base_/datasets/imagenet100_224.py')
    from mmpretrain.datasets import ImageNet
    for split in ('train', 'val'):
        settings = cfg[f'{split}_dataloader'].dataset
        dataset = ImageNet(data_root=str(target), split=split, classes=settings.classes)
        assert len(dataset) == 100
        assert list(dataset.metainfo['classes']) == class_list
        for i in (0, 57, 99):
            info = dataset.get_data_info(i)
            path = Path(info['img_path'])
            assert path.parent.name == class_list[info['gt_label']]
            if split == 'val':
                assert path.read_text() == path.parent.name


def test_missing_class_is_named(root_dir, imagenet, class_list):
    (imagenet / 'train' / class_list[3] / f'{class_list[3]}_1.JPEG').unlink()
    (imagenet / 'train' / class_list[3]).rmdir()
    result = run(root_dir, imagenet, imagenet / 'in100')
    assert result.returncode == 1 and class_list[3] in result.stderr
