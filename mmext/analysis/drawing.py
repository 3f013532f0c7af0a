"""Figures of the analyses. Takes arrays, computes nothing but scales; see the sibling modules.

Colors: viridis for maps, the Okabe-Ito cycle for lines; both hold for color-blind readers.
"""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

COLORS = ('#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000', '#F0E442')
MARKERS = 'osD^vP*X'
CORNERS = ((1, -1), (1, 1), (-1, -1), (-1, 1))  # of a point, where its label goes
LONGEST = 512  # sides of matrices and images are reduced to this many points


def save(figure: Figure, path: Path, note: str | None = None, dpi: int = 110) -> Path:
    """Write a PNG; ``note`` is printed small below the figure."""
    if note:
        note = '\n'.join(textwrap.wrap(note, int(figure.get_figwidth() * 15)))
        figure.supxlabel(note, fontsize=7, color='0.35')
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_figure(path, format='png', dpi=dpi)
    return path


# ------------------------------------------------------------------------------- maps, matrices


class Cell(NamedTuple):
    """A panel: a map, an image, or a map over an image.

    Args:
        values: (h, w) numbers, or None.
        image: (H, W, 3) uint8, or None.
        title: above the panel.
        axes: (label of rows, label of columns) for a matrix, None for images without ticks.
        vmax: where the color scale ends; None: at the largest value.
        shape: rows and columns that the axes count, where ``values`` was reduced; else None.
    """

    values: np.ndarray | None = None
    image: np.ndarray | None = None
    title: str = ''
    axes: tuple[str, str] | None = None
    vmax: float | None = None
    shape: tuple[int, int] | None = None


def matrix_cell(matrix: np.ndarray, title: str, percentile: float = 100) -> Cell:
    """A query x key panel, reduced at once so that large matrices are not kept."""
    values = shrink(matrix)
    return Cell(values, title=title, axes=('query', 'key'), shape=matrix.shape,
                vmax=None if percentile == 100 else float(np.percentile(values, percentile)))


def shrink(matrix: np.ndarray, longest: int = LONGEST) -> np.ndarray:
    """Mean over blocks of rows and columns, so that no side exceeds ``longest``; (h, w[, c])."""
    for axis in (0, 1):
        size = matrix.shape[axis]
        if size > longest:
            starts = np.linspace(0, size, longest, endpoint=False).astype(int)
            counts = np.diff([*starts, size])
            shape = [1] * matrix.ndim
            shape[axis] = -1
            sums = np.add.reduceat(matrix, starts, axis=axis, dtype=np.float64)
            matrix = sums / counts.reshape(shape)
    return matrix


def cell_grid(rows: Sequence[Sequence[Cell]], row_labels: Sequence[str], title: str,
              unit: str, share: str = 'panel', cmap: str = 'viridis', size: float = 2.3) -> Figure:
    """Rows of panels with color bars.

    Args:
        rows: panels; rows may differ in length.
        row_labels: written before the first panel of each row.
        unit: label of the color bars.
        share: one color scale for 'panel', 'row' or 'all'.
        size: side of a panel in inches.
    """
    columns = max(len(row) for row in rows)
    maps = any(cell.values is not None for row in rows for cell in row)
    stretch = (1.35 if share == 'panel' else 1.1) if maps else 1.02
    width = max(size * columns * stretch + .8, 4.5)
    title = '\n'.join(textwrap.wrap(title, int(width * 10)))
    figure = Figure(figsize=(width, (size + .35) * len(rows) + .55), layout='constrained')
    figure.get_layout_engine().set(w_pad=.08)
    axes = figure.subplots(len(rows), columns, squeeze=False)
    everything = [cell for row in rows for cell in row]
    for row, row_axes, label in zip(rows, axes, row_labels, strict=True):
        images = []
        for cell, axis in zip(row, row_axes, strict=False):
            group = {'panel': [cell], 'row': row, 'all': everything}[share]
            images.append(_draw_cell(axis, cell, _limits(group), cmap))
            if share == 'panel' and images[-1] is not None:
                _bar(figure, images[-1], axis, cell, unit)
        for axis in row_axes[len(row):]:
            axis.set_visible(False)
        first = row_axes[0]
        first.text(-.32 if row[0].axes else -.08, .5, label, transform=first.transAxes,
                   rotation=90, va='center', ha='right', fontsize=9)
        drawn = [(image, cell) for image, cell in zip(images, row, strict=True)
                 if image is not None]
        if share == 'row' and drawn:
            _bar(figure, drawn[-1][0], row_axes[:len(row)].tolist(), drawn[-1][1], unit)
    if share == 'all' and drawn:
        _bar(figure, drawn[-1][0], axes.ravel().tolist(), drawn[-1][1], unit)
    figure.suptitle(title, fontsize=11)
    return figure


