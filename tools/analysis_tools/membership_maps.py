"""Memberships and gates as heat maps over the image (Fig. 6 of the DMST paper).

One figure an image: for every layer a row with the K membership maps Pi and a row with the K gates
G, titled with the share of the tokens in the support. Panels have their own color scale, as in the
paper; --scale row shares one.

Example:
    python tools/analysis_tools/membership_maps.py CONFIG CKPT --images photos --layers -1
"""

from mmext.analysis.drawing import Cell, cell_grid
from mmext.analysis.membership import support_sizes, to_grid
from mmext.cli.analysis import (
    batches,
    chosen_heads,
    layers_of,
    parser,
    report,
    shown_layers,
    subjects,
    under,
    write_figure,
)
from mmext.cli.launch import one_clear_error

KINDS = {'membership': 'Π', 'gate': 'gate G'}


def main(argv=None):
    command = parser(__doc__, num_images=2)
    command.add_argument('--scale', choices=['row', 'panel'], default='panel')
    args = command.parse_args(argv)
    [subject] = subjects(args)
    layers, rows, numbers, figures = shown_layers(args, subject.backbone), {}, {}, []
    for batch in batches(args, subject):
        for layer in layers_of(subject, batch.inputs, layers, ['membership']):
            for i in range(len(layer.tensors['membership'])):
                name = batch.names[layer.first + i]
                image = under(layer, batch, subject, i)
                entry = {'layer': layer.index}
                for kind, symbol in KINDS.items():
                    if kind not in layer.tensors:
                        continue
                    values = layer.tensors[kind][i].double()
                    of_head, of_token = support_sizes(values[None])
                    grids = to_grid(values, layer.hw).cpu().numpy()
                    heads = chosen_heads(args, len(values))
                    share = of_head[0] / values.shape[-1]
                    rows.setdefault(name, {})[f'block {layer.index}\n{symbol}'] = [
                        Cell(image=image, title=name if len(name) < 16 else name[:15] + '…'),
                        *(Cell(grids[head], image, title=f'head {head}: {share[head]:.0%}'
                               if kind == 'gate' else f'head {head}') for head in heads)]
                    entry[kind] = {
                        'mean_of_head': values.mean(-1),
                        'support_of_head_in_tokens': of_head[0],
                        'mean_heads_open_to_a_token': of_token.double().mean()}
                numbers.setdefault(name, []).append(entry)
        for name in batch.names:
            cells = list(rows[name].values())
            figure = cell_grid(cells, list(rows[name]), 'Memberships and gates (in the titles: '
                               'share of the tokens in the support)', '', share=args.scale, size=2)
            figures.append(write_figure(args, [subject], figure, f'membership_{name}'))
    report(args, 'membership_maps', [subject], {'images': numbers}, figures)


if __name__ == '__main__':
    with one_clear_error():
        main()
