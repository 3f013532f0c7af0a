"""Class folders, names, heads and metrics of a classifier, before anything is built."""

import pytest
from mmengine.config import Config
from PIL import Image

import mmext.registry  # noqa: F401
from mmext.cli.class_check import check_class_data
from mmext.cli.config_check import ConfigError


@pytest.fixture
def config(tmp_path):
    for split in ('train', 'val'):
        for name in ('cat', 'dog', 'owl'):
            (tmp_path / split / name).mkdir(parents=True)
            Image.new('RGB', (4, 4)).save(tmp_path / split / name / '0.png')

    def loader(split):
        return dict(dataset=dict(type='RepeatDataset', times=1, dataset=dict(
            type='CustomDataset', data_root=str(tmp_path), data_prefix=split,
            classes=['cat', 'dog', 'owl'])))

    return Config(dict(
        default_scope='mmpretrain', train_dataloader=loader('train'), val_dataloader=loader('val'),
        model=dict(head=dict(num_classes=3), data_preprocessor=dict(num_classes=3)),
        val_evaluator=dict(type='Accuracy', topk=(1, ))))


def check(cfg):
    check_class_data(cfg, ('train', 'val'))


def test_numbering_is_the_trap_it_claims(config, tmp_path):
    """mmpretrain numbers each split by its own folders and looks at no name."""
    from mmpretrain.datasets import CustomDataset
    check(config)
    (tmp_path / 'val' / 'ant').mkdir()
    (tmp_path / 'val' / 'owl' / '0.png').unlink()
    (tmp_path / 'val' / 'owl').rmdir()
    data = CustomDataset(str(tmp_path), 'val', classes=['cat', 'dog', 'owl'])
    assert [data.CLASSES[data[i]['gt_label']] for i in range(len(data))] == ['dog', 'owl']
    with pytest.raises(ConfigError, match='no folder is named owl; no class is named ant'):
        check(config)
    for split in ('train', 'val'):
        del config[f'{split}_dataloader'].dataset.dataset['classes']
    with pytest.raises(ConfigError, match=r'only val_.* has ant and only train_.* has owl'):
        check(config)


@pytest.mark.parametrize('changes, message', [
    ({'train_dataloader.dataset.dataset.classes': ['dog', 'cat', 'owl']},
     "another order than the folders.*label 0 would be called 'dog' but is 'cat'"),
    ({'train_dataloader.dataset.dataset.classes': ['cat', 'dog']}, '2 classes but 3 class folders'),
    ({'train_dataloader.dataset.dataset.classes': ['cat', 'dog', 'owls']}, 'is named owls'),
    ({'train_dataloader.dataset.dataset.classes': 'cat'}, r"one class alone is written \('cat',\)"),
    ({'model.head.num_classes': 10}, r'model.head.num_classes = 10 but train_.* has 3 classes'),
    ({'model.data_preprocessor.num_classes': 4}, 'data_preprocessor.num_classes=3'),
    ({'val_evaluator.topk': (1, 5)}, r'val_evaluator.topk = .* best 5 of 3 classes'),
    ({'model.head.topk': 5}, r'model.head.topk = 5 asks for the best 5'),
])
def test_configs(config, changes, message):
    config.merge_from_dict(changes)
    with pytest.raises(ConfigError, match=message):
        check(config)


def test_names_for_folders_may_be_others(config):
    for split in ('train', 'val'):
        config[f'{split}_dataloader'].dataset.dataset.classes = ['tabby', 'hound', 'eagle owl']
    check(config)
    config.val_dataloader.dataset.dataset.classes = ['hound', 'tabby', 'eagle owl']
    with pytest.raises(ConfigError, match=r'classes differ: .*another order'):
        check(config)


@pytest.mark.parametrize('folder, message', [
    ('.ipynb_checkpoints', 'holds .ipynb_checkpoints, which would count as a class'),
    ('__MACOSX', 'remove the folder'), ('yak', 'no images in the class folder yak')])
def test_folders_that_are_no_class(config, tmp_path, folder, message):
    (tmp_path / 'train' / folder).mkdir()
    with pytest.raises(ConfigError, match=message):
        check(config)


def test_files_that_are_no_image(config, tmp_path):
    (tmp_path / 'train' / 'cat' / '0.png').rename(tmp_path / 'train' / 'cat' / '0.webp')
    with pytest.raises(ConfigError, match=r'no images in the class folder cat .*1 \.webp, convert'):
        check(config)
    config.train_dataloader.dataset.dataset.extensions = ['.png', '.webp']
    check(config)
    (tmp_path / 'val' / 'cat' / '0.png').unlink()  # nothing of a class to test is no fault
    check(config)


def test_lists_of_files(config, tmp_path):
    (tmp_path / 'train.txt').write_text('cat/0.png 0\nowl/0.png 3\n')
    config.train_dataloader.dataset.dataset.ann_file = 'train.txt'
    with pytest.raises(ConfigError, match=r"line 2 of '.*train.txt' is 'owl/0.png 3'.*0 to 2"):
        check(config)
    (tmp_path / 'train.txt').write_text('cat/0.png 0\nowl/0.png 2\n')
    check(config)


def test_data_sets_that_name_their_own_classes(root_dir):
    for name, other in (('cifar10_224', 11), ('cifar100_224', 10), ('svhn_224', 5)):
        cfg = Config.fromfile(root_dir / 'configs' / '_base_' / 'datasets' / f'{name}.py')
        cfg.default_scope = 'mmpretrain'
        cfg.model = dict(head=dict(num_classes=cfg.data_preprocessor.num_classes))
        check(cfg)
        cfg.model.head.num_classes = other
        with pytest.raises(ConfigError, match=f'head.num_classes = {other} but'):
            check(cfg)
