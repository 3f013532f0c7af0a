"""ImageNet-1k from scratch as ToST's code trains it, with DMST-T as the backbone.

The configs that use it set the size and its drop path. For ToST the recipe is the official code's;
that DMST is trained by it is our choice: its paper cites ToST's in the appendix and prints no
numbers of its own.
"""

_base_ = [
    '../models/dmst_tiny.py',
    '../datasets/imagenet_224_tost.py',
    '../schedules/tost_imagenet_bs1024_adamw_400e.py',
    '../default_runtime_cls.py',
]

model = dict(
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
]
