"""ADE20K, 150 classes, crops of 512²; mmdet's data set and metric, label 0 is "other", ignored.

mmdet has ADE20K for evaluation only; the training part here is the same folder layout.
"""

_base_ = 'mmdet::_base_/datasets/ade20k_semantic.py'

crop_size = (512, 512)
load_labels = dict(
    type='LoadAnnotations', with_bbox=False, with_label=False, with_seg=True,
    reduce_zero_label=True)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    load_labels,
    dict(type='RandomResize', scale=(2048, 512), ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type='RandomCrop', crop_type='absolute', crop_size=crop_size, allow_negative_crop=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=(2048, 512), keep_ratio=True),  # shorter side 512
    load_labels,
    dict(
        type='PackDetInputs',
        meta_keys=('img_path', 'ori_shape', 'img_shape', 'scale_factor')),
]
train_dataloader = dict(
    batch_size=4,  # x 4 GPUs = 16
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='ADE20KSegDataset',
        data_root='data/ADEChallengeData2016/',
        data_prefix=dict(img_path='images/training', seg_map_path='annotations/training'),
        pipeline=train_pipeline))
val_dataloader = dict(num_workers=4, dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
