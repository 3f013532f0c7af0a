"""What a tool writes: over no input, over nothing that is there, and nothing over each other."""

import pytest

from mmext.cli.config_check import ConfigError
from mmext.cli.outputs import Names, check_outputs, keep_drawings_apart


def test_names_are_distinct_and_plain_where_they_can_be():
    names = Names()
    given = ['a.jpg', 'a.png', 'other/a.png', 'other/a.png', 'A.jpg', 'a_2.jpg', 'b', 'b', 'b']
    found = [names(name) for name in given]
    assert found[:3] == ['a', 'a_png', 'other_a_png'] and found[6] == 'b'
    assert len({name.casefold() for name in found}) == len(given)


def test_drawings_of_one_name_go_to_two_files():
    class Visualizer:
        written = []

        def add_datasample(self, name, image, out_file=None, step=0):
            self.written.append(out_file)

    visualizer = Visualizer()
    keep_drawings_apart(visualizer)
    for _ in range(3):
        visualizer.add_datasample('test_img', None, out_file='out/a.jpg', step=1)
    visualizer.add_datasample('test_img', None)
    assert visualizer.written[0] == 'out/a.jpg' and visualizer.written[3] is None
    assert len(set(visualizer.written)) == 4
    assert all(name.startswith('out/') and name.endswith('.jpg')
               for name in visualizer.written[:3])


def test_inputs_and_existing_outputs_stay(tmp_path, monkeypatch):
    (tmp_path / 'a').touch()
    monkeypatch.chdir(tmp_path)
    check_outputs(['new', None], False, ['a', None])
    with pytest.raises(ConfigError, match='a exists; --overwrite'):
        check_outputs(['a'], False)
    check_outputs(['a'], True)
    with pytest.raises(ConfigError, match='is an input'):
        check_outputs(['a'], True, [tmp_path / 'a'])
    with pytest.raises(ConfigError, match='is a folder'):
        check_outputs([tmp_path], True)
