"""Words of the command line, there and back."""

import argparse

import pytest

from mmext.cli import arguments
from mmext.ops import column_selection, keep_ratio_schedule


@pytest.mark.parametrize('word, value', [
    ('none', None), ('0.5', .5), ('0.9,0.1', (.9, .1)), ('0.9,0.5,0.1', (.9, .5, .1)),
    ('cosine:0.9,0.1', dict(start=.9, end=.1, shape='cosine'))])
def test_keep_ratio_there_and_back(word, value):
    assert arguments.keep_ratio(word) == value
    assert arguments.ratio_word(value) == word


def test_the_shapes_are_those_of_the_schedule():
    assert tuple(column_selection.SHAPES) == arguments.SHAPES
    for shape in arguments.SHAPES:
        assert shape in arguments.RATIO_HELP
        schedule = keep_ratio_schedule(arguments.keep_ratio(f'{shape}:0.9,0.1'), 12)
        assert (schedule[0], schedule[11]) == (.9, pytest.approx(.1))


@pytest.mark.parametrize('word', [
    '', '0', '1.2', 'half', '0.9,', 'wave:0.9,0.1', 'cosine:0.9', 'cosine:0.9,0.5,0.1', ':0.9,0.1'])
def test_what_is_no_keep_ratio(word):
    with pytest.raises(argparse.ArgumentTypeError, match='is no keep ratio: give none'):
        arguments.keep_ratio(word)


@pytest.mark.parametrize('word', ["model.neck=dict(type='FPN', num_outs=3)", 'no_key',
                                  'a=(1,2', 'a=[1,(2]'])
def test_what_is_no_cfg_option(word, capsys):
    """mmengine recurses without end on a dict and asserts that brackets match."""
    parser = argparse.ArgumentParser()
    arguments.add_cfg_options(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(['--cfg-options', word])
    assert '--cfg-options: ' in capsys.readouterr().err
    options = parser.parse_args(['--cfg-options', 'a.b=(.9,.1)', 'c=none']).cfg_options
    assert options == {'a.b': (.9, .1), 'c': 'none'}
