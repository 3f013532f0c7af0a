"""Figures: no text is cut off or hidden by another, numbers arrive in the image."""

import itertools

import cv2
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from mmext.analysis import drawing
from mmext.analysis.drawing import Cell, Line, Panel, Point

RNG = np.random.default_rng(0)
IMAGE = RNG.integers(0, 256, (64, 96, 3), dtype=np.uint8)


def check_texts(figure):
    """Every text lies within the figure; titles and labels of axes do not overlap each other."""
    FigureCanvasAgg(figure).draw()
    width, height = figure.canvas.get_width_height()
    boxes = {}
    for text in figure.findobj(Text):
        if not text.get_visible() or not text.get_text().strip():
            continue
        box = text.get_window_extent()
        if box.width and box.x1 > -1e4:
            boxes[text] = box
    ticks = {}  # label -> whether its tick is within the axis, others are not drawn
    for axis in figure.axes:
        for side, labels in enumerate((axis.get_xticklabels(), axis.get_yticklabels())):
            low, high = sorted((axis.get_xlim(), axis.get_ylim())[side])
            ticks.update({x: low <= x.get_position()[side] <= high for x in labels})
    for text, box in boxes.items():
        if not ticks.get(text, True):
            continue
        assert box.x0 >= -1 and box.y0 >= -1, text.get_text()
        assert box.x1 <= width + 1 and box.y1 <= height + 1, text.get_text()
    labels = [text for text in boxes if text not in ticks]
    for a, b in itertools.combinations(labels, 2):
        assert not boxes[a].padded(-1).overlaps(boxes[b]), (a.get_text(), b.get_text())


def grid():
    matrix = Cell(RNG.random((9, 9)), title='block 0', axes=('query', 'key'), vmax=.5)
    row = [Cell(image=IMAGE, title='an image'), matrix, matrix]
    return [row, row], ['deit-small\nhead 0', 'deit-small\nhead 11']


@pytest.mark.parametrize('share', ['panel', 'row', 'all'])
def test_cell_grid(share):
    rows, labels = grid()
    check_texts(drawing.cell_grid(rows, labels, 'Attention, ' + 'a long name ' * 12, 'weight',
                                  share=share))


def test_cell_grid_of_images_and_overlays():
    kept = [Cell(image=IMAGE, title=f'head {i}: 105 of 197') for i in range(6)]
    check_texts(drawing.cell_grid([kept, kept[:2]], ['block 0', 'block 5'], 'kept', '', size=1.9))
    maps = [Cell(RNG.random((4, 6)), IMAGE, f'head {i}') for i in range(4)]
    check_texts(drawing.cell_grid([maps], ['block 0\nΠ'], 'Memberships', '', size=2))


def test_lines():
    lines = [Line(f'r = {i / 10}, a set for each query', range(12), RNG.random(12), RNG.random(12),
                  color=i) for i in range(9)]
    panel = Panel(lines, 'Retained attention, a name', 'share of the attention mass', zero=True)
    check_texts(drawing.line_panels([panel, panel], 'block', 'mean and spread over 4 images'))
    few = Panel(lines[:2], 'Coding rate', 'rate in nats', level=(1.5, 'ceiling'))
    check_texts(drawing.line_panels([few], 'block'))


def test_scatter():
    cloud = (RNG.random(50), 1e-3 * RNG.random(50), .5)
    check_texts(drawing.scatter_grid([[cloud] * 6] * 2, [f'block {i}' for i in range(6)],
                                     'key bias b', ['column mean', 'attention received'], 'r'))


def test_frontier_shows_every_setting_in_every_panel():
    points = [Point('dense', 'dense', {'GFLOPs': 9.2, 'ms': 20.}, .8),
              Point('uniform', '0.9', {'GFLOPs': 9.0, 'ms': 19.}, .79, {'ms': (18., 23.)}),
              Point('uniform', '0.5', {'GFLOPs': 8.8, 'ms': 17.}, .7)]
    figure = drawing.frontier(points, 'top-1', 'title')
    found = [axis.get_xlabel() for axis in figure.axes]
    assert found == ['GFLOPs', 'ms']
    for axis in figure.axes:
        assert [text.get_text() for text in axis.texts] == ['dense', '0.9', '0.5']
        assert [tuple(line.get_ydata()) for line in axis.lines] == [(.8,), (.79, .7)]
    FigureCanvasAgg(figure).draw()


def test_shrink_is_the_mean_over_blocks():
    matrix = RNG.random((96, 64))
    expected = torch.nn.functional.adaptive_avg_pool2d(torch.tensor(matrix)[None], (32, 32))[0]
    np.testing.assert_allclose(drawing.shrink(matrix, 32), expected, atol=1e-12)
    assert drawing.shrink(RNG.random((1000, 7)), 512).shape == (512, 7)
    assert drawing.shrink(matrix, 100) is matrix


def test_dropped_patches_are_dark_and_kept_ones_untouched():
    keep = np.array([[True, False, True], [False, True, True]])
    out = drawing.darkened(IMAGE, keep)
    np.testing.assert_array_equal(out[:32, :32], IMAGE[:32, :32])
    np.testing.assert_array_equal(out[32:, 32:], IMAGE[32:, 32:])
    assert out[:32, 32:64].max() <= 39 and out[32:, :32].max() <= 39  # .15 * 255


def test_colors_of_a_map_follow_its_values(tmp_path):
    """Viridis goes from dark blue (low) to yellow (high); the PNG is whole."""
    figure = drawing.cell_grid([[Cell(np.array([[0., 1], [2, 3]]))]], ['row'], 'title', 'unit')
    FigureCanvasAgg(figure).draw()
    image = figure.axes[0].images[0]
    first, last = image.to_rgba(np.array([[0., 3]]))[0]
    np.testing.assert_allclose(first[:3], (.267, .005, .329), atol=.002)
    np.testing.assert_allclose(last[:3], (.993, .906, .144), atol=.002)
    path = drawing.save(figure, tmp_path / 'a' / 'b.png', 'a note')
    assert cv2.imread(str(path)).shape[0] > 200
