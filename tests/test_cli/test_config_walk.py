"""The walker against mmengine's own idea of what a path means, on every kind of container."""

from mmengine.config import Config, ConfigDict

from mmext.cli.config_walk import initial_weights, walk
from mmext.cli.launch import drop_own_scope, move_paths

CONTENT = dict(
    model=dict(type='A', backbone=dict(type='B', init_cfg=[dict(type='Constant'), dict(
        type='Pretrained', checkpoint='b.pth')]),
        necks=[dict(type='C'), ({'deep': dict(type='D', init_cfg=dict(
            type='Pretrained', checkpoint='d.pth'))},)]))


def test_every_dict_once_with_a_path_that_leads_to_it():
    cfg = Config(CONTENT)
    found = dict(walk(cfg.model, 'cfg.model'))
    assert len(found) == 8 and all(isinstance(node, dict) for node in found.values())
    for path, node in found.items():
        assert eval(path.replace('.deep', "['deep']"), {'cfg': cfg}) == node
    assert next(iter(found)) == 'cfg.model'
    assert [path for path, _ in walk(cfg.model, only=('backbone',))] == ['', 'backbone']


def test_a_dict_may_be_changed_when_it_is_handed_out():
    tree = {'a': {'b': {'c': {}}}, 'x': [{'b': 1}]}
    for _, node in walk(tree):
        node.pop('b', None)
    assert tree == {'a': {}, 'x': [{}]}
    assert [one['checkpoint'] for _, _, one in initial_weights(CONTENT['model'])] == [
        'b.pth', 'd.pth']
    assert [path for path, _, _ in initial_weights(CONTENT['model'])] == [
        'model.backbone', 'model.necks[1][0].deep']


def test_scope_and_data_root_are_replaced_everywhere():
    cfg = ConfigDict(
        _scope_='mmext', data_root='data/old/',
        loader=dict(_scope_='mmext', files=['data/old/a', ['data/old'], dict(p='data/old/b')],
                    other='data/older/c', own=dict(_scope_='mmdet')))
    drop_own_scope(cfg)
    move_paths(cfg, 'data/old/', '/new')
    assert cfg.to_dict() == dict(
        data_root='/new/', loader=dict(files=['/new/a', ['/new'], dict(p='/new/b')],
                                       other='data/older/c', own=dict(_scope_='mmdet')))
