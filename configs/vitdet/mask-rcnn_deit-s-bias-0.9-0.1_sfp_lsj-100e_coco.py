"""The paper's detector: Mask R-CNN on bias-pruned DeiT-S, keep ratio .9 to .1 over the depth.

331.17 + 686.08 = 1017.25 GFLOPs at 1024²; box AP 42.7, mask AP 38.1 in the paper. Of 4,096 columns
the blocks keep 3686, 3388, 3090, 2792, 2494, 2196, 1899, 1601, 1303, 1005, 707 and 409; by masks in
training, gathered in validation. The sum of these numbers follows from the paper's GFLOPs, their
linear fall is our choice. Starts from the bias-augmented classifier, as in the paper; that it is
the one trained pruned is our choice. Train it first:
configs/deit_bias/deit-s-bias-0.9-0.1_8xb128-ft_in1k.py.
"""

_base_ = './mask-rcnn_deit-s_sfp_lsj-100e_coco.py'

model = dict(
    backbone=dict(
        key_bias=True,
        keep_ratio=(0.9, 0.1),
        init_cfg=dict(
            checkpoint='work_dirs/deit-s-bias-0.9-0.1_8xb128-ft_in1k/epoch_40.pth',
            prefix='backbone.')))