def _limits(cells: Sequence[Cell]) -> tuple[float, float]:
    maps = [cell for cell in cells if cell.values is not None]
    if not maps:
        return 0., 1.
    low = min(float(np.nanmin(cell.values)) for cell in maps)
    high = max(float(np.nanmax(cell.values)) if cell.vmax is None else cell.vmax for cell in maps)
    return (low, high) if high > low else (low - .5, low + .5)


def _draw_cell(axis, cell: Cell, limits, cmap):
    shown = None
    if cell.image is not None:
        image = shrink(cell.image) / 255
        if cell.values is not None:
            image = np.repeat(image.mean(-1, keepdims=True), 3, -1)
        axis.imshow(image)
        box = (-.5, image.shape[1] - .5, image.shape[0] - .5, -.5)
    if cell.values is not None:
        over = cell.image is not None
        height, width = cell.shape or cell.values.shape
        shown = axis.imshow(
            cell.values, cmap=cmap, vmin=limits[0], vmax=limits[1], interpolation='nearest',
            extent=box if over else (-.5, width - .5, height - .5, -.5), alpha=.7 if over else 1)
    if cell.axes is None:
        axis.set_xticks([])
        axis.set_yticks([])
    else:
        axis.set_ylabel(cell.axes[0], fontsize=8)
        axis.set_xlabel(cell.axes[1], fontsize=8)
        axis.tick_params(labelsize=7)
        axis.locator_params(nbins=5, integer=True)
    axis.set_title(cell.title, fontsize=9)
    return shown


def _bar(figure, image, axes, cell: Cell, unit: str) -> None:
    bar = figure.colorbar(image, ax=axes, fraction=.05, pad=.03, aspect=25,
                          extend='neither' if cell.vmax is None else 'max')
    bar.set_label(unit, fontsize=8)
    bar.ax.tick_params(labelsize=7)
    bar.formatter.set_powerlimits((-3, 4))
    bar.ax.yaxis.get_offset_text().set_fontsize(7)
    bar.solids.set_alpha(1)


def darkened(image: np.ndarray, keep: np.ndarray) -> np.ndarray:
    """The image (H, W, 3) with the patches that are not kept (h, w) nearly black."""
    height, width = image.shape[:2]
    rows = np.arange(height) * keep.shape[0] // height
    columns = np.arange(width) * keep.shape[1] // width
    light = np.where(keep[rows][:, columns], 1, .15)[..., None]
    return (image * light).astype(np.uint8)


# --------------------------------------------------------------------------------- lines, clouds


