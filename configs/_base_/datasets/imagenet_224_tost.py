"""ImageNet-1k as ToST trains and tests: DeiT's augmentation, and the whole image in the test.

ToST evaluates with --full_crop: shorter side to 224, then the center 224 x 224. Without that
option (and in imagenet_224_deit.py) its shorter side is 256.
"""

_base_ = './imagenet_224_deit.py'

test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='ResizeEdge', scale=224, edge='short', backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=224),
    dict(type='PackInputs'),
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = dict(dataset=dict(pipeline=test_pipeline))
