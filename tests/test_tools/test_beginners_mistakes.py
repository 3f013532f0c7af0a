"""What a beginner gets wrong, by tool: exit status and one last line that says it, no traceback.

All tools run in this process, in an empty folder with the files of ``folder``.
"""

import importlib.util
import json
import shlex
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from small_classifier import CLASSIFIER

TOOLS = Path(__file__).resolve().parents[2] / 'tools'
TRAINING = """
data_root = 'photos'
train_dataloader = dict(
    batch_size=2, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(type='CustomDataset', data_root=data_root, data_prefix='train', pipeline=[
        dict(type='LoadImageFromFile'), dict(type='PackInputs')]))
val_dataloader = dict(
    batch_size=2, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(type='CustomDataset', data_root=data_root, data_prefix='val', pipeline=[
        dict(type='LoadImageFromFile'), dict(type='PackInputs')]))
test_dataloader = val_dataloader
val_evaluator = dict(type='Accuracy', topk=1)
test_evaluator = dict(type='Accuracy', topk=1)
optim_wrapper = dict(optimizer=dict(type='AdamW', lr=1e-4))
train_cfg = dict(by_epoch=True, max_epochs=1)
val_cfg = dict()
test_cfg = dict()
"""
QUICKSTART = TOOLS.parent / 'configs' / 'quickstart' / 'digits_mask_rcnn.py'
ANY_CONFIG = [  # of every tool that takes a config first: words, what the last line says
    ('none.py', 'none.py'), ('clss.py', "Did you mean 'cls.py'"), ('folder', 'folder'),
    ('text.pth', 'text.pth'), ('broken.py', 'broken.py'), ('scopeless.py', 'default_scope'),
    ('cls.py --cfg-options model', 'KEY=VALUE'), ('cls.py --nothing', '--nothing'),
    ('cls.py --cfg-options model.backbone.arch.deep=1', '--cfg-options'),
]
CHECKPOINT = [('cls.py none.pth', 'none.pth'), ('cls.py folder', 'folder'),
              ('cls.py text.pth', 'text.pth'), ('cls.py other.pth', 'other.pth')]
FIGURE = [
    *ANY_CONFIG, *[(f'{words} --images image.png', said) for words, said in CHECKPOINT],
    ('cls.py', 'give --images'), ('cls.py --images none', 'none does not exist'),
    ('cls.py --images folder', 'no images in folder'), ('cls.py --shape 1 2 3', 'one or two'),
    ('cls.py --shape x', 'invalid int'), ('cls.py --shape 0', 'positive'),
    ('cls.py --images image.png --device gpu', "device 'gpu'"),
    ('cls.py --images image.png --layers 7', '7'), ('cls.py --batch-size 0', '--batch-size'),
    ('cls.py --num-images 0', '--num-images'), ('', 'required'),
    ('cls.py --images text.png', 'text.png'),
]
BIASED = [*FIGURE, ('cls.py --images image.png --out file/x', 'file')]
RATIO = [('cls.py --keep-ratio 2', "'2' is no keep ratio"), ('cls.py --keep-ratio half', 'half'),
         ('cls.py --keep-ratio 0.9-0.1', 'no keep ratio'), ('cls.py --keep-ratio', 'argument')]