class Line(NamedTuple):
    """x and y (n,), optional half width of a band around y (n,)."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] | None = None
    style: str = '-'
    color: int = 0


class Panel(NamedTuple):
    """One pair of axes of ``line_panels``."""

    lines: Sequence[Line]
    title: str
    ylabel: str
    zero: bool = False  # a line at y = 0
    level: tuple[float, str] | None = None  # a labeled horizontal line


def line_panels(panels: Sequence[Panel], xlabel: str, title: str = '') -> Figure:
    """Panels side by side over one x axis, usually the depth."""
    figure = Figure(figsize=(5.2 * len(panels), 4), layout='constrained')
    for axis, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for line in panel.lines:
            x, y = np.asarray(line.x, float), np.asarray(line.y, float)
            color = COLORS[line.color % len(COLORS)]
            axis.plot(x, y, line.style, color=color, label=line.label, markersize=4,
                      marker=MARKERS[line.color % len(MARKERS)], linewidth=1.5)
            if line.spread is not None:
                spread = np.asarray(line.spread, float)
                axis.fill_between(x, y - spread, y + spread, color=color, alpha=.15, linewidth=0)
        if panel.zero:
            axis.axhline(0, color='0.6', linewidth=.8)
        if panel.level is not None:
            axis.axhline(panel.level[0], color='0.4', linewidth=.8, linestyle=':',
                         label=panel.level[1])
        axis.set_title(panel.title, fontsize=10)
        axis.set_xlabel(xlabel)
        axis.set_ylabel(panel.ylabel)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=.25)
        if len(panel.lines) <= 4:
            axis.legend(fontsize=8)
        else:  # below the panel, where it hides nothing
            columns = 3 if max(len(line.label) for line in panel.lines) < 20 else 2
            axis.legend(fontsize=8, loc='upper center', bbox_to_anchor=(.5, -.17), ncols=columns)
    if title:
        figure.suptitle(title, fontsize=11)
    return figure


def scatter_grid(clouds: Sequence[Sequence[tuple[np.ndarray, np.ndarray, float]]],
                 titles: Sequence[str], xlabel: str, ylabels: Sequence[str], title: str) -> Figure:
    """Rows of clouds (x, y, r), one column a layer; r is written into each panel."""
    rows, columns = len(clouds), len(titles)
    figure = Figure(figsize=(max(2.5 * columns + .6, 4.5), 2.4 * rows + .7), layout='constrained')
    axes = figure.subplots(rows, columns, squeeze=False)
    for i, (row, ylabel) in enumerate(zip(clouds, ylabels, strict=True)):
        for axis, (x, y, r), name in zip(axes[i], row, titles, strict=True):
            axis.scatter(x, y, s=6, alpha=.6, color=COLORS[i], linewidths=0)
            axis.set_title(f'{name}\nr = {r:.2f}' if i == 0 else f'r = {r:.2f}', fontsize=9)
            axis.tick_params(labelsize=7)
            axis.ticklabel_format(axis='both', scilimits=(-2, 3))
            for side in (axis.xaxis, axis.yaxis):
                side.get_offset_text().set_fontsize(7)
            axis.locator_params(nbins=4)
            axis.grid(alpha=.25)
        axes[i][0].set_ylabel(ylabel, fontsize=8)
    for axis in axes[-1]:
        axis.set_xlabel(xlabel, fontsize=8)
    figure.suptitle(title, fontsize=11)
    return figure


class Point(NamedTuple):
    """One setting of a model in ``frontier``."""

    family: str
    label: str
    x: dict[str, float]  # axis label -> value
    y: float
    spread: dict[str, tuple[float, float]] = {}  # axis label -> low and high end of a bar


def frontier(points: Sequence[Point], ylabel: str, title: str) -> Figure:
    """One panel per axis label of the points' x; settings of a family joined as given."""
    labels = list(points[0].x)
    figure = Figure(figsize=(6 * len(labels), 4.8), layout='constrained')
    families = list(dict.fromkeys(point.family for point in points))
    for axis, xlabel in zip(figure.subplots(1, len(labels), squeeze=False)[0], labels, strict=True):
        for i, family in enumerate(families):
            group = [p for p in points if p.family == family]
            axis.plot([p.x[xlabel] for p in group], [p.y for p in group], '-',
                      marker=MARKERS[i % len(MARKERS)], color=COLORS[i % len(COLORS)],
                      label=family, markersize=6, linewidth=1.2)
            for p in group:
                axis.hlines(p.y, *p.spread.get(xlabel, (p.x[xlabel], p.x[xlabel])), alpha=.4,
                            color=COLORS[i % len(COLORS)])
                across, up = CORNERS[i % len(CORNERS)]
                axis.annotate(
                    p.label, (p.x[xlabel], p.y), fontsize=7, xytext=(5 * across, 6 * up),
                    textcoords='offset points', color=COLORS[i % len(COLORS)],
                    ha='left' if across > 0 else 'right', va='bottom' if up > 0 else 'top')
        axis.margins(x=.15, y=.12)
        axis.set_xlabel(xlabel)
        axis.set_ylabel(ylabel)
        axis.grid(alpha=.25)
        axis.legend(fontsize=8, loc='upper center', bbox_to_anchor=(.5, -.15), ncols=3)
    figure.suptitle(title, fontsize=11)
    return figure
