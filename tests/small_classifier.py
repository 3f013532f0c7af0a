"""A config as users write them, for tests of tools: a classifier of three classes."""

CLASSIFIER = """
default_scope = 'mmpretrain'
data_preprocessor = dict(num_classes=3)
model = dict(
    type='ImageClassifier',
    backbone=dict(type='mmext.BiasPrunedViT', arch='tiny-test', img_size=64),
    head=dict(type='LinearClsHead', num_classes=3, in_channels=32, loss=dict(
        type='CrossEntropyLoss')))
"""
