"""What tools/analysis_tools/membership_maps.py draws and computes."""

from mmext.analysis.drawing import Cell, cell_grid
from mmext.analysis.membership import support_sizes, to_grid
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

KINDS = {'membership': 'Π', 'gate': 'gate G'}


def run(args) -> None:
    check_results(args, 'membership_maps', of_images=['membership'])
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