MISTAKES = {
    'analysis_tools/attention_maps': [*BIASED, ('cls.py --heads x', 'invalid int'), (
        'cls.py --images image.png --heads 9', 'the model has 2 heads')],
    'analysis_tools/bias_correlation': [
        *BIASED, *RATIO, ('cls.py --keep-ratio 0.9,0.1', 'one number')],
    'analysis_tools/bias_decomposition': [*BIASED, *RATIO, (
        'cls.py --images image.png --keep-ratio 0.9,0.1,0.2', '2 layers')],
    'analysis_tools/keep_ratio_sweep': [*BIASED, *RATIO, (
        'cls.py --images image.png --budget-gflops 1e-9', 'budget')],
    'analysis_tools/oracle_gap': [*BIASED, *RATIO],
    'analysis_tools/coding_rate': [*FIGURE, ('cls.py --images image.png', 'no membership')],
    'analysis_tools/membership_maps': [*FIGURE, ('cls.py --images image.png', 'no membership')],
    'analysis_tools/get_flops': [
        *ANY_CONFIG, *RATIO, ('cls.py --shape 1 2 3', 'one or two'), ('cls.py --shape 0', 'posi'),
        ('cls.py --device gpu', "device 'gpu'"), ('cls.py --json file/x.json', 'file'),
        ('cls.py --json folder', 'folder'), ('', 'required')],
    'analysis_tools/benchmark': [
        ('', 'required'), ('layers', 'invalid choice'), ('layer --device gpu', "device 'gpu'"),
        ('layer --keep-ratio 2', 'no keep ratio'), ('layer --shape a', 'invalid int'),
        ('layer --batch-size 0', 'batch-size'), ('detector --config none.py', 'none.py'),
        ('layer --keep-ratio 0.9,0.1', 'several layers'), ('detector', '--config'),
        ('detector --config clss.py', 'Did you mean'), ('layer --dtype fp8', 'invalid choice'),
        ('layer --tokens 4 --repeat 1 --only plain --json file/x', 'file'),
        ('layer --tokens many', 'many')],
    'analysis_tools/structured_pruning': [
        ('', 'required'), ('deit_small_patch16_224', '--out'),
        ('deit_smal --out a.pth', 'deit_smal'),
        ('resnet18 --out a.pth', 'only VisionTransformers'), ('deit_tiny_patch16_224 --out a.pth '
         '--checkpoint none.pth', 'none.pth'), ('deit_tiny_patch16_224 --out a.pth --checkpoint '
         'text.pth', 'text.pth'),
        ('deit_tiny_patch16_224 --out a.pth --checkpoint folder', 'folder'),
        ('deit_tiny_patch16_224 --out a.pth --checkpoint other.pth', 'not a ViT'),
        ('deit_tiny_patch16_224 --out file/a.pth', 'file'),
        ('deit_tiny_patch16_224 --out a.pth --ratio 2', 'ratio=2'),
        ('deit_tiny_patch16_224 --out a.pth --shape 0', 'positive'),
        ('deit_tiny_patch16_224 --out a.pth --variant heads', 'invalid choice')],
    'analysis_tools/summarize': [
        ('', 'required'), ('none', 'is no folder'), ('folder', 'holds no config'),
        ('file', 'is no folder'), ('run --out file/x', 'file'), ('run --json file/x', 'file'),
        ('run --device gpu', "device 'gpu'"), ('run --repeat 0', '--repeat'),
        ('run --pick worst', 'invalid choice'), ('run --json folder', 'folder')],
    'analysis_tools/openmmlab': [
        ('', 'required'), ('analyse_logs cls.py', 'invalid choice'), (
            'analyze_logs none.py', 'none.py'), ('analyze_logs clss.py', 'Did you mean'),
        ('confusion_matrix cls.py text.pth', 'text.pth'), ('analyze_logs broken.py', 'broken.py'),
        ('analyze_logs scopeless.py', 'default_scope')],
    'model_converters/export': [
        *[(f'{words} --format torch_export --out a.pt2', said)
          for words, said in (*ANY_CONFIG, *CHECKPOINT, *RATIO[:3])],
        ('cls.py', '--out'), ('cls.py --out a.pth', 'must end in'),
        ('cls.py --format torch_export --out file/a.pt2', 'file'),
        ('cls.py --format torch_export --out a.pt2 --shape 1 2 3', 'one or two'),
        ('cls.py --format tensorrt --out a.pt2', 'invalid choice'),
        ('cls.py --format torch_export --out a.pt2 --neck', 'no neck')],
    'model_converters/convert_vit': [
        ('', 'required'), ('text.pth a.pth', '--to'), ('none.pth a.pth --to timm', 'none.pth'),
        ('text.pth a.pth --to timm', 'text.pth'), ('folder a.pth --to timm', 'folder'),
        ('other.pth a.pth --to timm', 'not a ViT'), ('text.pth a.pth --to keras', 'invalid choice'),
        ('other.pth text.pth --to timm', 'exists'), ('vit.pth file/a.pth --to timm', 'file'),
        ('vit.pth a.safetensors --to mmext', '.pth'),
        ('vit.pth a.pth --to timm --prefix x.', 'x.')],
    'dataset_converters/imagenet100': [
        ('', 'required'), ('none out', 'lacks 100'), ('folder out', 'lacks 100'),
        ('folder out --classes none.txt', 'none.txt'), ('folder out --classes folder', 'folder'),
        ('file out', 'lacks 100')],
    'dataset_converters/digits': [
        ('--out file', 'file'), ('--out folder/x --train 0', '--train'),
        ('--out folder/x --val -1', '--val'), ('--out folder/x --min-visible 2', '--min-visible'),
        ('--out folder/x --cls-copies 0', '--cls-copies'), ('--train many', 'many'),
        ('--nothing', '--nothing'), ('--out run', 'run')],
    'dataset_converters/check_coco': [
        ('', 'give either'), ('none.json', 'none.json'), ('folder', 'folder'),
        ('text.pth', 'text.pth'), ('coco.json --config det.py', 'give either'),
        ('--config none.py', 'none.py'), ('--config clss.py', 'Did you mean'),
        ('--config broken.py', 'broken.py'), ('coco.json --json folder', 'folder'),
        ('coco.json --seg-dir none', 'isthing'), ('coco.json --json coco.json', 'input'),
        ('--config det.py --cfg-options x', 'KEY=VALUE')],
    'dataset_converters/coco_subset': [
        ('', 'required'), ('none.json a.json', 'none.json'), ('folder a.json', 'folder'),
        ('text.pth a.json', 'text.pth'), ('coco.json', 'required'),
        ('coco.json a.json --classes two', 'two'), ('coco.json a.json --num-images 0', 'at least'),
        ('coco.json a.json --split b.json', 'FILE=SHARE'),
        ('coco.json a.json --split b.json=2', 'between 0 and 1'),
        ('coco.json a.json --copy-to images', '--image-dir'),
        ('coco.json a.json --copy-to images --image-dir none', 'none'),
        ('coco.json coco.json', 'input'), ('coco.json folder', 'folder'),
        ('coco.json a.json --licenses 4', 'licens'), ('coco.json file/a.json', 'file')],
    'dataset_converters/to_coco': [
        ('', 'required'), ('voc folder a.json', 'invalid choice'),
        ('labelme none a.json', 'none'), ('labelme folder a.json', 'nothing found'),
        ('yolo folder a.json', '--data'), ('yolo folder a.json --data none.yaml', 'none.yaml'),
        ('yolo folder a.json --data text.pth', 'text.pth'), ('labelme folder', 'required'),
        ('labelme folder a.json --data x.yaml', '--data'), ('labelme folder folder', 'folder'),
        ('labelme folder a.json --labels none', 'none'), ('labelme file a.json', 'file')],
    'model_converters/publish_model': [
        ('', 'required'), ('none.pth a.pth', 'none.pth'), ('folder a.pth', 'folder'),
        ('text.pth a.pth', 'text.pth'), ('vit.pth a.pth', 'state_dict'),
        ('other.pth a.pt', '.pth'), ('other.pth', 'required'), ('other.pth a.pth --raw', '--raw'),
        ('other.pth file/a.pth', 'file'), ('other.pth a.pth --nothing', '--nothing')],
    'models': [
        ('nothing-like-this', 'no config'), ('--task sleeping', 'no config'),
        ('--json folder', 'folder'), ('--json file/x', 'file'), ('--nothing', '--nothing')],
    'analysis_tools/eval_coco': [
        ('', 'required'), ('--gt none.json --results r.json', 'none.json'),
        ('--gt coco.json --results none.json', 'none.json'),
        ('--gt folder --results r.json', 'folder'), ('--gt text.pth --results r.json', 'text.pth'),
        ('--gt coco.json --results text.pth', 'text.pth'),
        ('--gt r.json --results coco.json', 'r.json'),
        ('--gt coco.json --results coco.json', 'coco.json'),
        ('--gt coco.json --results r.json --iou-types keypoints', 'invalid choice'),
        ('--gt coco.json --results r.json --iou-types segm', 'segm'),
        ('--gt coco.json --results r.json --classes two', 'two'),
        ('--gt coco.json --results r.json --json folder', 'folder'),
        ('--gt coco.json --results other_image.json', '99'),
        ('--gt coco.json --results r.json --json file/x', 'file')],
    'train': [
        *ANY_CONFIG, ('', 'required'), ('full.py --resume none.pth', 'none.pth'),
        ('full.py --resume text.pth', 'text.pth'), ('full.py --resume other.pth', 'other.pth'),
        ('full.py --resume folder', 'folder'), ('full.py --work-dir file', 'file'),
        ('full.py --cfg-options load_from=none.pth', 'none.pth'),
        ('full.py --cfg-options load_from=other.pth', 'other.pth'),
        ('full.py --cfg-options data_root=none', 'none'),
        ('full.py --cfg-options val_evaluator.topk=(1,5)', 'top'),
        ('full.py --cfg-options model.head.num_classes=2', 'num_classes'),
        ('full.py --cfg-options optim_wrapper.optimizer.lr=1e-4x', 'lr'),
        ('full.py --cfg-options optim_wrapper.optimizer.type=Adamm', 'Adamm'),
        ('full.py --cfg-options model.backbone.keepratio=.5', 'keepratio'),
        ('full.py --cfg-options model.backbone.keep_ratio=2', 'keep_ratio'),
        ('full.py --cfg-options train_dataloader.dataset.type=COCO', 'COCO'),
        ('full.py --cfg-options train_dataloader.batch_size=0', 'batch_size'),
        ('full.py --cfg-options train_cfg.max_epochs=0', 'max_epochs'),
        ('full.py --log wand', 'invalid choice'), ('full.py --auto-scale-lr', 'base_batch_size'),
        ('det.py', 'init_cfg'), ('cls.py', 'nothing to train on')],
    'test': [
        *[(' cls.pth --'.join(words.split(' --')) if '--' in words else f'{words} cls.pth', said)
          for words, said in ANY_CONFIG], ('', 'required'), ('full.py', 'required'),
        ('full.py none.pth', 'none.pth'),
        ('full.py folder', 'folder'), ('full.py text.pth', 'text.pth'),
        ('full.py other.pth', 'other.pth'), ('full.py cls5.pth', 'head.fc'),
        ('full.py vit.pth', 'vit.pth'), ('full.py cls.pth --out a.txt', 'must end in'),
        ('full.py cls.pth --out folder', 'folder'), ('full.py cls.pth --show-dir file', 'file'),
        ('full.py cls.pth --tta --show-dir shown', '--show-dir'),
        ('full.py cls.pth --amp fp8', 'invalid choice'),
        ('full.py cls.pth --cfg-options data_root=none', 'none'),
        ('full.py cls.pth --cfg-options test_evaluator.topk=(1,5)', 'top'),
        ('cls.py cls.pth', 'nothing to test on'), ('det.py cls.pth', 'data'),
        ('full.py cls.pth --out file/a.json', 'file')],
    'dev/evaluation_time': [
        ('--images 0', '--images'),
        ('--tasks boxes', 'bbox')],
    'dev/exported_detector': [
        ('', 'required'), ('none.png', 'none.png'), ('image.png --size 0', '--size'),
        ('image.png --json folder', 'folder'), ('image.png --json image.png', 'input')],
    'dev/gpu_check': [
        ('--device gpu', "device 'gpu'"), ('--json folder', 'folder'), ('--minutes x', 'invalid'),
        ('--nothing', '--nothing')],
}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp('beginner')
    (path / 'cls.py').write_text(CLASSIFIER)
    (path / 'broken.py').write_text('model = dict(\n')
    (path / 'scopeless.py').write_text(CLASSIFIER.replace('default_scope', 'scope'))
    (path / 'text.pth').write_text('no checkpoint')
    (path / 'text.png').write_text('no image')
    (path / 'file').write_text('')
    (path / 'folder').mkdir()
    (path / 'run').mkdir()
    (path / 'run' / 'config.py').write_text(CLASSIFIER)
    torch.save({'state_dict': {'layer.weight': torch.ones(2)}}, path / 'other.pth')
    torch.save({'blocks.0.norm1.weight': torch.ones(2)}, path / 'vit.pth')
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    cv2.imwrite(str(path / 'image.png'), noise)
    for split in ('train', 'val'):
        for name in 'abc':
            (path / 'photos' / split / name).mkdir(parents=True)
            cv2.imwrite(str(path / 'photos' / split / name / '0.png'), noise)
    (path / 'full.py').write_text(CLASSIFIER + TRAINING)
    (path / 'det.py').write_text(f"_base_ = {str(QUICKSTART)!r}\n")
    for classes in (3, 5):
        from mmext.models import BiasPrunedViT
        state = {f'backbone.{key}': value for key, value in BiasPrunedViT(
            'tiny-test', img_size=64).state_dict().items()}
        state |= {'head.fc.weight': torch.ones(classes, 32), 'head.fc.bias': torch.ones(classes)}
        torch.save({'state_dict': state, 'meta': {}},
                   path / ('cls.pth' if classes == 3 else 'cls5.pth'))
    (path / 'coco.json').write_text(json.dumps(dict(
        images=[dict(id=1, file_name='image.png', height=64, width=64)],
        annotations=[dict(id=1, image_id=1, category_id=1, bbox=[1, 1, 9, 9], area=81, iscrowd=0)],
        categories=[dict(id=1, name='one')])))
    found = dict(image_id=1, category_id=1, bbox=[1, 1, 9, 9], score=.5)
    for name, content in (('r', [found]), ('other_image', [found | {'image_id': 99}])):
        (path / f'{name}.json').write_text(json.dumps(content))
    return path


