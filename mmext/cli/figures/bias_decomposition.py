"""What tools/analysis_tools/bias_decomposition.py draws and computes."""

import numpy as np

from mmext.analysis.attention import bias_share
from mmext.analysis.drawing import Cell, cell_grid, darkened, matrix_cell
from mmext.analysis.membership import to_grid
from mmext.cli.analysis import (
    batches,
    check_results,
    chosen_heads,
    layers_of,
    report,
    shown_layers,
    subjects,
    under,
    write_figure,
)
from mmext.cli.launch import set_keep_ratio


def parts(logits: np.ndarray, bias: np.ndarray) -> list[np.ndarray]:
    """q k^T (N, N), 1 b^T (N, N) and their sum."""
    columns = np.broadcast_to(bias, logits.shape)
    return [logits, columns, logits + columns]


def run(args) -> None:
    check_results(args, 'bias_decomposition', of_images=['decomposition', 'kept'])
    [subject] = subjects(args)
    if 'keep_ratio' in args:
        set_keep_ratio(subject.backbone, args.keep_ratio)
    layers, numbers, figures = shown_layers(args, subject.backbone), {}, []
    for batch in batches(args, subject):
        matrices, kept = {}, {}
        for layer in layers_of(subject, batch.inputs, layers, ['logits', 'bias', 'kept']):
            share = bias_share(layer.tensors)
            for i, logits in enumerate(layer.tensors['logits']):
                name = batch.names[layer.first + i]
                bias, keep = layer.tensors['bias'][i], layer.tensors['kept'][i]
                for head in chosen_heads(args, len(logits), [0]):
                    titles = ('q kᵀ / √d', 'key bias 1 bᵀ', 'sum')
                    three = parts(logits[head].float().cpu().numpy(),
                                  bias[head].float().cpu().numpy())
                    matrices.setdefault(name, {})[f'block {layer.index}, head {head}'] = [
                        matrix_cell(*pair) for pair in zip(three, titles, strict=True)]
                    numbers.setdefault(name, []).append({
                        'layer': layer.index, 'head': head, 'tokens': keep.shape[-1],
                        'share_of_bias_in_row_variance': share[i, head],
                        'kept_columns': keep[head].nonzero().squeeze(1)})
                image = under(layer, batch, subject, i)
                grids = to_grid(keep, layer.hw).cpu().numpy()
                kept.setdefault(name, {})[f'block {layer.index}'] = [
                    Cell(image=darkened(image, grids[head]),
                         title=f'head {head}: {int(keep[head].sum())} of {keep.shape[-1]}')
                    for head in chosen_heads(args, len(logits))]
        for name, rows in matrices.items():
            figure = cell_grid(list(rows.values()), list(rows), f'Logits of {name}', 'logit',
                               share=args.scale)
            figures.append(write_figure(args, [subject], figure, f'decomposition_{name}'))
            rows = kept[name]
            figure = cell_grid(list(rows.values()), list(rows),
                               f'{name}: columns kept by the key bias', '', size=1.9)
            figures.append(write_figure(args, [subject], figure, f'kept_{name}'))
    report(args, 'bias_decomposition', [subject], {'images': numbers}, figures)
