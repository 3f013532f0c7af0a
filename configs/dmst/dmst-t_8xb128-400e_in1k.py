_base_ = [
    '../_base_/models/dmst_tiny.py',
    '../_base_/datasets/imagenet_224_tost.py',
    '../_base_/schedules/tost_imagenet_bs1024_adamw_400e.py',
    '../_base_/default_runtime_cls.py',
]

model = dict(
    backbone=dict(drop_path_rate=0.0),  # ToST's; the DMST paper names none
    head=dict(loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original')),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)]))

# decay .99996. Validation is on the raw weights, as in ToST; mmengine saves the average as the
# weights of a checkpoint, publish_model.py --raw takes the others out of it
custom_hooks = [
    dict(
        type='EMAHook',
        momentum=4e-5,
        update_buffers=True,
        evaluate_on_ema=False,
        evaluate_on_origin=True,
        priority='ABOVE_NORMAL'),
    dict(type='mmext.RunArtifactsHook'),
]