@pytest.mark.parametrize('name', MISTAKES)
def test_mistakes(name, folder, monkeypatch, capsys):
    if name == 'dataset_converters/to_coco':
        pytest.importorskip('supervision', reason='the converter needs mmext[convert]')
    from mmext.cli.clear_errors import one_clear_error
    spec = importlib.util.spec_from_file_location(f'tool_{Path(name).stem}', TOOLS / f'{name}.py')
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    monkeypatch.chdir(folder)
    before = {path: path.is_file() and path.read_bytes() for path in folder.rglob('*')}
    wrong = []
    for words, said in MISTAKES[name]:
        monkeypatch.setattr(sys, 'argv', [f'{name}.py', *shlex.split(words)])
        code = 0
        try:
            with one_clear_error():
                code = tool.main()
        except SystemExit as end:
            code = end.code
        err = capsys.readouterr().err
        last = (err.strip().splitlines() or [''])[-1]
        clear = last.startswith('error: ') or ': error: ' in last
        if not code or not clear or said not in last or 'Traceback' in err:
            wrong.append(f'{words!r}: status {code}, {last!r}, wanted {said!r}'
                         + (' after a traceback' if 'Traceback' in err else ''))
    assert not wrong, '\n'.join(wrong)
    changed = [path for path, content in before.items()  # the runs' own folders apart
               if content and 'work_dirs' not in path.parts and path.read_bytes() != content]
    assert not changed


def test_every_tool_is_in_a_table():
    """Those that others test: their own files say so."""
    elsewhere = {'demo', 'dev/env_state', 'dev/evidence', 'dev/quickstart_time', 'dev/recovery'}
    tools = {str(path.relative_to(TOOLS).with_suffix('')) for path in TOOLS.rglob('*.py')}
    assert tools - elsewhere <= set(MISTAKES)
