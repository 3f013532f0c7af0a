"""Small versions of the detection configs and data to step them with."""

from pathlib import Path

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import init_default_scope

import mmext.registry  # noqa: F401  (first: it prepares mmcv's ops for mmdet)
from mmext.registry import MODELS

CONFIG_DIR = Path(__file__).resolve().parents[1] / 'configs' / 'vitdet'
CONFIGS = sorted(path.name for path in CONFIG_DIR.glob('*.py'))
PAIR = 'mask-rcnn_deit-s-bias-0.9-0.1_sfp_lsj-100e_coco.py'
MASKED = 'mask-rcnn_deit-s-bias-0.9-0.1-masked_sfp_lsj-100e_coco.py'


def load(name, options=None):
    init_default_scope('mmdet')
    cfg = Config.fromfile(CONFIG_DIR / name)
    cfg.merge_from_dict(options or {})
    return cfg


def small_config(name, size=128, dim=32, width=16, **backbone):
    """A config of the folder with the same layers, but narrow and on a small canvas."""
    cfg = load(name)
    model = cfg.model
    model.data_preprocessor.pad_size_divisor = size
    model.backbone.init_cfg = None
    model.backbone.update(backbone)
    if model.backbone.type == 'mmext.BiasPrunedViT':
        depth = 24 if model.backbone.arch == 'vit-large' else 12
        model.backbone.update(
            arch=dict(embed_dim=dim, depth=depth, num_heads=2), img_size=size)
    else:
        model.backbone.arch = dict(embed_dim=dim, depth=12, num_heads=2)
    model.neck.update(in_channels=dim, out_channels=width)
    model.rpn_head.update(in_channels=width, feat_channels=width)
    heads = model.roi_head
    heads.bbox_roi_extractor.out_channels = width
    boxes = heads.bbox_head if isinstance(heads.bbox_head, list) else [heads.bbox_head]
    for head in boxes:
        head.update(in_channels=width, conv_out_channels=width, fc_out_channels=32)
    if heads.get('mask_head'):
        heads.mask_roi_extractor.out_channels = width
        heads.mask_head.update(in_channels=width, conv_out_channels=width)
    model.train_cfg.rpn_proposal.update(nms_pre=50, max_per_img=40)
    rcnn = model.train_cfg.rcnn
    for stage in rcnn if isinstance(rcnn, list) else [rcnn]:
        stage.sampler.num = 16
    model.test_cfg.rpn.update(nms_pre=50, max_per_img=40)
    model.test_cfg.rcnn.update(max_per_img=10, score_thr=0.0)
    return cfg


def build(cfg, seed=0):
    init_default_scope('mmdet')
    torch.manual_seed(seed)
    model = MODELS.build(cfg.model)
    model.init_weights()
    return model


def fake_batch(sizes=((100, 128), (128, 70)), objects=(3, 2), seed=0):
    """What mmdet's pipeline hands over: images of different sizes with boxes and masks."""
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks
    from mmengine.structures import InstanceData
    rng = np.random.default_rng(seed)
    images, samples = [], []
    for (height, width), count in zip(sizes, objects, strict=True):
        images.append(torch.from_numpy(
            rng.integers(0, 256, (3, height, width), dtype=np.uint8)))
        corner = rng.uniform(0, 0.5, (count, 2)) * (width, height)
        side = rng.uniform(0.2, 0.5, (count, 2)) * (width, height)
        boxes = np.concatenate([corner, corner + side], 1).astype(np.float32)
        masks = np.zeros((count, height, width), dtype=np.uint8)
        for mask, (x1, y1, x2, y2) in zip(masks, boxes.astype(int), strict=True):
            mask[y1:y2 + 1, x1:x2 + 1] = 1
        sample = DetDataSample(metainfo=dict(
            img_id=0, img_shape=(height, width), ori_shape=(height, width),
            scale_factor=(1.0, 1.0)))
        sample.gt_instances = InstanceData(
            bboxes=torch.from_numpy(boxes).reshape(-1, 4),
            labels=torch.from_numpy(rng.integers(0, 80, count)),
            masks=BitmapMasks(masks, height, width))
        sample.ignored_instances = InstanceData(
            bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long),
            masks=BitmapMasks(np.zeros((0, height, width), np.uint8), height, width))
        samples.append(sample)
    return dict(inputs=images, data_samples=samples)


def losses_of(model, batch):
    """Total loss of one training forward, and the parts."""
    data = model.data_preprocessor(batch, True)
    return model.parse_losses(model(**data, mode='loss'))


def write_coco(folder, images=4, size=(96, 128), objects=2, seed=0):
    """A small COCO data set of bright rectangles on noise: annotations.json beside the images."""
    import json

    from PIL import Image
    rng = np.random.default_rng(seed)
    height, width = size
    names = coco_classes()
    data = dict(
        images=[], annotations=[],
        categories=[dict(id=i + 1, name=name) for i, name in enumerate(names)])
    for image_id in range(images):
        image = rng.integers(0, 80, (height, width, 3), dtype=np.uint8)
        for _ in range(objects):
            x, y = (int(v) for v in rng.integers(0, (width // 2, height // 2)))
            w, h = (int(v) for v in rng.integers(16, (width // 2, height // 2)))
            label = int(rng.integers(0, 3))
            image[y:y + h, x:x + w, label] = 250
            data['annotations'].append(dict(
                id=len(data['annotations']) + 1, image_id=image_id, category_id=label + 1,
                bbox=[x, y, w, h], area=w * h, iscrowd=0,
                segmentation=[[x, y, x + w, y, x + w, y + h, x, y + h]]))
        name = f'{image_id}.png'
        Image.fromarray(image).save(folder / name)
        data['images'].append(dict(id=image_id, file_name=name, height=height, width=width))
    (folder / 'annotations.json').write_text(json.dumps(data))
    return folder


def coco_classes():
    from mmdet.datasets import CocoDataset
    return CocoDataset.METAINFO['classes']


def small_run(name, data_root, work_dir, jitter=False, **backbone):
    """A whole run's config on `write_coco` data: small model, one process, nothing random but
    the weights (`jitter` keeps the augmentation)."""
    cfg = small_config(name, **backbone)
    cfg.work_dir = str(work_dir)
    for loader in (cfg.train_dataloader, cfg.val_dataloader, cfg.test_dataloader):
        loader.update(batch_size=2, num_workers=0, persistent_workers=False)
        loader.dataset.update(
            data_root=str(data_root), ann_file='annotations.json', data_prefix=dict(img=''))
    for evaluator in (cfg.val_evaluator, cfg.test_evaluator):
        evaluator.ann_file = str(data_root / 'annotations.json')
    size = (128, 128)
    for step in (*cfg.train_dataloader.dataset.pipeline, *cfg.val_dataloader.dataset.pipeline,
                 *cfg.test_dataloader.dataset.pipeline):
        if 'scale' in step:
            step.scale = size
        if 'crop_size' in step:
            step.crop_size = size
    if not jitter:
        cfg.model.backbone.drop_path_rate = 0.0
        plain = ('LoadImageFromFile', 'LoadAnnotations', 'PackDetInputs')
        cfg.train_dataloader.dataset.pipeline = [
            step for step in cfg.train_dataloader.dataset.pipeline
            if step.type in plain]
        # samplers that take every candidate draw no random numbers
        cfg.model.train_cfg.rpn.sampler.num = 100000
        cfg.model.train_cfg.rcnn.sampler.num = 100000
    cfg.optim_wrapper.type = 'OptimWrapper'
    cfg.default_hooks.pop('visualization')
    cfg.default_hooks.pop('artifacts')
    return cfg
