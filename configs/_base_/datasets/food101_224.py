"""Food-101 at 224 pixels, otherwise as pets_224.py.

The DMST paper adds this data set without naming a recipe; our choice is the one of the others.
"""

_base_ = './pets_224.py'

data_root = 'data/food-101'
data_preprocessor = dict(num_classes=101)
train_dataloader = dict(dataset=dict(type='Food101', data_root=data_root, split='train'))
val_dataloader = dict(dataset=dict(type='Food101', data_root=data_root))
test_dataloader = val_dataloader
val_evaluator = dict(topk=(1, 5))
test_evaluator = val_evaluator
