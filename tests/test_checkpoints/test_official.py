"""Published files with head go into our classifiers by name and value; logits are timm's."""

import pytest
import timm
import torch
from mmengine.config import Config

from mmext.cli.checkpoint_check import check_fits, is_published
from mmext.cli.launch import build_model

DEIT = dict(img_size=64, embed_dim=32, depth=2, num_heads=2, num_classes=5)


def classifier(backbone, width=32):
    return build_model(Config(dict(default_scope='mmpretrain', model=dict(
        type='ImageClassifier', backbone=backbone,
        head=dict(type='LinearClsHead', num_classes=5, in_channels=width)))))


def randomized(model):
    torch.manual_seed(1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=.2)
    return model.eval()


VIT = dict(type='mmext.BiasPrunedViT', arch='tiny-test', img_size=64, key_bias=False)
CASES = {  # timm's model, wrapper of the file, our backbone
    'DeiT': (dict(global_pool='token'), 'model', VIT),
    'timm': (dict(global_pool='token'), None, VIT),
    'MAE': (dict(global_pool='avg'), 'model', VIT | dict(out_type='avg_featmap', fc_norm=True)),
}


@torch.no_grad()
@pytest.mark.parametrize('name', CASES)
def test_logits_are_timms(tmp_path, clean_scope, name):
    pool, wrapper, backbone = CASES[name]
    theirs = randomized(timm.create_model('deit_tiny_patch16_224', **DEIT, **pool))
    state = theirs.state_dict()
    torch.save({wrapper: state} if wrapper else state, tmp_path / 'official.pth')
    ours = classifier(backbone)
    fit = check_fits(str(tmp_path / 'official.pth'), ours)
    assert fit.complete and is_published(str(tmp_path / 'official.pth'), ours)
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(ours(images, mode='tensor'), theirs(images), rtol=1e-4, atol=1e-4)
    assert torch.equal(ours.head.fc.weight, theirs.head.weight)


@torch.no_grad()
def test_official_tost_file(tmp_path, clean_scope):
    """Official names are ours without ``backbone.``, and ``head.`` for ``head.fc.``."""
    body = dict(type='mmext.ToST', arch=dict(embed_dim=32, depth=2, num_heads=4))
    source, ours = randomized(classifier(body)), classifier(body)
    official = {key.removeprefix('backbone.').replace('head.fc.', 'head.'): value
                for key, value in source.state_dict().items()}
    torch.save({'model': official}, tmp_path / 'tost.pth')
    assert check_fits(str(tmp_path / 'tost.pth'), ours).complete
    for key, value in source.state_dict().items():
        assert torch.equal(ours.state_dict()[key], value)


def test_a_key_bias_is_not_made_up(tmp_path, clean_scope):
    from mmext.checkpoints.fit import DoesNotFit
    torch.save({'model': timm.create_model('deit_tiny_patch16_224', **DEIT).state_dict()},
               tmp_path / 'official.pth')
    with pytest.raises(DoesNotFit, match=r'2 are missing \(backbone.blocks.*key_bias'):
        check_fits(str(tmp_path / 'official.pth'), classifier(VIT | dict(key_bias=True)))
